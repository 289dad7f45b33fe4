"""Resample a table of positions to another grid, as the publishers of the weights do."""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

WAYS = {
    "antialias": {"mode": "bicubic", "antialias": True, "align_corners": False},  # timm
    "bicubic": {"mode": "bicubic", "antialias": False, "align_corners": False},  # Hugging Face
    # Google: scipy's zoom of order 1
    "bilinear": {"mode": "bilinear", "antialias": False, "align_corners": True},
}


def resample(
    table: Float[Tensor, "rows cols d"], rows: int, cols: int, how: str = "antialias"
) -> Float[Tensor, "r c d"]:
    """Return the table at rows x cols; for its own grid, the table itself."""
    if not torch.compiler.is_exporting() and tuple(table.shape[:2]) == (rows, cols):
        return table  # an exported graph has free sizes, so it always resamples, which changes nothing here
    if isinstance(cols, int) and cols == 1 and rows != 1:  # torch mixes up the rows of a single column
        return rearrange(resample(rearrange(table, "r c d -> c r d"), 1, rows, how), "1 r d -> r 1 d")
    grid = rearrange(table, "r c d -> 1 d r c").float()
    grid = F.interpolate(grid, size=(rows, cols), **WAYS[how])  # type: ignore[arg-type]
    return rearrange(grid, "1 d r c -> r c d").to(table.dtype)
