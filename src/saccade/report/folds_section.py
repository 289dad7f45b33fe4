"""The folds of a cross-validation in a report: each one's numbers, and how far they lie apart."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from saccade.metrics.interval import wilson
from saccade.report.history import real, whole
from saccade.report.html import Html, joined, soft, table, tag
from saccade.report.plots import Axes, Ink, Plot, cells
from saccade.wording import count, percent

FILE = "crossval.json"
TITLE = "Folds"
COLUMNS = {
    "fold": "count",
    "learnt from": "count",
    "scored on": "count",
    "correct": "count",
    "accuracy": "percent",
    "95 % from": "percent",
    "to": "percent",
    "balanced": "percent",
    "loss": "number",
}

Row = tuple[int, int, int, int, float, float, float, float, float]


def folds(folder: Path, drawn: Callable[[Plot | str], Html]) -> Iterator[Html]:
    """A plot and a table of the folds, with their mean and spread in words; or why they are left out."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        rows = [_row(fold) for fold in found["scores"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError, AttributeError):
        yield soft(f"The folds are left out: {FILE} cannot be read.")
        return
    if not rows or "mean" not in found:
        yield soft(f"The folds are left out: {FILE} says that they are not done yet.")
        return
    middle, apart = real(found["mean"]), real(found.get("deviation"))
    yield tag(
        "p",
        f"Each of {count(len(rows), 'fold')} was held out once and scored by a model that had learnt from "
        "the others and kept the weights of its last epoch: none was scored on pictures that had a part in "
        "its training. The numbers above count the answers of all folds together. The model in this folder "
        "has then learnt from all of the pictures.",
    )
    yield drawn(_plot(rows, middle, apart))
    yield table("each-fold", "The scores of each fold", list(COLUMNS), cells(COLUMNS, rows))
    yield tag(
        "p",
        "The folds share most of their training pictures, so their spread is no interval for new pictures "
        "and tends to be too small (Bengio and Grandvalet, 2004). It tells how much the choice of the "
        "training pictures matters.",
    )
    yield from _tested(found.get("test"))
    links = [tag("a", f"fold {row[0]}", href=f"fold-{row[0]}/report.html") for row in rows]
    yield tag("p", "Each fold has a report of its own: ", joined(_between(links)), ".")


def _row(fold: dict[str, Any]) -> Row:
    number, learnt, pictures, correct = (
        whole(fold.get(name)) for name in ("fold", "learnt", "pictures", "correct")
    )
    low, high = wilson(correct, pictures)
    accuracy, balanced, loss = (real(fold.get(name)) for name in ("accuracy", "balanced_accuracy", "loss"))
    return number, learnt, pictures, correct, accuracy, low, high, balanced, loss


def _between(links: list[Html]) -> Iterator[str]:
    for i, link in enumerate(links):
        yield ", " if i else ""
        yield link


def _tested(test: Any) -> Iterator[Html]:
    """The test split, which no fold has seen."""
    if isinstance(test, dict):
        share, low, high = (percent(real(test.get(name))) for name in ("accuracy", "low", "high"))
        yield tag(
            "p",
            f"On the test split, which played no part until then, that model is right in {share} of "
            f"{count(whole(test.get('pictures')), 'picture')} (95 % interval: {low} to {high}).",
            cls="note",
        )


def _plot(rows: list[Row], middle: float, apart: float) -> Plot:
    """The accuracy of each fold with its interval, and their mean."""

    def draw(axes: Axes, ink: Ink) -> None:
        x, y = [row[0] for row in rows], [100 * row[4] for row in rows]
        down = [max(0.0, 100 * (row[4] - row[5])) for row in rows]
        up = [max(0.0, 100 * (row[6] - row[4])) for row in rows]
        axes.axhspan(100 * (middle - apart), 100 * (middle + apart), color=ink.grid, alpha=0.6, linewidth=0)
        axes.axhline(100 * middle, color=ink.second, linestyle="--", linewidth=1.2)
        axes.errorbar(x, y, (down, up), fmt="o", markersize=5, capsize=2, color=ink.first)
        axes.set(xlabel="fold", ylabel="correct, %", xlim=(0.4, len(rows) + 0.6))
        axes.set_xticks(x if len(x) <= 20 else x[:: len(x) // 10])

    worst, best = min(rows, key=lambda row: row[4]), max(rows, key=lambda row: row[4])
    return Plot(
        name="folds",
        title="Accuracy by fold",
        message=f"The mean of {count(len(rows), 'fold')} is {percent(middle)}, their standard deviation "
        f"{apart * 100:.1f} points; the folds go from {percent(worst[4])} (fold {worst[0]}) to "
        f"{percent(best[4])} (fold {best[0]}).",
        note="Upright lines are 95 % intervals of each fold, the dashed line is the mean, the band one "
        "standard deviation around it.",
        columns=COLUMNS,
        rows=rows,
        draw=draw,
    )
