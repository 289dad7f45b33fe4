"""Exact nearest neighbours of vectors; copies and label errors that they reveal.

The product form |x|^2 + |y|^2 - 2 x y loses digits where two vectors are almost equal, which is where
duplicates are. So it only proposes candidates, in double precision; their distances are then computed from
the differences. Equal distances are ordered by row, which makes every answer repeatable.

Measured with ViT-Ti/16 (AugReg) on 240 photographs of ImageNet and copies of 40 of them: `find_copies` found
40 of the mirrored copies, 37 of those cropped to 90%, 39 as JPEG of quality 40 and 29 at half the size, and
no other pair. `saccade check` finds re-encoded and resized copies by their pixels; this also finds mirrored
and cropped ones.

Shapes: n vectors searched, m queries, e numbers per vector, k neighbours.
"""

from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int64

from saccade.errors import ModelError, UsageError, check_number, check_word
from saccade.metrics.label_errors import LabelError
from saccade.metrics.label_errors import find_label_errors as confident_errors

METRICS = ("cosine", "euclidean")
INDEXES = ("exact", "faiss")
CELLS = 8_000_000
"""Distances in memory at a time."""
TIED = 4096
"""Candidates beyond the k-th that are compared in full; more at one distance are taken in order of row."""
SLACK = 1e-9
"""A candidate may be farther than the k-th by this share of the vectors' size: products round."""
NEARER = 0.3
"""A copy is nearer than this share of the distance to the k-th neighbour (1 - cosine)."""

FeatureVectors = Float[np.ndarray, "n e"]
_Queries = Float[np.ndarray, "m _"]
VectorLabels = Int64[np.ndarray, "n"]


class Neighbours(NamedTuple):
    """For each query the rows of its nearest vectors, nearest first, and their distances."""

    places: Int64[np.ndarray, "m k"]
    distances: Float64[np.ndarray, "m k"]
    """1 - cosine (0 to 2), or euclidean."""


def normalise(x: FeatureVectors, metric: str = "cosine") -> Float64[np.ndarray, "n e"]:
    """Return vectors whose euclidean neighbours are those of the metric: for cosine, all of length 1."""
    check_word("metric", metric, METRICS)
    x = np.ascontiguousarray(x, np.float64)
    if not np.isfinite(x).all():
        raise ModelError("the vectors are not all finite; check the model with `saccade doctor`")
    if metric == "euclidean":
        return x
    x = x / np.maximum(np.abs(x).max(axis=1, keepdims=True, initial=0), np.finfo(np.float64).tiny)
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(length > 0, length, 1)


def neighbours(
    x: FeatureVectors, k: int, queries: _Queries | None = None, metric: str = "cosine", index: str = "exact"
) -> Neighbours:
    """Return the k nearest of `x` for each query, or for each of `x` itself among the others.

    Fewer than k if there are fewer. A vector of zeros has no direction: its cosine to any other is 0.

    Args:
        index: exact, or faiss, which searches faster, in single precision on all cores; its results are then
            ordered in double precision, so only distances equal to about 1e-7 can differ.
    """
    check_word("index", index, INDEXES)
    among = queries is None
    if queries is not None and queries.shape[1] != x.shape[1]:
        raise UsageError(
            f"queries have {queries.shape[1]} numbers each, the vectors {x.shape[1]}; give the same number"
        )
    found = _directions(x, metric)
    points = found if queries is None else _directions(queries, metric)
    check_number("the number of neighbours", k, 1, 10**9)
    k = min(k, len(found) - among)
    if k < 1 or not len(points):
        return Neighbours(np.empty((len(points), max(k, 0)), np.int64), np.empty((len(points), max(k, 0))))
    search = _faiss if index == "faiss" else _blocks
    places, squares = search(found, points, k, among)
    return Neighbours(places, np.sqrt(squares) if metric == "euclidean" else squares / 2)


def _directions(x: FeatureVectors, metric: str) -> Float64[np.ndarray, "n _"]:
    """Do as `normalise`; for cosine, zeros get a direction of their own, orthogonal to all others."""
    x = normalise(x, metric)
    return x if metric == "euclidean" else np.hstack([x, ~x.any(axis=1, keepdims=True)])


