"""How well an explanation map finds the object, given a mask of its pixels.

As in Chefer, Gur and Wolf 2021 (https://arxiv.org/abs/2012.09838, section 4): pixels above the map's own mean
count as object, the rest as background. Shapes: n images of height x width pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int64, Integer

OBJECT, BACKGROUND, IGNORED = 1, 0, -1
"""The values of a mask; ignored pixels (a blurred border, say) do not count."""

Map = Float[np.ndarray, "height width"]
Mask = Integer[np.ndarray, "height width"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalisationScores:
    """Scores of the maps of several images; each is at most 1."""

    count: int
    """Images whose mask shows an object."""
    pixel_accuracy: float
    """Share of all pixels that are on the correct side of the mean."""
    iou: float
    """Intersection over union, averaged over object and background, from the pixels of all images."""
    average_precision: float
    """Average precision, averaged over images and over object and background."""
    pointing: float
    """Share of images whose highest pixel is on the object (Zhang et al. 2018, pointing game)."""


@dataclass(frozen=True, slots=True, eq=False)
class Overlap:
    """One image: pixels by mask (row) and by map (column), background first."""

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
    """Return the mean over the classes that occur."""
    union = pixels.sum(0) + pixels.sum(1) - pixels.diagonal()
    there = union > 0
    return float((pixels.diagonal()[there] / union[there]).mean())


def above_mean(map_: Map) -> Bool[np.ndarray, "height width"]:
    """Return the pixels that count as object; none if the map is constant."""
    return map_ > map_.mean(dtype=np.float64)


def average_precision(score: Float[np.ndarray, "n"], truth: Bool[np.ndarray, "n"]) -> float:
    """Return the area under precision over recall, in steps; 0 if nothing is true."""
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(truth, score)) if truth.any() else 0.0


def hits(map_: Map, mask: Mask) -> bool:
    """Return whether the highest pixel, or every one of several equal ones, is on the object."""
    return bool((mask[map_ == map_.max()] == OBJECT).all())


def overlap(map_: Map, mask: Mask) -> Overlap:
    """Score one map against one mask; only the pointing game sees ignored pixels."""
    counted = mask != IGNORED
    truth, answer = mask[counted] == OBJECT, above_mean(map_)[counted]
    pixels = np.bincount(2 * truth + answer, minlength=4).reshape(2, 2)
    score = map_[counted].astype(np.float64)
    both = average_precision(score, truth), average_precision(-score, ~truth)
    return Overlap(pixels, sum(both) / 2, hits(map_, mask))


def localisation_scores(overlaps: Sequence[Overlap]) -> LocalisationScores:
    """Return the scores of several images; pixels are summed before dividing, as in the paper."""
    if not overlaps:
        raise ValueError("no maps to score; expected one or more")
    pixels = np.sum([one.pixels for one in overlaps], axis=0)
    return LocalisationScores(
        count=len(overlaps),
        pixel_accuracy=float(pixels.trace() / pixels.sum()),
        iou=_iou(pixels),
        average_precision=float(np.mean([one.average_precision for one in overlaps])),
        pointing=float(np.mean([one.hit for one in overlaps])),
    )
