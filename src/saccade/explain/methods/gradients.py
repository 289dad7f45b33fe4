"""What each pixel contributes to a score, by gradients: gradient x input, and integrated gradients.

Both split a score among the pixels of an image, so the parts of a patch are summed.

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

from saccade.explain.target import Maps, Target, evaluation_mode, target_score
from saccade.models.build import Vision
from saccade.models.resnet import ResNet
from saccade.nn.patch import Image

NODES = 6
"""Points of a piece of the path at which the gradient is evaluated."""
CUTS = (0.0, *(2.0**-k for k in range(6, -1, -1)))
"""Where a path is cut initially."""
PIECES = 64
"""Most pieces of a path."""
COMPLETE = 1e-3
"""Tolerated error, as a share of the difference between the scores at the ends."""
NOISE = 1e-5
"""Share of a score that is float32 rounding, many layers deep."""

Sample = Float[Tensor, "3 height width"]


def input_gradient(module: Vision, image: Image, target: Target) -> Image:
    """Return the gradient of each image's score with respect to its pixels."""
    image = image.detach().requires_grad_()
    return torch.autograd.grad(target_score(module(image), target).sum(), image)[0]


def sum_patches(module: Vision, parts: Image) -> Maps:
    """Sum over the pixels of each patch; of a CNN, which has no patches, over the colours of each pixel."""
    if isinstance(module, ResNet):
        return reduce(parts, "b ch height width -> b height width", "sum")
    p = module.config.patch
    return reduce(parts, "b ch (r p) (c q) -> b r c", "sum", p=p, q=p)


@evaluation_mode
def gradient(module: Vision, image: Image, target: Target) -> Maps:
    """Return gradient x input: what a linear score would lose if the input were zero there."""
    return sum_patches(module, image * input_gradient(module, image, target))


def mean_colour(image: Image) -> Image:
    """Return an image of the same size filled with each image's mean colour.

    Zeros would be mid-grey for one preprocessing and ImageNet's mean for another; the mean of normalised
    pixels is the normalised mean colour under any.
    """
    return reduce(image, "b ch height width -> b ch 1 1", "mean").expand_as(image)


@cache
def _rule(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points and weights of Gauss-Legendre quadrature between 0 and 1."""
    at, weight = np.polynomial.legendre.leggauss(nodes)
    return (at + 1) / 2, weight / 2


@dataclass(eq=False, slots=True)
class Piece:
    """A part of a path, its integral, and the error of that."""

    low: float
    high: float
    integral: Sample
    missing: float


@dataclass
class Path:
    """The straight path from a baseline to one image, and the class whose score changes along it."""

    module: Vision
    start: Sample
    end: Sample
    target: Target
    """One number."""

    def at(self, share: list[float] | np.ndarray) -> Float[Tensor, "k 3 height width"]:
        """Return points on the path: 0 is the baseline, 1 the image."""
        shares = torch.as_tensor(np.asarray(share), dtype=self.end.dtype, device=self.end.device)
        return self.start + rearrange(shares, "k -> k 1 1 1") * (self.end - self.start)

    @torch.no_grad()
    def scores(self, share: list[float]) -> Float[Tensor, "k"]:
        """Return the score at some points."""
        points = self.at(share)
        return target_score(self.module(points), self.target.expand(points.shape[0]))

    def integral(self, low: float, high: float, nodes: int = NODES) -> Sample:
        """Integrate the gradients (Eq. 1) over a piece of the path with one quadrature rule."""
        at, weight = _rule(nodes)
        points = self.at(low + (high - low) * at)
        found = input_gradient(self.module, points, self.target.expand(nodes))
        weights = torch.as_tensor(weight, dtype=found.dtype, device=found.device)
        return (high - low) * (self.end - self.start) * einsum(weights, found, "k, k ch h w -> ch h w")

    def piece(self, low: float, high: float) -> Piece:
        """Integrate a piece; its error is how far that is from the difference between the scores."""
        found = self.integral(low, high)
        before, after = self.scores([low, high]).tolist()
        return Piece(low, high, found, abs(float(found.sum()) - (after - before)))

    def integrate(self) -> Sample:
        """Integrate over the whole path: the result sums to the difference between the scores.

        The worst piece is halved until it does. The gradient turns quickly near the baseline, where even
        steps would be too few, and hardly at all later.
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
    """Return integrated gradients of every pixel; the default baseline is the image's mean colour."""
    start = mean_colour(image) if baseline is None else baseline
    paths = (Path(module, *item) for item in zip(start, image, rearrange(target, "b -> b 1"), strict=True))
    return torch.stack([path.integrate() for path in paths])


@evaluation_mode
def integrated(module: Vision, image: Image, target: Target) -> Maps:
    """Return what each patch adds to the score on the path from the image's mean colour."""
    return sum_patches(module, attributions(module, image, target))
