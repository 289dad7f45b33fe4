import threading
import time
import tracemalloc

import numpy as np
import pytest
import torch

from saccade.engine import stream as streaming
from saccade.engine.stream import BATCH, StreamModel, stream
from saccade.errors import DataError, ModelError, NotFiniteError, SaccadeError, UsageError


class Doubles:
    """Answers twice a number, as slowly and in as many shapes as it is told."""

    def __init__(self, sides=(3,), pause=0.0):
        self.sides, self.pause = sides, pause
        self.batches, self.threads, self.cores = [], set(), set()

    def prepare(self, source):
        if source < 0:
            raise DataError(f"{source} cannot be read")
        time.sleep(self.pause * (source * 7 % 5))
        return {"x": np.full(self.sides[source % len(self.sides)], source, np.float32)}, source

    def run(self, inputs):
        self.batches.append(inputs["x"].shape)
        self.threads.add(threading.current_thread().name)
        self.cores.add(torch.get_num_threads())
        return {"y": inputs["x"].sum(-1) / inputs["x"].shape[-1] * 2}

    def answer(self, outputs, back):
        if back == 13:
            raise NotFiniteError("13 overflows")
        return float(outputs["y"]), back

    def example(self, batch):
        return {"x": np.zeros((batch, 3), np.float32)}


def ours():
    return [thread for thread in threading.enumerate() if thread.name.startswith("saccade-stream")]


@pytest.mark.parametrize("workers", [None, 0, 1, 2, 5])
@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 8, 9, 41])
def test_the_order_is_kept_whatever_the_delays_and_shapes(workers, batch, count):
    model = Doubles(sides=(2, 3, 5), pause=0.001)
    found = list(stream(model, iter(range(100, 100 + count)), batch, workers))
    assert found == [(2.0 * i, i) for i in range(100, 100 + count)]
    assert all(rows <= batch for rows, _ in model.batches)
    assert isinstance(model, StreamModel)


def test_examples_of_equal_shape_share_a_batch():
    model = Doubles(sides=(2, 3))
    list(stream(model, range(16), batch=8, workers=2))
    assert sorted(model.batches) == [(4, 2), (4, 2), (4, 3), (4, 3)]


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_stand_in_the_place_of_their_example(workers):
    sources = [5, -1, 13, -2, *range(20, 40), -3]
    found = list(stream(Doubles(), sources, workers=workers))
    assert [str(each) for each in found if isinstance(each, SaccadeError)] == [
        "-1 cannot be read", "13 overflows", "-2 cannot be read", "-3 cannot be read",
    ]  # fmt: skip
    assert [i for i, each in enumerate(found) if isinstance(each, SaccadeError)] == [1, 2, 3, 24]


def test_nothing_but_errors_is_answered_too():
    model = Doubles()
    assert len(list(stream(model, [-1] * 30, workers=2))) == 30
    assert model.batches == []


@pytest.mark.parametrize("count", [3, 30])
def test_a_model_that_fails_raises_after_the_answers_before_it(count):
    class Breaks(Doubles):
        def run(self, inputs):
            if inputs["x"].max() >= count - 1:
                raise ModelError("the graph is broken")
            return super().run(inputs)

    found = []
    with pytest.raises(ModelError, match="the graph is broken"):
        found.extend(stream(Breaks(), range(count), batch=2, workers=2))
    assert not ours()


def test_sources_are_read_lazily_and_only_a_little_ahead():
    read = 0

    def sources():
        nonlocal read
        while True:
            yield read
            read += 1

    answers = stream(Doubles(), sources(), batch=4, workers=2)
    for number in range(1, 50):
        next(answers)
        assert read <= number + 4 * (streaming.AHEAD * 2 + 1)
    answers.close()


def test_a_consumer_that_stops_early_leaves_no_thread():
    answers = stream(Doubles(pause=0.001), iter(range(10**9)), workers=3)
    assert next(answers) == (0.0, 0)
    assert len(ours()) == 3
    answers.close()
    assert not ours()
    for number, _ in enumerate(stream(Doubles(), range(1000), workers=2)):
        if number == 20:
            break
    assert not ours()


def test_sources_that_raise_stop_the_workers():
    def sources():
        yield from range(30)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(stream(Doubles(), sources(), workers=2))
    assert not ours()


def test_a_single_batch_starts_no_thread():
    model = Doubles()
    list(stream(model, range(BATCH)))
    assert model.threads == {threading.current_thread().name}
    list(stream(model, range(BATCH + 1), workers=1))
    assert model.threads == {threading.current_thread().name, "saccade-stream-0"}


def test_workers_compute_on_one_core_each_and_others_keep_theirs():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        model = Doubles()
        list(stream(model, range(40), workers=2))
        assert model.cores == {1}
        found = []
        thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert [torch.get_num_threads(), *found] == [3, 3]
    finally:
        torch.set_num_threads(before)


def test_a_slow_file_does_not_hold_back_the_answers_before_it(monkeypatch):
    monkeypatch.setattr(streaming, "PROMPT", 0.05)
    hold = threading.Event()

    class Slow(Doubles):
        def prepare(self, source):
            if source == 3:
                time.sleep(0.1)
            if source == 5:
                assert hold.wait(30)
            return super().prepare(source)

    answers = stream(Slow(), range(20), batch=8, workers=1)
    assert [next(answers)[1] for _ in range(4)] == [0, 1, 2, 3]
    hold.set()
    rest = [each for each in answers if not isinstance(each, SaccadeError)]
    assert [back for _, back in rest] == [4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 19]


def test_large_examples_are_computed_in_smaller_batches(monkeypatch):
    monkeypatch.setattr(streaming, "ROOM", 4 * 1000 * 3 - 1)
    model = Doubles(sides=(1000,))
    assert len(list(stream(model, range(10), batch=8, workers=1))) == 10
    assert max(rows for rows, _ in model.batches) == 3


def test_memory_does_not_grow_with_the_number_of_examples():
    def peak(count):
        tracemalloc.start()
        for _ in stream(Doubles(sides=(100_000,)), iter(range(count)), batch=2, workers=2):
            pass
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    few = peak(30)
    assert peak(300) < 1.5 * few


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(UsageError, match="batch is 0; expected a number from 1"):
        list(stream(Doubles(), [1], batch=0))
