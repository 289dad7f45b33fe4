"""How fast a model answers on this machine: every engine in a process of its own, all of them in turns.

A process of its own, because engines keep threads and memory, and because its peak is then what one needs to
run the model alone. In turns, because the machine is never quiet: a slow moment hits all of them.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

from saccade.data.decode import decode
from saccade.data.images import Images
from saccade.data.transform import Preprocess
from saccade.engine.engine import brief
from saccade.engine.subject import Subject
from saccade.errors import DataError, ModelError, ResourceError, SaccadeError, UsageError

LEAST, MOST = 7, 300
SIDE = 1024
"""Of the matrices whose product tells what the machine can do at best."""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One model on one engine with so many pictures at once."""

    model: str
    engine: str
    batch: int
    p50: float
    """Seconds for a batch."""
    p95: float
    rate: float
    """Pictures a second, by the median."""
    memory: int
    """Most bytes that the whole process has held so far."""
    macs: int
    share: float
    """Of what a large product of matrices reaches here; 0 if the multiply-accumulates are not known."""
    rounds: int
    right: float = -1.0
    """The share of labelled pictures that were answered rightly; -1 if none were given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Before:
    """Seconds for one picture before a model sees it."""

    decode: float
    preprocess: float
    pictures: int
    told: str
    """Which pictures."""


def peak(seconds: float = 1.0) -> float:
    """Multiply-accumulates a second in the best of many products of large matrices."""
    a, b = np.random.default_rng(0).random((2, SIDE, SIDE), dtype=np.float32)
    taken: list[float] = []
    began = time.perf_counter()
    while len(taken) < LEAST or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        a @ b
        taken.append(time.perf_counter() - start)
    return SIDE**3 / min(taken)


def before(preprocess: Preprocess, pictures: Sequence[bytes], told: str) -> Before:
    """What reading and fitting pictures costs, one after another; those that cannot be read are left out."""
    decoding, fitting = [], []
    for data in pictures:
        start = time.perf_counter()
        try:
            picture = decode(data)
        except DataError:
            continue
        middle = time.perf_counter()
        preprocess(picture)
        decoding.append(middle - start)
        fitting.append(time.perf_counter() - middle)
    if not decoding:
        raise DataError("none of the pictures could be read; expected one or more to be measured on")
    return Before(decode=median(decoding), preprocess=median(fitting), pictures=len(decoding), told=told)


def photograph(height: int = 375, width: int = 500) -> bytes:
    """A JPEG as large as ImageNet's are on average, of blurred noise: for whoever gives no picture."""
    noise = np.random.default_rng(0).integers(0, 256, (height // 8, width // 8, 3)).astype(np.uint8)
    file = BytesIO()
    Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def _held() -> int:
    """Most bytes that this process has held."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
    except (OSError, StopIteration):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _random(subject: Subject, batch: int) -> np.ndarray:
    """Pictures of noise, as the model takes them."""
    chance, size = np.random.default_rng(0), subject.preprocess.size
    if subject.takes == "bytes":
        return chance.integers(0, 256, (batch, *size, 3)).astype(np.uint8)
    return chance.standard_normal((batch, 3, *size), dtype=np.float32)


def _work(subject: Subject, name: str, batches: Sequence[int], pipe: Connection) -> None:
    """Open an engine and try it, then do what one is told until the pipe closes or something fails."""
    from saccade.engine.choose import open_engine

    try:
        engine = open_engine(subject.path, name, batches[-1], subject.preprocess.size)
        inputs = {batches[0]: _random(subject, batches[0])}
        engine.run(inputs[batches[0]])  # an engine that compiles does so, or fails to, at its first batch
        pipe.send(engine.name)
        while True:
            asked: Any = pipe.recv()
            if isinstance(asked, int):
                if asked not in inputs:
                    inputs = {asked: _random(subject, asked)}
                    engine.run(inputs[asked])
                start = time.perf_counter()
                engine.run(inputs[asked])
                pipe.send((time.perf_counter() - start, _held()))
            else:
                pipe.send(engine.run(asked).argmax(-1))
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:  # each engine has its own kinds
        pipe.send(error if isinstance(error, SaccadeError) else UsageError(brief(error)))


class Worker:
    """An engine in a process of its own."""

    def __init__(self, subject: Subject, engine: str, batches: Sequence[int]) -> None:
        self.subject = subject
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_work, args=(subject, engine, batches, other), daemon=True)
        self.process.start()
        other.close()
        self.engine = str(self._answer())

    def _answer(self) -> Any:
        try:
            found = self.pipe.recv()
        except EOFError:
            raise ResourceError(
                f"the process that ran {self.subject.name} has ended before it answered; is the memory full?"
            ) from None
        if isinstance(found, SaccadeError):
            raise found
        return found

    def time(self, batch: int) -> tuple[float, int]:
        """Seconds for a batch, and the most bytes held so far."""
        self.pipe.send(batch)
        found: tuple[float, int] = self._answer()
        return found

    def answer(self, pixels: np.ndarray) -> np.ndarray:
        """The likeliest class of each picture."""
        self.pipe.send(pixels)
        found: np.ndarray = self._answer()
        return found

    def close(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.terminate()


@contextmanager
def working(
    subjects: Sequence[Subject], names: dict[str, list[str]], batches: Sequence[int], say: Say
) -> Iterator[list[Worker]]:
    """A process for each model and engine; one that cannot run a model is left out with a sentence.

    Args:
        batches: how many pictures at once will be asked for, from few to many.
    """
    with ExitStack() as stack:
        found: list[Worker] = []
        failures: list[SaccadeError] = []
        for subject in subjects:
            for name in names[subject.name]:
                say(f"opening {subject.name} on {name}")
                try:
                    worker = Worker(subject, name, batches)
                except SaccadeError as error:
                    say(f"note: {subject.name} on {name} is left out: {error}")
                    failures.append(error)
                    continue
                stack.callback(worker.close)
                found.append(worker)
        if not found:
            raise next(
                (error for error in failures if isinstance(error, ModelError)),
                UsageError("no engine could run any of the models; see the notes above"),
            )
        yield found


def cells(workers: Sequence[Worker], batches: Sequence[int], seconds: float, most: float) -> list[Cell]:
    """Measure all workers, in turns; `most` is what `peak` gave."""
    made = []
    for batch in batches:
        taken: list[list[float]] = [[] for _ in workers]
        held = [0] * len(workers)
        for worker in workers:
            worker.time(batch)
        began = time.perf_counter()
        for number in range(MOST):
            if number >= LEAST and time.perf_counter() - began > seconds * len(workers):
                break
            for i in range(len(workers)) if number % 2 else reversed(range(len(workers))):
                spent, held[i] = workers[i].time(batch)
                taken[i].append(spent)
        made += [
            _cell(worker, batch, sorted(row), size, most)
            for worker, row, size in zip(workers, taken, held, strict=True)
        ]
    return made


def _cell(worker: Worker, batch: int, taken: list[float], memory: int, most: float) -> Cell:
    middle, rate = median(taken), batch / median(taken)
    return Cell(
        model=worker.subject.name,
        engine=worker.engine,
        batch=batch,
        p50=middle,
        p95=taken[min(len(taken) - 1, int(0.95 * len(taken)))],
        rate=rate,
        memory=memory,
        macs=worker.subject.macs,
        share=worker.subject.macs * rate / most,
        rounds=len(taken),
    )


def scored(workers: Sequence[Worker], images: Images, batch: int = 16) -> list[float]:
    """The share of labelled pictures that each worker answers rightly; each is read once for all of them."""
    known = [images.relabel(worker.subject.labels).labels for worker in workers]
    right, seen = [0] * len(workers), 0
    for first in range(0, len(images), batch):
        numbers, sources = [], []
        for i in range(first, min(first + batch, len(images))):
            with suppress(DataError):
                sources.append(decode(images.read(i)))
                numbers.append(i)
        if not sources:
            continue
        made: dict[str, np.ndarray] = {}
        for i, worker in enumerate(workers):
            key = repr(worker.subject.preprocess)
            if worker.subject.takes == "bytes":
                answers = np.concatenate([worker.answer(np.asarray(source)[None]) for source in sources])
            else:
                if key not in made:
                    made[key] = worker.subject.preprocess.batch(sources)
                answers = worker.answer(made[key])
            right[i] += int((answers == known[i][numbers]).sum())
        seen += len(numbers)
    if not seen:
        raise DataError("no picture could be read; expected one or more to be scored on")
    return [hits / seen for hits in right]


def machine() -> str:
    """The processor by name, and how many threads it runs."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        import platform

        name = platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} threads"
