"""The sections of a classification report: scores, confusion, classes, calibration, mistakes."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from einops import reduce
from jaxtyping import Float64

from saccade.metrics.classify import ClassifyScores
from saccade.metrics.interval import wilson
from saccade.report.html import Draw, Html, gallery, joined, name, soft, table, tag, tiles
from saccade.report.plots import Axes, Ink, Plot, cells, drawable
from saccade.report.run_page import PICTURES, Section
from saccade.report.run_record import Record, read_cards
from saccade.wording import count, number, percent, printable

WIDE = 0.1
"""A confidence interval wider than this deserves a warning."""
CAUTION = {
    "val": "The best epoch was chosen on these same images, so expect slightly less on others. ",
    "train": "The model was trained on these same images, so this says little about others. ",
}
WORST = 40
"""Classes that fit into one plot."""
LABELLED = 40
"""With more classes there is no room for their names."""
COUNTED = 15
"""With more classes there is no room for the counts."""
BLOCKS = 250
"""Most cells per side; more classes share cells."""
PAIRS = 20
PAIR = {"label": "text", "answer": "text", "images": "count", "of the label": "percent"}


def confused_pairs(
    record: Record, scores: ClassifyScores, most: int = PAIRS
) -> list[tuple[str, str, int, float]]:
    """Return label, answer, images and share of the label, the most frequent mistakes first."""
    wrong = scores.confusion.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:most]
    found = [divmod(int(cell), scores.classes) for cell in order if wrong.flat[cell]]
    return [
        (record.label(i), record.label(j), int(wrong[i, j]), float(wrong[i, j] / scores.support[i]))
        for i, j in found
    ]


def confusion(record: Record, scores: ClassifyScores) -> Plot:
    """Plot labels against answers."""
    n, names = scores.classes, [record.label(i) for i in range(scores.classes)]
    whole = Plot(
        name="confusion",
        title="Confusion matrix",
        message=_message(record, scores),
        note="Rows are labels, columns are answers; blue is correct, orange a mistake, stronger is more.",
        columns={"label": "text", **{f"{i}: {name}": "count" for i, name in enumerate(names)}},
        rows=[(f"{i}: {names[i]}", *scores.confusion[i].tolist()) for i in range(n)],
        draw=partial(_draw, scores, record),
        width=max(4.8, 2.8 + 0.18 * n),
        height=max(4.2, 2.2 + 0.18 * n),
    )
    if n <= LABELLED:
        return whole
    size = math.ceil(n / BLOCKS)
    joined = f" Each point is the highest of {size} x {size} cells." if size > 1 else ""
    return replace(
        whole,
        note=f"{whole.note} The {n:,} classes are in the order of labels.txt.{joined} "
        "The table lists the pairs that are confused most often; plots/confusion.json has every cell.",
        columns=PAIR,
        rows=confused_pairs(record, scores),
        width=6.0,
        height=5.6,
        extra={"labels": names, "matrix": scores.confusion.tolist()},
    )


def _message(record: Record, scores: ClassifyScores) -> str:
    of = f"of {count(scores.count, 'image')}"
    right = f"{scores.correct:,} {of} lie on the diagonal ({percent(scores.accuracy)})"
    if not (worst := confused_pairs(record, scores, 1)):
        return f"{right}."
    label, answer, times, share = worst[0]
    return (
        f"{right}; the most frequent mistake is to take {printable(label, 60)} for {printable(answer, 60)} "
        f"({count(times, 'time')}, {percent(share)} of that class)."
    )


def _draw(scores: ClassifyScores, record: Record, axes: Axes, ink: Ink) -> None:
    n = scores.classes
    axes.imshow(_colours(scores, ink), interpolation="nearest", extent=(-0.5, n - 0.5, n - 0.5, -0.5))
    axes.grid(False)
    axes.set(xlabel="answer", ylabel="label")
    if n > LABELLED:
        return
    names = [drawable(record.label(i), f"class {i}", 20) for i in range(n)]
    axes.set_xticks(range(n), names, rotation=90, fontsize=8, parse_math=False)
    axes.set_yticks(range(n), names, fontsize=8, parse_math=False)
    axes.tick_params(length=0)
    for rule in (axes.hlines, axes.vlines):
        rule(np.arange(n + 1) - 0.5, -0.5, n - 0.5, ink.grid, linewidth=0.5)
    share = _shares(scores)
    for i, j in zip(*np.nonzero(scores.confusion if n <= COUNTED else np.zeros((n, n))), strict=True):
        colour = ink.paper if share[i, j] > 0.25 else ink.text
        axes.text(j, i, str(scores.confusion[i, j]), ha="center", va="center", fontsize=8, color=colour)


def _shares(scores: ClassifyScores) -> Float64[np.ndarray, "classes classes"]:
    return scores.confusion / np.maximum(scores.support, 1)[:, None]


def _colours(scores: ClassifyScores, ink: Ink) -> Float64[np.ndarray, "rows columns 3"]:
    from matplotlib.colors import to_rgb

    share, own = (
        np.sqrt(_shares(scores)),
        np.eye(scores.classes, dtype=bool),
    )  # the root shows small shares too
    right, wrong = _blocks(np.where(own, share, 0)), _blocks(np.where(own, 0, share))
    paper, first, second = (np.array(to_rgb(colour)) for colour in (ink.paper, ink.first, ink.second))
    shown = np.where((right >= wrong)[..., None], first, second)
    return paper + (shown - paper) * np.maximum(right, wrong)[..., None]


def _blocks(values: Float64[np.ndarray, "classes classes"]) -> Float64[np.ndarray, "rows columns"]:
    n = values.shape[0]
    size = math.ceil(n / BLOCKS)
    padded = np.pad(values, (0, -n % size))
    return reduce(padded, "(r a) (c b) -> r c", "max", a=size, b=size)


def calibration(scores: ClassifyScores) -> Plot:
    """Plot confidence against accuracy."""
    bins = [b for b in scores.bins if b.count]
    gap = scores.confidence - scores.accuracy
    verdict = "is overconfident by" if gap > 0 else "is underconfident by"
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
            f"{percent(scores.accuracy)}: the model {verdict} {abs(gap) * 100:.1f} points. "
            f"The expected calibration error is {percent(scores.ece)}."
        ),
        note="Vertical lines are 95% confidence intervals: a long one means few images.",
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


def classes(record: Record, scores: ClassifyScores) -> Plot:
    """Plot precision and recall of each class, the worst first."""
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
        note="Precision: the share of the images given this label that deserve it. "
        f"Recall: the share of this class that was found.{few}{gone}",
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
            ("Calibration error", percent(scores.ece), "0% is perfect"),
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
    """Yield the sections between the curves and the data."""
    scores = read_scores(record)
    pruning = record.folder / "pruning.json"
    if pruning.is_file():
        from saccade.vision import pruned  # it needs torch, which other reports do without

        yield Section("patches", pruned.TITLE, joined(pruned.comparison_section(record.folder)))
    for anchor, title in (
        ("confusions", "Confusion"),
        ("by-class", "Classes"),
        ("reliability", "Calibration"),
    ):
        if scores is None:
            yield Section(anchor, title, soft(record.without(title, "evaluation.json")))
        elif anchor == "confusions":
            yield Section(anchor, title, joined(_confused(record, scores, draw)))
        else:
            yield Section(
                anchor, title, draw(classes(record, scores) if anchor == "by-class" else calibration(scores))
            )
    yield Section("mistakes", "Worst mistakes", joined(_mistakes(record, scores)))
    yield Section("shown", "What the model was shown", joined(_samples(record)))


def _confused(record: Record, scores: ClassifyScores, draw: Draw) -> Iterator[Html]:
    yield draw(confusion(record, scores))
    if scores.classes > LABELLED:  # then the plot's own table is the list of pairs
        return
    if found := confused_pairs(record, scores):
        yield table("pairs", "The pairs that are confused most often", list(PAIR), cells(PAIR, found))


def _mistakes(record: Record, scores: ClassifyScores | None) -> Iterator[Html]:
    if mistakes := read_cards(record.evaluation.get("mistakes"), record.labels):
        yield tag(
            "p",
            "Here the model was most confident and still wrong. "
            "Look at the label first: it may be the label that is wrong.",
        )
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
