"""How well a map of importance finds the object, where a mask says which pixels belong to it.

As in Chefer, Gur and Wolf 2021 (https://arxiv.org/abs/2012.09838, section 4): what lies above the map's own
mean is taken for the object, the rest for the background. Shapes: n pictures of height x width pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int64, Integer

OBJECT, BACKGROUND, IGNORED = 1, 0, -1
"""The values of a mask; pixels that are ignored (a blurred border, say) count for nothing."""

Map = Float[np.ndarray, "height width"]
Mask = Integer[np.ndarray, "height width"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Segmented:
    """Scores of the maps of several pictures; each is 1 at best."""

    count: int
    """Pictures whose mask shows an object."""
    pixel_accuracy: float
    """Share of all pixels that are on the right side of the mean."""
    iou: float
    """Intersection over union, the mean of object and background, over the pixels of all pictures."""
    average_precision: float
    """Mean over pictures, and over object and background, of the average precision."""
    pointing: float
    """Share of the pictures whose highest place lies on the object (Zhang et al. 2018, pointing game)."""


@dataclass(frozen=True, slots=True, eq=False)
class Overlap:
    """One picture: pixels by truth (row) and by the map (column), background first."""

    pixels: Int64[np.ndarray, "2 2"]
    average_precision: float
    hit: bool

    @property
    def accuracy(self) -> float:
        return float(self.pixels.trace() / self.pixels.sum())

    @property
    def iou(self) -> float:
        return _iou(self.pixels)


def _iou(pixels: Int64[np.ndarray, "2 2"]) -> float:
    """Mean over the classes that occur."""
    union = pixels.sum(0) + pixels.sum(1) - pixels.diagonal()
    there = union > 0
    return float((pixels.diagonal()[there] / union[there]).mean())


def above_mean(map_: Map) -> Bool[np.ndarray, "height width"]:
    """What the map takes for the object; a map that is the same everywhere takes nothing."""
    return map_ > map_.mean(dtype=np.float64)


def average_precision(score: Float[np.ndarray, "n"], truth: Bool[np.ndarray, "n"]) -> float:
    """Area under precision over recall in steps, as scikit-learn's; equal scores come all at once."""
    order = np.argsort(-score, kind="stable")
    score, truth = score[order], truth[order]
    last = np.flatnonzero(np.append(np.diff(score) != 0, True))
    found = np.cumsum(truth)[last]
    if not found[-1]:
        return 0.0
    precision, recall = found / (last + 1), found / found[-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def hits(map_: Map, mask: Mask) -> bool:
    """Whether the highest place of the map lies on the object; several equal ones must all lie there."""
    return bool((mask[map_ == map_.max()] == OBJECT).all())


def overlap(map_: Map, mask: Mask) -> Overlap:
    """Score one map against one mask; pixels that are ignored are left out of all but the pointing."""
    counted = mask != IGNORED
    truth, told = mask[counted] == OBJECT, above_mean(map_)[counted]
    pixels = np.bincount(2 * truth + told, minlength=4).reshape(2, 2)
    score = map_[counted].astype(np.float64)
    both = average_precision(score, truth), average_precision(-score, ~truth)
    return Overlap(pixels, sum(both) / 2, hits(map_, mask))


def segmented(overlaps: Sequence[Overlap]) -> Segmented:
    """Scores of the set; counts of pixels are added up before they are divided, as in the paper."""
    if not overlaps:
        raise ValueError("no overlap of a map and a mask was given; expected one or more")
    pixels = np.sum([one.pixels for one in overlaps], axis=0)
    return Segmented(
        count=len(overlaps),
        pixel_accuracy=float(pixels.trace() / pixels.sum()),
        iou=_iou(pixels),
        average_precision=float(np.mean([one.average_precision for one in overlaps])),
        pointing=float(np.mean([one.hit for one in overlaps])),
    )
