"""Vectors on a plane: PCA, t-SNE (van der Maaten and Hinton 2008), UMAP (McInnes, Healy and Melville 2018).

A map preserves neighbourhoods and little else: distances between far groups, and the sizes and densities of
groups, mean nothing in t-SNE and UMAP. `trust` measures how far a map can be trusted. A new point cannot be
added to a t-SNE map; it has to be computed again.

Shapes: n vectors, e numbers per vector.
"""

import warnings
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from saccade.embedding.neighbours import FeatureVectors, normalise
from saccade.errors import UsageError, check_number, check_word

WAYS = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}
"""The projections and their titles."""
LEAST = 5
"""Fewer vectors have too few neighbours for t-SNE or UMAP."""
FIRST = 50
"""Principal components that t-SNE starts from, as in section 3.1 of its paper's experiments."""
NEAR = 12
"""Neighbours that `trust` compares."""

Plane = Float64[np.ndarray, "n 2"]


class Projection(NamedTuple):
    """A point on the plane for each vector."""

    points: Plane
    way: str
    """The method used, a key of WAYS."""
    note: str = ""
    """What was done differently from the request, and why."""


def components(x: FeatureVectors, count: int) -> Float64[np.ndarray, "n count"]:
    """Return the first principal components, 0 where there are none; signs are deterministic."""
    centred = np.asarray(x, np.float64) - np.asarray(x, np.float64).mean(0, keepdims=True)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    s = np.where(s > 1e-9 * max(float(np.abs(x).max(initial=0)), 1e-300), s, 0)
    found = u[:, :count] * s[:count]
    largest = found[np.abs(found).argmax(0), np.arange(found.shape[1])]
    found = found * np.where(largest < 0, -1.0, 1.0)
    return np.pad(found, ((0, 0), (0, count - found.shape[1])))


def project(
    x: FeatureVectors, way: str = "tsne", seed: int = 0, perplexity: float = 30.0, metric: str = "cosine"
) -> Projection:
    """Draw a map; the same vectors and seed give the same map.

    Args:
        perplexity: of t-SNE, about how many neighbours each vector has; lowered where there are too few.
    """
    check_word("map", way, WAYS)
    check_number("perplexity", perplexity, 1, 1e6)
    check_number("seed", seed, 0, 2**32 - 1)
    if not len(x):
        return Projection(np.empty((0, 2)), "pca")
    x = normalise(x, metric)
    plane = components(x, 2)
    if way == "pca":
        return Projection(plane, "pca")
    if not plane.any():
        return Projection(plane, "pca", f"all {len(x):,} vectors are equal, so they share one point")
    if len(x) < LEAST:
        note = f"{len(x)} vectors are too few for {WAYS[way]} ({LEAST} or more); PCA was used"
        return Projection(plane, "pca", note)
    return _tsne(x, plane, seed, perplexity) if way == "tsne" else _umap(x, seed)


def _tsne(x: np.ndarray, plane: np.ndarray, seed: int, perplexity: float) -> Projection:
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
    # On one thread: sums over several round differently, and the map would change.
    with import_module("threadpoolctl").threadpool_limits(1):
        made = TSNE(init=start, perplexity=fits, learning_rate="auto", random_state=seed, n_jobs=1)
        return Projection(made.fit_transform(first.astype(np.float32)).astype(np.float64), "tsne", note)


def _umap(x: np.ndarray, seed: int) -> Projection:
    made = _module().UMAP(n_neighbors=min(15, len(x) - 1), random_state=seed, n_jobs=1, init="pca")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        points = made.fit_transform(x.astype(np.float32)).astype(np.float64)
    if not np.isfinite(points).all():
        return Projection(components(x, 2), "pca", "UMAP found no position for some vectors; PCA was used")
    return Projection(points, "umap")


def _module() -> Any:
    try:
        return import_module("umap")
    except ImportError as error:
        raise UsageError(
            "the map umap needs a package that is not installed; pip install umap-learn, or use tsne"
        ) from error


def trust(x: FeatureVectors, points: Plane, near: int = NEAR, metric: str = "cosine") -> float:
    """Return the trustworthiness of a map, 0 to 1 (Venna and Kaski 2001).

    NaN for fewer vectors than twice the neighbours compared.
    """
    if len(x) <= 2 * near:
        return float("nan")
    from sklearn.manifold import trustworthiness

    return float(trustworthiness(normalise(x, metric), points, n_neighbors=near))
