"""Does a graph answer as its model does? Asked on pictures of five sizes before anybody relies on it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from saccade.data.image.preprocess import Picture, Preprocess, opened
from saccade.engine.engine import Engine, brief
from saccade.errors import ModelError
from saccade.weights.known_answer import picture

TOLERANCE = 1e-4
BYTES_TOLERANCE = 0.05
"""With the preprocessing inside: a grey level here and there, as a share of the largest logit."""
CHANGED = 0.1
"""In int8 logits move, so answers are counted: of the pictures given, this share may get another one."""
NUDGES = (1e-6, 1e-5)
"""How far normalised pixels are moved to learn whether a model's answer hangs on a rounding."""
TRIES = 8
BATCH = 8
Ask = Callable[[np.ndarray], np.ndarray]
Pairs = list[tuple[tuple[np.ndarray, np.ndarray], np.ndarray]]
"""What was found, what was expected, and what was asked."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far two ways to compute one model are apart."""

    pictures: int
    sizes: int
    difference: float
    """The largest between two logits, as a share of the picture's largest where that is above 1."""
    agreement: float
    """Share of the pictures with the same first answer; of those that were given, where some were."""
    right: float = -1.0
    """Share of the labelled pictures that the graph answers rightly; -1 if none has a label."""
    before: float = -1.0
    """The same of the model."""
    ties: int = 0
    """Pictures left out of `difference`, whose patches tie: the model itself answers both ways (`_tied`)."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Pictures to ask both about, and their classes as the model counts them, if anybody knows."""

    sources: Sequence[Picture] = ()
    labels: Sequence[int] = ()


def inputs(preprocess: Preprocess, takes: str, sources: Sequence[Picture]) -> list[np.ndarray]:
    """Pictures as a graph reads them: some at once, or each decoded alone, whatever its size."""
    if takes == "bytes":
        return [np.asarray(opened(source, preprocess.background))[None] for source in sources]
    return [preprocess.batch(sources[i : i + BATCH]) for i in range(0, len(sources), BATCH)]


def batches(preprocess: Preprocess, patch: int, sources: Sequence[Picture]) -> list[np.ndarray]:
    """Inputs in five shapes, some not square; the pictures given come first, as the model sees them."""
    height, width = preprocess.size
    made = inputs(preprocess, "floats", sources)
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


def compare(
    graph: Engine,
    model: Ask,
    inputs: Sequence[np.ndarray],
    tolerance: float = TOLERANCE,
    given: int = 0,
    labels: Sequence[int] = (),
) -> Verdict:
    """Ask both; refuse a graph with a size baked in, or with other answers.

    Args:
        tolerance: of the logits; infinite for int8, whose first answers are counted instead.
        given: how many pictures of the first inputs are somebody's; the rest is made up, to try sizes.
        labels: of these pictures.
    """
    pairs: Pairs = [(_asked(graph, x, model(x)), x) for x in inputs]
    far, ties = _farthest(pairs, model, tolerance)
    if not far <= tolerance:
        raise ModelError(
            f"the graph's answers differ from the model's by {far:.1e} (allowed: {tolerance:.0e}); "
            f"nothing was written"
        )
    first, known = (np.concatenate([pair[i].argmax(-1) for pair, _ in pairs]) for i in (0, 1))
    count = given or len(first)
    changed = int((first[:count] != known[:count]).sum())
    if np.isinf(tolerance) and given and changed > max(1, CHANGED * count):
        raise ModelError(
            f"in int8 the first answer changes for {changed} of {count} pictures (allowed: {CHANGED:.0%}); "
            f"nothing was written; calibrate on more pictures like those it will see, or leave out --int8"
        )
    sides = {x.shape[1:3] if x.dtype == np.uint8 else x.shape[2:] for x in inputs}
    right, before = (
        float((answers[: len(labels)] == np.asarray(labels)).mean()) if len(labels) else -1.0
        for answers in (first, known)
    )
    return Verdict(len(first), len(sides), far, 1 - changed / count, right, before, ties)


def _asked(graph: Engine, x: np.ndarray, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What a graph answers beside what is expected; one that cannot answer is refused."""
    try:
        found = graph.run(x)
    except Exception as error:  # each engine has its own kinds
        raise ModelError(
            f"the graph fails on pictures of shape {x.shape} ({brief(error)}): a size got baked in; "
            f"nothing was written; please report it"
        ) from error
    if found.shape != expected.shape:
        raise ModelError(f"the graph answers {x.shape} with {found.shape}; expected {expected.shape}")
    if not np.isfinite(found).all():
        also = (
            "please report it" if np.isfinite(expected).all() else "so does the model: see `saccade doctor`"
        )
        raise ModelError(
            f"the graph answers pictures of shape {x.shape} with nan or infinite numbers; "
            f"nothing was written; {also}"
        )
    return found, expected


def _farthest(pairs: Pairs, model: Ask, tolerance: float) -> tuple[float, int]:
    """The largest difference, and the number of pictures that do not count for it because of a tie."""
    far, ties = 0.0, 0
    for (found, expected), x in pairs:
        for i, apart in enumerate(_apart(found, expected)):
            if apart > tolerance and x.dtype != np.uint8 and _tied(model, x[i : i + 1], found[i], tolerance):
                ties += 1
            else:
                far = max(far, float(apart))
        if far > tolerance:
            break
    return far, ties


def _tied(model: Ask, x: np.ndarray, found: np.ndarray, tolerance: float) -> bool:
    """Whether a model answers just as a graph did once the picture's pixels move by next to nothing.

    Where two patches are equally close, or equally little looked at, a rounding tells which one is merged or
    dropped, and two engines may differ: about one picture in a thousand of a ViT-Ti that merges 13.
    """
    noise = np.random.default_rng(0).standard_normal((TRIES, *x.shape), dtype=np.float32)
    moved = (x + step * each for step in NUDGES for each in noise)
    return any(_apart(found[None], model(each))[0] <= tolerance for each in moved)


def _apart(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """How far the answers to each picture are apart."""
    return np.abs(found - expected).max(-1) / np.maximum(1.0, np.abs(expected).max(-1))


def decoded(sources: Sequence[Picture], preprocess: Preprocess) -> list[np.ndarray]:
    """Pictures as a graph that takes bytes reads them, each a batch of its own; five made ones are added."""
    height, width = preprocess.size
    sizes = ((1, 1), (2, 1), (1.5, 2.5), (3, 1.3), (0.6, 0.9))
    made = [picture(round(height * a), round(width * b)) for a, b in sizes]
    return inputs(preprocess, "bytes", [*sources, *made])
