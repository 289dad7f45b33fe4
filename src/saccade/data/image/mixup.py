"""Mix the images of a batch in pairs: mixup (Zhang et al. 2018), cutmix (Yun et al. 2019), label smoothing.

Shapes: b batch, h w sides of the images, k classes.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from saccade.data.randomness import Draws
from saccade.values import validate, within

Batch = Float[Tensor, "b 3 h w"]
Partner = Int[Tensor, "b"]
Soft = Float[Tensor, "b k"]
Box = tuple[int, int, int, int]
"""Top, bottom, left, right; the last row and column are outside."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mix:
    """How the images of a batch are mixed in pairs, and their labels with them; one ratio per batch."""

    mixup: float = within(0, 1000, default=0.0)
    """Mixup: both parameters of the Beta distribution of the first image's share; 0 means never."""
    cutmix: float = within(0, 1000, default=0.0)
    """The same for cutmix; where both are set, each gets half of the batches."""
    smoothing: float = within(0, 1, default=0.0)
    """The part of every label that is spread evenly over all classes."""
    probability: float = within(0, 1, default=1.0)
    """How often a batch is mixed at all."""

    def __post_init__(self) -> None:
        validate(self, "mix.")

    def __call__(
        self, image: Batch, target: Int[Tensor, "b"], classes: int, draws: Draws
    ) -> tuple[Batch, Soft]:
        """Return the mixed images, and for each the probability of every class."""
        soft = smooth(target, classes, self.smoothing)
        if not (self.mixup or self.cutmix) or not draws.flip("mix", self.probability):
            return image, soft
        partner = neighbours(image.shape[0]).to(image.device)
        cut = draws.flip("cutmix or mixup", 0.5) if self.mixup and self.cutmix else self.cutmix > 0
        alpha = self.cutmix if cut else self.mixup
        share = draws.beta("mix share", alpha, alpha)
        if cut:
            height, width = image.shape[-2:]
            box = cut_box(height, width, share, draws)
            share = 1 - _area(box) / (height * width)  # the border has cut some of the box off
            return paste(image, partner, box), blend(soft, partner, share)
        return blend(image, partner, share), blend(soft, partner, share)


def neighbours(count: int) -> Partner:
    """Return 1, 0, 3, 2, ...: in a batch that was shuffled, a neighbour is as random as any.

    A slice of a batch holds its own partners, so that several processes mix as a single one does.
    """
    places = torch.arange(count)
    return torch.where((places ^ 1) < count, places ^ 1, places)


def smooth(target: Int[Tensor, "b"], classes: int, smoothing: float) -> Soft:
    """Return labels as probabilities; their cross-entropy is torch's with `label_smoothing`."""
    return F.one_hot(target.long(), classes).float() * (1 - smoothing) + smoothing / classes


def blend(value: Float[Tensor, "b ..."], partner: Partner, share: float) -> Float[Tensor, "b ..."]:
    """Return `share` of each and the rest of its partner: mixup, for images as for labels."""
    return share * value + (1 - share) * value[partner]


def paste(image: Batch, partner: Partner, box: Box) -> Batch:
    """Return each image with its partner's pixels inside the box."""
    top, bottom, left, right = box
    result = image.clone()
    result[..., top:bottom, left:right] = image[partner, :, top:bottom, left:right]
    return result


def cut_box(height: int, width: int, share: float, draws: Draws) -> Box:
    """Draw a box of the image's shape that leaves `share` of it, around any pixel, cut at the border."""
    side = math.sqrt(1 - share)
    tall, wide = int(height * side), int(width * side)
    top = draws.integer("cutmix row", height) - tall // 2
    left = draws.integer("cutmix column", width) - wide // 2
    return max(top, 0), min(top + tall, height), max(left, 0), min(left + wide, width)


def _area(box: Box) -> int:
    top, bottom, left, right = box
    return (bottom - top) * (right - left)
