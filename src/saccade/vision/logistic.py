"""Multinomial logistic regression with an L2 penalty, as one linear layer on unscaled features."""

import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, Integer

from saccade.data.splits import Parts, kfold

Rows = Float64[np.ndarray, "n e"]
Labels = Integer[np.ndarray, "n"]
MOST = 2000
"""Limit on L-BFGS steps; a few dozen are usual."""
FLAT = 1e-6
"""A feature whose relative spread is smaller than this holds only rounding errors."""
NEVER = -1e3
"""The logit of a class without training images."""


class Line(NamedTuple):
    """Logits are weight times features plus bias."""

    weight: Float64[np.ndarray, "classes e"]
    bias: Float64[np.ndarray, "classes"]
    settled: bool = True
    """Whether the optimum was reached within `MOST` steps."""

    def __call__(self, x: Rows) -> Float64[np.ndarray, "n classes"]:
        return x @ self.weight.T + self.bias


class Trial(NamedTuple):
    """The cross-validated score of a strength."""

    strength: float
    loss: float
    accuracy: float


def path(x: Rows, y: Labels, classes: int, strengths: Sequence[float]) -> Iterator[Line]:
    """Yield the fit for each strength (scikit-learn's C, the inverse of the penalty), warm-started.

    The features are standardised for the fit, which makes the penalty fair to all of them; the mean and the
    spread are then folded into weight and bias.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    mean, spread = x.mean(0), x.std(0)
    spread = np.where(spread > FLAT * np.maximum(np.abs(mean), 1), spread, 1.0)
    model = LogisticRegression(max_iter=MOST, warm_start=True)
    for strength in strengths:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.set_params(C=strength).fit((x - mean) / spread, y)
        slope, bias = model.coef_, model.intercept_
        if len(slope) == 1:  # for two classes scikit-learn keeps only the difference
            slope, bias = np.concatenate([-slope, slope]) / 2, np.concatenate([-bias, bias]) / 2
        weight, offset = np.zeros((classes, x.shape[1])), np.full(classes, NEVER)
        weight[model.classes_] = slope / spread
        offset[model.classes_] = bias - weight[model.classes_] @ mean
        yield Line(weight, offset, bool(model.n_iter_.max() < MOST))


def parts(y: Labels, folds: int, seed: int, groups: Int64[np.ndarray, "n"] | None = None) -> list[Parts]:
    """Return at most `folds` folds: fewer where the classes are small, none where none can be made."""
    most = int(np.bincount(y).max()) if groups is None else len(np.unique(groups))
    if min(folds, most) < 2:
        return []
    made = kfold(y, min(folds, most), seed, groups)
    return [
        (train, held)
        for train, held in made
        if len(np.unique(y[train])) > 1 and np.isin(y[held], y[train]).any()
    ]


def trials(
    x: Rows, y: Labels, classes: int, made: Sequence[Parts], strengths: Sequence[float]
) -> list[Trial]:
    """Score the strengths, the smallest first, until the loss has grown twice in a row."""
    walks = [path(x[train], y[train], classes, strengths) for train, _ in made]
    found: list[Trial] = []
    for strength, lines in zip(strengths, zip(*walks, strict=True), strict=False):
        pairs = [_left_out(line, x[held], y[held]) for line, (_, held) in zip(lines, made, strict=True)]
        losses, hits = (np.concatenate(column) for column in zip(*pairs, strict=True))
        found.append(Trial(strength, float(losses.mean()), float(hits.mean())))
        if len(found) > 2 and found[-1].loss > found[-2].loss > found[-3].loss:
            break
    return found


def _left_out(line: Line, x: Rows, y: Labels) -> tuple[np.ndarray, np.ndarray]:
    """Return loss and hit for each image whose class this fold was trained on."""
    known = line.bias[y] != NEVER
    logits = line(x[known])
    logits = logits - logits.max(1, keepdims=True)
    chosen = logits[np.arange(len(logits)), y[known]]
    return np.log(np.exp(logits).sum(1)) - chosen, logits.argmax(1) == y[known]
