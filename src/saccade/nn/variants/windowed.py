"""Attention within windows, for large images: the cost grows with the number of patches, not its square.

As in Swin (Liu et al. 2021, https://arxiv.org/abs/2103.14030, section 3.2), without its shifts: a patch
attends to the patches of its own square window. The tokens before the patches (class tokens, registers)
attend to all tokens and are seen from every window, so they carry information between windows.

Shapes: b batch, h heads, t tokens, k width of a head, r c rows and columns of patches, w of windows.
"""

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor

from saccade.errors import check_number
from saccade.nn.attention import attend

Heads = Float[Tensor, "b h t k"]


def windowed(q: Heads, k: Heads, v: Heads, grid: tuple[int, int], window: int) -> Heads:
    """Attend within windows of `window` x `window` patches; equals `attend` if one window covers the grid.

    Windows at the right and bottom edges are smaller if the grid does not divide evenly.
    """
    check_number("window", window, 1, 2**14)
    front = q.shape[2] - grid[0] * grid[1]
    seen = attend(q[:, :, :front], k, v)
    if window >= max(grid):
        return torch.cat([seen, attend(q[:, :, front:], k, v)], 2)
    down, across = (-(-side // window) for side in grid)
    inside = [cut(x[:, :, front:], grid, window) for x in (q, k, v)]
    lead = [repeat(x[:, :, :front], "b h f k -> (b w) h f k", w=down * across) for x in (k, v)]
    keys, values = (torch.cat([a, b], 2) for a, b in zip(lead, inside[1:], strict=True))
    weight = None
    if grid[0] % window or grid[1] % window:  # padding in the windows at the edge counts zero times
        real = cut(q.new_ones(1, 1, grid[0] * grid[1], 1), grid, window)
        weight = F.pad(rearrange(real, "w 1 n 1 -> w 1 1 n"), (front, 0), value=1.0)
        weight = repeat(weight, "w one two n -> (b w) one two n", b=q.shape[0])
    made = attend(inside[0], keys, values, weight)
    return torch.cat([seen, paste(made, grid, window)], 2)


def visible(grid: tuple[int, int], window: int, front: int) -> Float[Tensor, "1 1 t t"]:
    """Return the weight that makes `attend` equal `windowed`: 1 where a query sees a key, else 0."""
    r, c = (torch.arange(side) // window for side in grid)
    home = (r[:, None] * grid[1] + c).flatten()
    return F.pad((home[:, None] == home).float(), (front, 0, front, 0), value=1.0)[None, None]


def cut(x: Float[Tensor, "b h n k"], grid: tuple[int, int], window: int) -> Float[Tensor, "bw h m k"]:
    """Cut patches in raster order into windows, with zeros beyond the edge."""
    x = rearrange(x, "b h (r c) k -> b h k r c", r=grid[0])
    x = F.pad(x, (0, -grid[1] % window, 0, -grid[0] % window))
    return rearrange(x, "b h k (y p) (x q) -> (b y x) h (p q) k", p=window, q=window)


def paste(x: Float[Tensor, "bw h m k"], grid: tuple[int, int], window: int) -> Float[Tensor, "b h n k"]:
    """The inverse of `cut`."""
    down, across = (-(-side // window) for side in grid)
    whole = rearrange(x, "(b y x) h (p q) k -> b h (y p) (x q) k", y=down, x=across, p=window)
    return rearrange(whole[:, :, : grid[0], : grid[1]], "b h r c k -> b h (r c) k")
