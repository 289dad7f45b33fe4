"""Rotary positions on a grid (Su et al. 2021, RoFormer, equation 34; axial form of Heo et al. 2024).

Half of a head's channel pairs rotate with the row, half with the column, so the dot product of a query and a
key depends only on the difference of their positions.
"""

import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor

BASE = 100.0
"""The slowest pair rotates by about 1/BASE radian per patch (100 as in Heo et al. 2024; 10,000 for text)."""


def turns(rows: int, cols: int, key: int, front: int, like: Tensor) -> Float[Tensor, "2 n k"]:
    """Return cosines and sines for a grid in raster order; the `front` tokens are not rotated."""
    speed = BASE ** -(torch.arange(key // 4, device=like.device) / (key // 4))
    row, col = (torch.arange(side, device=like.device)[:, None] * speed for side in (rows, cols))
    angle = torch.cat([repeat(row, "r f -> (r c) f", c=cols), repeat(col, "c f -> (r c) f", r=rows)], dim=-1)
    angle = torch.cat([angle.new_zeros(front, key // 2), angle])
    angle = repeat(angle, "n f -> n (f two)", two=2)
    return torch.stack([angle.cos(), angle.sin()]).to(like.dtype)


def rotate(x: Float[Tensor, "b h n k"], turn: Float[Tensor, "2 *each n k"]) -> Float[Tensor, "b h n k"]:
    """Rotate each neighbouring pair of channels by its angle; lengths do not change."""
    even, odd = rearrange(x, "b h n (f two) -> two b h n f", two=2).unbind()
    quarter = rearrange([-odd, even], "two b h n f -> b h n (f two)")
    return x * turn[0] + quarter * turn[1]
