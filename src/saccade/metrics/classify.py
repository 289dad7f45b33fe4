"""From probabilities and labels to the metrics of a classifier.

Shapes: n images. The numbers equal scikit-learn's (tests compare them); a class that never occurs has
precision, recall and F1 of 0 and, as there, is left out of the means.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int, Int64, Shaped

BINS = 15
TOP = 5
SMALLEST = float(np.finfo(np.float64).eps)
"""Smaller probabilities count as this in the loss, as in scikit-learn: no mistake costs infinity."""

Matrix = Int64[np.ndarray, "classes classes"]
Counts = Int64[np.ndarray, "classes"]
Shares = Float64[np.ndarray, "classes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bin:
    """The images whose highest probability is in (low, high], for a reliability diagram."""

    low: float
    high: float
    count: int
    confidence: float
    """Mean highest probability; 0 in an empty bin."""
    accuracy: float
    """Share of correct answers; 0 in an empty bin."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ClassifyScores:
    """All metrics; those that follow from the confusion matrix and the bins are not stored."""

    confusion: Matrix
    """Images by label (row) and answer (column)."""
    top5: float
    """Share of images whose label is among the 5 most probable classes (or all, if there are fewer)."""
    loss: float
    """Mean negative log-likelihood of the labels, in nats."""
    brier: float
    """Mean squared distance between the probabilities and the labels, summed over classes (0 to 2)."""
    bins: tuple[Bin, ...]

    @property
    def classes(self) -> int:
        return self.confusion.shape[0]

    @property
    def count(self) -> int:
        """Number of images."""
        return int(self.confusion.sum())

    @property
    def correct(self) -> int:
        return int(self.confusion.trace())

    @property
    def accuracy(self) -> float:
        return self.correct / self.count

    @property
    def support(self) -> Counts:
        """Images per label."""
        return self.confusion.sum(axis=1)

    @property
    def answers(self) -> Counts:
        """Images per answer."""
        return self.confusion.sum(axis=0)

    @property
    def precision(self) -> Shares:
        """Of the images that got this answer, the share with this label; 0 for a class never answered."""
        return _share(self.confusion.diagonal(), self.answers)

    @property
    def recall(self) -> Shares:
        """Of the images with this label, the share that got this answer; 0 for a class without images."""
        return _share(self.confusion.diagonal(), self.support)

    @property
    def f1(self) -> Shares:
        """Harmonic mean of precision and recall."""
        return _share(2 * self.confusion.diagonal(), self.support + self.answers)

    @property
    def macro_f1(self) -> float:
        """Mean F1 of the classes that occur as label or as answer."""
        return float(self.f1[self.support + self.answers > 0].mean())

    @property
    def balanced_accuracy(self) -> float:
        """Mean recall of the classes that have images."""
        return float(self.recall[self.support > 0].mean())

    @property
    def confidence(self) -> float:
        """Mean highest probability; equal to the accuracy if the model is calibrated."""
        return sum(b.count * b.confidence for b in self.bins) / self.count

    @property
    def ece(self) -> float:
        """Expected calibration error (Naeini et al. 2015): mean gap of confidence and accuracy over bins."""
        return sum(b.count * abs(b.confidence - b.accuracy) for b in self.bins) / self.count

    def to_json(self) -> dict[str, Any]:
        """Return every metric, derived ones too; `from_json` reads only the stored ones."""
        numbers = ("classes", "count", "accuracy", "top5", "loss", "macro_f1", "balanced_accuracy")
        arrays = ("precision", "recall", "f1", "support", "confusion")
        return {
            **{name: getattr(self, name) for name in (*numbers, "ece", "brier")},
            **{name: getattr(self, name).tolist() for name in arrays},
            "bins": [{name: getattr(b, name) for name in Bin.__slots__} for b in self.bins],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "ClassifyScores":
        """Read what `to_json` returned; anything else is a ValueError."""
        try:
            confusion = np.array(value["confusion"], dtype=np.int64)
            numbers = {name: float(value[name]) for name in ("top5", "loss", "brier")}
            bins = tuple(
                Bin(**{name: kind(row[name]) for name, kind in _BIN.items()}) for row in value["bins"]
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"the scores lack a field or have a value of the wrong type ({error!r})"
            ) from None
        square = confusion.ndim == 2 and confusion.shape[0] == confusion.shape[1]
        if not square or confusion.size == 0 or confusion.min() < 0 or not confusion.any():
            raise ValueError("the confusion matrix is not a square of counts with at least one image")
        shares = [share for b in bins for share in (b.confidence, b.accuracy)]
        counts = [b.count for b in bins]
        if sum(counts) != confusion.sum() or min(counts) < 0 or not all(0 <= share <= 1 for share in shares):
            raise ValueError("the bins do not add up to the images of the confusion matrix")
        return cls(confusion=_fixed(confusion), bins=bins, **numbers)


_BIN = {"low": float, "high": float, "count": int, "confidence": float, "accuracy": float}


def scores(probabilities: Float[np.ndarray, "n classes"], labels: Int[np.ndarray, " n"]) -> ClassifyScores:
    """Compare a model's probabilities for n images with their labels."""
    _check(probabilities, labels)
    n, classes = probabilities.shape
    rows, numbers = np.arange(n), np.arange(classes)
    answers = probabilities.argmax(axis=1)
    confusion = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(confusion, (labels, answers), 1)
    truth = probabilities[rows, labels]
    # The rank of the label without a sort; equal probabilities rank by class number, as in argmax.
    tied = (probabilities == truth[:, None]) & (numbers < labels[:, None])
    rank = ((probabilities > truth[:, None]) | tied).sum(axis=1)
    squares = np.einsum("nc,nc->n", probabilities, probabilities, dtype=np.float64)
    return ClassifyScores(
        confusion=_fixed(confusion),
        top5=float((rank < TOP).mean()),
        loss=float(-np.log(np.clip(truth.astype(np.float64), SMALLEST, 1)).mean()),
        brier=float((squares - 2 * truth.astype(np.float64) + 1).mean()),
        bins=_bins(probabilities[rows, answers].astype(np.float64), answers == labels),
    )


def _check(probabilities: Float[np.ndarray, "n classes"], labels: Int[np.ndarray, " n"]) -> None:
    classes = probabilities.shape[1]
    if probabilities.size == 0:
        raise ValueError(
            f"{len(labels)} images of {classes} classes cannot be scored; expected at least one of each"
        )
    if labels.min() < 0 or labels.max() >= classes:
        wrong = labels[(labels < 0) | (labels >= classes)][0]
        raise ValueError(f"label {wrong} is outside 0 to {classes - 1}, the model's classes")
    sums = probabilities.sum(axis=1, dtype=np.float64)
    # Negated, so that NaN is odd too; 1e-2 lets half precision pass.
    odd = ~((np.abs(sums - 1) < 1e-2) & (probabilities.min(axis=1) >= 0))
    if odd.any():
        row = int(odd.argmax())
        raise ValueError(
            f"row {row} of the probabilities sums to {sums[row]:.4g} and has a minimum of "
            f"{probabilities[row].min():.4g}; expected a sum of 1 and no negative value: apply softmax first"
        )


def _bins(confidence: Float64[np.ndarray, " n"], hit: Shaped[np.ndarray, " n"]) -> tuple[Bin, ...]:
    edges = np.linspace(0, 1, BINS + 1)
    index = np.searchsorted(edges[1:-1], confidence)
    count = np.bincount(index, minlength=BINS)
    means = [
        _share(np.bincount(index, weights=values, minlength=BINS), count) for values in (confidence, hit)
    ]
    columns = (edges[:-1], edges[1:], count, *means)
    return tuple(
        Bin(**dict(zip(_BIN, values, strict=True)))
        for values in zip(*(c.tolist() for c in columns), strict=True)
    )


def _share(part: Shaped[np.ndarray, " k"], whole: Shaped[np.ndarray, " k"]) -> Float64[np.ndarray, " k"]:
    return np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)