def _blocks(x: np.ndarray, queries: np.ndarray, k: int, among: bool) -> tuple[np.ndarray, np.ndarray]:
    squares = (x * x).sum(1)
    slack = SLACK * max(float(squares.max()), float((queries * queries).sum(1).max()), 1e-300)
    places = np.empty((len(queries), k), np.int64)
    found = np.empty((len(queries), k))
    step = max(1, CELLS // len(x))
    for start in range(0, len(queries), step):
        block = queries[start : start + step]
        d = squares - 2 * (block @ x.T)
        if among:
            d[np.arange(len(block)), np.arange(start, start + len(block))] = np.inf
        bound = np.partition(d, k - 1, axis=1)[:, k - 1] + slack
        for i, row in enumerate(d):
            near = np.flatnonzero(row <= bound[i])[: k + TIED]
            exact = ((x[near] - block[i]) ** 2).sum(1)
            best = np.lexsort((near, exact))[:k]
            places[start + i], found[start + i] = near[best], exact[best]
    return places, found


def _faiss(x: np.ndarray, queries: np.ndarray, k: int, among: bool) -> tuple[np.ndarray, np.ndarray]:
    index = _module().IndexFlatL2(x.shape[1])
    index.add(np.ascontiguousarray(x, np.float32))
    _, near = index.search(np.ascontiguousarray(queries, np.float32), min(k + among, len(x)))
    places, found = np.empty((len(queries), k), np.int64), np.empty((len(queries), k))
    for i, row in enumerate(near.astype(np.int64)):
        others = row[row != i][:k] if among else row
        exact = ((x[others] - queries[i]) ** 2).sum(1)
        best = np.lexsort((others, exact))
        places[i], found[i] = others[best], exact[best]
    return places, found


def _module() -> Any:
    try:
        return import_module("faiss")
    except ImportError as error:
        raise UsageError(
            "the index faiss needs a package that is not installed; pip install faiss-cpu, or use exact"
        ) from error


def votes(
    near: Int64[np.ndarray, "m k"], labels: VectorLabels, classes: int
) -> Float64[np.ndarray, "m classes"]:
    """Return for each query the share of its neighbours in each class."""
    found = np.zeros((len(near), classes))
    np.add.at(found, (np.arange(len(near))[:, None], labels[near]), 1 / max(near.shape[1], 1))
    return found


class SimilarPair(NamedTuple):
    """Two images, `first` the lower row, and the cosine of their vectors."""

    first: int
    second: int
    cosine: float


def find_copies(x: FeatureVectors, alike: float = 0.85, k: int = 10) -> list[SimilarPair]:
    """Return the pairs of images that may be copies of each other, most similar first.

    Their cosine is `alike` or more, and they are three times nearer to each other than to their k-th
    neighbours. Similarity alone proves nothing: a model with few classes makes all images of a class similar.
    """
    found = neighbours(x, k)
    if not found.places.size:
        return []
    far = found.distances[:, -1] if len(x) > 2 else np.full(len(x), np.inf)
    local = np.minimum(far[:, None], far[found.places])
    near = (1 - found.distances >= alike) & (found.distances <= np.maximum(NEARER * local, 1e-12))
    rows, ranks = np.nonzero(near)
    pairs = {}
    for row, rank in zip(rows.tolist(), ranks.tolist(), strict=True):
        other = int(found.places[row, rank])
        pairs[min(row, other), max(row, other)] = 1 - float(found.distances[row, rank])
    ranked = sorted(pairs.items(), key=lambda item: (-item[1], item[0]))
    return [SimilarPair(first, second, cosine) for (first, second), cosine in ranked]


def find_label_errors(near: Neighbours, labels: VectorLabels, classes: int) -> list[LabelError]:
    """Return the images whose neighbours contradict their label, most suspect first.

    Confident learning (`saccade.metrics.label_errors`) with the share of neighbours in a class as its
    probability: the other class must have as large a share as its own images have on average.
    """
    return confident_errors(votes(near.places, labels, classes), labels) if near.places.size else []
