"""A model on an engine in its own process, for `saccade bench`.

Engines keep threads and memory; the peak of such a process is what it takes to run the model alone.
"""

import multiprocessing
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from saccade.data.image.preprocess import Preprocess
from saccade.engine.engine import OUTPUTS, Arrays, first_line
from saccade.engine.native import check_finite
from saccade.engine.timing import stopwatch
from saccade.errors import ModelError, ResourceError, SaccadeError, UsageError

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchModel:
    """A model to be measured: a model folder, another library's weights, or an exported folder."""

    name: str
    path: Path
    preprocess: Preprocess
    task: str = ""
    labels: tuple[str, ...] = ()
    macs: int = 0
    """Multiply-accumulates for an image; 0 if unknown."""
    takes: str = "floats"
    """floats, or bytes: a graph that does the preprocessing itself, one image at a time."""
    outputs: Mapping[str, float] = field(default_factory=lambda: dict(OUTPUTS))
    """The outputs of its graph, each with its tolerance."""


def _peak_memory() -> int:
    """Return the peak bytes of this process."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
    except (OSError, StopIteration):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _noise(model: BenchModel, batch: int) -> np.ndarray:
    """Return a batch of noise as the model takes it."""
    random, size = np.random.default_rng(0), model.preprocess.size
    if model.takes == "bytes":
        return random.integers(0, 256, (batch, *size, 3)).astype(np.uint8)
    return random.standard_normal((batch, 3, *size), dtype=np.float32)


def _work(model: BenchModel, name: str, batches: Sequence[int], pipe: Connection) -> None:
    """Open an engine and try it; then serve requests until the pipe closes or something fails."""
    from saccade.engine.select import open_engine

    try:
        engine = open_engine(model.path, name, batches[-1], model.preprocess.size, outputs=model.outputs)
        inputs = {batches[0]: _noise(model, batches[0])}
        check_finite(engine.run(inputs[batches[0]]))  # an engine compiles, or fails to, at its first batch
        pipe.send(engine.name)
        while True:
            request: Any = pipe.recv()
            if isinstance(request, int):  # a batch size: time it
                if request not in inputs:
                    inputs = {request: _noise(model, request)}
                    engine.run(inputs[request])
                pipe.send((stopwatch(partial(engine.run, inputs[request]))(), _peak_memory()))
            else:  # images: answer them
                pipe.send(engine.arrays(request))
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:  # each engine has its own exceptions
        if isinstance(error, MemoryError):
            error = ResourceError("the machine is out of memory; use a smaller model or --batch")
        pipe.send(error if isinstance(error, SaccadeError) else UsageError(first_line(error)))


class Worker:
    """An engine in its own process."""

    def __init__(self, model: BenchModel, engine: str, batches: Sequence[int]) -> None:
        self.model, self._turn = model, threading.Lock()
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_work, args=(model, engine, batches, other), daemon=True)
        self.process.start()
        other.close()
        self.memory = 0
        """Peak bytes of the process so far."""
        self.name = str(self._receive())
        """Name of the engine."""

    def _receive(self) -> Any:
        try:
            found = self.pipe.recv()
        except EOFError:
            raise ResourceError(
                f"the process that ran {self.model.name} ended before it answered; is the memory full?"
            ) from None
        if isinstance(found, SaccadeError):
            raise found
        return found

    def time(self, batch: int) -> float:
        """Return the seconds for a batch of this size, measured in the process."""
        self.pipe.send(batch)
        seconds, self.memory = self._receive()
        return float(seconds)

    def arrays(self, pixels: np.ndarray) -> Arrays:
        """Return all outputs of a batch by name; several threads may ask, one after another."""
        with self._turn:
            self.pipe.send(pixels)
            found: Arrays = self._receive()
        return found

    def run(self, pixels: np.ndarray) -> np.ndarray:
        """Return the first output of a batch."""
        return next(iter(self.arrays(pixels).values()))

    def close(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.terminate()


@contextmanager
def open_workers(
    models: Sequence[BenchModel], names: dict[str, list[str]], batches: Sequence[int], say: Say
) -> Iterator[list[Worker]]:
    """Start a process per model and engine; leave out, with a note, an engine that cannot run a model.

    Args:
        batches: Batch sizes to come, in ascending order.
    """
    with ExitStack() as stack:
        found: list[Worker] = []
        failures: list[SaccadeError] = []
        for model in models:
            for name in names[model.name]:
                say(f"opening {model.name} on {name}")
                try:
                    worker = Worker(model, name, batches)
                except SaccadeError as error:
                    say(f"note: {model.name} on {name} is left out: {error}")
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
