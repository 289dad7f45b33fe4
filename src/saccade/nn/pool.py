"""From many tokens to one vector: the class token, a mean, or attention (Zhai et al. 2022, section 3.2)."""

from collections.abc import Callable

import torch
from einops import repeat
from jaxtyping import Float
from torch import Tensor, nn

from saccade.nn.attention import Attention
from saccade.nn.block import BlockStyle
from saccade.nn.mlp import MLP
from saccade.nn.norm import norm

KINDS = {
    "token": 1,
    "pair": 2,
    "token+mean": 1,
    "mean": 0,
    "mean_norm": 1,
    "map": 0,
}
"""Each way to pool, and the number of class tokens it needs before the patches:

token: the class token (ViT); pair: class and distillation token (DeiT); token+mean: side by side (DINOv2);
mean: of the normalised patches (Google's gap); mean_norm: the mean, then the norm (MAE fine-tuning); map: a
learnt probe attends to all tokens (big_vision).
"""


class Pool(nn.Module):
    """Normalise and summarise; `front` tokens precede the patches."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(
        self,
        z: Float[Tensor, "b n d"],
        norm: Callable[[Tensor], Tensor],
        front: int,
        weight: Float[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b *pair e"]:
        """Return one vector per image (or a pair); token j counts `weight[j]` times, as in `attend`."""
        match self.kind:
            case "token":
                return norm(z[:, 0])
            case "pair":
                return norm(z[:, :2])
            case "mean_norm":
                return norm(_mean(z, front, weight))
            case "token+mean":
                z = norm(z)
                return torch.cat([z[:, 0], _mean(z, front, weight)], dim=-1)
            case _:
                return _mean(norm(z), front, weight)


def _mean(z: Float[Tensor, "b n d"], front: int, weight: Float[Tensor, "b n"] | None) -> Float[Tensor, "b d"]:
    if weight is None:
        return z[:, front:].mean(1)
    counted = weight[:, front:, None]
    return (z[:, front:] * counted).sum(1) / counted.sum(1).clamp_min(1e-6)  # all may have been dropped


class AttentionPool(Pool):
    """A learnt probe attends to all tokens; then an MLP with a residual connection."""

    def __init__(self, width: int, heads: int, hidden: int, style: BlockStyle) -> None:
        super().__init__("map")
        self.probe = nn.Parameter(nn.init.normal_(torch.empty(width), std=width**-0.5))
        self.attention = Attention(width, heads)
        self.norm = norm(style.norm, width, style.eps)
        self.mlp = MLP(width, hidden, style.gelu)

    def forward(
        self,
        z: Float[Tensor, "b n d"],
        norm: Callable[[Tensor], Tensor],
        front: int,
        weight: Float[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b d"]:
        probe, keys = repeat(self.probe, "d -> b 1 d", b=z.shape[0]), norm(z)
        y = self.attention(probe, keys, None if weight is None else weight[:, None, None])
        return (y + self.mlp(self.norm(y)))[:, 0]


def pool(kind: str, width: int, heads: int, hidden: int, style: BlockStyle) -> Pool:
    """Build a pool by name."""
    return AttentionPool(width, heads, hidden, style) if kind == "map" else Pool(kind)
