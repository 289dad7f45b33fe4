"""The plots of a report: each is made from a run's record, or is a sentence that says why it cannot be."""

import math
from collections.abc import Callable, Sequence
from statistics import median, quantiles

import numpy as np

from saccade.files.paths import shown
from saccade.metrics.classify import Scores
from saccade.metrics.interval import wilson
from saccade.report.history import NAN, Epoch, Step, whole
from saccade.report.plots import Axes, Ink, Plot, drawable
from saccade.report.run_record import Record
from saccade.wording import count, number, percent, trend

POINTS = 200
"""More points than this are joined into means: a screen has no room for them, and no reader either."""
WORST = 40
"""Classes that fit into one plot."""


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _mean(values: Sequence[float]) -> float:
    kept = _finite(values)
    return sum(kept) / len(kept) if kept else NAN


def _thin(
    steps: Sequence[Step], value: Callable[[Step], float], join: Callable[[Sequence[float]], float]
) -> tuple[list[tuple[int, float]], int]:
    """At most `POINTS` points, each the last step of a group and its joined value; and the group's size."""
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
    if len(axes.lines) > 1:
        axes.legend()


def span(epochs: Sequence[Epoch]) -> str:
    return f"over {count(len(epochs), 'epoch')}"


AUGMENTED = "Training loss is measured on augmented pictures, so it may lie above the validation loss."


def loss(record: Record, note: str = AUGMENTED) -> Plot | str:
    """Training loss by step, and validation loss where it was measured."""
    steps = sorted(record.events.steps.values())
    points, size = _thin(steps, lambda step: step.loss, _mean)
    if not points:  # without steps, the epochs' means are the next best
        points = [(whole(e.step), e.train_loss) for e in record.epochs if math.isfinite(e.step)]
    held = {whole(e.step): e.val_loss for e in record.epochs if math.isfinite(e.step)}
    train = dict(points)
    rows = [(step, train.get(step, NAN), held.get(step, NAN)) for step in sorted({*train, *held})]
    trained, validated = _finite([row[1] for row in rows]), _finite([row[2] for row in rows])
    if not trained and not validated:
        return "No loss was logged, so there is no loss curve."
    said = [trend("Training loss", trained)] if trained else []
    if validated:
        best = min(record.epochs, key=lambda e: e.val_loss if math.isfinite(e.val_loss) else math.inf)
        lowest = f"; it is lowest at epoch {best.epoch:g} ({number(best.val_loss)})"
        said.append(trend("validation loss" if said else "Validation loss", validated) + lowest)
    unsound = record.events.unsound
    return Plot(
        name="loss",
        title="Loss",
        message=", ".join(said) + ".",
        note=(
            note
            + (_joined(size, "mean") if steps else "")
            + (f" The loss was not a finite number at {count(unsound, 'logged step')}." if unsound else "")
        ),
        columns={"step": "count", "training loss": "number", "validation loss": "number"},
        rows=rows,
        draw=lambda axes, ink: lines(axes, ink, rows, ("training", "validation"), "step"),
    )


def accuracy(record: Record) -> Plot | str:
    """Validation accuracy by epoch."""
    rows = [(e.epoch, e.val_accuracy) for e in record.epochs if math.isfinite(e.val_accuracy)]
    if not rows:
        return "No validation accuracy was logged, so there is no accuracy curve."
    values = [value for _, value in rows]
    best = max(rows, key=lambda row: row[1])

    def draw(axes: Axes, ink: Ink) -> None:
        lines(axes, ink, [(x, 100 * y) for x, y in rows], ("validation accuracy",), "epoch")
        axes.axhline(100 * best[1], color=ink.second, linestyle=":", linewidth=1.2)
        axes.set_ylabel("correct, %")

    return Plot(
        name="accuracy",
        title="Validation accuracy",
        message=f"{trend('Validation accuracy', values, percent)} {span(record.epochs)}.",
        note=f"Best: {percent(best[1])} at epoch {best[0]:g}, the dotted line.",
        columns={"epoch": "number", "validation accuracy": "percent"},
        rows=rows,
        draw=draw,
    )


def lr(record: Record) -> Plot | str:
    """The learning rate by step."""
    steps = [s for s in sorted(record.events.steps.values()) if math.isfinite(s.lr)]
    rows, size = _thin(steps, lambda step: step.lr, lambda group: group[-1])
    if not rows:
        rows = [(whole(e.step), e.lr) for e in record.epochs if math.isfinite(e.lr) and math.isfinite(e.step)]
    if not rows:
        return "No learning rate was logged, so there is no curve of it."
    top = max(rows, key=lambda row: row[1])
    said = f"Learning rate begins at {number(rows[0][1])}"
    if rows[0][1] < top[1]:
        said += f", rises to {number(top[1])} at step {top[0]:,}"
    return Plot(
        name="lr",
        title="Learning rate",
        message=f"{said} and ends at {number(rows[-1][1])} at step {rows[-1][0]:,}.",
        note=_joined(size, "last").strip() if steps else "",
        columns={"step": "count", "learning rate": "number"},
        rows=rows,
        draw=lambda axes, ink: lines(axes, ink, rows, ("learning rate",), "step"),
    )


