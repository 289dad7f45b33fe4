"""The plots of a report: each function returns a plot of a run's record, or a sentence why it cannot."""

import math
from collections.abc import Callable, Sequence
from statistics import median, quantiles

from saccade.report.plots import Axes, Ink, Plot
from saccade.report.run_record import NAN, LoggedStep, Record, whole
from saccade.wording import Metric, count, number, trend

POINTS = 200
"""More points than this are averaged: they would not fit on a screen."""


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _mean(values: Sequence[float]) -> float:
    kept = _finite(values)
    return sum(kept) / len(kept) if kept else NAN


def _thin(
    steps: Sequence[LoggedStep],
    value: Callable[[LoggedStep], float],
    join: Callable[[Sequence[float]], float],
) -> tuple[list[tuple[int, float]], int]:
    """Return at most `POINTS` points, each a group's last step and joined value, and the group size."""
    size = max(1, math.ceil(len(steps) / POINTS))
    groups = [steps[i : i + size] for i in range(0, len(steps), size)]
    return [(group[-1].step, join([value(step) for step in group])) for group in groups], size


def _joined(size: int, how: str) -> str:
    return "" if size == 1 else f" Each point is the {how} of {size} logged steps."


def lines(
    axes: Axes, ink: Ink, rows: Sequence[Sequence[int | float]], names: Sequence[str], across: str
) -> None:
    """Draw every column against the first; the second line is dashed, so that colour is not needed."""
    for place, (name, colour, dash) in enumerate(
        zip(names, (ink.first, ink.second), ("-", "--"), strict=False), 1
    ):
        points = [(row[0], row[place]) for row in rows if math.isfinite(row[place])]
        if points:
            mark = "o" if len(points) <= 30 else ""
            axes.plot(*zip(*points, strict=True), dash, marker=mark, markersize=3.5, color=colour, label=name)
    axes.set_xlabel(across)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.margins(x=0.02)
    if len(across_values := {row[0] for row in rows}) == 1:  # or the axis would go from 0.96 to 1.04
        (only,) = across_values
        axes.set_xlim(max(0, math.floor(only) - 1), math.floor(only) + 2)
    if len(axes.lines) > 1:
        axes.legend()


def epochs(passed: float) -> str:
    """Return "1 epoch", "15 epochs" or "0.25 epochs"."""
    return count(int(passed), "epoch") if passed == int(passed) else f"{passed:.4g} epochs"


def loss(record: Record, note: str) -> Plot | str:
    """Plot training loss by step, and validation loss where it was measured."""
    steps = sorted(record.events.steps.values())
    points, size = _thin(steps, lambda step: step.loss, _mean)
    if not points:  # without steps, the epochs' means are the next best
        points = [(whole(e.step), e.train_loss) for e in record.epochs if math.isfinite(e.step)]
    held = {whole(e.step): e.metric("loss") for e in record.epochs if math.isfinite(e.step)}
    train = dict(points)
    rows = [(step, train.get(step, NAN), held.get(step, NAN)) for step in sorted({*train, *held})]
    trained, validated = _finite([row[1] for row in rows]), _finite([row[2] for row in rows])
    if not trained and not validated:
        return "No loss curve, because no loss was logged."
    trends = [trend("Training loss", trained)] if trained else []
    if validated:
        best = min(
            record.epochs, key=lambda e: e.metric("loss") if math.isfinite(e.metric("loss")) else math.inf
        )
        lowest = f"; it is lowest at epoch {best.epoch:g} ({number(best.metric('loss'))})"
        trends.append(trend("validation loss" if trends else "Validation loss", validated) + lowest)
    unsound = record.events.unsound
    return Plot(
        name="loss",
        title="Loss",
        message=", ".join(trends) + ".",
        note=(
            note
            + (_joined(size, "mean") if steps else "")
            + (f" The loss was not a finite number at {count(unsound, 'logged step')}." if unsound else "")
        ),
        columns={"step": "count", "training loss": "number", "validation loss": "number"},
        rows=rows,
        draw=lambda axes, ink: lines(axes, ink, rows, ("training", "validation"), "step"),
    )


def metric(record: Record, name: str, metric: Metric) -> Plot | str:
    """Plot a validation metric by epoch."""
    rows = [(e.epoch, value) for e in record.epochs if math.isfinite(value := e.metric(name))]
    title = metric.title if metric.title.isupper() else metric.title.lower()
    if not rows:
        return f"No curve, because no validation {title} was logged."
    best = (max if metric.better == "higher" else min)(rows, key=lambda row: row[1])
    scale, unit = (100, ", %") if metric.format == "percent" else (1, "")

    def draw(axes: Axes, ink: Ink) -> None:
        lines(axes, ink, [(x, scale * y) for x, y in rows], (f"validation {title}",), "epoch")
        axes.axhline(scale * best[1], color=ink.second, linestyle=":", linewidth=1.2)
        axes.set_ylabel(f"{title}{unit}")

    return Plot(
        name=name,
        title=f"Validation {title}",
        message=f"{trend(f'Validation {title}', [value for _, value in rows], metric.words)} "
        f"{'over' if len(rows) > 1 else 'after'} {epochs(rows[-1][0])}.",
        note=f"Best: {metric.words(best[1])} at epoch {best[0]:.4g}, the dotted line."
        if len(rows) > 1
        else "",
        columns={"epoch": "number", f"validation {title}": metric.format},
        rows=rows,
        draw=draw,
    )


def lr(record: Record) -> Plot | str:
    """Plot the learning rate by step."""
    steps = [s for s in sorted(record.events.steps.values()) if math.isfinite(s.lr)]
    rows, size = _thin(steps, lambda step: step.lr, lambda group: group[-1])
    if not rows:
        rows = [(whole(e.step), e.lr) for e in record.epochs if math.isfinite(e.lr) and math.isfinite(e.step)]
    if not rows:
        return "No curve, because no learning rate was logged."
    top = max(rows, key=lambda row: row[1])
    message = f"The learning rate starts at {number(rows[0][1])}"
    if rows[0][1] < top[1]:
        message += f", rises to {number(top[1])} at step {top[0]:,}"
    return Plot(
        name="lr",
        title="Learning rate",
        message=f"{message} and ends at {number(rows[-1][1])} at step {rows[-1][0]:,}.",
        note=_joined(size, "last").strip() if steps else "",
        columns={"step": "count", "learning rate": "number"},
        rows=rows,
        draw=lambda axes, ink: lines(axes, ink, rows, ("learning rate",), "step"),
    )


def pace(record: Record) -> Plot | str:
    """Plot the seconds per step."""
    steps = [s for s in sorted(record.events.steps.values()) if math.isfinite(s.seconds)]
    if not steps:
        return "The log has too few consecutive steps to time them."
    every = [step.seconds for step in steps]
    middle, slow = median(every), quantiles(every, n=10)[-1] if len(every) > 1 else every[0]
    rows, size = _thin(steps, lambda step: step.seconds, median)

    def draw(axes: Axes, ink: Ink) -> None:
        lines(axes, ink, rows, ("seconds per step",), "step")
        axes.axhline(middle, color=ink.second, linestyle=":", linewidth=1.2)
        axes.set_ylim(0, max(1e-9, *(value * 1.1 for _, value in rows)))
        axes.set_ylabel("seconds per step")

    return Plot(
        name="time",
        title="Time per step",
        message=f"A step takes {number(middle)} s (median); one in ten takes more than {number(slow)} s.",
        note="Validation and saving are not included." + _joined(size, "median"),
        columns={"step": "count", "seconds": "number"},
        rows=rows,
        draw=draw,
    )
