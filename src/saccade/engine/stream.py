"""Run a model over many examples: read in parallel, in batches, in order, with errors in place."""

import atexit
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain, islice
from queue import SimpleQueue
from time import monotonic
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from saccade.engine.engine import available
from saccade.errors import DataError, NotFiniteError, SaccadeError, check_number

Arrays = dict[str, np.ndarray]
"""The inputs or outputs of a graph by name, batch first; those of one example have no batch axis."""
A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)

# Each worker reads its own batch and computes it on one core. Measured with ViT-Ti on two busy cores, in
# milliseconds per image: 54 this way, 149 with one thread that reads and both cores computing each batch,
# because the cores wait for each other after every layer (OpenVINO 22 and 30, ONNX Runtime 26 and 42).
# Threads do as well as processes, which take seconds to start and a copy of the weights each: Pillow and the
# engines release the GIL. Preparing 200 photographs took two threads 0.54 s and two processes 0.71 s at
# 640 x 480 pixels, 0.41 s and 0.35 s at 224 x 224.
BATCH = 8
"""Examples in a batch: a core computes 4 or 8 as fast as 16, in less memory."""
AHEAD = 2
"""Batches per worker that are read ahead: one in progress and one waiting."""
ROOM = 128_000_000
"""Bytes of inputs after which a worker computes the batch it has so far."""
PROMPT = 0.5
"""Seconds of reading after which a worker computes what it has, so that a slow file delays no answers."""
PATIENCE = 5.0
"""Seconds that workers have to end when nobody wants their answers any more."""


@runtime_checkable
class StreamModel(Protocol[A_co]):
    """Weights or a graph with everything needed to answer; several threads may call it at once."""

    def prepare(self, source: Any) -> tuple[Arrays, Any]:
        """Return the inputs of one example, and what `answer` needs to map the outputs back."""
        ...

    def run(self, inputs: Arrays) -> Arrays:
        """Return the outputs of one batch."""
        ...

    def answer(self, outputs: Arrays, back: Any) -> A_co:
        """Return the answer to one example, in the example's own coordinates."""
        ...

    def example(self, batch: int) -> Arrays:
        """Return synthetic inputs, for timing and export."""
        ...


def stream(
    model: StreamModel[A], sources: Iterable[Any], batch: int = BATCH, workers: int | None = None
) -> Generator[A | SaccadeError, None, None]:
    """Yield an answer to each source, in order; one that cannot be read gives its error instead.

    Sources are read lazily, `AHEAD` batches per worker before their answers are taken. A single batch is
    computed right here, on all cores. Close the generator to stop the workers early.

    Args:
        workers: Threads that read and compute; default: one per core. 0 does everything in this thread.
    """
    check_number("batch", batch, 1, 10**6)
    waiting = iter(sources)
    first = list(islice(waiting, batch + 1))
    count = available() if workers is None else workers
    rest = _batches(chain(first, waiting), batch)
    if count == 0 or len(first) <= batch:
        for part in rest:
            yield from _answers(model, part, lambda: False)
    else:
        yield from _parallel(model, rest, count)


def _batches(sources: Iterator[Any], batch: int) -> Iterator[list[Any]]:
    while part := list(islice(sources, batch)):
        yield part


class _StoppedError(Exception):
    """Nobody waits for these answers any more."""


def _answers(
    model: StreamModel[A], sources: list[Any], stopped: Callable[[], bool]
) -> Iterator[A | SaccadeError]:
    """Yield the answers to one batch, in order; examples of different shapes are computed separately."""
    answers: dict[int, A | SaccadeError] = {}
    groups: dict[object, list[tuple[int, Arrays, Any]]] = {}
    held, since, given = 0, monotonic(), 0
    for number, source in enumerate(sources):
        if stopped():
            raise _StoppedError
        try:
            inputs, back = model.prepare(source)
        except DataError as error:
            answers[number] = error
        else:
            shapes = tuple((key, each.shape, each.dtype.str) for key, each in inputs.items())
            groups.setdefault(shapes, []).append((number, inputs, back))
            held += sum(each.nbytes for each in inputs.values())
        if number + 1 == len(sources) or held > ROOM or monotonic() - since > PROMPT:
            for group in groups.values():
                if stopped():
                    raise _StoppedError
                answers |= _computed(model, group)
            groups.clear()
            held, since = 0, monotonic()
        while given in answers:
            yield answers.pop(given)
            given += 1


