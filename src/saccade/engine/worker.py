"""A model on an engine in a process of its own.

Engines keep threads and memory, and the peak of such a process is what one needs to run the model alone.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from saccade.engine.engine import brief
from saccade.engine.subject import Subject
from saccade.errors import ModelError, ResourceError, SaccadeError, UsageError

Say = Callable[[str], None]


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
    from saccade.engine.select import open_engine

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
