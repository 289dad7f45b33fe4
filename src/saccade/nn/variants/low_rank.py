"""The matrices of attention as low-rank products, one per head (Elhage et al. 2021, Transformer Circuits).

A head reads x and adds up (down x) to the residual stream; `down` is its part of W_V and `up` its part of
W_O, so that W_O is the ups of all heads side by side. What a head compares is a low-rank product too.
Shapes: d width, r rank (the width of a head), b batch, h heads, n queries.
"""

from dataclasses import dataclass

import torch
from einops import einsum, rearrange
from jaxtyping import Complex, Float
from torch import Tensor

from saccade.nn.attention import Attention, Tokens, Turn, Weight, attend


@dataclass(frozen=True, eq=False)
class Factored:
    """The d x d matrix up @ down, formed only by `dense`."""

    up: Float[Tensor, "d r"]
    down: Float[Tensor, "r d"]

    @property
    def count(self) -> int:
        """Number of entries of both factors."""
        return self.up.numel() + self.down.numel()

    @property
    def rank(self) -> int:
        """Largest possible rank of the product."""
        return min(self.up.shape)

    def dense(self) -> Float[Tensor, "d d"]:
        return self.up @ self.down

    def apply(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        """Return `x @ dense().mT` at 2 r / d of its cost."""
        return x @ self.down.mT @ self.up.mT

    def svd(self) -> tuple[Float[Tensor, "d s"], Float[Tensor, "s"], Float[Tensor, "s d"]]:
        """Return U, the singular values and V^T of the product; its other singular values are 0."""
        (left, a), (right, b) = torch.linalg.qr(self.up), torch.linalg.qr(self.down.mT)
        u, s, vh = torch.linalg.svd(a @ b.mT)
        return left @ u, s, vh @ right.mT

    def eigenvalues(self) -> Complex[Tensor, "r"]:
        """Return the eigenvalues of down @ up: up @ down has the same ones and zeros."""
        return torch.linalg.eigvals(self.down @ self.up)


def value_maps(attention: Attention) -> list[Factored]:
    """Return what each head moves (OV circuit), without biases; the ups side by side are W_O."""
    ups = rearrange(attention.out.weight, "d (h r) -> h d r", h=attention.heads)
    downs = rearrange(attention.v.weight, "(h r) d -> h r d", h=attention.heads)
    return [Factored(up, down) for up, down in zip(ups, downs, strict=True)]


def query_key_maps(attention: Attention) -> list[Factored]:
    """Return what each head compares (QK circuit), without biases: x^T W_Q^T W_K y / sqrt(r) is its logit."""
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
    """Return what each head adds to the stream: `attention(z) == contributions(...).sum(1) + out.bias`.

    The bias of the values goes through its head's `up`; the bias of `out` belongs to no head.
    """
    heads = attend(*attention.split(z, context, turn), weight)
    ups = rearrange(attention.out.weight, "d (h r) -> h d r", h=attention.heads)
    return einsum(heads, ups, "b h n r, h d r -> b h n d")
