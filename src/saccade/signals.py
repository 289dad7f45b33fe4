"""Stop on a signal after the current step; the second signal exits at once."""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def listening(stop: Callable[[], None], restore: bool = True) -> Iterator[None]:
    """Call `stop` for each signal while the block runs; afterwards restore what was there, if wanted.

    SIGHUP stays ignored where it is: nohup protects a run from the end of its terminal in this way.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread can catch signals
        yield
        return
    heard = SIGNALS[:2] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else SIGNALS
    before = {number: signal.signal(number, lambda *_: stop()) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items() if restore else ():
            signal.signal(number, handler)


class Interrupt:
    """Exit as Ctrl-C does, for `listening` where nothing has to be saved; the second call exits at once.

    It remembers that it was called: compiled code that is left in this way may make another error of it.

    Args:
        busy: Called at that moment to list the files being read.
    """

    def __init__(self, busy: Callable[[], Iterable[str]] = tuple) -> None:
        self.came = False
        self.leaving = False
        """The command is over: nothing is left that could catch an exception."""
        self.reading: list[str] = []
        self._busy = busy

    def __call__(self) -> None:
        if self.came or self.leaving:
            os._exit(130)
        self.came = True
        self.reading = list(self._busy())
        raise KeyboardInterrupt
