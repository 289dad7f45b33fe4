"""A plot: its numbers, a sentence about them, and a function that draws them in light or dark colours."""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from saccade.errors import UsageError
from saccade.files.atomic import replacing
from saccade.files.strict_json import write_json
from saccade.wording import MISSING, number, percent, printable

Axes = Any
"""matplotlib's axes; it is imported only to draw, as the import takes half a second."""
Cell = str | int | float | None
FONTS = ("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "PingFang SC", "Microsoft YaHei", "SimHei")
FORMS: dict[str, Callable[[Any], str]] = {
    "text": str,
    "count": lambda n: f"{n:,}",
    "number": number,
    "percent": percent,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Ink:
    """The colours of a page; text keeps a contrast of 4.5 to the paper, lines one of 3."""

    paper: str
    text: str
    grid: str
    first: str
    second: str


LIGHT = Ink(paper="#ffffff", text="#1f2328", grid="#d8dee4", first="#0b5cad", second="#bc4c00")
DARK = Ink(paper="#161b22", text="#e6edf3", grid="#30363d", first="#6cb6ff", second="#ffa657")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """Numbers and how to draw them; `columns` maps each column's name to a key of `FORMS`."""

    name: str
    title: str
    message: str
    """What the plot shows, in a sentence made from the numbers; also its alternative text."""
    note: str = ""
    """How to read it."""
    columns: dict[str, str]
    rows: Sequence[tuple[Cell, ...]]
    draw: Callable[[Axes, Ink], None]
    width: float = 5.0
    """Inches; a plot of more than 6 is scrolled, not shrunk, on a phone."""
    height: float = 3.1
    extra: dict[str, Any] = field(default_factory=dict)
    """More numbers for the JSON than the table shows."""

    def to_json(self) -> dict[str, Any]:
        """Return the numbers; what is not finite is null."""
        rows = [[_plain(cell) for cell in row] for row in self.rows]
        head = {"title": self.title, "message": self.message, "columns": list(self.columns)}
        return {**head, "rows": rows, **self.extra}


def _plain(cell: Cell) -> Cell:
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


def cells(columns: dict[str, str], rows: Sequence[Sequence[Cell]]) -> list[list[tuple[str, Cell]]]:
    """Return formatted rows, each cell with its exact value."""
    forms = [FORMS[form] for form in columns.values()]
    plain = [[_plain(cell) for cell in row] for row in rows]
    return [
        [(MISSING if value is None else form(value), value) for form, value in zip(forms, row, strict=True)]
        for row in plain
    ]


def render(plot: Plot, ink: Ink) -> bytes:
    """Draw a PNG; the same plot gives the same bytes, whatever the user's matplotlib settings are."""
    return render_figure(lambda figure: plot.draw(figure.subplots(), ink), plot.width, plot.height, ink)


def render_figure(draw: Callable[[Any], None], width: float, height: float, ink: Ink) -> bytes:
    """Draw on an empty figure of matplotlib, of a size in inches; return a PNG."""
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings = {
        **{f"{part}.color": ink.text for part in ("text", "xtick", "ytick")},
        "axes.labelcolor": ink.text,
        "axes.edgecolor": ink.grid,
        "grid.color": ink.grid,
        "axes.facecolor": ink.paper,
        "figure.facecolor": ink.paper,
        "savefig.facecolor": ink.paper,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "font.family": [name for name, _ in _fonts()],
        "font.size": 9.5,
        "lines.linewidth": 1.8,
        "axes.grid": True,
        "axes.axisbelow": True,
        "legend.fontsize": 9,
        "axes.formatter.useoffset": False,
    }
    with style.context(["default", settings]):
        figure = Figure(figsize=(width, height), dpi=180, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        made = io.BytesIO()
        figure.savefig(made, format="png", metadata={"Software": None})
    return made.getvalue()


@cache
def _fonts() -> tuple[tuple[str, frozenset[int]], ...]:
    """Return the installed ones of `FONTS`, with the characters they can draw."""
    from matplotlib.font_manager import fontManager, get_font

    found = []
    for name in FONTS:
        path = next((font.fname for font in fontManager.ttflist if font.name == name), None)
        if path is not None:
            found.append((name, frozenset(get_font(path).get_charmap())))
    return tuple(found)


def drawable(text: str, instead: str, limit: int = 26) -> str:
    """Return a label that fits and that the fonts can draw, or else `instead` (the table has the name)."""
    label = printable(text, limit)
    return label if all(any(ord(c) in letters for _, letters in _fonts()) for c in label) else instead


def save(plot: Plot, folder: Path) -> bytes:
    """Write NAME.png and NAME.json, each whole or not at all, and return the PNG."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{printable(folder)} cannot be created ({error.strerror}); expected a folder for plots; "
            "move what is in its place or check the permissions"
        ) from error
    picture = render(plot, LIGHT)
    with replacing(folder / f"{plot.name}.png", len(picture)) as file:
        file.write(picture)
    write_json(folder / f"{plot.name}.json", plot.to_json(), indent=None, escape=True, finite=True)
    return picture
