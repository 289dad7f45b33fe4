"""Labels that a model contradicts with confidence: confident learning (Northcutt, Jiang and Chuang 2021).

Confident Learning: Estimating Uncertainty in Dataset Labels, https://arxiv.org/abs/1911.00068. A model may
contradict a label if it is as confident of another class as it is, on average, of that class's own images;
so it does not matter whether a model is cautious about one class and bold about another. The method assumes
that the model was not trained on the images it is applied to.

Shapes: n images.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int

SLACK = 1e-6
"""Rounding may lift a mean of equal numbers above them; they must reach it anyway."""

Probabilities = Float[np.ndarray, "n classes"]
Labels = Int[np.ndarray, "n"]


class LabelError(NamedTuple):
    """A suspected label: the image's row, the class it looks like, and how probable both classes are."""

    row: int
    answer: int
    p_answer: float
    p_label: float

    @property
    def margin(self) -> float:
        """How much more probable the answer is than the label; the higher, the more suspect."""
        return self.p_answer - self.p_label


def thresholds(probabilities: Probabilities, labels: Labels) -> Float64[np.ndarray, "classes"]:
    """Return the mean probability that each class has on its own images; infinity where it has none."""
    n, classes = probabilities.shape
    p_label = probabilities[np.arange(n), labels].astype(np.float64)
    count = np.bincount(labels, minlength=classes)
    total = np.bincount(labels, weights=p_label, minlength=classes)
    return np.divide(total, count, out=np.full(classes, np.inf), where=count > 0)


def find_label_errors(probabilities: Probabilities, labels: Labels) -> list[LabelError]:
    """Return the images that look like another class, the most suspect first.

    Such an image reaches the threshold of the other class, which is more probable than its label.
    """
    n, classes = probabilities.shape
    if n and not (labels.min() >= 0 and labels.max() < classes):
        raise ValueError(
            f"labels from {labels.min()} to {labels.max()} were found; expected 0 to {classes - 1}"
        )
    rows = np.arange(n)
    p_label = probabilities[rows, labels]
    rivals = np.where(probabilities >= thresholds(probabilities, labels) - SLACK, probabilities, -np.inf)
    rivals[rows, labels] = -np.inf
    answers = rivals.argmax(axis=1)
    p_answer = rivals[rows, answers]
    found = np.flatnonzero(p_answer > p_label)
    ranked = found[np.argsort(p_label[found] - p_answer[found], kind="stable")]
    return [
        LabelError(int(row), int(answers[row]), float(p_answer[row]), float(p_label[row])) for row in ranked
    ]
