"""Numbers and names in words, the same everywhere: shares, durations, dates, and untrusted names."""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

MISSING = "–"


def printable(text: object, limit: int = 200) -> str:
    """Return untrusted text as one short printable line: no newline or terminal escape survives."""
    line = str(text)
    if len(line) > limit:
        line = line[: limit - 3] + "..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def one_line(text: object, limit: int = 200) -> str:
    """Return the same with each run of white space as one space."""
    return printable(" ".join(str(text).split()), limit)


def show_name(name: object, limit: int = 100_000) -> str:
    """Return a name or a path, in quotes if it could fool a reader; keep both ends of a long one."""
    text = str(name)[:100_000]
    text = text if text and text.isprintable() else ascii(text)
    return text if len(text) <= limit else f"{text[: limit // 2]}...{text[3 - limit // 2 :]}"


def some(names: Sequence[str], most: int = 5, limit: int = 400) -> str:
    """Return the first few names and how many more there are; shorten all of them above the limit."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    whole = ", ".join(show_name(name, limit) for name in names[:most])
    return (whole if len(whole) <= limit else ", ".join(show_name(name, 70) for name in names[:most])) + more


def percent(share: float | None, digits: int = 1) -> str:
    """Return 0.945 as 94.5%."""
    return MISSING if share is None or not math.isfinite(share) else f"{share * 100:.{digits}f}%"


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


def plan_line(title: str, words: str) -> str:
    """Return a line of a plan or a summary: its title, and what follows in line with the others."""
    return f"{title:<8} {words}".rstrip()


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

    @property
    def word(self) -> str:
        """The title inside a sentence."""
        return self.title if self.title.isupper() else self.title.lower()

    def words(self, value: float) -> str:
        """Return the value as a report shows it."""
        return percent(value) if self.format == "percent" else number(value)
