"""The nearest vectors, exactly: blocks of matrix products find them, plain differences put them in order.

The product form |x|^2 + |y|^2 - 2 x y loses digits where two vectors are almost the same, which is where
duplicates are looked for. So it only proposes candidates, in double precision; their distances are then
computed from the differences. Equal distances are ordered by number, which makes every answer repeatable.

Shapes: n vectors searched, m queries, e numbers a vector, k neighbours.
"""

from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int64

from saccade.errors import ModelError, UsageError, check_number, check_word

METRICS = ("cosine", "euclidean")
INDEXES = ("exact", "faiss")
CELLS = 8_000_000
"""Distances in memory at a time."""
TIED = 4096
"""Candidates beyond the k-th that are compared in full; more of one distance are taken by their numbers."""
SLACK = 1e-9
"""A candidate may be further than the k-th by this share of the vectors' size, as products round."""

Vectors = Float[np.ndarray, "n e"]
Queries = Float[np.ndarray, "m _"]


class Neighbours(NamedTuple):
    """For each query the numbers of its nearest vectors, the nearest first, and how far they are."""

    places: Int64[np.ndarray, "m k"]
    distances: Float64[np.ndarray, "m k"]
    """cosine: 1 - the cosine, 0 to 2; euclidean: the length of the difference."""


def ready(x: Vectors, metric: str = "cosine") -> Float64[np.ndarray, "n e"]:
    """Return vectors whose euclidean neighbours are those of the metric: for the cosine all of length 1."""
    check_word("metric", metric, METRICS)
    x = np.ascontiguousarray(x, np.float64)
    if not np.isfinite(x).all():
        raise ModelError("the vectors are not all finite numbers; look at the model with `saccade doctor`")
    if metric == "euclidean":
        return x
    x = x / np.maximum(np.abs(x).max(axis=1, keepdims=True, initial=0), np.finfo(np.float64).tiny)
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(length > 0, length, 1)


def neighbours(
    x: Vectors, k: int, queries: Queries | None = None, metric: str = "cosine", index: str = "exact"
) -> Neighbours:
    """Return the k nearest of `x` for each query, or for each of `x` itself among the others.

    Fewer than k where fewer are there. A vector of zeros has no direction: its cosine to any other is 0.

    Args:
        index: exact, or faiss, which searches faster in single precision on all cores; what it finds is then
            ordered in double precision, so that only distances equal to about 1e-7 can differ.
    """
    check_word("index", index, INDEXES)
    among = queries is None
    if queries is not None and queries.shape[1] != x.shape[1]:
        raise UsageError(
            f"queries have {queries.shape[1]} numbers each, the vectors {x.shape[1]}; give equals"
        )
    found = _turned(x, metric)
    asked = found if queries is None else _turned(queries, metric)
    check_number("the number of neighbours", k, 1, 10**9)
    k = min(k, len(found) - among)
    if k < 1 or not len(asked):
        return Neighbours(np.empty((len(asked), max(k, 0)), np.int64), np.empty((len(asked), max(k, 0))))
    search = _faiss if index == "faiss" else _blocks
    places, squares = search(found, asked, k, among)
    return Neighbours(places, np.sqrt(squares) if metric == "euclidean" else squares / 2)


def _turned(x: Vectors, metric: str) -> Float64[np.ndarray, "n _"]:
    """As `ready`; for the cosine, zeros point to a side of their own, at right angles to all others."""
    x = ready(x, metric)
    return x if metric == "euclidean" else np.hstack([x, ~x.any(axis=1, keepdims=True)])


def _blocks(x: np.ndarray, asked: np.ndarray, k: int, among: bool) -> tuple[np.ndarray, np.ndarray]:
    squares = (x * x).sum(1)
    slack = SLACK * max(float(squares.max()), float((asked * asked).sum(1).max()), 1e-300)
    places = np.empty((len(asked), k), np.int64)
    found = np.empty((len(asked), k))
    step = max(1, CELLS // len(x))
    for start in range(0, len(asked), step):
        block = asked[start : start + step]
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


def _faiss(x: np.ndarray, asked: np.ndarray, k: int, among: bool) -> tuple[np.ndarray, np.ndarray]:
    index = _module().IndexFlatL2(x.shape[1])
    index.add(np.ascontiguousarray(x, np.float32))
    _, near = index.search(np.ascontiguousarray(asked, np.float32), min(k + among, len(x)))
    places, found = np.empty((len(asked), k), np.int64), np.empty((len(asked), k))
    for i, row in enumerate(near.astype(np.int64)):
        others = row[row != i][:k] if among else row
        exact = ((x[others] - asked[i]) ** 2).sum(1)
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
