"""Occlusion: how much the score falls when a place is covered (Zeiler and Fergus 2014, section 4.2)."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from saccade.explain.ask import Maps, Target, chosen, grid, still
from saccade.explain.methods.gradients import mean_colour
from saccade.explain.replay import Grid
from saccade.models.build import Vision
from saccade.models.resnet import ResNet
from saccade.nn.patch import Image

FINEST = 8
"""Rows and columns of places in a CNN whose last map is coarser."""
AT_ONCE = 2**23
"""Samples of covered pictures that go through the model together."""


def places(module: Vision, image: Image) -> Grid:
    """Rows and columns to cover one after another: the patches, or places as fine as a CNN's last map."""
    rows, columns = grid(module, image)
    if not isinstance(module, ResNet):
        return rows, columns
    height, width = image.shape[-2:]
    return max(rows, min(height, FINEST)), max(columns, min(width, FINEST))


def covered(
    image: Image, instead: Image, cells: Grid, which: range
) -> Float[Tensor, "copies channels height width"]:
    """Copies of each picture, one place covered in each copy; places are counted row by row."""
    (rows, columns), (height, width) = cells, image.shape[-2:]
    at = torch.arange(which.start, which.stop, device=image.device)
    row = torch.arange(height, device=image.device) * rows // height
    column = torch.arange(width, device=image.device) * columns // width
    inside = (row[None, :, None] == (at // columns)[:, None, None]) & (
        column[None, None, :] == (at % columns)[:, None, None]
    )
    both = torch.where(inside[None, :, None], instead[:, None], image[:, None])
    return rearrange(both, "b k ch height width -> (b k) ch height width")


@still
@torch.no_grad()
def occlusion(module: Vision, image: Image, target: Target) -> Maps:
    """How much the score falls when each place takes the mean colour of its picture.

    The mean colour is the least news that a place could bring in any preprocessing (`mean_colour`); black or
    zeros would be an object of their own in a bright picture.
    """
    cells, instead = places(module, image), mean_colour(image)
    count, whole = cells[0] * cells[1], chosen(module(image), target)
    step = max(1, AT_ONCE // image.numel())
    falls: list[Tensor] = []
    for start in range(0, count, step):
        which = range(start, min(start + step, count))
        logits = module(covered(image, instead, cells, which))
        scores = chosen(logits, target.repeat_interleave(len(which)))
        falls.append(whole[:, None] - rearrange(scores, "(b k) -> b k", k=len(which)))
    return rearrange(torch.cat(falls, 1), "b (r c) -> b r c", r=cells[0])
