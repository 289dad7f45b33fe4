"""Positions of tokens, for any grid of patches (Dosovitskiy et al. 2021, section 3.1).

A position gives vectors to add to the patches (`forward`), or relates pairs of tokens in attention
(`relate`): angles that rotate queries and keys, or a weight on each pair. More kinds: nn/position_kinds.py.
"""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from saccade.nn.attention import Turn, Weight
from saccade.nn.resample import resample

Vectors = Float[Tensor, "n d"]


def sincos(places: Float[Tensor, "n"], width: int) -> Vectors:
    """PE(p, 2i) = sin(p / 10000^(2i/d)), PE(p, 2i+1) = cos of the same (Vaswani et al. 2017, section 3.5)."""
    angle = places[:, None] * 10_000 ** -(torch.arange(0, width, 2, device=places.device) / width)
    return rearrange([angle.sin(), angle.cos()], "two n i -> n (i two)")


class Position(nn.Module):
    """No position at all: the tokens are a set. The other kinds override one of the two methods."""

    def forward(self, rows: int, cols: int, like: Tensor) -> Vectors | None:
        """Return the vectors to add to the patches in raster order, on the device of `like`."""
        return None

    def relate(self, rows: int, cols: int, front: int, like: Tensor) -> tuple[Weight | None, Turn | None]:
        """Return the weight and angles for attention; the `front` tokens have no position."""
        return None, None


class Learned(Position):
    """A learnt vector per grid cell; other grids resample the table. This is the ViT's own."""

    def __init__(self, rows: int, cols: int, width: int, how: str = "antialias") -> None:
        super().__init__()
        self.how = how
        self.table = nn.Parameter(nn.init.normal_(torch.empty(rows, cols, width), std=0.02))

    def forward(self, rows: int, cols: int, like: Tensor) -> Vectors:
        return rearrange(resample(self.table, rows, cols, self.how), "r c d -> (r c) d")


class SinCos1d(Position):
    """Sines and cosines of the raster index."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, rows: int, cols: int, like: Tensor) -> Vectors:
        return sincos(torch.arange(rows * cols, device=like.device).float(), self.width).to(like.dtype)
