"""Progress of long work: a bar on a terminal, a line every 30 seconds without one.

The time left is the median of recent step times, times the steps left, so a slow moment does not move it.
"""

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from statistics import median
from typing import Any, TypeVar

T = TypeVar("T")
EVERY = 30.0
"""Seconds between two lines where there is no terminal."""
LEAST = 0.5
"""Seconds over which a step time is measured: answers arrive in batches."""
RECENT = 41
"""Measurements whose median is the step time."""
OFTEN = 0.1
"""Seconds between two changes of the bar."""
BAR = 24
"""Widest bar, in characters."""


class Pace:
    """Seconds per step."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._steps, self._since = 0, time.monotonic()

    def count(self, steps: int = 1) -> None:
        """Count steps that are done."""
        self._steps += steps
        passed = time.monotonic() - self._since
        if self._steps and passed >= LEAST:
            self._recent.append(passed / self._steps)
            self.restart()

    def restart(self) -> None:
        """Measure from now on: what happened since the last step was something else."""
        self._steps, self._since = 0, time.monotonic()

    @property
    def known(self) -> bool:
        """Whether there are enough measurements to rely on."""
        return len(self._recent) > 3

    @property
    def each(self) -> float:
        """The median of recent measurements; NaN before the first."""
        return median(self._recent) if self._recent else math.nan


class _Part:
    """Steps of one kind, such as the images to validate on."""

    def __init__(self, label: str, total: int | None, unit: str) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.done, self.pace, self.status = 0, Pace(), ""

    def move(self, done: int) -> None:
        self.pace.count(max(0, done - self.done))
        self.done = done

    @property
    def left(self) -> float:
        """Seconds; NaN if unknown."""
        if self.total is None:
            return math.nan
        return max(0, self.total - self.done) * self.pace.each if self.done < self.total else 0.0

    def words(self, count: bool = True) -> str:
        """Return what is done, and how fast."""
        of = "" if self.total is None else f"/{self.total:,}"
        counted = [f"{self.label} {self.done:,}{of} {self.unit}".strip()] if count else []
        if self.total == 0 or (self.total is None and not self.done):  # a step that has no parts
            return self.label
        rate = "" if math.isnan(self.pace.each) else f"{_rate(1 / self.pace.each)} {self.unit}/s"
        return "  ".join(filter(None, [*counted, self.status or (rate if self.unit else "")]))


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def time_left(seconds: float) -> str:
    """Return "40 s left", "3 min 20 s left" or "1 h 5 min left"; nothing if the time is not known."""
    if not math.isfinite(seconds):
        return ""
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s left"
    if whole < 600:
        return f"{whole // 60} min {whole % 60} s left"
    minutes = round(whole / 60)
    return f"{minutes} min left" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min left"


class Progress:
    """A long piece of work on the terminal, with the parts that interrupt it.

    Everything that is tracked while it is open is shown in its bar; see `track`.
    """

    def __init__(self, label: str, total: int | None = None, unit: str = "", quiet: bool = False) -> None:
        self.parts = [_Part(label, total, unit)]
        self.quiet = quiet
        self.after: Callable[[], float] = lambda: 0.0
        """Returns the seconds that follow the steps, such as those of a validation."""
        self.ends: Callable[[], float] | None = None
        """Returns the seconds until all is done, where a clock decides and not the steps."""
        self._screen = None if quiet or not sys.stderr.isatty() else _screen()
        self._shown, self._printed = 0.0, time.monotonic()
        _open.append(self)
        self.show(refresh=True)

    @property
    def main(self) -> _Part:
        """The work itself."""
        return self.parts[0]

    def move(self, done: int, status: str = "") -> None:
        """Show that so many steps are done; `status` says more than their rate."""
        self.main.status = status
        self._move(self.main, done)

    def _move(self, part: _Part, done: int) -> None:
        part.move(done)
        now = time.monotonic()
        if now - self._shown > OFTEN or part.done == part.total:
            self.show()

    def advance(self, steps: int = 1) -> None:
        """Show that more steps are done."""
        self.move(self.main.done + steps)

    @contextmanager
    def part(self, label: str, total: int | None = 0, unit: str = "") -> Iterator[Callable[[int], None]]:
        """Name what interrupts the work; yield what to call with the number of its steps that are done."""
        made = _Part(label, total, unit)
        self.parts.append(made)
        self.show(refresh=True)
        try:
            yield lambda done: self._move(made, done)
        finally:
            self.parts.remove(made)
            self.parts[-1].pace.restart()
            self.show(refresh=True)

    @property
    def left(self) -> float:
        """Seconds until all is done; NaN before it can be known."""
        if self.ends is not None:
            return max(0.0, self.ends())
        counted = [part for part in self.parts if part.total is not None or part is self.parts[-1]]
        return sum(part.left for part in counted) + self.after()

    def line(self) -> str:
        """Return what a line shows where there is no terminal."""
        return "  ".join(filter(None, [self.parts[-1].words(), time_left(self.left)]))

    def show(self, refresh: bool = False) -> None:
        """Update the bar, at once with `refresh`; without a terminal, print a line every 30 seconds."""
        self._shown = time.monotonic()
        if self._screen is not None:
            part = self.parts[-1]
            counted = part if self.main.total is None else self.main
            words = part.words(count=part is not self.main or not part.status)
            text = "  ".join(filter(None, [time_left(self.left), words]))
            with suppress(OSError, ValueError):
                room = self._screen.console.width - 7
                self._screen.columns[0].bar_width = max(4, min(BAR, room - len(text)))
                self._screen.update(
                    self._screen.task_ids[0],
                    completed=counted.done,
                    total=counted.total or None,
                    percent=f"{counted.done / counted.total:4.0%}" if counted.total else "    ",
                    status=text[: max(room - 4, 10)],
                    refresh=refresh,
                )
        elif not (self.quiet or refresh) and self._shown - self._printed > EVERY:
            self._printed = self._shown
            self.say(self.line())

    def say(self, words: str) -> None:
        """Print a line above the bar, to a terminal that may have been closed."""
        with suppress(OSError, ValueError):
            if self._screen is not None:
                self._screen.console.print(words, highlight=False, markup=False)
            elif not self.quiet:
                print(words, file=sys.stderr, flush=True)

    @property
    def drawn(self) -> bool:
        """Whether a bar is on the terminal."""
        return self._screen is not None

    def close(self) -> None:
        """Remove the bar."""
        if self in _open:
            _open.remove(self)
        if self._screen is not None:
            with suppress(OSError, ValueError):
                self._screen.stop()
            self._screen = None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def leave(self) -> None:
        """Show the cursor again; unlike `close`, safe at any moment."""
        if self._screen is not None:
            with suppress(OSError):
                os.write(2, b"\033[?25h\n")


_open: list[Progress] = []
"""The bars that are open, the innermost last."""
_wanted = False


def show_progress(wanted: bool = True) -> None:
    """Let `track` open bars of its own: the command line wants them, a library that is imported does not."""
    global _wanted
    _wanted = wanted


@contextmanager
def tracking(label: str, total: int | None = 0, unit: str = "") -> Iterator[Callable[[int], None]]:
    """Name a long step while it lasts, in the bar that is open or in its own.

    Yield what to call with the number of its steps that are done; a `total` of 0 has no parts.
    """
    if _open:
        with _open[-1].part(label, total, unit) as move:
            yield move
    elif _wanted:
        with Progress(label, total, unit) as bar:
            yield bar.move
    else:
        yield lambda _: None


def track(
    items: Iterable[T],
    total: int | None,
    label: str,
    unit: str = "images",
    size: Callable[[T], int] = lambda _: 1,
) -> Iterator[T]:
    """Yield the same items, and show how many are done; `size` counts what is in one."""
    done = 0
    with tracking(label, total, unit) as move:
        for item in items:
            yield item
            done += size(item)
            move(done)


class _Enough(Exception):  # noqa: N818 - nobody sees it: it breaks off what `estimate` measures
    pass


class _Stopwatch(Progress):
    """Times the first items that are tracked, then breaks off."""

    def __init__(self, items: int) -> None:
        super().__init__("", quiet=True)
        self.items, self.total = items, 0
        self.marks: list[tuple[float, int]] = []

    @contextmanager
    def part(self, label: str, total: int | None = 0, unit: str = "") -> Iterator[Callable[[int], None]]:
        self.total = total or 0
        yield self._mark

    def _mark(self, done: int) -> None:
        self.marks.append((time.monotonic(), done))
        if len(self.marks) >= self.items and self.total:
            raise _Enough


def estimate(work: Callable[[], object], items: int = 3) -> float:
    """Return how many seconds `work` takes, from the first items that it tracks; then it is broken off."""
    began = time.monotonic()
    watch = _Stopwatch(items)
    with watch:
        try:
            work()
        except _Enough:
            (first, few), *_, (last, more) = watch.marks  # the first item is slower than the rest
            return (last - first) / max(more - few, 1) * watch.total
    return time.monotonic() - began


def _screen() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    # stdout may be a file: rich would print it on the terminal, above the bar
    columns = (
        BarColumn(bar_width=BAR),
        TextColumn("{task.fields[percent]}", markup=False),
        TextColumn("{task.fields[status]}", markup=False),
    )
    bars = Bars(*columns, console=Console(stderr=True), redirect_stdout=False, transient=True)
    bars.add_task("", total=None, percent="    ", status="")
    bars.start()
    return bars
