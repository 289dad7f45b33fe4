"""A loader that outlives its workers: a batch depends on its number alone, so a new one goes on there."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

Batch = dict[str, Tensor]


def begin(loader: DataLoader[Any]) -> Iterator[Batch]:
    """Begin; a worker that dies is then met at the next batch, and nowhere else.

    Torch would also raise from a signal, in the middle of an optimiser's step or of a checkpoint.
    """
    if threading.current_thread() is not threading.main_thread():  # only there may signals be caught
        return iter(loader)
    before = signal.getsignal(signal.SIGCHLD)
    started = iter(loader)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL if before is None else before)
    return started


def steady(
    batches: Callable[[int], Iterable[Batch]], first: int, died: Callable[[], None]
) -> Iterator[Batch]:
    """Batches from number `first` on. When a worker dies, `died` may raise; else a new loader goes on."""
    number = first
    while True:
        try:
            for batch in batches(number):
                number += 1
                yield batch
            return
        except (RuntimeError, ConnectionError, EOFError, FileNotFoundError) as error:
            met = isinstance(error, RuntimeError) and "exited unexpectedly" not in str(error)
            if met or "in DataLoader worker process" in str(error):  # a worker that lives met this itself
                raise
            died()