def _fixed(array: Matrix) -> Matrix:
    array.setflags(write=False)
    return array


def pool_scores(parts: Sequence[ClassifyScores]) -> ClassifyScores:
    """Return the scores of all parts together, as if all images had been scored at once."""
    if not parts:
        raise ValueError("no scores to pool; expected one or more")
    counts = [part.count for part in parts]

    def mean(value: Callable[[ClassifyScores], float]) -> float:
        total = sum(count * value(part) for count, part in zip(counts, parts, strict=True))
        return total / sum(counts)

    return ClassifyScores(
        confusion=_fixed(np.sum([part.confusion for part in parts], axis=0)),
        top5=mean(lambda part: part.top5),
        loss=mean(lambda part: part.loss),
        brier=mean(lambda part: part.brier),
        bins=tuple(_joined(bins) for bins in zip(*(part.bins for part in parts), strict=True)),
    )


def _joined(bins: Sequence[Bin]) -> Bin:
    """Return one bin of all parts; rounding must not lift a share above 1."""
    count = sum(b.count for b in bins)
    confidence, accuracy = (
        min(1.0, sum(b.count * getattr(b, name) for b in bins) / max(count, 1))
        for name in ("confidence", "accuracy")
    )
    return Bin(low=bins[0].low, high=bins[0].high, count=count, confidence=confidence, accuracy=accuracy)
