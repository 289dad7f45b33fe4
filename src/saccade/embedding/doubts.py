"""Pictures that are the same by their vectors, and labels that the neighbours contradict.

Measured with ViT-Ti/16 (AugReg) on 240 photographs of ImageNet, 40 of which came a second time: of the copies
40 were found again when mirrored, 37 when cropped to 90 %, 39 as JPEG of quality 40, 29 at half the size, and
no other pair was called a copy. `saccade check` finds by pixels what was re-encoded or resized, and this also
what was mirrored or cropped.

Shapes: n pictures, e numbers a vector, k neighbours.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int64

from saccade.embedding.neighbours import Neighbours, neighbours
from saccade.embedding.scores import votes
from saccade.metrics.label_errors import Doubt, doubts

NEARER = 0.3
"""A copy is nearer than this share of the distance to the k-th neighbour (1 - cosine)."""


class Twin(NamedTuple):
    """Two pictures, `first` the lower number, and the cosine between their vectors."""

    first: int
    second: int
    cosine: float


def twins(x: Float[np.ndarray, "n e"], alike: float = 0.85, k: int = 10) -> list[Twin]:
    """Return the pairs of pictures that may be copies of one another, the most alike first.

    The cosine is `alike` or more, and both stand out: they are three times nearer to each other than to their
    k-th neighbours. Likeness alone is no sign, as a model of few classes makes all pictures of a class alike.
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
    return [Twin(first, second, cosine) for (first, second), cosine in ranked]


def contradicted(near: Neighbours, labels: Int64[np.ndarray, "n"], classes: int) -> list[Doubt]:
    """Return the pictures whose neighbours speak for another class, the most suspect first.

    The share of neighbours in a class is taken for its probability, as confident learning needs one
    (`metrics.label_errors`): the other class must have as large a share as its own pictures have on average.
    """
    return doubts(votes(near.places, labels, classes), labels) if near.places.size else []
