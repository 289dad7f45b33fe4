"""Run an engine's native code so that it can be interrupted, fits in memory and fails with a message."""

import atexit
import os
import resource
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import numpy as np

from saccade.engine.engine import LOGITS, Arrays, first_line
from saccade.errors import ModelError, ResourceError, SaccadeError, not_finite
from saccade.wording import printable

T = TypeVar("T")
MEMORY = (
    "bad_alloc",
    "allocate memory",
    "out of memory",
    "bad allocation",
    "failed to allocate",
    "length_error",
)
"""What the engines' messages say when memory runs out."""
PATIENCE = 5.0
"""Seconds that native code has to end after an interrupt."""
INTERRUPTED = 130


def _bytes(path: str, *names: str) -> int:
    """Return the sum of some lines of a file in /proc."""
    lines = (line.split() for line in Path(path).read_text(encoding="ascii").splitlines())
    return sum(int(words[1]) * 1024 for words in lines if words[0] in names)


_limit = (float("-inf"), 0)
"""When the memory was last read, and how many bytes this process may hold in total."""


def _most() -> int:
    """Return the bytes that this process holds plus those that the machine has left; read once a second."""
    global _limit
    if time.monotonic() - _limit[0] > 1:
        free = _bytes("/proc/meminfo", "MemAvailable:", "SwapFree:")
        _limit = time.monotonic(), free + _bytes("/proc/self/status", "VmData:")
    return _limit[1]


class _WithinMemory:
    """Make allocations beyond the machine's memory fail, before the kernel kills some process.

    The limit is the whole process's: the first thread inside sets it, the last one out restores it.
    """

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)  # a child must not inherit a lock that is held

    def _reset(self) -> None:
        self.lock, self.inside = threading.Lock(), 0
        self.before: tuple[int, int] | None = None

    def __enter__(self) -> None:
        with self.lock:
            self.inside += 1
            if self.inside > 1:
                return
            self.before = None
            try:
                soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
                if (most := _most()) > 0 and not 0 <= soft <= most:
                    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
                    self.before = soft, hard
            except (OSError, ValueError):  # not Linux
                pass

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside and self.before is not None:
                resource.setrlimit(resource.RLIMIT_DATA, self.before)


_within_memory = _WithinMemory()


class _Worker:
    """A thread for native code, which would block signals in the main thread.

    All calls share it: a new thread for each would cost up to a millisecond of cold caches.
    """

    known: "_Worker | None" = None

    def __init__(self) -> None:
        self.process, self.calls = os.getpid(), SimpleQueue[Callable[[], None]]()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            self.calls.get()()

    @classmethod
    def start(cls, call: Callable[[], None]) -> None:
        """Start a call; a fork inherits no threads, so it gets a new worker."""
        if cls.known is None or cls.known.process != os.getpid():
            cls.known = cls()
        cls.known.calls.put(call)


def _wait(done: threading.Event, stop: Callable[[], object]) -> None:
    """Wait for native code; after an interrupt, ask it to stop, and abandon it if it does not."""
    try:
        done.wait()
    except BaseException:
        _Worker.known = None
        stop()
        if not done.wait(PATIENCE):  # Python's shutdown would crash it
            atexit.register(lambda: None if done.is_set() else os._exit(INTERRUPTED))
        raise


def bounded(call: Callable[[], T], doing: str, stop: Callable[[], object] = lambda: None) -> T:
    """Return what `call` returns; interrupts work while it runs, and every failure is a SaccadeError.

    Args:
        doing: The start of the message if it fails, as in "ONNX Runtime cannot read x".
        stop: Asks the call to end soon.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()  # not `Thread.join`: once interrupted, Python 3.11 thinks the thread has ended

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:  # raised below, in the thread that waits
            errors.append(error)
        finally:
            done.set()

    with _within_memory:
        if threading.current_thread() is threading.main_thread():
            _Worker.start(work)
            _wait(done, stop)
        else:
            work()
    if results:
        return results[0]
    error = errors[0]
    if isinstance(error, SaccadeError) or not isinstance(error, Exception):
        raise error
    if isinstance(error, MemoryError) or any(word in str(error).lower() for word in MEMORY):
        raise ResourceError(
            f"{doing}: it needs more memory than there is; use a smaller model or image, or a smaller batch"
        ) from error
    raise ModelError(f"{doing} ({first_line(error)}); export it again") from error


def check_ends(takes: int, found: Sequence[str], outputs: Sequence[str], what: str) -> tuple[str, ...]:
    """Return the outputs' names in the graph's order; refuse a graph with other inputs or outputs."""
    if takes != 1 or len(found) != len(outputs):
        expected = "one of each" if len(outputs) == 1 else f"one and {len(outputs)}"
        raise ModelError(
            f"{what} has {takes} inputs and {len(found)} outputs; expected {expected}; export it again"
        )
    if len(outputs) == 1:
        return tuple(outputs)
    if set(found) != set(outputs):
        raise ModelError(
            f"{what} has the outputs {printable(', '.join(found), 100)}; expected {', '.join(outputs)}; "
            f"export it again"
        )
    return tuple(found)


def check_outputs(
    names: Sequence[str], found: Sequence[object], batch: int, classes: int, what: str
) -> Arrays:
    """Return the outputs of a graph by name; refuse one that is not an array with a row per image.

    Args:
        classes: How many the logits must have; 0 if unknown.
    """
    for name, value in zip(names, found, strict=True):
        shape: tuple[int, ...] = getattr(value, "shape", ())
        dtype = getattr(value, "dtype", type(value).__name__)
        fits = len(shape) > 0 and shape[0] == batch
        if name == LOGITS:
            fits = fits and len(shape) == 2 and shape[1] == (classes or shape[1]) and shape[1] > 0
        if not isinstance(value, np.ndarray) or dtype != np.float32 or not fits:
            rest = classes or "classes" if name == LOGITS else "..."
            raise ModelError(
                f"{what} answers {batch} images with {dtype} of shape {shape}; expected float32 of shape "
                f"({batch}, {rest}); export it again"
            )
    return dict(zip(names, found, strict=True))  # type: ignore[arg-type]


def check_finite(found: np.ndarray) -> np.ndarray:
    """Return the answer; refuse it unless every number is finite."""
    if not np.isfinite(found).all():
        raise not_finite()
    return found
