"""Occlusion: how much the score falls when a patch is covered (Zeiler and Fergus 2014, section 4.2)."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from saccade.explain.methods.gradients import mean_colour
from saccade.explain.replay import Grid
from saccade.explain.target import Maps, Target, evaluation_mode, map_grid, target_score
from saccade.models.build import Vision
from saccade.models.resnet import ResNet
from saccade.nn.patch import Image

FINEST = 8
"""Rows and columns of cells for a CNN whose last feature map is coarser."""
AT_ONCE = 2**23
"""Numbers in one batch of covered images."""


def occlusion_grid(module: Vision, image: Image) -> Grid:
    """Return rows and columns of the cells to cover: the patches, or a CNN's last map or finer."""
    rows, columns = map_grid(module, image)
    if not isinstance(module, ResNet):
        return rows, columns
    height, width = image.shape[-2:]
    return max(rows, min(height, FINEST)), max(columns, min(width, FINEST))


def cover(
    image: Image, instead: Image, cells: Grid, which: range
) -> Float[Tensor, "copies channels height width"]:
    """Return copies of each image with one cell covered in each; cells are numbered row by row."""
    (rows, columns), (height, width) = cells, image.shape[-2:]
    at = torch.arange(which.start, which.stop, device=image.device)
    row = torch.arange(height, device=image.device) * rows // height
    column = torch.arange(width, device=image.device) * columns // width
    inside = (row[None, :, None] == (at // columns)[:, None, None]) & (
        column[None, None, :] == (at % columns)[:, None, None]
    )
    both = torch.where(inside[None, :, None], instead[:, None], image[:, None])
    return rearrange(both, "b k ch height width -> (b k) ch height width")


@evaluation_mode
@torch.no_grad()
def occlusion(module: Vision, image: Image, target: Target) -> Maps:
    """Return how much the score falls when each cell takes the mean colour of its image.

    The mean colour carries the least information under any preprocessing (`mean_colour`); black or zeros
    would be an object of their own in a bright image.
    """
    cells, instead = occlusion_grid(module, image), mean_colour(image)
    count, whole = cells[0] * cells[1], target_score(module(image), target)
    step = max(1, AT_ONCE // image.numel())
    falls: list[Tensor] = []
    for start in range(0, count, step):
        which = range(start, min(start + step, count))
        logits = module(cover(image, instead, cells, which))
        scores = target_score(logits, target.repeat_interleave(len(which)))
        falls.append(whole[:, None] - rearrange(scores, "(b k) -> b k", k=len(which)))
    return rearrange(torch.cat(falls, 1), "b (r c) -> b r c", r=cells[0])
