"""What the commands print: messages, aligned tables, JSON, a progress bar."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import typer

from saccade.progress import Progress

FEW = 16
"""Up to this many examples are done before anyone could read a bar."""


def say(words: str) -> None:
    """Print a message: to stderr, because stdout is for results."""
    print(words, file=sys.stderr, flush=True)


def print_json(found: object, indent: int | None = 2, escape: bool = True) -> None:
    """Print a result as JSON; with `escape`, odd characters are escaped, so that file names stay exact."""
    typer.echo(json.dumps(found, indent=indent, ensure_ascii=escape))


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Return lines with aligned columns, nothing cut or wrapped; `right` lists right-aligned columns."""
    from rich.cells import cell_len  # a Chinese character is two columns wide

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        gaps = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = [
            gap + cell if i in right else cell + gap
            for i, (cell, gap) in enumerate(zip(row, gaps, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


@contextmanager
def progress(
    total: Callable[[], int | None], label: str, unit: str = "images", hidden: bool = False
) -> Iterator[Callable[[], None]]:
    """Show how many examples are done, on stderr if that is a terminal; yield what to call after each.

    Args:
        total: Counts the examples; None if that would take too long. Only called for a bar.
    """
    if hidden or not sys.stderr.isatty() or ((count := total()) is not None and count <= FEW):
        yield lambda: None
        return
    with Progress(label, count, unit) as bar:
        yield bar.advance
