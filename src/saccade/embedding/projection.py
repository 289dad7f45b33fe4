"""Vectors on a plane: PCA, t-SNE (van der Maaten and Hinton 2008), UMAP (McInnes, Healy and Melville 2018).

A map keeps who is near whom, and little else: distances between far groups, sizes and densities of groups
mean nothing in t-SNE and UMAP. `trust` says how far a map can be believed. A new point cannot be put
into a t-SNE that is drawn already; it has to be drawn anew.

Shapes: n vectors, e numbers a vector.
"""

import warnings
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float64

from saccade.embedding.neighbours import ready
from saccade.errors import UsageError, check_number, check_word

WAYS = ("pca", "tsne", "umap")
LEAST = 5
"""Fewer vectors have too few neighbours for t-SNE or UMAP."""
FIRST = 50
"""Principal components that t-SNE begins from, as in its paper, section 3.1 of the experiments."""
NEAR = 12
"""Neighbours that `trust` asks for."""

Vectors = Float[np.ndarray, "n e"]
Plane = Float64[np.ndarray, "n 2"]


class Map(NamedTuple):
    """A place on the plane for each vector."""

    points: Plane
    way: str
    """How it was made in the end, one of WAYS."""
    note: str = ""
    """What was done otherwise than asked, and why."""


def components(x: Vectors, count: int) -> Float64[np.ndarray, "n count"]:
    """Return the first principal components, 0 where there are none; signs do not depend on luck."""
    centred = np.asarray(x, np.float64) - np.asarray(x, np.float64).mean(0, keepdims=True)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    s = np.where(s > 1e-9 * max(float(np.abs(x).max(initial=0)), 1e-300), s, 0)
    found = u[:, :count] * s[:count]
    largest = found[np.abs(found).argmax(0), np.arange(found.shape[1])]
    found = found * np.where(largest < 0, -1.0, 1.0)
    return np.pad(found, ((0, 0), (0, count - found.shape[1])))


def project(
    x: Vectors, way: str = "tsne", seed: int = 0, perplexity: float = 30.0, metric: str = "cosine"
) -> Map:
    """Draw a map; the same vectors and seed give the same map.

    Args:
        perplexity: of t-SNE, about how many neighbours each vector has; lowered where there are too few.
    """
    check_word("map", way, WAYS)
    check_number("perplexity", perplexity, 1, 1e6)
    check_number("seed", seed, 0, 2**32 - 1)
    if not len(x):
        return Map(np.empty((0, 2)), "pca")
    x = ready(x, metric)
    plane = components(x, 2)
    if way == "pca":
        return Map(plane, "pca")
    if not plane.any():
        return Map(plane, "pca", f"all {len(x):,} vectors are the same, so they share one place")
    if len(x) < LEAST:
        told = {"tsne": "t-SNE", "umap": "UMAP"}[way]
        return Map(plane, "pca", f"{len(x)} vectors are too few for {told} ({LEAST} or more); PCA was drawn")
    return _tsne(x, plane, seed, perplexity) if way == "tsne" else _umap(x, seed)


def _tsne(x: np.ndarray, plane: np.ndarray, seed: int, perplexity: float) -> Map:
    from sklearn.manifold import TSNE

    fits = min(perplexity, (len(x) - 1) / 3)
    note = ""
    if fits < perplexity:
        note = (
            f"a perplexity of {perplexity:g} needs more than {3 * perplexity:g} vectors; "
            f"with {len(x)} it was lowered to {fits:.3g}"
        )
    first = components(x, FIRST) if x.shape[1] > FIRST else x
    start = (plane / plane[:, 0].std() * 1e-4).astype(np.float32)
    with import_module("threadpoolctl").threadpool_limits(
        1
    ):  # sums over threads are rounded otherwise, and the map would be another
        made = TSNE(init=start, perplexity=fits, learning_rate="auto", random_state=seed, n_jobs=1)
        return Map(made.fit_transform(first.astype(np.float32)).astype(np.float64), "tsne", note)


def _umap(x: np.ndarray, seed: int) -> Map:
    made = _module().UMAP(n_neighbors=min(15, len(x) - 1), random_state=seed, n_jobs=1, init="pca")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        points = made.fit_transform(x.astype(np.float32)).astype(np.float64)
    if not np.isfinite(points).all():
        return Map(components(x, 2), "pca", "UMAP found no place for some vectors; PCA was drawn")
    return Map(points, "umap")


def _module() -> Any:
    try:
        return import_module("umap")
    except ImportError as error:
        raise UsageError(
            "the map umap needs a package that is not installed; pip install umap-learn, or draw tsne"
        ) from error


def trust(x: Vectors, points: Plane, near: int = NEAR, metric: str = "cosine") -> float:
    """Return how far neighbours on the map are neighbours in truth, 0 to 1 (Venna and Kaski 2001).

    NaN where there are not twice as many vectors as neighbours asked for.
    """
    if len(x) <= 2 * near:
        return float("nan")
    from sklearn.manifold import trustworthiness

    return float(trustworthiness(ready(x, metric), points, n_neighbors=near))
