"""Pictures asked about by name or by file: what is nearest, and what solves an analogy."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32

from saccade.data.pictures import Files
from saccade.embedding.analogies import Near, difference, nearest, place
from saccade.embedding.embedded import Embedded
from saccade.vision.features import read_by_head
from saccade.weights.load import Loaded

Answers = list[tuple[str, list[Near]]]
"""What was asked, and the nearest pictures."""


def answers(
    loaded: Loaded,
    found: Embedded,
    queries: Sequence[str] = (),
    analogy: tuple[str, str, str] | None = None,
    top: int = 5,
    metric: str = "cosine",
) -> Answers:
    """Return what is nearest to each query, and to C + B - A of an analogy; what was named is left out."""
    names, made = found.names, []
    for query in queries:
        vector, row = vector_of(loaded, found, query)
        made.append((query, nearest(found.vectors, names, vector, top, [] if row is None else [row], metric)))
    if analogy is not None:
        three = [vector_of(loaded, found, word) for word in analogy]
        a, b, c = (vector for vector, _ in three)
        without = [row for _, row in three if row is not None]
        told = f"{analogy[2]} + {analogy[1]} - {analogy[0]}"
        made.append((told, nearest(found.vectors, names, difference(a, b, c), top, without)))
    return made


def vector_of(loaded: Loaded, found: Embedded, word: str) -> tuple[Float32[np.ndarray, "e"], int | None]:
    """Return the vector of a picture (a name in the data, or a file), and its row if it is of the data."""
    names = {name: i for i, name in enumerate(found.names)}
    path, store = Path(word), found.images.store
    if word in names or not path.exists():
        row = place(names, word)
        return found.vectors[row], row
    if isinstance(store, Files):
        paths = {Path(store.path(int(number))).resolve(): i for i, number in enumerate(found.images.rows)}
        if (own := paths.get(path.resolve())) is not None:
            return found.vectors[own], own
    device = next(loaded.module.parameters()).device
    with torch.inference_mode():
        image = torch.from_numpy(loaded.preprocess(path))[None].to(device)
        return read_by_head(loaded.module, image)[0].float().cpu().numpy(), None
