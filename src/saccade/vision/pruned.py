"""A model that drops or merges patches beside the dense one it was made of: answers, work and time."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch import nn

from saccade.data.image.preprocess import Preprocess
from saccade.data.loader import scoring
from saccade.data.pictures import Images
from saccade.data.readers.listing import Collection
from saccade.data.splits import stratified
from saccade.errors import DataError
from saccade.models.build import config_of
from saccade.models.looped import Looped
from saccade.models.vit import ViT
from saccade.tokens.cost import Config, lengths, macs
from saccade.tokens.plan import told

BATCHES = (1, 32)
"""Pictures at once: one for whoever waits for an answer, many for whoever has a pile of them."""
LEAST, MOST = 9, 101
SECONDS = 6.0
"""For each batch; then enough rounds are seen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Two models in turns, so that a slow moment of the machine hits both."""

    batch: int
    dense: float
    """Median seconds for a batch."""
    slim: float
    ratio: float
    """The median over rounds of dense by slim: above 1, fewer patches are faster."""
    low: float
    high: float
    """Its quartiles."""
    rounds: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """What `saccade prune` reports."""

    plan: str
    dense: str
    """Where the dense model lies."""
    split: str
    pictures: int
    dense_right: int
    right: int
    same: int
    """Pictures to which both give the same answer."""
    dense_macs: int
    macs: int
    tokens: tuple[int, ...]
    """How many enter each block."""
    speeds: tuple[Speed, ...]
    predicted: float = 0.0
    """Seconds that the search expected for its batch; 0 if nothing was searched."""
    wanted: float = 0.0
    """The speed-up that was asked for; 0 if none was."""

    @property
    def lost(self) -> float:
        """Accuracy lost, as a share."""
        return (self.dense_right - self.right) / self.pictures


def race(
    modules: Sequence[nn.Module], image: tuple[int, int], batch: int, seconds: float = 0.0
) -> list[list[float]]:
    """Seconds of each module, round by round, in turns; two rounds are not counted. 0: for `SECONDS`."""
    pictures = torch.randn(batch, 3, *image, generator=torch.Generator().manual_seed(0))
    found: list[list[float]] = [[] for _ in modules]
    began = 0.0
    with torch.inference_mode():
        for number in range(-2, MOST):
            if number == 0:
                began = perf_counter()
            if number >= LEAST and perf_counter() - began > (seconds or SECONDS):
                break
            order = range(len(modules)) if number % 2 else reversed(range(len(modules)))
            for i in order:
                before = perf_counter()
                modules[i](pictures)
                if number >= 0:
                    found[i].append(perf_counter() - before)
    return found


def speed(batch: int, dense: Sequence[float], slim: Sequence[float]) -> Speed:
    """Two rows of a race as one comparison."""
    by = sorted(a / b for a, b in zip(dense, slim, strict=True))
    return Speed(
        batch=batch,
        dense=median(dense),
        slim=median(slim),
        ratio=median(by),
        low=by[len(by) // 4],
        high=by[-1 - len(by) // 4],
        rounds=len(by),
    )


def right_of(
    modules: Sequence[nn.Module], preprocess: Preprocess, images: Images, batch: int = 32
) -> tuple[int, list[int], list[int]]:
    """How many pictures there were, and for each module how many it got right and answered as the first."""
    seen, right, same = 0, [0] * len(modules), [0] * len(modules)
    for found in scoring(images, preprocess, batch, 0):
        with torch.inference_mode():
            answers = [module(found["image"]).argmax(-1) for module in modules]
        seen += found["label"].shape[0]
        for i, answer in enumerate(answers):
            right[i] += int((answer == found["label"]).sum())
            same[i] += int((answer == answers[0]).sum())
    if not seen:
        raise DataError("there is no picture to be scored on; expected one or more")
    return seen, right, same


def unseen(found: Collection) -> tuple[str, Images]:
    """The pictures to be scored on, and which split they are: test if there is one, else val, else train."""
    return next((name, found.splits[name]) for name in ("test", "val", "train") if name in found.splits)


def apart(found: Collection, enough: int) -> tuple[Images, str, Images]:
    """Pictures to choose on, and others to be scored on, with what these are called.

    Val and test where both are there; else what is unseen is parted: `enough` to choose on, at most half. If
    there are too few for that, all are used for both, and their name says so.
    """
    split, images = unseen(found)
    if split == "test" and found.val is not None:
        return found.val, split, images
    share = min(0.5, max(enough / len(images), 0.001))
    keys = ~images.keys()  # not the hashes by which they were held out
    others, some = stratified(images.labels, share, 0, keys=keys)
    if not len(others) or not len(some):
        return images, f"twice used {split}", images
    return images.take(some), f"other {split}", images.take(others)


def compare(
    dense: ViT,
    slim: Looped,
    preprocess: Preprocess,
    images: Images,
    split: str,
    place: str,
    batches: Sequence[int] = BATCHES,
) -> Beside:
    """Measure both on the same pictures and the same machine."""
    dense.eval()
    slim.eval()
    size = dense.config.image
    count, right, same = right_of([dense, slim], preprocess, images)
    speeds = tuple(speed(batch, *race([dense, slim], size, batch)) for batch in batches)
    before = config_of(dense)
    assert isinstance(before, Config)
    return Beside(
        plan=told(slim.loop),
        dense=place,
        split=split,
        pictures=count,
        dense_right=right[0],
        right=right[1],
        same=same[1],
        dense_macs=macs(before),
        macs=macs(slim.loop),
        tokens=lengths(slim.loop),
        speeds=speeds,
    )
