"""Compare a graph with its model, output by output, on images of five sizes before anybody relies on it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from saccade.data.image.preprocess import PictureSource, Preprocess, open_rgb
from saccade.engine.engine import LOGITS, OUTPUTS, Arrays, first_line
from saccade.errors import ModelError
from saccade.progress import track
from saccade.weights.known_answer import picture

BYTES_TOLERANCE = 0.05
"""With the preprocessing inside, a sample may differ by a grey level here and there."""
CHANGED = 0.1
"""int8 moves logits, so top-1 answers are compared: they may differ for this share of the given images."""
NUDGES = (1e-6, 1e-5)
"""How far to move normalised pixels to learn whether a model's answer depends on rounding."""
TRIES = 8
BATCH = 8
Ask = Callable[[np.ndarray], Arrays]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How closely a graph agrees with its model."""

    pictures: int
    sizes: int
    difference: float
    """The largest difference of an output's values, as a share of the image's largest if that is above 1."""
    agreement: float
    """Share of images with the same top-1 class, among the given ones if there are any."""
    right: float = -1.0
    """The graph's accuracy on labelled images; -1 without labels."""
    before: float = -1.0
    """The model's accuracy on them."""
    ties: int = 0
    """Images left out of `difference` because their patches tie: the model itself answers both ways."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Images to compare on, and the numbers of their classes if these are known."""

    sources: Sequence[PictureSource] = ()
    labels: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class _Pair:
    """The outputs of a graph and of its model for one batch."""

    pixels: np.ndarray
    found: Arrays
    expected: Arrays


def graph_inputs(preprocess: Preprocess, takes: str, sources: Sequence[PictureSource]) -> list[np.ndarray]:
    """Return images as a graph takes them: in batches, or decoded one by one if their sizes may differ."""
    if takes == "bytes":
        return [np.asarray(open_rgb(source, preprocess.background))[None] for source in sources]
    return [preprocess.batch(sources[i : i + BATCH]) for i in range(0, len(sources), BATCH)]


def float_trials(
    preprocess: Preprocess, patch: int, sources: Sequence[PictureSource] = ()
) -> list[np.ndarray]:
    """Return the given images, then synthetic batches of five shapes, the model's own first."""
    height, width = preprocess.size
    made = graph_inputs(preprocess, "floats", sources)
    for batch, (tall, wide) in zip((1, 2, 3, 1, 2), _sizes(height, width, patch), strict=True):
        turned = [np.roll(picture(tall, wide), 7 * i, axis=1) for i in range(batch)]
        made.append(np.stack([preprocess.normalise(each) for each in turned]))
    return made


