"""A polite end: SIGINT and SIGTERM ask the run to stop after its step; the second one leaves at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def listening(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` for each signal while the block runs; afterwards all is as before."""
    if threading.current_thread() is not threading.main_thread():  # only there may signals be caught
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop()) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
