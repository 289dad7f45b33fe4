"""What labels tell of vectors: neighbours that agree, retrieval, a probe of few pictures, a linear probe.

Every score is of pictures that were not used to answer them: others of the set (leave one out), or those of
another split. `parted` are the places of the pictures to compare with, and of those that are asked about.

Shapes: n pictures, m queries, r reference pictures, e numbers a vector.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float64, Int64

from saccade.data.splits import spread
from saccade.embedding.neighbours import neighbours, ready
from saccade.vision.logistic import parts, path, trials

BIAS = 100.0
"""The constant feature of `few_shot`: so large that the penalty hardly touches the bias."""
PENALTY = 1024.0
STRENGTHS = (1e-3, 1e-2, 0.1, 1.0)
DRAWS = 5
MOST = 5000
"""Pictures that the linear probe learns from; of more, every so many-th."""

Vectors = Float[np.ndarray, "n e"]
Labels = Int64[np.ndarray, "n"]
Places = Int64[np.ndarray, "_"]


def votes(near: Int64[np.ndarray, "m k"], labels: Labels, classes: int) -> Float64[np.ndarray, "m classes"]:
    """Return for each query the share of its neighbours in each class."""
    found = np.zeros((len(near), classes))
    np.add.at(found, (np.arange(len(near))[:, None], labels[near]), 1 / max(near.shape[1], 1))
    return found


def elected(near: Int64[np.ndarray, "m k"], labels: Labels, classes: int) -> Int64[np.ndarray, "m"]:
    """Return the class with the most neighbours; of equals, the one with the nearest."""
    ranks = np.zeros((len(near), classes))
    earlier = 1 - np.arange(near.shape[1]) / max(near.shape[1], 1)
    np.maximum.at(ranks, (np.arange(len(near))[:, None], labels[near]), earlier[None])
    return (np.rint(votes(near, labels, classes) * near.shape[1]) + ranks / 2).argmax(1)


def knn(
    x: Vectors,
    labels: Labels,
    classes: int,
    k: int,
    metric: str = "cosine",
    parted: tuple[Places, Places] | None = None,
    index: str = "exact",
) -> float:
    """Return how often the k nearest elect the right class, each left out in turn or (reference, queries)."""
    if parted is None:
        near, right = neighbours(x, k, None, metric, index).places, labels
    else:
        reference, queries = parted
        near = reference[neighbours(x[reference], k, x[queries], metric, index).places]
        right = labels[queries]
    return float((elected(near, labels, classes) == right).mean()) if near.size else float("nan")


def mean_average_precision(
    x: Vectors,
    labels: Labels,
    metric: str = "cosine",
    parted: tuple[Places, Places] | None = None,
    most: int = 2000,
) -> float:
    """Return the mean over queries of the average precision with which their class is ranked first.

    Of more than `most` queries every so many-th is asked; one without another of its class is not.
    """
    reference, queries = parted or (np.arange(len(x)), np.arange(len(x)))
    queries = queries[spread(len(queries), most)]
    x = ready(x, metric)
    squares, found = (x[reference] ** 2).sum(1), []
    for i in queries.tolist():
        others = reference != i
        ranked = np.argsort((squares - 2 * (x[reference] @ x[i]))[others], kind="stable")
        hits = (labels[reference] == labels[i])[others][ranked]
        if hits.any():
            found.append(float((hits.cumsum() / np.arange(1, len(hits) + 1))[hits].mean()))
    return float(np.mean(found)) if found else float("nan")


def least_squares(
    x: Float[np.ndarray, "r e"], y: Int64[np.ndarray, "r"], classes: int, penalty: float = PENALTY
) -> Float64[np.ndarray, "_ classes"]:
    """Return the weights that bring features of mean 0 and spread 1, and a constant, nearest to -1 and 1.

    With X the features and T the targets: (X'X + penalty I)^-1 X'T, which is X'(XX' + penalty I)^-1 T; the
    smaller of the two systems is solved. So do the few-shot scores of Dosovitskiy et al. 2021, section 4.1.
    """
    x, t = np.asarray(x, np.float64), 2.0 * (y[:, None] == np.arange(classes)) - 1
    n, e = x.shape
    if n < e:
        return x.T @ np.linalg.solve(x @ x.T + penalty * np.eye(n), t)
    return np.linalg.solve(x.T @ x + penalty * np.eye(e), x.T @ t)


def whitened(x: Vectors, by: Float[np.ndarray, "r e"]) -> Float64[np.ndarray, "n _"]:
    """Return features of mean 0 and spread 1 over the pictures `by`, and a constant one behind them."""
    by = np.asarray(by, np.float64)
    mean, spread = by.mean(0), by.std(0) + 1e-5
    return np.pad((x - mean) / spread, ((0, 0), (0, 1)), constant_values=BIAS)


def draw(labels: Labels, among: Places, shots: int, seed: int) -> Places:
    """Return so many places of each class, chosen by the seed; all but one of a smaller class."""
    rng, chosen = np.random.default_rng(seed), []
    for label in np.unique(labels[among]):
        own = rng.permutation(among[labels[among] == label])
        chosen.append(own[: min(shots, max(1, len(own) - 1))])
    return np.sort(np.concatenate(chosen))


def few_shot(
    x: Vectors,
    labels: Labels,
    classes: int,
    shots: int = 5,
    seed: int = 0,
    parted: tuple[Places, Places] | None = None,
) -> float:
    """Return how often least squares on `shots` pictures a class are right on others; mean of 5 draws."""
    everything = np.arange(len(x))
    found = []
    for number in range(DRAWS):
        chosen = draw(labels, everything if parted is None else parted[0], shots, seed + number)
        asked = np.setdiff1d(everything, chosen) if parted is None else parted[1]
        if not len(asked):
            return float("nan")
        weight = least_squares(whitened(x[chosen], x[chosen]), labels[chosen], classes)
        answers = (whitened(x[asked], x[chosen]) @ weight).argmax(1)
        found.append(float((answers == labels[asked]).mean()))
    return float(np.mean(found))


def linear(
    x: Vectors,
    labels: Labels,
    classes: int,
    seed: int = 0,
    parted: tuple[Places, Places] | None = None,
    strengths: Sequence[float] = STRENGTHS,
) -> float:
    """Return how often a logistic regression on the features is right, on five parts left out in turn.

    With `parted` it is fitted on the one, where its penalty is chosen too, and asked of the other.
    NaN where the classes have too few pictures.
    """
    reference = np.arange(len(x)) if parted is None else parted[0]
    reference = reference[spread(len(reference), MOST)]
    inner, own = x[reference].astype(np.float64), labels[reference]
    made = parts(own, 5, seed) if len(np.unique(own)) > 1 else []
    tried = trials(inner, own, classes, made, strengths) if made else []
    if not tried:
        return float("nan")
    best = min(tried, key=lambda trial: trial.loss)
    if parted is None:
        return best.accuracy
    [line] = path(inner, own, classes, [best.strength])
    return float((line(x[parted[1]].astype(np.float64)).argmax(1) == labels[parted[1]]).mean())
