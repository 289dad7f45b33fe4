"""The folds of a cross-validation in a report: the scores of each, and how far they spread."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from saccade.metrics.interval import wilson
from saccade.report.html import Draw, Html, joined, soft, table, tag
from saccade.report.plots import Axes, Ink, Plot, cells
from saccade.report.run_record import real, whole
from saccade.wording import Metric, amount, count, number

FILE = "crossval.json"


@runtime_checkable
class Folded(Protocol):
    """What the section needs from a task."""

    @property
    def noun(self) -> str: ...

    @property
    def fold_metrics(self) -> dict[str, Metric]: ...

    @property
    def headline(self) -> str: ...


class _Fold(NamedTuple):
    number: int
    trained: int
    scored: int
    scores: dict[str, float]
    low: float
    high: float
    """The ends of the headline's 95% confidence interval; the headline itself where none is known."""


def folds(folder: Path, task: Folded, draw: Draw) -> Iterator[Html]:
    """Yield a plot and a table of the folds, with their mean and spread, or why they are left out."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        rows = [_row(fold, task) for fold in found["scores"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError, AttributeError):
        yield soft(f"The folds are left out: {FILE} cannot be read.")
        return
    if not rows or "mean" not in found:
        yield soft(f"The folds are left out: {FILE} lists none that are finished.")
        return
    mean, deviation = real(found["mean"]), real(found.get("deviation"))
    yield tag(
        "p",
        f"Each of {count(len(rows), 'fold')} was held out once and evaluated with the last epoch of a "
        f"model trained on the others, so no model was evaluated on {task.noun} that it was trained on. "
        "The numbers above pool the predictions of all folds. The model in this folder "
        f"was then trained on all {task.noun}.",
    )
    yield draw(_plot(rows, task, mean, deviation))
    columns = _columns(task, rows)
    yield table("each-fold", "The scores of each fold", list(columns), cells(columns, _cells(rows, task)))
    yield tag(
        "p",
        "The folds share most of their training data, so their spread is not a confidence interval for new "
        "data and tends to be too small (Bengio and Grandvalet, 2004). It shows how much the choice of the "
        "training data matters.",
    )
    yield from _tested(found.get("test"), task)
    links = [tag("a", f"fold {row.number}", href=f"fold-{row.number}/report.html") for row in rows]
    yield tag("p", "Each fold has its own report: ", joined(_between(links)), ".")


def _row(fold: dict[str, Any], task: Folded) -> _Fold:
    total, correct = whole(fold.get("pictures", fold.get("count"))), whole(fold.get("correct"))
    scores = {name: real(fold.get(name)) for name in task.fold_metrics}
    low, high = wilson(correct, total) if "correct" in fold else (scores[task.headline],) * 2
    return _Fold(whole(fold.get("fold")), whole(fold.get("learnt")), total, scores, low, high)


def _interval(rows: list[_Fold]) -> bool:
    return any(row.low < row.high for row in rows)


def _columns(task: Folded, rows: list[_Fold]) -> dict[str, str]:
    made = {"fold": "count", "trained on": "count", "scored on": "count"}
    for name, metric in task.fold_metrics.items():
        made[metric.title.lower()] = metric.format
        if name == task.headline and _interval(rows):
            made |= {"95% CI from": metric.format, "to": metric.format}
    return made


def _cells(rows: list[_Fold], task: Folded) -> list[tuple[int | float, ...]]:
    made = []
    for row in rows:
        line: list[int | float] = [row.number, row.trained, row.scored]
        for name, score in row.scores.items():
            line.append(score)
            line += [row.low, row.high] if name == task.headline and _interval(rows) else []
        made.append(tuple(line))
    return made


def _between(links: list[Html]) -> Iterator[str]:
    for i, link in enumerate(links):
        yield ", " if i else ""
        yield link


def _tested(test: Any, task: Folded) -> Iterator[Html]:
    """Return the score on the test split, which no fold has seen."""
    if not isinstance(test, dict):
        return
    metric = task.fold_metrics[task.headline]
    score, low, high = (real(test.get(name)) for name in (task.headline, "low", "high"))
    ends = f" (95% CI {metric.words(low)} to {metric.words(high)})" if math.isfinite(low + high) else ""
    total = whole(test.get("pictures", test.get("count")))
    yield tag(
        "p",
        f"On the test split, which was not used before, that model reaches {metric.title.lower()} "
        f"{metric.words(score)} on {amount(total, task.noun)}{ends}.",
        cls="note",
    )


def _plot(rows: list[_Fold], task: Folded, mean: float, deviation: float) -> Plot:
    """Plot the headline of each fold with its interval, and their mean."""
    metric, headline = task.fold_metrics[task.headline], task.headline
    scale, unit = (100, ", %") if metric.format == "percent" else (1, "")
    title = metric.title.lower()

    def draw(axes: Axes, ink: Ink) -> None:
        x, y = [row.number for row in rows], [scale * row.scores[headline] for row in rows]
        down = [max(0.0, scale * (row.scores[headline] - row.low)) for row in rows]
        up = [max(0.0, scale * (row.high - row.scores[headline])) for row in rows]
        band = scale * (mean - deviation), scale * (mean + deviation)
        axes.axhspan(*band, color=ink.grid, alpha=0.6, linewidth=0)
        axes.axhline(scale * mean, color=ink.second, linestyle="--", linewidth=1.2)
        axes.errorbar(x, y, (down, up), fmt="o", markersize=5, capsize=2, color=ink.first)
        axes.set(xlabel="fold", ylabel=f"{title}{unit}", xlim=(0.4, len(rows) + 0.6))
        axes.set_xticks(x if len(x) <= 20 else x[:: len(x) // 10])

    low, high = (pick(rows, key=lambda row: row.scores[headline]) for pick in (min, max))
    spread = f"{deviation * 100:.1f} points" if metric.format == "percent" else number(deviation)
    intervals = "Vertical lines are 95% confidence intervals of each fold, the" if _interval(rows) else "The"
    return Plot(
        name="folds",
        title=f"{metric.title} by fold",
        message=f"The mean of {count(len(rows), 'fold')} is {metric.words(mean)}, their standard deviation "
        f"{spread}; the folds range from {metric.words(low.scores[headline])} (fold {low.number}) to "
        f"{metric.words(high.scores[headline])} (fold {high.number}).",
        note=f"{intervals} dashed line is the mean, the band one standard deviation around it.",
        columns=_columns(task, rows),
        rows=_cells(rows, task),
        draw=draw,
    )
