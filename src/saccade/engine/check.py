"""Does a graph answer as its model does? Asked on pictures of five sizes before anybody relies on it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from saccade.data.transform import Picture, Preprocess, opened
from saccade.engine.engine import Engine
from saccade.errors import ModelError
from saccade.weights.probe import picture

TOLERANCE = 1e-4
BYTES_TOLERANCE = 0.05
"""With the preprocessing inside: a grey level here and there, as a share of the largest logit."""
Ask = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far two ways to compute one model are apart."""

    pictures: int
    sizes: int
    difference: float
    """The largest between two logits, as a share of the largest logit where that is above 1."""
    agreement: float
    """Share of the pictures with the same first answer."""


def batches(preprocess: Preprocess, patch: int, sources: Sequence[Picture]) -> list[np.ndarray]:
    """Inputs in five shapes, some not square; the pictures given come first, as the model sees them."""
    height, width = preprocess.size
    made = [preprocess.batch(sources[i : i + 8]) for i in range(0, len(sources), 8)]
    for batch, (tall, wide) in zip((1, 2, 3, 1, 2), _sizes(height, width, patch), strict=True):
        turned = [np.roll(picture(tall, wide), 7 * i, axis=1) for i in range(batch)]
        made.append(np.stack([preprocess.normalise(each) for each in turned]))
    return made


def _sizes(height: int, width: int, patch: int) -> list[tuple[int, int]]:
    """The model's own size and four around it, in whole patches."""
    step = patch if patch > 1 else 32
    rows, cols = max(height // step, 2), max(width // step, 2)
    grids = [
        (rows, cols),
        (rows + 1, cols),
        (rows, cols + 2),
        (max(rows - 1, 2), cols + 1),
        (rows + 1, cols + 1),
    ]
    return [(height, width), *((r * step, c * step) for r, c in grids[1:])]


def compare(graph: Engine, model: Ask, inputs: Sequence[np.ndarray], tolerance: float = TOLERANCE) -> Verdict:
    """Ask both; refuse a graph with a size baked in, or with other answers."""
    far, same, count = 0.0, 0, 0
    for x in inputs:
        expected = model(x)
        try:
            found = graph.run(x)
        except Exception as error:  # each engine has its own kinds
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise ModelError(
                f"the graph fails on pictures of shape {x.shape} ({lines[0][:160]}): a size got baked in; "
                f"nothing was written; please report it"
            ) from error
        if found.shape != expected.shape:
            raise ModelError(f"the graph answers {x.shape} with {found.shape}; expected {expected.shape}")
        far = max(far, float(np.abs(found - expected).max() / max(1.0, float(np.abs(expected).max()))))
        same += int((found.argmax(-1) == expected.argmax(-1)).sum())
        count += len(x)
    if not far <= tolerance:
        raise ModelError(
            f"the graph's answers differ from the model's by {far:.1e} (allowed: {tolerance:.0e}); "
            f"nothing was written"
        )
    sides = {x.shape[1:3] if x.dtype == np.uint8 else x.shape[2:] for x in inputs}
    return Verdict(count, len(sides), far, same / max(count, 1))


def decoded(sources: Sequence[Picture], preprocess: Preprocess) -> list[np.ndarray]:
    """Pictures as a graph that takes bytes reads them, each a batch of its own; five made ones are added."""
    height, width = preprocess.size
    sizes = ((1, 1), (2, 1), (1.5, 2.5), (3, 1.3), (0.6, 0.9))
    made = [picture(round(height * a), round(width * b)) for a, b in sizes]
    return [np.asarray(opened(source, preprocess.background))[None] for source in (*sources, *made)]
