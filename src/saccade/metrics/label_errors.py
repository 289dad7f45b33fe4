"""Labels that a model contradicts for a reason: confident learning (Northcutt, Jiang and Chuang 2021).

Confident Learning: Estimating Uncertainty in Dataset Labels, https://arxiv.org/abs/1911.00068. How sure a
model must be of a class before it may contradict a label is told by that class's own pictures: as sure as it
is of them on average. So a model that is timid with one class and bold with another is taken at its word in
both. The method supposes that the model did not learn from the pictures that it judges.

Shapes: n pictures.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int

SLACK = 1e-6
"""A mean of equal numbers may come out above them by its rounding; they are to reach it all the same."""

Probabilities = Float[np.ndarray, "n classes"]
Labels = Int[np.ndarray, "n"]


class Doubt(NamedTuple):
    """A picture whose label is suspected: its row, the class it looks like, and how probable both are."""

    row: int
    answer: int
    sure: float
    """Probability of the answer."""
    own: float
    """Probability of the label."""

    @property
    def margin(self) -> float:
        """How much more probable the answer is than the label; the higher, the more suspect."""
        return self.sure - self.own


def thresholds(probabilities: Probabilities, labels: Labels) -> Float64[np.ndarray, "classes"]:
    """Return for each class how probable its own pictures are of it on average; infinite without any."""
    n, classes = probabilities.shape
    own = probabilities[np.arange(n), labels].astype(np.float64)
    count = np.bincount(labels, minlength=classes)
    total = np.bincount(labels, weights=own, minlength=classes)
    return np.divide(total, count, out=np.full(classes, np.inf), where=count > 0)


def doubts(probabilities: Probabilities, labels: Labels) -> list[Doubt]:
    """Return the pictures that look like another class, the most suspect first.

    Such a picture is as probable of the other class as that class's own pictures are on average (it reaches
    the threshold), and less probable of its label.
    """
    n, classes = probabilities.shape
    if n and not (labels.min() >= 0 and labels.max() < classes):
        raise ValueError(
            f"labels from {labels.min()} to {labels.max()} were found; expected 0 to {classes - 1}"
        )
    rows = np.arange(n)
    own = probabilities[rows, labels]
    rivals = np.where(probabilities >= thresholds(probabilities, labels) - SLACK, probabilities, -np.inf)
    rivals[rows, labels] = -np.inf
    answers = rivals.argmax(axis=1)
    sure = rivals[rows, answers]
    found = np.flatnonzero(sure > own)
    ranked = found[np.argsort(own[found] - sure[found], kind="stable")]
    return [Doubt(int(row), int(answers[row]), float(sure[row]), float(own[row])) for row in ranked]
