"""The attention of all layers and heads, small enough for a page: one byte per number, a scale for each row.

Shapes: l layers kept, h heads kept, n tokens.
"""

import base64
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from saccade.data.splits import evenly
from saccade.explain.replay import Grid, Moment, grid_of, moments
from saccade.models.vit import ViT
from saccade.nn import pool
from saccade.nn.patch import Image
from saccade.wording import count

MOST = 6_000_000
"""Bytes of attention in a page, before compression to about half: every head of a ViT-B/16 at 224."""
ROWS = 256
"""Rows of a matrix in memory at a time."""


def to_base64(array: np.ndarray, compress: bool = False) -> str:
    """Return the bytes of an array as text for a script."""
    return base64.b64encode(zlib.compress(array.tobytes(), 6) if compress else array.tobytes()).decode()


@dataclass(frozen=True, slots=True)
class PackedAttention:
    """Rounded attention matrices: `levels * scale` is within half of `scale` of the model's own."""

    levels: UInt8[np.ndarray, "l h n n"]
    scale: Float32[np.ndarray, "l h n"]
    """The largest number of a row, over 255."""
    layers: tuple[int, ...]
    """Indices of the blocks."""
    heads: int
    """Of the model; `levels` has as many, or their mean."""
    depth: int
    grid: Grid
    front: tuple[str, ...]
    """Names of the tokens before the patches."""

    @property
    def averaged(self) -> bool:
        """Whether only the mean over heads was kept."""
        return self.levels.shape[1] < self.heads

    def attention(self) -> Float32[np.ndarray, "l h n n"]:
        """Return the matrices, to the stated rounding."""
        return self.levels * self.scale[..., None]

    @property
    def summary(self) -> str:
        """What was kept of the model's attention, in a sentence."""
        tokens = self.levels.shape[-1]
        if not self.averaged and len(self.layers) == self.depth:
            return f"All {count(self.depth, 'layer')} and {count(self.heads, 'head')} are included."
        some = f"{len(self.layers)} of {self.depth} layers"
        layers = "all layers" if len(self.layers) == self.depth else some
        return (
            f"With {count(tokens, 'token')}, {count(self.depth, 'layer')} and {count(self.heads, 'head')} "
            f"the whole would be too large for a page: it contains the mean over heads of {layers}."
        )

    def to_json(self) -> dict[str, Any]:
        """Return what the script of the page reads."""
        return {
            "layers": list(self.layers),
            "depth": self.depth,
            "heads": self.heads,
            "kept": self.levels.shape[1],
            "grid": list(self.grid),
            "front": list(self.front),
            "scale": to_base64(self.scale.astype("<f4")),
            "levels": to_base64(self.levels, compress=True),
        }


def pack_attention(vit: ViT, image: Image, most: int = MOST) -> PackedAttention | None:
    """Return the attention for one image; None if not even one layer's mean over heads fits in `most`."""
    config, grid = vit.config, grid_of(vit, image)
    tokens = config.front + grid[0] * grid[1]
    room = most // tokens**2
    if not room:
        return None
    whole = config.depth * config.heads <= room
    # Counted from the end, so that the last layer, which decides, is always one of them.
    layers = tuple(
        sorted(config.depth - 1 - int(i) for i in evenly(config.depth, config.depth if whole else room))
    )
    with torch.no_grad():
        seen = [_quantise(each, not whole) for each in moments(vit, image[:1]) if each.index in layers]
    levels, scale = (np.stack(parts) for parts in zip(*seen, strict=True))
    return PackedAttention(levels, scale, layers, config.heads, config.depth, grid, front_names(vit))


def _quantise(moment: Moment, mean: bool) -> tuple[UInt8[np.ndarray, "h n n"], Float32[np.ndarray, "h n"]]:
    parts = list(_rows(moment, mean))
    levels, scale = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
    return levels, scale


def _rows(moment: Moment, mean: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for rows in moment.rows(ROWS):
        p: Tensor = rows.p[0].float()
        p = p.mean(0, keepdim=True) if mean else p
        scale = p.amax(-1) / 255
        safe = scale.masked_fill(scale == 0, 1)  # a token that may attend to nothing
        yield (p / safe[..., None]).round().to(torch.uint8).cpu().numpy(), scale.cpu().numpy()


def front_names(vit: ViT) -> tuple[str, ...]:
    """Return the names of the tokens before the patches."""
    tokens = ("class token", "distillation token")[: pool.KINDS[vit.config.pool]]
    return *tokens, *(f"register {i + 1}" for i in range(vit.config.registers))