def pace(record: Record) -> Plot | str:
    """Seconds per step."""
    steps = [s for s in sorted(record.events.steps.values()) if math.isfinite(s.seconds)]
    if not steps:
        return "The log holds too few steps in a row to time them."
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
        note="Validation and saving are not in it." + _joined(size, "median"),
        columns={"step": "count", "seconds": "number"},
        rows=rows,
        draw=draw,
    )


def calibration(scores: Scores) -> Plot:
    """How often the model is right when it says how sure it is."""
    bins = [b for b in scores.bins if b.count]
    gap = scores.confidence - scores.accuracy
    verdict = "is too sure of itself by" if gap > 0 else "is less sure than it could be by"
    rows = [(b.low, b.high, b.count, b.confidence, b.accuracy) for b in scores.bins]

    def draw(axes: Axes, ink: Ink) -> None:
        axes.bar(
            [b.low for b in bins],
            [b.count / scores.count for b in bins],
            [b.high - b.low for b in bins],
            align="edge",
            color=ink.grid,
            edgecolor=ink.paper,
            label="share of pictures",
        )
        axes.plot([0, 1], [0, 1], "--", color=ink.second, linewidth=1.2, label="perfectly calibrated")
        ends = [wilson(round(b.accuracy * b.count), b.count) for b in bins]
        x, y = [b.confidence for b in bins], [b.accuracy for b in bins]
        down = [max(0, b.accuracy - low) for b, (low, _) in zip(bins, ends, strict=True)]
        up = [max(0, high - b.accuracy) for b, (_, high) in zip(bins, ends, strict=True)]
        axes.errorbar(x, y, (down, up), fmt="o", markersize=5, capsize=2, color=ink.first, label="correct")
        axes.set(
            xlabel="how sure the model says it is",
            ylabel="how often it is right",
            xlim=(0, 1),
            ylim=(0, 1.02),
        )
        axes.legend()

    return Plot(
        name="calibration",
        title="Reliability",
        message=(
            f"On average the model says {percent(scores.confidence)} and is right in "
            f"{percent(scores.accuracy)}: it {verdict} {abs(gap) * 100:.1f} points. "
            f"The expected calibration error is {percent(scores.ece)}."
        ),
        note="Upright lines are 95 % intervals: a long one means few pictures.",
        columns={
            "from": "number",
            "to": "number",
            "pictures": "count",
            "how sure": "percent",
            "correct": "percent",
        },
        rows=rows,
        draw=draw,
        height=3.9,
    )


def classes(record: Record, scores: Scores) -> Plot:
    """Precision and recall of each class, the worst first."""
    precision, recall, f1 = scores.precision, scores.recall, scores.f1
    seen = [int(i) for i in np.argsort(f1, kind="stable") if scores.support[i] or scores.answers[i]]
    rows = [
        (record.label(i), int(scores.support[i]), float(precision[i]), float(recall[i]), float(f1[i]))
        for i in seen
    ]
    drawn = seen[:WORST]

    def draw(axes: Axes, ink: Ink) -> None:
        y = np.arange(len(drawn))
        axes.hlines(
            y,
            100 * np.minimum(precision, recall)[drawn],
            100 * np.maximum(precision, recall)[drawn],
            ink.grid,
            linewidth=3,
        )
        axes.plot(100 * precision[drawn], y, "o", color=ink.first, markersize=6, label="precision")
        axes.plot(100 * recall[drawn], y, "D", color=ink.second, markersize=4, label="recall")
        names = [drawable(record.label(i), f"class {i}") for i in drawn]
        axes.set_yticks(y, names, parse_math=False)
        axes.set(xlabel="%", xlim=(-2, 102), ylim=(len(drawn) - 0.4, -0.6))
        axes.grid(False, axis="y")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)

    low, high = rows[0], rows[-1]
    few = f" The plot shows the {WORST} lowest of {len(seen)}." if len(seen) > WORST else ""
    absent = count(scores.classes - len(seen), "class")
    gone = (
        f" Not listed: {absent} without pictures here that were never the answer."
        if len(seen) < scores.classes
        else ""
    )
    return Plot(
        name="classes",
        title="Precision and recall by class",
        message=(
            f"F1 goes from {percent(low[4])} ({shown(low[0], 60)}) to {percent(high[4])} "
            f"({shown(high[0], 60)}); the mean is {percent(scores.macro_f1)}."
        ),
        note="Precision: of the pictures called so, the share that are. "
        f"Recall: of those that are, the share that was found.{few}{gone}",
        columns={
            "class": "text",
            "pictures": "count",
            **dict.fromkeys(("precision", "recall", "F1"), "percent"),
        },
        rows=rows,
        draw=draw,
        width=5.6,
        height=1.0 + 0.19 * len(drawn),
    )