def _sizes(height: int, width: int, patch: int) -> list[tuple[int, int]]:
    """Return the model's own size and four around it, in whole patches."""
    step = patch if patch > 1 else 32
    rows, cols = max(height // step, 2), max(width // step, 2)
    grids = (rows + 1, cols), (rows, cols + 2), (max(rows - 1, 2), cols + 1), (rows + 1, cols + 1)
    return [(height, width), *((r * step, c * step) for r, c in grids)]


def byte_trials(preprocess: Preprocess, sources: Sequence[PictureSource] = ()) -> list[np.ndarray]:
    """Return the given images, then synthetic ones of five sizes, each as a batch of decoded samples."""
    height, width = preprocess.size
    sizes = ((1, 1), (2, 1), (1.5, 2.5), (3, 1.3), (0.6, 0.9))
    made = [picture(round(height * a), round(width * b)) for a, b in sizes]
    return graph_inputs(preprocess, "bytes", [*sources, *made])


def compare(
    graph: Ask,
    model: Ask,
    inputs: Sequence[np.ndarray],
    outputs: Mapping[str, float] = OUTPUTS,
    given: int = 0,
    labels: Sequence[int] = (),
) -> Agreement:
    """Run both; refuse a graph with a size baked in, or with an output beyond its tolerance.

    Args:
        outputs: Each output's tolerance; infinite for int8, where top-1 answers are compared instead.
        given: How many images of the first inputs are the user's; the rest is synthetic, to try sizes.
        labels: Of the user's images.
    """
    shown = track(inputs, len(inputs), "comparing with the model", "batches")
    pairs = [_run(graph, x, model(x), outputs) for x in shown]
    difference, ties = _differences(pairs, model, outputs)
    sides = {x.shape[1:3] if x.dtype == np.uint8 else x.shape[2:] for x in inputs}
    total = sum(len(x) for x in inputs)
    if LOGITS not in outputs:
        return Agreement(total, len(sides), difference, 1.0, ties=ties)
    first, known = (
        np.concatenate([answer[LOGITS].argmax(-1) for answer in answers])
        for answers in ([pair.found for pair in pairs], [pair.expected for pair in pairs])
    )
    count = given or total
    changed = int((first[:count] != known[:count]).sum())
    if np.isinf(outputs[LOGITS]) and given and changed > max(1, CHANGED * count):
        raise ModelError(
            f"in int8 the top-1 answer changes for {changed} of {count} images (allowed: {CHANGED:.0%}); "
            f"nothing was written; calibrate on more images like those it will see, or leave out --int8"
        )
    right, before = (
        float((answers[: len(labels)] == np.asarray(labels)).mean()) if len(labels) else -1.0
        for answers in (first, known)
    )
    return Agreement(total, len(sides), difference, 1 - changed / count, right, before, ties)


def _run(graph: Ask, x: np.ndarray, expected: Arrays, outputs: Mapping[str, float]) -> _Pair:
    """Return both answers to a batch; refuse a graph that fails, or whose outputs are of another shape."""
    try:
        found = graph(x)
    except Exception as error:  # each engine has its own exceptions
        raise ModelError(
            f"the graph fails on images of shape {x.shape} ({first_line(error)}): a size is baked in; "
            f"nothing was written; please report it"
        ) from error
    for name in outputs:
        here, there = found[name], expected[name]
        if here.shape != there.shape:
            raise ModelError(
                f"the graph's {name} for {x.shape} have the shape {here.shape}; expected {there.shape}; "
                f"nothing was written; please report it"
            )
        if not np.isfinite(here).all():
            also = (
                "please report it" if np.isfinite(there).all() else "so does the model: see `saccade doctor`"
            )
            raise ModelError(
                f"the graph answers images of shape {x.shape} with nan or infinite numbers; "
                f"nothing was written; {also}"
            )
    return _Pair(x, found, expected)


def _differences(pairs: Sequence[_Pair], model: Ask, outputs: Mapping[str, float]) -> tuple[float, int]:
    """Return the largest difference and the number of images with ties; refuse one beyond its tolerance."""
    largest, ties = 0.0, 0
    for pair in pairs:
        apart = {name: _apart(pair.found[name], pair.expected[name]) for name in outputs}
        for i in range(len(pair.pixels)):
            over = {name: far[i] for name, far in apart.items() if not far[i] <= outputs[name]}
            if over and pair.pixels.dtype != np.uint8 and _tied(model, pair, i, outputs):
                ties += 1
                continue
            for name, far in over.items():
                raise ModelError(
                    f"the graph's {name} differ from the model's by {far:.1e} (allowed: "
                    f"{outputs[name]:.0e}); nothing was written"
                )
            largest = max([largest, *(float(far[i]) for far in apart.values())])
    return largest, ties


def _tied(model: Ask, pair: _Pair, i: int, outputs: Mapping[str, float]) -> bool:
    """Return whether the model answers as the graph did once the pixels move by next to nothing.

    Where two patches are equally close, or get equally little attention, a rounding decides which one is
    merged or dropped, and two engines may differ: about one image in a thousand for a ViT-Ti that merges 13.
    """
    x = pair.pixels[i : i + 1]
    noise = np.random.default_rng(0).standard_normal((TRIES, *x.shape), dtype=np.float32)
    moved = (model(x + step * each) for step in NUDGES for each in noise)
    return any(
        all(_apart(pair.found[name][i : i + 1], answer[name])[0] <= outputs[name] for name in outputs)
        for answer in moved
    )


def _apart(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return how far the values of each image are apart."""
    rows = np.abs(found - expected).reshape(len(found), -1), np.abs(expected).reshape(len(found), -1)
    return rows[0].max(-1, initial=0.0) / np.maximum(1.0, rows[1].max(-1, initial=0.0))
