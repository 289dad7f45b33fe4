"""The matrices of attention as thin products, one per head (Elhage et al. 2021, Transformer Circuits).

Of an x that it reads, a head writes up (down x) into the residual stream; `down` is its share of W_V, `up` of
W_O, and W_O is nothing but the ups of all heads side by side. What a head compares is a product just
as thin. Shapes: d width, r rank (the width of a head), b batch, h heads, n queries.
"""

from dataclasses import dataclass

import torch
from einops import einsum, rearrange
from jaxtyping import Complex, Float
from torch import Tensor

from saccade.nn.attention import Attention, Tokens, Turn, Weight, attend


@dataclass(frozen=True, eq=False)
class Factored:
    """The d x d matrix up @ down, never formed unless `dense` is asked for."""

    up: Float[Tensor, "d r"]
    down: Float[Tensor, "r d"]

    @property
    def count(self) -> int:
        """How many numbers the two factors hold."""
        return self.up.numel() + self.down.numel()

    @property
    def rank(self) -> int:
        """The largest rank that the product can have."""
        return min(self.up.shape)

    def dense(self) -> Float[Tensor, "d d"]:
        return self.up @ self.down

    def apply(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        """Map each row of x, first down, then up: `x @ dense().mT` at 2 r / d of its cost."""
        return x @ self.down.mT @ self.up.mT

    def svd(self) -> tuple[Float[Tensor, "d s"], Float[Tensor, "s"], Float[Tensor, "s d"]]:
        """U, the singular values and V^T of the product; its other singular values are 0."""
        (left, a), (right, b) = torch.linalg.qr(self.up), torch.linalg.qr(self.down.mT)
        u, s, vh = torch.linalg.svd(a @ b.mT)
        return left @ u, s, vh @ right.mT

    def eigenvalues(self) -> Complex[Tensor, "r"]:
        """The eigenvalues of down @ up: up @ down has the same ones, and zeros besides."""
        return torch.linalg.eigvals(self.down @ self.up)


def value_maps(attention: Attention) -> list[Factored]:
    """What each head moves (the OV circuit): `torch.cat([m.up for m in maps], 1)` is W_O; biases aside."""
    ups = rearrange(attention.out.weight, "d (h r) -> h d r", h=attention.heads)
    downs = rearrange(attention.v.weight, "(h r) d -> h r d", h=attention.heads)
    return [Factored(up, down) for up, down in zip(ups, downs, strict=True)]


def query_key_maps(attention: Attention) -> list[Factored]:
    """What each head compares (the QK circuit): its logit is x^T W_Q^T W_K y / sqrt(r); biases aside."""
    queries = rearrange(attention.q.weight, "(h r) d -> h d r", h=attention.heads)
    keys = rearrange(attention.k.weight, "(h r) d -> h r d", h=attention.heads)
    return [Factored(query, key) for query, key in zip(queries, keys, strict=True)]


def contributions(
    attention: Attention,
    z: Tokens,
    weight: Weight | None = None,
    context: Float[Tensor, "b m d"] | None = None,
    turn: Turn | None = None,
) -> Float[Tensor, "b h n d"]:
    """What each head adds to the residual stream: `attention(z) == contributions(...).sum(1) + out.bias`.

    The bias of the values belongs to its head and goes through the head's `up`; that of `out` to no head.
    """
    heads = attend(*attention.split(z, context, turn), weight)
    ups = rearrange(attention.out.weight, "d (h r) -> h d r", h=attention.heads)
    return einsum(heads, ups, "b h n r, h d r -> b h n d")
