"""A Transformer block, open between its steps (Dosovitskiy et al. 2021, equations 2 and 3).

Code that needs something in between writes its own short loop:

    q, k, v = block.attention.split(block.norm1(z))
    z = block.add1(z, block.attention.join(attend(q, k, v)))
    z = block.add2(z, block.mlp(block.norm2(z)))
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from saccade.nn.attention import Attention, Tokens, Turn, Weight
from saccade.nn.mlp import FORMS, MLP
from saccade.nn.norm import KINDS, norm
from saccade.values import one_of, validate, within


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockStyle:
    """How a block computes; its sizes are separate."""

    norm: str = one_of(*KINDS, default="layer")
    """layer, rms or power."""
    placement: str = one_of("pre", "post", default="pre")
    """pre (ViT, Eq. 2: z + f(norm(z))) or post (Vaswani et al. 2017: norm(z + f(z)))."""
    eps: float = within(0, 0.1, default=1e-6)
    gelu: str = one_of(*FORMS, default="erf")
    """erf (exact) or tanh (the approximation in Google's ViT)."""
    layerscale: float = 0.0
    """Initial value of a learnt factor per channel on each branch (Touvron et al. 2021b); 0 means none."""
    dropout: float = within(0, 0.99, default=0.0)
    droppath: float = within(0, 0.99, default=0.0)
    """Probability of skipping a branch, per image (Huang et al. 2016)."""

    def __post_init__(self) -> None:
        validate(self)


class Add(nn.Module):
    """The residual sum z + y; can scale the branch, drop it in training, normalise after it (post-norm)."""

    def __init__(self, width: int, style: BlockStyle) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((width,), style.layerscale)) if style.layerscale else None
        self.norm = norm(style.norm, width, style.eps) if style.placement == "post" else None
        self.dropout, self.droppath = style.dropout, style.droppath

    def forward(self, z: Tokens, y: Tokens) -> Tokens:
        y = y if self.scale is None else y * self.scale
        if self.training and (self.dropout or self.droppath):
            keep = y.new_ones(y.shape[0], 1, 1)
            y = F.dropout(y, self.dropout) * F.dropout(keep, self.droppath)
        return z + y if self.norm is None else self.norm(z + y)


class Block(nn.Module):
    """Attention, then an MLP, each with a residual connection."""

    def __init__(self, width: int, heads: int, hidden: int, style: BlockStyle | None = None) -> None:
        super().__init__()
        style = style or BlockStyle()
        pre = style.placement == "pre"
        self.norm1 = norm(style.norm, width, style.eps) if pre else nn.Identity()
        self.attention = Attention(width, heads)
        self.add1 = Add(width, style)
        self.norm2 = norm(style.norm, width, style.eps) if pre else nn.Identity()
        self.mlp = MLP(width, hidden, style.gelu, style.dropout)
        self.add2 = Add(width, style)

    def forward(self, z: Tokens, weight: Weight | None = None, turn: Turn | None = None) -> Tokens:
        z = self.add1(z, self.attention(self.norm1(z), None, weight, turn))  # Eq. 2
        return self.add2(z, self.mlp(self.norm2(z)))  # Eq. 3
