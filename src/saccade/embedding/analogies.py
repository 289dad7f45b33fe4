"""Nearest vectors by name, and analogies: a is to b as c is to what?

The answer is the vector with the greatest cosine to c + b - a, all of length 1; a, b and c are left out
(Mikolov, Yih and Zweig 2013, section 4; 3CosAdd of Levy and Goldberg 2014, equation 1).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64

from saccade.data.pictures import Files
from saccade.embedding.embedded import Embedded
from saccade.embedding.neighbours import neighbours, normalise
from saccade.errors import UsageError, did_you_mean
from saccade.models.modules import device_of
from saccade.vision.features import read_by_head
from saccade.weights.load import Loaded
from saccade.wording import printable

Vector = Float[np.ndarray, "e"]


class Near(NamedTuple):
    """A named vector, its row, and its distance from the query."""

    name: str
    place: int
    distance: float


def row_of(rows: Mapping[str, int], word: str) -> int:
    """Return the row of a name; refuse an unknown one and suggest the nearest."""
    if word not in rows:
        hint = did_you_mean(word, rows, "; check the spelling", show=printable)
        raise UsageError(f"none of the {len(rows):,} vectors is named {printable(word)}{hint}")
    return rows[word]


def difference(a: Vector, b: Vector, c: Vector) -> Float64[np.ndarray, "e"]:
    """Return c + b - a, each scaled to length 1 first."""
    a, b, c = normalise(np.stack([a, b, c]))
    return c + b - a


def nearest(
    vectors: Float[np.ndarray, "n e"],
    names: Sequence[str],
    query: Vector,
    top: int = 5,
    without: Sequence[int] = (),
    metric: str = "cosine",
) -> list[Near]:
    """Return the vectors nearest to a query by name, the rows `without` left out."""
    if len(names) != len(vectors):
        raise UsageError(f"{len(names)} names for {len(vectors)} vectors; give one name per vector")
    kept = np.setdiff1d(np.arange(len(vectors)), np.asarray(without, np.int64))
    if not len(kept):
        return []
    found = neighbours(vectors[kept], top, query[None], metric)
    pairs = zip(kept[found.places[0]].tolist(), found.distances[0].tolist(), strict=True)
    return [Near(names[row], row, distance) for row, distance in pairs]


def analogy(
    vectors: Float[np.ndarray, "n e"], names: Sequence[str], a: str, b: str, c: str, top: int = 5
) -> list[Near]:
    """Return what is to c as b is to a: `analogy(v, words, "man", "king", "woman")` starts with queen."""
    rows = {name: i for i, name in enumerate(names)}
    three = [row_of(rows, word) for word in (a, b, c)]
    return nearest(vectors, names, difference(*(vectors[i] for i in three)), top, three)


def nearest_images(
    loaded: Loaded,
    found: Embedded,
    queries: Sequence[str] = (),
    analogy: tuple[str, str, str] | None = None,
    top: int = 5,
    metric: str = "cosine",
) -> list[tuple[str, list[Near]]]:
    """Return each query with its nearest images, then the analogy with those nearest to C + B - A.

    The images of a query are left out of its answer.
    """
    names, made = found.names, []
    for query in queries:
        vector, row = vector_of(loaded, found, query)
        made.append((query, nearest(found.vectors, names, vector, top, [] if row is None else [row], metric)))
    if analogy is not None:
        three = [vector_of(loaded, found, word) for word in analogy]
        a, b, c = (vector for vector, _ in three)
        without = [row for _, row in three if row is not None]
        title = f"{analogy[2]} + {analogy[1]} - {analogy[0]}"
        made.append((title, nearest(found.vectors, names, difference(a, b, c), top, without)))
    return made


def vector_of(loaded: Loaded, found: Embedded, word: str) -> tuple[Float32[np.ndarray, "e"], int | None]:
    """Return the vector of an image (a name in the data, or a file), and its row if it is in the data."""
    names = {name: i for i, name in enumerate(found.names)}
    path, store = Path(word), found.images.store
    if word in names or not path.exists():
        row = row_of(names, word)
        return found.vectors[row], row
    if isinstance(store, Files):
        paths = {Path(store.path(int(number))).resolve(): i for i, number in enumerate(found.images.rows)}
        if (own := paths.get(path.resolve())) is not None:
            return found.vectors[own], own
    with torch.inference_mode():
        image = torch.from_numpy(loaded.preprocess(path))[None].to(device_of(loaded.module))
        return read_by_head(loaded.module, image)[0].float().cpu().numpy(), None
