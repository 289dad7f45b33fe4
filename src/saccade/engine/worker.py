"""A model on an engine in its own process, for `saccade bench`.

Engines keep threads and memory; the peak of such a process is what it takes to run the model alone.
"""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from saccade.engine.engine import brief
from saccade.engine.native import check_finite
from saccade.engine.subject import Subject
from saccade.engine.timing import stopwatch
from saccade.errors import ModelError, ResourceError, SaccadeError, UsageError

Say = Callable[[str], None]


def _peak_memory() -> int:
    """Return the peak bytes of this process."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
    except (OSError, StopIteration):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _noise(subject: Subject, batch: int) -> np.ndarray:
    """Return a batch of noise as the model takes it."""
    random, size = np.random.default_rng(0), subject.preprocess.size
    if subject.takes == "bytes":
        return random.integers(0, 256, (batch, *size, 3)).astype(np.uint8)
    return random.standard_normal((batch, 3, *size), dtype=np.float32)


def _work(subject: Subject, name: str, batches: Sequence[int], pipe: Connection) -> None:
    """Open an engine and try it; then serve requests until the pipe closes or something fails."""
    from saccade.engine.select import open_engine

    try:
        engine = open_engine(subject.path, name, batches[-1], subject.preprocess.size)
        inputs = {batches[0]: _noise(subject, batches[0])}
        check_finite(engine.run(inputs[batches[0]]))  # an engine compiles, or fails to, at its first batch
        pipe.send(engine.name)
        while True:
            request: Any = pipe.recv()
            if isinstance(request, int):  # a batch size: time it
                if request not in inputs:
                    inputs = {request: _noise(subject, request)}
                    engine.run(inputs[request])
                pipe.send((stopwatch(partial(engine.run, inputs[request]))(), _peak_memory()))
            else:  # images: classify them
                pipe.send(check_finite(engine.run(request)).argmax(-1))
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:  # each engine has its own exceptions
        if isinstance(error, MemoryError):
            error = ResourceError("the machine is out of memory; use a smaller model or --batch")
        pipe.send(error if isinstance(error, SaccadeError) else UsageError(brief(error)))


class Worker:
    """An engine in its own process."""

    def __init__(self, subject: Subject, engine: str, batches: Sequence[int]) -> None:
        self.subject = subject
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_work, args=(subject, engine, batches, other), daemon=True)
        self.process.start()
        other.close()
        self.memory = 0
        """Peak bytes of the process so far."""
        self.engine = str(self._receive())

    def _receive(self) -> Any:
        try:
            found = self.pipe.recv()
        except EOFError:
            raise ResourceError(
                f"the process that ran {self.subject.name} ended before it answered; is the memory full?"
            ) from None
        if isinstance(found, SaccadeError):
            raise found
        return found

    def time(self, batch: int) -> float:
        """Return the seconds for a batch of this size, measured in the process."""
        self.pipe.send(batch)
        seconds, self.memory = self._receive()
        return float(seconds)

    def answer(self, pixels: np.ndarray) -> np.ndarray:
        """Return the first class of each image."""
        self.pipe.send(pixels)
        found: np.ndarray = self._receive()
        return found

    def close(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.terminate()


@contextmanager
def open_workers(
    subjects: Sequence[Subject], names: dict[str, list[str]], batches: Sequence[int], say: Say
) -> Iterator[list[Worker]]:
    """Start a process per model and engine; leave out, with a note, an engine that cannot run a model.

    Args:
        batches: Batch sizes to come, in ascending order.
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
