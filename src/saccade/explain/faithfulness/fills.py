"""What takes the place of deleted cells: the blurred image, nothing at all, or the mean colour.

A ViT can run on the patches that are left, each at its own position, so that a deleted patch shows nothing:
no blur that still says "a yellow flower", and no grey square that is an object of its own (Jain et al. 2022,
Missingness Bias in Model Debugging, https://arxiv.org/abs/2204.08945).

Shapes: b images, k perturbed copies, r rows and c columns of cells, n tokens.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.explain.methods.gradients import mean_colour
from saccade.explain.replay import Grid, grid_of
from saccade.models.build import Vision
from saccade.models.vit import ViT
from saccade.nn.patch import Image
from saccade.tokens.walk import Walk, gather_pairs, run, select

BLUR, DROP, MEAN = "blur", "drop", "mean"
FILLS = {BLUR: "blurred", DROP: "dropped", MEAN: "covered with the mean colour of the image"}
FEWEST = 8
"""Fewest cells per side for a CNN, which has no patches; large images have one for each 16 pixels."""

Away: TypeAlias = Bool[Tensor, "k r c"]
"""The cells that are deleted."""
Perturbed: TypeAlias = Callable[[Int[Tensor, "k"], Away], Float[Tensor, "k classes"]]
"""The logits for copies of some images without some cells; as many cells are deleted in each copy."""


def drops(module: Vision) -> bool:
    """Return whether deleted patches can be left out.

    Not where a token knows its neighbours (stems of convolutions) or their number matters (models that drop,
    merge or window tokens); nor where the head reads the patches, because it must answer without any.
    """
    return type(module) is ViT and not module.config.convs and module.config.pool in ("token", "pair")


def fitting_fills(module: Vision) -> tuple[str, str]:
    """Return the usual fill, and the one to try where the blurred image is still recognised."""
    return BLUR, DROP if drops(module) else MEAN


def cell_grid(module: Vision, image: Image) -> Grid:
    """Return the grid of cells to delete: the patches; for a CNN, squares of 16 pixels or less."""
    if isinstance(module, ViT):
        return grid_of(module, image)
    rows, columns = (min(side, max(FEWEST, side // 16)) for side in image.shape[-2:])
    return rows, columns


def blur(image: Image, grid: Grid) -> Image:
    """Blur images until nothing smaller than a cell is left."""
    for axis, cells in ((-2, grid[0]), (-1, grid[1])):
        side = image.shape[axis]
        deviation = side / cells
        reach = min(math.ceil(3 * deviation), 3 * side)
        x = torch.arange(-reach, reach + 1, device=image.device, dtype=image.dtype)
        weight = (-0.5 * (x / deviation).square()).exp()
        place = (torch.arange(side, device=image.device)[:, None] + x.long()).clamp(0, side - 1)
        matrix = image.new_zeros(side, side)
        matrix.scatter_add_(1, place, repeat(weight / weight.sum(), "k -> side k", side=side))
        image = matrix @ image if axis == -2 else image @ matrix.mT
    return image


def perturbed(module: Vision, image: Image, fill: str) -> Perturbed:
    """Return a function that runs the model on copies of these images with some cells deleted."""
    if fill == DROP:
        assert isinstance(module, ViT)
        vit, z = module, module.embed(image)
        return lambda which, away: without_patches(vit, image, z[which], away)
    instead = blur(image, cell_grid(module, image)) if fill == BLUR else mean_colour(image)

    def answer(which: Int[Tensor, "k"], away: Away) -> Float[Tensor, "k classes"]:
        cover = F.interpolate(rearrange(away, "k r c -> k 1 r c").to(image), image.shape[-2:], mode="nearest")
        return module(torch.where(cover > 0, instead[which], image[which]))

    return answer


def without_patches(
    vit: ViT, image: Image, z: Float[Tensor, "k n d"], away: Away
) -> Float[Tensor, "k classes"]:
    """Return the logits from the tokens of `vit.embed` without some patches, the same number for each."""
    stay = F.pad(~rearrange(away, "k r c -> k (r c)"), (vit.config.front, 0), value=True)
    kept = stay.nonzero()[:, 1].view(stay.shape[0], -1).to(z.device)
    walk = Walk(vit, image)
    walk.weight, walk.turn = gather_pairs(walk.weight, walk.turn, kept)
    return vit.read(run(vit, walk, select(z, kept)))
