"""Evaluate a classifier on labelled images, with its most confident mistakes; loads without torch."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from saccade.data.image.decode import decode
from saccade.data.pictures import Pictures
from saccade.data.splits import evenly
from saccade.errors import not_finite
from saccade.metrics.classify import ClassifyScores, scores
from saccade.report.thumbnails import enlarged
from saccade.task import Evaluation
from saccade.wording import percent, show_name

SHOWN, CORRECT = 24, 12
"""Mistakes, and correct examples, that the report shows."""
SCORED = ("accuracy", "top5", "balanced_accuracy", "macro_f1", "loss", "ece")


def evaluate_answers(
    images: Pictures, p: np.ndarray, labels: np.ndarray, numbers: np.ndarray, *, split: str
) -> Evaluation:
    """Evaluate the probabilities that a model gave for the images with these numbers."""
    bad = np.flatnonzero(~np.isfinite(p).all(-1))
    if len(bad):
        raise not_finite(f"on {show_name(images.name(int(numbers[bad[0]]))[:200])} the model")
    found = scores(p / p.sum(-1, keepdims=True), labels)
    answer = p.argmax(-1)
    wrong = np.flatnonzero(answer != labels)
    worst = wrong[np.argsort(-p[wrong, answer[wrong]], kind="stable")][:SHOWN]
    right = np.flatnonzero(answer == labels)
    right = right[evenly(len(right), CORRECT)]  # from all classes: the images are in their order

    def card(i: int) -> dict[str, Any]:
        number = int(numbers[i])
        return {
            "picture": images.name(number),
            "path": images.name(number),
            "label": images.classes[int(labels[i])],
            "predicted": images.classes[int(answer[i])],
            "score": float(p[i, answer[i]]),
            "thumbnail": enlarged(decode(images.read(number))),
        }

    cards = {"mistakes": [card(int(i)) for i in worst], "correct": [card(int(i)) for i in right]}
    details = {"split": split, "scores": found.to_json(), **cards}
    return evaluation(found, details, _rows(images, p, numbers))


def evaluation(
    found: ClassifyScores, details: dict[str, Any], rows: list[dict[str, Any]] | None = None
) -> Evaluation:
    """Return scores in the form that all tasks share."""
    metrics = {"correct": float(found.correct)} | {name: float(getattr(found, name)) for name in SCORED}
    return Evaluation(
        split=details["split"], count=found.count, metrics=metrics, details=details, rows=rows or []
    )


def class_rows(scores: dict[str, Any], labels: Sequence[str]) -> list[list[str]]:
    """Return recall, precision, F1 and the most frequent mistake of each class, the lowest F1 first."""
    confusion = np.array(scores["confusion"])
    rows = [["class", "images", "correct", "recall", "precision", "F1", "mistaken for"]]
    for i in np.argsort(scores["f1"], kind="stable").tolist():
        if not scores["support"][i] and not confusion[:, i].any():
            continue
        wrong = confusion[i].copy()
        wrong[i] = 0
        often = int(wrong.argmax())
        rows.append(
            [
                show_name(labels[i]),
                f"{scores['support'][i]:,}",
                f"{confusion[i, i]:,}",
                *(percent(scores[name][i]) for name in ("recall", "precision", "f1")),
                f"{show_name(labels[often])} ({wrong[often]:,})" if wrong[often] else "",
            ]
        )
    return rows


def _rows(images: Pictures, p: np.ndarray, numbers: np.ndarray) -> list[dict[str, Any]]:
    """Return one row per image, in order; an unreadable image has no answer."""
    found = dict(zip(numbers.tolist(), p, strict=True))
    made = []
    for i, label in enumerate(images.labels.tolist()):
        row = found.get(i)
        answer = ("", "") if row is None else (images.classes[int(row.argmax())], f"{row.max():.6f}")
        made.append(
            {
                "name": images.name(i),
                "label": images.classes[label],
                "predicted": answer[0],
                "score": answer[1],
            }
        )
    return made
