"""The sections of a classification report: scores, confusion, classes, calibration, mistakes."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from saccade.metrics.classify import ClassifyScores
from saccade.metrics.interval import wilson
from saccade.report.html import Draw, Html, gallery, joined, name, soft, table, tag, tiles
from saccade.report.plots import Axes, Ink, Plot, cells, drawable
from saccade.report.run_page import PICTURES, Section
from saccade.report.run_record import Record, read_cards, real
from saccade.tasks.classify.confusion import LABELLED, PAIR, confused_pairs, confusion
from saccade.wording import count, number, percent, printable

WIDE = 0.1
"""A confidence interval wider than this deserves a warning."""
HONEST = 0.02
"""A smaller difference between confidence and accuracy needs no advice."""
ZOOMED = 0.55
"""Where all precision and recall lies above this, the axis starts higher than 0."""
CAUTION = {
    "val": "The best epoch was chosen on these same images, so expect slightly less on others. ",
    "train": "The model was trained on these same images, so this says little about others. ",
}
WORST = 40
"""Classes that fit into one plot."""


def calibration(scores: ClassifyScores, mix: dict[str, Any] | None = None) -> Plot:
    """Plot confidence against accuracy, and say what to do; `mix` is that of the recipe."""
    bins = [b for b in scores.bins if b.count]
    rows = [(b.low, b.high, b.count, b.confidence, b.accuracy) for b in scores.bins]

    def draw(axes: Axes, ink: Ink) -> None:
        axes.bar(
            [b.low for b in bins],
            [b.count / scores.count for b in bins],
            [b.high - b.low for b in bins],
            align="edge",
            color=ink.grid,
            edgecolor=ink.paper,
            label="share of images",
        )
        axes.plot([0, 1], [0, 1], "--", color=ink.second, linewidth=1.2, label="perfectly calibrated")
        ends = [wilson(round(b.accuracy * b.count), b.count) for b in bins]
        x, y = [b.confidence for b in bins], [b.accuracy for b in bins]
        down = [max(0, b.accuracy - low) for b, (low, _) in zip(bins, ends, strict=True)]
        up = [max(0, high - b.accuracy) for b, (_, high) in zip(bins, ends, strict=True)]
        axes.errorbar(x, y, (down, up), fmt="o", markersize=5, capsize=2, color=ink.first, label="accuracy")
        axes.set(
            xlabel="confidence",
            ylabel="accuracy",
            xlim=(0, 1),
            ylim=(0, 1.02),
        )
        axes.legend()

    return Plot(
        name="calibration",
        title="Reliability",
        message=(
            f"The mean confidence is {percent(scores.confidence)} and the accuracy "
            f"{percent(scores.accuracy)}. {_advice(scores.confidence - scores.accuracy, mix or {})}"
        ),
        note=f"The expected calibration error is {percent(scores.ece)} (0% = perfectly calibrated). "
        "Vertical lines are 95% confidence intervals: a long one means few images.",
        columns={
            "from": "number",
            "to": "number",
            "images": "count",
            "confidence": "percent",
            "accuracy": "percent",
        },
        rows=rows,
        draw=draw,
        height=3.9,
    )


def _advice(gap: float, mix: dict[str, Any]) -> str:
    """Say what a difference between confidence and accuracy means, where it comes from and what helps."""
    points = f"by {abs(gap) * 100:.1f} points"
    if abs(gap) <= HONEST:
        return "They agree, so a confidence can be read as the probability of being right."
    if gap > 0:
        return (
            f"The model is over-confident {points}: it is right less often than it says. More training data, "
            "fewer epochs or label smoothing (--set mix.smoothing=0.1) help; or divide its logits by a "
            "temperature above 1, fitted on validation images."
        )
    blurry = [name for name in ("smoothing", "mixup", "cutmix") if real(mix.get(name)) > 0]
    why = f" Training with {', '.join(f'mix.{name}' for name in blurry)} teaches that." if blurry else ""
    off = "".join(f" --set mix.{name}=0" for name in blurry)
    remedy = f"train with{off}, or divide" if blurry else "train longer, or divide"
    return (
        f"The model is under-confident {points}: it is right more often than it says.{why} The answers are "
        f"the same; if you need the probabilities, {remedy} its logits by a temperature below 1, fitted on "
        "validation images."
    )


def classes(record: Record, scores: ClassifyScores) -> Plot:
    """Plot precision and recall of each class, the worst first."""
    precision, recall, f1 = scores.precision, scores.recall, scores.f1
    seen = [int(i) for i in np.argsort(f1, kind="stable") if scores.support[i] or scores.answers[i]]
    rows = [
        (record.label(i), int(scores.support[i]), float(precision[i]), float(recall[i]), float(f1[i]))
        for i in seen
    ]
    drawn = seen[:WORST]
    lowest = float(min(precision[drawn].min(), recall[drawn].min()))
    start = 10 * int(10 * lowest - 0.5) if lowest > ZOOMED else 0

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
        axes.set(xlabel="%", xlim=(start - 0.02 * (100 - start), 102), ylim=(len(drawn) - 0.4, -0.6))
        axes.grid(False, axis="y")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)

    low, high = rows[0], rows[-1]
    zoom = f" The axis starts at {start}%." if start else ""
    few = f" The plot shows the {WORST} lowest of {len(seen)}." if len(seen) > WORST else ""
    absent = count(scores.classes - len(seen), "class")
    gone = (
        f" Not listed: {absent} without images here and never predicted."
        if len(seen) < scores.classes
        else ""
    )
    return Plot(
        name="classes",
        title="Precision and recall by class",
        message=(
            f"F1 ranges from {percent(low[4])} ({printable(low[0], 60)}) to {percent(high[4])} "
            f"({printable(high[0], 60)}); the mean is {percent(scores.macro_f1)}."
        ),
        note="Precision: of the images predicted as the class, the share that are. "
        f"Recall: of the images of the class, the share that were found.{zoom}{few}{gone}",
        columns={
            "class": "text",
            "images": "count",
            **dict.fromkeys(("precision", "recall", "F1"), "percent"),
        },
        rows=rows,
        draw=draw,
        width=5.6,
        height=1.0 + 0.19 * len(drawn),
    )


def read_scores(record: Record) -> ClassifyScores | None:
    """Return the scores of evaluation.json, or None and a gap that says why."""
    if "evaluation.json" in record.gaps:
        return None
    try:
        return ClassifyScores.from_json(record.evaluation["scores"])
    except KeyError:
        record.gaps["evaluation.json"] = "holds no scores"
    except (ValueError, TypeError) as error:
        record.gaps["evaluation.json"] = f"holds scores that cannot be read ({printable(error, 100)})"
    return None


def results(record: Record) -> Iterator[Html]:
    """Yield the scores in large print, with their caveats."""
    scores = read_scores(record)
    if scores is None:
        yield soft(record.without("The final score", "evaluation.json"))
        return
    low, high = wilson(scores.correct, scores.count)
    top5 = [("Top 5", percent(scores.top5), "label among five answers")] if scores.classes > 5 else []
    yield tiles(
        [
            ("Accuracy", percent(scores.accuracy), f"95% CI {percent(low)} to {percent(high)}"),
            *top5,
            ("Balanced accuracy", percent(scores.balanced_accuracy), "mean recall of the classes"),
            ("Macro F1", percent(scores.macro_f1), "mean of the classes"),
            ("Loss", number(scores.loss), "nats; lower is better"),
            ("Calibration error", percent(scores.ece), "0% = perfectly calibrated"),
        ]
    )
    yield tag("p", _caveats(scores, record), cls="note")


def _caveats(scores: ClassifyScores, record: Record) -> Html:
    low, high = wilson(scores.correct, scores.count)
    split = {"val": "validation", "train": "training"}.get(record.split, record.split)
    often = int(scores.support.argmax())
    words = [
        f"{scores.correct:,} of {scores.count:,} ",
        name(split),
        " images were classified correctly. On new images of the same kind, expect an accuracy between ",
        f"{percent(low)} and {percent(high)} (95% Wilson interval). ",
    ]
    if high - low > WIDE:
        words.append(
            f"That is wide, because {count(scores.count, 'image')} are few: a model that scores a little "
            "better or worse here may not really be different. "
        )
    words.append(CAUTION.get(record.split, ""))
    share = percent(float(scores.support[often] / scores.count))
    return joined([*words, "Always answering ", name(record.label(often)), f" would reach {share}."])


def sections(record: Record, draw: Draw) -> Iterator[Section]:
    """Yield the sections between the curves and the data: mistakes first, numbers after."""
    scores = read_scores(record)
    if scores is None:
        yield Section("confusions", "Confusion", soft(record.without("Confusion", "evaluation.json")))
    else:
        yield Section("confusions", "Confusion", joined(_confused(record, scores, draw)))
    yield Section("mistakes", "Worst mistakes", joined(_mistakes(record, scores)))
    if right := read_cards(record.evaluation.get("correct"), record.labels):
        words = tag("p", "Some images that were classified correctly, with the model's confidence.")
        yield Section("correct", "Correct examples", joined([words, gallery(right[:PICTURES])]))
    for anchor, title in (("by-class", "Classes"), ("reliability", "Calibration")):
        if scores is None:
            yield Section(anchor, title, soft(record.without(title, "evaluation.json")))
        elif anchor == "by-class":
            yield Section(anchor, title, draw(classes(record, scores)))
        else:
            mix = record.recipe.get("mix")
            yield Section(anchor, title, draw(calibration(scores, mix if isinstance(mix, dict) else {})))
    if (record.folder / "pruning.json").is_file():
        from saccade.vision import pruned  # it needs torch, which other reports do without

        yield Section("patches", pruned.TITLE, joined(pruned.comparison_section(record.folder)))
    yield Section("shown", "What the model was shown", joined(_samples(record)))


def _confused(record: Record, scores: ClassifyScores, draw: Draw) -> Iterator[Html]:
    plot, found = confusion(record, scores), confused_pairs(record, scores)
    if scores.classes > LABELLED or not found:  # then the plot's own table is the list of pairs
        yield draw(plot)
        return
    pairs = table("pairs", "The pairs that are confused most often", list(PAIR), cells(PAIR, found))
    if plot.width > 6:
        yield from (draw(plot), pairs)
    else:
        yield tag("div", draw(plot), pairs, cls="plots")


def _mistakes(record: Record, scores: ClassifyScores | None) -> Iterator[Html]:
    if mistakes := read_cards(record.evaluation.get("mistakes"), record.labels):
        yield tag(
            "p",
            "Here the model was most confident and still wrong. "
            "Look at the label first: it may be the label that is wrong.",
        )
        if words := record.evaluation.get("maps"):
            yield tag("p", str(words))
        yield gallery(mistakes[:PICTURES])
    elif scores is not None and scores.correct == scores.count:
        yield tag("p", "There are none: every image was classified correctly.")
    else:
        yield soft(record.without("The list of mistakes", "evaluation.json"))


def _samples(record: Record) -> Iterator[Html]:
    if not record.samples:
        yield soft(record.without("A sample of the training images", "samples.json"))
        return
    how = "cropping" if record.recipe.get("method") == "probe" else "cropping and augmentation"
    yield tag(
        "p",
        f"Training images as they went into the model, after {how}. "
        "If you cannot tell what an image shows, the model can hardly learn it.",
    )
    yield gallery(record.samples[:PICTURES])
