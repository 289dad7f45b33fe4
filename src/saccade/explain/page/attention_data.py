"""Where every token looks, in few enough bytes for a page: one byte a number, and a scale for each row.

Shapes: l layers kept, h heads kept, n tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from saccade.explain.replay import Grid, Moment, grid_of, moments
from saccade.models.vit import ViT
from saccade.nn import pool
from saccade.nn.patch import Image
from saccade.wording import count

MOST = 6_000_000
"""Bytes of attention in a page, before they are packed to about half: every head of a ViT-B/16 at 224."""
ROWS = 256
"""Rows of a matrix that are formed at a time."""


@dataclass(frozen=True, slots=True)
class Gaze:
    """Attention matrices, rounded: `levels * scale` is within half of `scale` of the model's own."""

    levels: UInt8[np.ndarray, "l h n n"]
    scale: Float32[np.ndarray, "l h n"]
    """The largest number of a row, over 255."""
    layers: tuple[int, ...]
    """Which blocks these are; the first of the model is 0."""
    heads: int
    """Of the model; `levels` has as many, or their mean."""
    depth: int
    grid: Grid
    front: tuple[str, ...]
    """The names of the tokens before the patches."""

    @property
    def averaged(self) -> bool:
        """Whether only the mean over heads was kept."""
        return self.levels.shape[1] < self.heads

    def attention(self) -> Float32[np.ndarray, "l h n n"]:
        """The matrices, to the stated rounding."""
        return self.levels * self.scale[..., None]

    @property
    def told(self) -> str:
        """What of the model's attention is here, in a sentence."""
        tokens = self.levels.shape[-1]
        if not self.averaged and len(self.layers) == self.depth:
            return f"All {count(self.depth, 'layer')} and {count(self.heads, 'head')} are here."
        some = f"{len(self.layers)} of {self.depth} layers"
        layers = "all layers" if len(self.layers) == self.depth else some
        return (
            f"With {count(tokens, 'token')}, {count(self.depth, 'layer')} and {count(self.heads, 'head')} "
            f"the whole would be too large for a page: it holds the mean over heads of {layers}."
        )


def gaze(vit: ViT, image: Image, most: int = MOST) -> Gaze | None:
    """Watch a model look at one picture; nothing where a single layer's mean over heads is beyond `most`."""
    config, grid = vit.config, grid_of(vit, image)
    tokens = config.front + grid[0] * grid[1]
    room = most // tokens**2
    if not room:
        return None
    whole = config.depth * config.heads <= room
    layers = _spread(config.depth, config.depth if whole else min(room, config.depth))
    with torch.no_grad():
        seen = [_quantised(each, not whole) for each in moments(vit, image[:1]) if each.index in layers]
    levels, scale = (np.stack(parts) for parts in zip(*seen, strict=True))
    return Gaze(levels, scale, layers, config.heads, config.depth, grid, fronts(vit))


def _spread(depth: int, wanted: int) -> tuple[int, ...]:
    """So many layers, evenly spread; the last is always one of them.

    >>> _spread(12, 4)
    (2, 5, 8, 11)
    """
    return tuple((i + 1) * depth // wanted - 1 for i in range(wanted))


def _quantised(moment: Moment, mean: bool) -> tuple[UInt8[np.ndarray, "h n n"], Float32[np.ndarray, "h n"]]:
    parts = list(_rows(moment, mean))
    levels, scale = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
    return levels, scale


def _rows(moment: Moment, mean: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for rows in moment.rows(ROWS):
        p: Tensor = rows.p[0].float()
        p = p.mean(0, keepdim=True) if mean else p
        scale = p.amax(-1) / 255
        safe = scale.masked_fill(scale == 0, 1)  # a token that may look at nothing
        yield (p / safe[..., None]).round().to(torch.uint8).cpu().numpy(), scale.cpu().numpy()


def fronts(vit: ViT) -> tuple[str, ...]:
    """The names of the tokens before the patches."""
    tokens = ("class token", "distillation token")[: pool.KINDS[vit.config.pool]]
    return *tokens, *(f"register {i + 1}" for i in range(vit.config.registers))
