"""Layer-wise relevance propagation: how the relevance of a layer's output is shared among its inputs.

The rules of Chefer, Gur, Wolf 2021 (https://arxiv.org/abs/2012.09838, section 3.1). Each conserves the sum:

* A linear layer shares the relevance of an output among its inputs by their positive contributions (Eq. 5).
  The bias is not an input and takes none. The relevance of an output without positive contributions is
  spread evenly over the inputs, so that it is not lost.
* A sum or matrix product of two operands shares by value times gradient over output (Eq. 2 and 7); then the
  shares are scaled so that both operands together hold the original relevance (Eq. 9). Where an output is
  near 0 the quotient explodes and the map would depend on rounding errors: `STEADY` bounds it (the epsilon
  of Bach et al. 2015, Eq. 58), and the scaling restores what that takes away.
* Elementwise operations (GELU, softmax, norms, scales, rotations) pass relevance on unchanged.

Shapes: b batch, n tokens, i inputs, o outputs of a layer, h heads, m keys, k width of a head.
"""

from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

STEADY = 0.1
"""Smallest size of an output in a quotient, as a share of the terms that it sums."""
TINY = 1e-6
"""Positive contributions below this share of all are rounding errors."""
LEAST = 1e-30
"""Replaces a denominator of 0 where the numerator is 0 as well."""
AT_ONCE = 2**19
"""Weights whose absolute values are in memory at a time: as many as fit a processor's cache."""

Some: TypeAlias = Float[Tensor, "b *n"]


def share(parts: Float[Tensor, "*n i"], r: Float[Tensor, "*n"]) -> Float[Tensor, "*n i"]:
    """Share r by the positive parts along the last dimension, evenly if there are none."""
    parts = parts.clamp_min(0)
    whole = parts.sum(-1, keepdim=True)
    return torch.where(whole > 0, parts / whole.clamp_min(LEAST), 1 / parts.shape[-1]) * r[..., None]


def linear(
    x: Float[Tensor, "b n i"], weight: Float[Tensor, "o i"], r: Float[Tensor, "b n o"], exact: int
) -> Float[Tensor, "b n i"]:
    """Return the relevance of x from that of `x @ weight.mT`.

    The first `exact` tokens follow the positive contributions (Eq. 5). Those are never formed one by one:
    (xw)+ = (xw + |x||w|) / 2, so four matrix products are enough.

    The other tokens share by the size of each input times that of its weights, without any product. The
    weights of an input have both signs and similar sizes for all outputs; so, over many outputs, a token
    gets about the same back whichever of them held the relevance.
    """
    found, few, total_r = x.abs(), x[:, :exact], r.sum(-1, keepdim=True)
    bulk, near, far = found[:, :exact], torch.zeros_like(few), torch.zeros_like(few)
    column = weight.new_zeros(weight.shape[1])
    outputs = max(1, AT_ONCE // weight.shape[1])
    for at in range(0, weight.shape[0], outputs):
        w = weight[at : at + outputs]
        size = w.abs()
        column += size.sum(0)
        whole = bulk @ size.mT
        positive = whole + few @ w.mT
        s = r[:, :exact, at : at + outputs] / positive
        s.masked_fill_(positive <= whole.mul_(TINY), 0)  # no positive contribution: spread evenly below
        near += s @ size
        far += s @ w
    bulk.mul_(near).addcmul_(far, few)
    rest = found[:, exact:].mul_(column)
    rest.mul_(total_r[:, exact:] / rest.sum(-1, keepdim=True).clamp_min_(LEAST))
    return found.add_((total_r - found.sum(-1, keepdim=True)) / x.shape[-1])


def total(r: Some) -> Float[Tensor, "b"]:
    """Return the relevance of each image."""
    return r.flatten(1).sum(1)


def normalise(ru: Some, rv: Float[Tensor, "b *m"], r: Float[Tensor, "b *k"]) -> None:
    """Scale the shares of two operands, in place, so that they sum to r (Eq. 9)."""
    u, v = total(ru), total(rv)
    factor = total(r) / (u.abs() + v.abs()).clamp_min(LEAST)
    for part, whole in ((ru, u), (rv, v)):
        part.mul_((factor * whole.sign()).reshape(-1, *[1] * (part.ndim - 1)))


def add(u: Some, v: Some, r: Some) -> tuple[Some, Some]:
    """Return the relevance of u and v from that of `u + v`."""
    whole = u + v
    s = r / whole.add_(torch.copysign((u.abs() + v.abs()).mul_(STEADY).add_(LEAST), whole))
    ru, rv = s * u, s.mul_(v)
    normalise(ru, rv, r)
    return ru, rv


def product(
    u: Float[Tensor, "b h n m"],
    v: Float[Tensor, "b h m k"],
    uv: Float[Tensor, "b h n k"],
    r: Float[Tensor, "b h n k"],
) -> tuple[Float[Tensor, "b h n m"], Float[Tensor, "b h m k"]]:
    """Return the relevance of u and v from that of `uv = u @ v`."""
    # Here `STEADY` is a share of a head's typical output: the terms' own size would take another product.
    usual = torch.linalg.vector_norm(uv, dim=(-2, -1), keepdim=True) / uv[0, 0].numel() ** 0.5
    s = torch.copysign(usual.mul_(STEADY).add_(LEAST), uv).add_(uv)
    torch.div(r, s, out=s)
    ru, rv = (s @ v.mT).mul_(u), (u.mT @ s).mul_(v)
    normalise(ru, rv, r)
    return ru, rv
