"""Sums and differences of vectors that have names: a is to b as c is to what?

The answer is the vector with the greatest cosine to c + b - a, all of length 1; a, b and c are left out
(Mikolov, Yih and Zweig 2013, section 4; named 3CosAdd by Levy and Goldberg 2014, equation 1).
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64

from saccade.embedding.neighbours import neighbours, ready
from saccade.errors import UsageError
from saccade.files.paths import shown

Vector = Float[np.ndarray, "e"]


class Near(NamedTuple):
    """A named vector and how far it is from what was asked for."""

    name: str
    place: int
    distance: float


def place(places: Mapping[str, int], word: str) -> int:
    """Return where a name has its vector, or refuse one that has none and tell the nearest."""
    if word not in places:
        near = get_close_matches(word, places, n=1)
        hint = f"did you mean {shown(near[0])}?" if near else "check the spelling"
        raise UsageError(f"none of the {len(places):,} vectors is named {shown(word)}; {hint}")
    return places[word]


def difference(a: Vector, b: Vector, c: Vector) -> Float64[np.ndarray, "e"]:
    """Return c + b - a of the three directions."""
    a, b, c = ready(np.stack([a, b, c]))
    return c + b - a


def nearest(
    vectors: Float[np.ndarray, "n e"],
    names: Sequence[str],
    query: Vector,
    top: int = 5,
    without: Sequence[int] = (),
    metric: str = "cosine",
) -> list[Near]:
    """Return the vectors nearest to a query by name, those at the places `without` left out."""
    if len(names) != len(vectors):
        raise UsageError(f"{len(names)} names for {len(vectors)} vectors; give one name a vector")
    kept = np.setdiff1d(np.arange(len(vectors)), np.asarray(without, np.int64))
    if not len(kept):
        return []
    found = neighbours(vectors[kept], top, query[None], metric)
    pairs = zip(kept[found.places[0]].tolist(), found.distances[0].tolist(), strict=True)
    return [Near(names[place], place, distance) for place, distance in pairs]


def analogy(
    vectors: Float[np.ndarray, "n e"], names: Sequence[str], a: str, b: str, c: str, top: int = 5
) -> list[Near]:
    """Return what is to c as b is to a: `analogy(v, words, "man", "king", "woman")` begins with queen."""
    places = {name: i for i, name in enumerate(names)}
    three = [place(places, word) for word in (a, b, c)]
    return nearest(vectors, names, difference(*(vectors[i] for i in three)), top, three)
