"""How well vectors separate labelled classes: k-NN, retrieval, a few-shot probe, a linear probe.

Every score is measured on images that were not used to answer: leave one out, or another split. `split` is
the rows of the images to compare with (the reference), and of the queries.

Shapes: n images, m queries, r reference images, e numbers per vector.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float64, Int64

from saccade.data.splits import Indices, evenly
from saccade.embedding.neighbours import FeatureVectors, VectorLabels, neighbours, normalise, votes
from saccade.vision.logistic import parts, path, trials

BIAS = 100.0
"""The constant feature of `few_shot`: large, so that the penalty hardly affects the bias."""
PENALTY = 1024.0
STRENGTHS = (1e-3, 1e-2, 0.1, 1.0)
DRAWS = 5
MOST = 5000
"""Most images to fit the linear probe on; of more, this many are chosen, evenly spread."""

Split = tuple[Indices, Indices]


def vote(near: Int64[np.ndarray, "m k"], labels: VectorLabels, classes: int) -> Int64[np.ndarray, "m"]:
    """Return the class with the most neighbours; on a tie, that of the nearest."""
    ranks = np.zeros((len(near), classes))
    earlier = 1 - np.arange(near.shape[1]) / max(near.shape[1], 1)
    np.maximum.at(ranks, (np.arange(len(near))[:, None], labels[near]), earlier[None])
    return (np.rint(votes(near, labels, classes) * near.shape[1]) + ranks / 2).argmax(1)


def knn(
    x: FeatureVectors,
    labels: VectorLabels,
    classes: int,
    k: int,
    metric: str = "cosine",
    split: Split | None = None,
    index: str = "exact",
) -> float:
    """Return the accuracy of a k-NN vote, leave one out or by `split`."""
    if split is None:
        near, right = neighbours(x, k, None, metric, index).places, labels
    else:
        reference, queries = split
        near = reference[neighbours(x[reference], k, x[queries], metric, index).places]
        right = labels[queries]
    return float((vote(near, labels, classes) == right).mean()) if near.size else float("nan")


def mean_average_precision(
    x: FeatureVectors,
    labels: VectorLabels,
    metric: str = "cosine",
    split: Split | None = None,
    most: int = 2000,
) -> float:
    """Return the mean over queries of the average precision of ranking their class by distance.

    At most `most` queries, evenly spread; those without another image of their class are skipped.
    """
    from sklearn.metrics import average_precision_score

    reference, queries = split or (np.arange(len(x)), np.arange(len(x)))
    queries = queries[evenly(len(queries), most)]
    x = normalise(x, metric)
    known, classes, found = x[reference], labels[reference], []
    squares = (known**2).sum(1)
    for i in queries.tolist():
        others = reference != i
        relevant = (classes == labels[i])[others]
        if relevant.any():
            distances = (squares - 2 * (known @ x[i]))[others]
            found.append(average_precision_score(relevant, -distances))
    return float(np.mean(found)) if found else float("nan")


def least_squares(
    x: Float[np.ndarray, "r e"], y: Int64[np.ndarray, "r"], classes: int, penalty: float = PENALTY
) -> Float64[np.ndarray, "_ classes"]:
    """Return the ridge regression of targets -1 and 1 on standardised features and a constant.

    With X the features and T the targets: (X'X + penalty I)^-1 X'T = X'(XX' + penalty I)^-1 T; the smaller of
    the two systems is solved. The few-shot scores of Dosovitskiy et al. 2021, section 4.1.
    """
    x, t = np.asarray(x, np.float64), 2.0 * (y[:, None] == np.arange(classes)) - 1
    n, e = x.shape
    if n < e:
        return x.T @ np.linalg.solve(x @ x.T + penalty * np.eye(n), t)
    return np.linalg.solve(x.T @ x + penalty * np.eye(e), x.T @ t)


def standardise(x: FeatureVectors, by: Float[np.ndarray, "r e"]) -> Float64[np.ndarray, "n _"]:
    """Return features of mean 0 and standard deviation 1 over the images `by`, and a constant feature."""
    by = np.asarray(by, np.float64)
    mean, deviation = by.mean(0), by.std(0) + 1e-5
    return np.pad((x - mean) / deviation, ((0, 0), (0, 1)), constant_values=BIAS)


def draw_shots(labels: VectorLabels, among: Indices, shots: int, seed: int) -> Indices:
    """Return `shots` random rows of each class; all but one of a smaller class."""
    rng, chosen = np.random.default_rng(seed), []
    for label in np.unique(labels[among]):
        own = rng.permutation(among[labels[among] == label])
        chosen.append(own[: min(shots, max(1, len(own) - 1))])
    return np.sort(np.concatenate(chosen))


def few_shot(
    x: FeatureVectors,
    labels: VectorLabels,
    classes: int,
    shots: int = 5,
    seed: int = 0,
    split: Split | None = None,
) -> float:
    """Return the accuracy of least squares fitted on `shots` images per class; mean of 5 draws."""
    everything = np.arange(len(x))
    found = []
    for number in range(DRAWS):
        chosen = draw_shots(labels, everything if split is None else split[0], shots, seed + number)
        queries = np.setdiff1d(everything, chosen) if split is None else split[1]
        if not len(queries):
            return float("nan")
        weight = least_squares(standardise(x[chosen], x[chosen]), labels[chosen], classes)
        answers = (standardise(x[queries], x[chosen]) @ weight).argmax(1)
        found.append(float((answers == labels[queries]).mean()))
    return float(np.mean(found))


def linear(
    x: FeatureVectors,
    labels: VectorLabels,
    classes: int,
    seed: int = 0,
    split: Split | None = None,
    strengths: Sequence[float] = STRENGTHS,
) -> float:
    """Return the accuracy of a logistic regression on the features, by five-fold cross-validation.

    With `split` it is fitted on the reference, where its penalty is chosen too, and scored on the queries.
    NaN where the classes have too few images.
    """
    reference = np.arange(len(x)) if split is None else split[0]
    reference = reference[evenly(len(reference), MOST)]
    inner, own = x[reference].astype(np.float64), labels[reference]
    made = parts(own, 5, seed) if len(np.unique(own)) > 1 else []
    tried = trials(inner, own, classes, made, strengths) if made else []
    if not tried:
        return float("nan")
    best = min(tried, key=lambda trial: trial.loss)
    if split is None:
        return best.accuracy
    [line] = path(inner, own, classes, [best.strength])
    return float((line(x[split[1]].astype(np.float64)).argmax(1) == labels[split[1]]).mean())