def _computed(model: StreamModel[A], group: list[tuple[int, Arrays, Any]]) -> dict[int, A | SaccadeError]:
    """Return the answers to examples of equal shape by number."""
    answers: dict[int, A | SaccadeError] = {}
    outputs = model.run({key: np.stack([inputs[key] for _, inputs, _ in group]) for key in group[0][1]})
    for row, (number, _, back) in enumerate(group):
        try:
            answers[number] = model.answer({key: each[row] for key, each in outputs.items()}, back)
        except (DataError, NotFiniteError) as error:
            answers[number] = error
    return answers


class _Task:
    """One batch for a worker, and its answers as they come."""

    def __init__(self, sources: list[Any]) -> None:
        self.sources, self.done = sources, False
        self.answers = SimpleQueue[tuple[Any, BaseException | None]]()

    def work(self, model: StreamModel[Any], stopped: Callable[[], bool]) -> None:
        """Answer all sources, in a worker."""
        try:
            for answer in _answers(model, self.sources, stopped):
                self.answers.put((answer, None))
        except BaseException as error:  # raised where the answers are taken
            self.answers.put((None, error))
        self.done = True

    def take(self) -> Iterator[Any]:
        """Wait for all answers."""
        for _ in self.sources:
            answer, error = self.answers.get()
            if error is not None:
                raise error
            yield answer


class _Workers:
    """Threads that work on batches, each on a core of its own."""

    def __init__(self, model: StreamModel[Any], count: int) -> None:
        self.model, self.stopped = model, threading.Event()
        self.tasks = SimpleQueue[_Task | None]()
        self.ready = threading.Barrier(count + 1)
        torch: Any = sys.modules.get("torch")
        before = 0 if torch is None else torch.get_num_threads()
        self.threads = [
            threading.Thread(target=self._work, name=f"saccade-stream-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self.threads:
            thread.start()
        self.ready.wait()
        if torch is not None:  # what the workers set for themselves is also the default of new threads
            torch.set_num_threads(before)

    def _work(self) -> None:
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            torch.get_num_threads()  # the first call in a thread sets the default, as late as possible
            torch.set_num_threads(1)
        self.ready.wait()
        while (task := self.tasks.get()) is not None:
            task.work(self.model, self.stopped.is_set)
            del task  # an idle worker keeps nothing alive

    def close(self) -> None:
        """Stop the threads; one that hangs in compiled code is abandoned."""
        self.stopped.set()
        for _ in self.threads:
            self.tasks.put(None)
        end = monotonic() + PATIENCE
        for thread in self.threads:
            thread.join(max(0.0, end - monotonic()))
        if left := [thread for thread in self.threads if thread.is_alive()]:
            # Python's shutdown would crash compiled code that still runs
            atexit.register(lambda: os._exit(130) if any(each.is_alive() for each in left) else None)


def _parallel(model: StreamModel[A], batches: Iterator[list[Any]], count: int) -> Iterator[A | SaccadeError]:
    workers = _Workers(model, count)
    pending: deque[_Task] = deque()
    try:
        for part in batches:
            pending.append(_Task(part))
            workers.tasks.put(pending[-1])
            while pending and (pending[0].done or len(pending) >= AHEAD * count):
                yield from pending.popleft().take()
        while pending:
            yield from pending.popleft().take()
    finally:
        workers.close()
