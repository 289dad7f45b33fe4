"""What each pixel adds to a score, by gradients: gradient x input, and integrated gradients.

Both split a score among the samples of a picture, so the parts of a patch are added up.

Shapes: b batch, k points of a path.
"""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from einops import einsum, rearrange, reduce
from jaxtyping import Float
from torch import Tensor

from saccade.explain.ask import Maps, Target, chosen, still
from saccade.models.build import Vision
from saccade.models.resnet import ResNet
from saccade.nn.patch import Image

NODES = 6
"""Points of a piece of the path at which the gradient is taken."""
CUTS = (0.0, *(2.0**-k for k in range(6, -1, -1)))
"""Where a path is cut to begin with."""
PIECES = 64
"""Into which a path is cut at most."""
COMPLETE = 1e-3
"""How much of the difference between the scores at the ends may be missing."""
NOISE = 1e-5
"""How much of a score is rounding in float32, many layers deep."""

Sample = Float[Tensor, "3 height width"]


def slope(module: Vision, image: Image, target: Target) -> Image:
    """The gradient of each picture's score by its samples."""
    image = image.detach().requires_grad_()
    return torch.autograd.grad(chosen(module(image), target).sum(), image)[0]


def by_place(module: Vision, parts: Image) -> Maps:
    """Add up the parts of a patch; a CNN has no patches, so there the colours of a pixel."""
    if isinstance(module, ResNet):
        return reduce(parts, "b ch height width -> b height width", "sum")
    p = module.config.patch
    return reduce(parts, "b ch (r p) (c q) -> b r c", "sum", p=p, q=p)


@still
def gradient(module: Vision, image: Image, target: Target) -> Maps:
    """Gradient x input: what the score would lose, were it linear, if the input were zero there."""
    return by_place(module, image * slope(module, image, target))


def mean_colour(image: Image) -> Image:
    """A picture of each picture's own mean colour, of the same size.

    Zeros would be mid-grey for one preprocessing and ImageNet's mean for another; the mean of normalised
    samples is the normalised mean colour under all of them.
    """
    return reduce(image, "b ch height width -> b ch 1 1", "mean").expand_as(image)


@cache
def _rule(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights of Gauss-Legendre quadrature between 0 and 1."""
    at, weight = np.polynomial.legendre.leggauss(nodes)
    return (at + 1) / 2, weight / 2


@dataclass(eq=False, slots=True)
class Piece:
    """A part of a path, its integral, and how far that is from what it should sum to."""

    low: float
    high: float
    integral: Sample
    missing: float


@dataclass
class Path:
    """The straight way from a baseline to one picture, and a class whose score changes along it."""

    module: Vision
    start: Sample
    end: Sample
    target: Target
    """One number."""

    def at(self, share: list[float] | np.ndarray) -> Float[Tensor, "k 3 height width"]:
        """Pictures on the way: 0 is the baseline, 1 the picture."""
        shares = torch.as_tensor(np.asarray(share), dtype=self.end.dtype, device=self.end.device)
        return self.start + rearrange(shares, "k -> k 1 1 1") * (self.end - self.start)

    @torch.no_grad()
    def scores(self, share: list[float]) -> Float[Tensor, "k"]:
        """The score at some points."""
        points = self.at(share)
        return chosen(self.module(points), self.target.expand(points.shape[0]))

    def integral(self, low: float, high: float, nodes: int = NODES) -> Sample:
        """Integrated gradients (Eq. 1) of a piece of the way, by one rule of quadrature."""
        at, weight = _rule(nodes)
        points = self.at(low + (high - low) * at)
        found = slope(self.module, points, self.target.expand(nodes))
        weights = torch.as_tensor(weight, dtype=found.dtype, device=found.device)
        return (high - low) * (self.end - self.start) * einsum(weights, found, "k, k ch h w -> ch h w")

    def piece(self, low: float, high: float) -> Piece:
        """A part of the way, and how far its integral is from the difference between the scores."""
        found = self.integral(low, high)
        before, after = self.scores([low, high]).tolist()
        return Piece(low, high, found, abs(float(found.sum()) - (after - before)))

    def whole(self) -> Sample:
        """Integrated gradients of the whole way: they sum to the difference between the scores.

        The worst piece is halved until that is so. The gradient turns quickly near the baseline, where even
        steps would be too few, and hardly at all later on.
        """
        first, last = self.scores([0.0, 1.0]).tolist()
        allowed = max(COMPLETE * abs(last - first), NOISE * max(abs(first), abs(last)))
        pieces = [self.piece(low, high) for low, high in pairwise(CUTS)]
        while sum(piece.missing for piece in pieces) > allowed and len(pieces) < PIECES:
            worst = max(pieces, key=lambda piece: piece.missing)
            pieces.remove(worst)
            middle = (worst.low + worst.high) / 2
            pieces += [self.piece(worst.low, middle), self.piece(middle, worst.high)]
        return torch.stack([piece.integral for piece in pieces]).sum(0)


def attributions(module: Vision, image: Image, target: Target, baseline: Image | None = None) -> Image:
    """Integrated gradients of every sample; the baseline is the picture's mean colour if none is given."""
    start = mean_colour(image) if baseline is None else baseline
    paths = (Path(module, *item) for item in zip(start, image, rearrange(target, "b -> b 1"), strict=True))
    return torch.stack([path.whole() for path in paths])


@still
def integrated(module: Vision, image: Image, target: Target) -> Maps:
    """Integrated gradients: what each place adds to the score on the way from the picture's mean colour."""
    return by_place(module, attributions(module, image, target))
