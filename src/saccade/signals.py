"""A polite end: a signal asks the run to stop after its step; the second one leaves at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def listening(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` for each signal while the block runs; afterwards all is as before.

    SIGHUP stays ignored where it is: nohup protects a run from the end of its terminal in this way.
    """
    if threading.current_thread() is not threading.main_thread():  # only there may signals be caught
        yield
        return
    heard = SIGNALS[:2] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else SIGNALS
    before = {number: signal.signal(number, lambda *_: stop()) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Interrupt:
    """Leave as Ctrl-C does, for `listening` where there is nothing to be saved.

    It remembers that it was called: compiled code that is left in this way may make another error of it.
    """

    def __init__(self) -> None:
        self.came = False

    def __call__(self) -> None:
        self.came = True
        raise KeyboardInterrupt
