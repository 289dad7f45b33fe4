"""The confusion matrix of a classification report."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
from einops import reduce
from jaxtyping import Float64

from saccade.metrics.classify import ClassifyScores
from saccade.report.plots import Axes, Ink, Plot, drawable
from saccade.report.run_record import Record
from saccade.wording import count, percent, printable

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
