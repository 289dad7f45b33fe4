"""Numbers in words, the same in every report: shares, durations, dates, and which way a curve goes."""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

MISSING = "–"


def percent(share: float | None, digits: int = 1) -> str:
    """Return 0.945 as 94.5 %."""
    return MISSING if share is None or not math.isfinite(share) else f"{share * 100:.{digits}f} %"


def number(value: float | None) -> str:
    """Return four digits that count; what is not finite is a dash."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:.4g}"


def count(n: int, noun: str) -> str:
    """Return "1 picture" or "1,110 pictures"; "1 class" or "37 classes"; "2 patches"."""
    ending = "" if n == 1 else "es" if noun.endswith(("s", "tch")) else "s"
    return f"{n:,} {noun}{ending}"


def amount(n: int, nouns: str) -> str:
    """Return "1 image" or "1,110 images" from the noun in the plural."""
    return f"{n:,} {nouns.removesuffix('s') if n == 1 else nouns}"


def duration(seconds: float) -> str:
    """Return the two largest units that matter: 3 h 5 min, 12 min 3 s, 8.2 s."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def moment(time: float) -> str:
    """Return a Unix time as a date in UTC, which is the same for every reader."""
    try:
        return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return "an unknown time"


def trend(noun: str, values: Sequence[float], show: Callable[[float], str] = number) -> str:
    """Return "Validation loss falls from 3.2 to 0.4"; `values` are finite and not empty."""
    first, last = show(values[0]), show(values[-1])
    if len(values) == 1:
        return f"{noun} is {first}"
    if first == last:
        return f"{noun} begins and ends at {first}"
    return f"{noun} {'rises' if values[-1] > values[0] else 'falls'} from {first} to {last}"


class Metric(NamedTuple):
    """How a number of a task is called and shown: a column of results.csv, a curve, a cell of a table."""

    title: str
    format: str = "number"
    """percent or number."""
    better: str = "higher"
    """higher or lower."""

    def words(self, value: float) -> str:
        """Return the value as a report shows it."""
        return percent(value) if self.format == "percent" else number(value)
