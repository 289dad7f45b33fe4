"""Layer-wise relevance propagation: how the relevance of a layer's output is shared among its inputs.

The rules of Chefer, Gur, Wolf 2021 (https://arxiv.org/abs/2012.09838, section 3.1). Each keeps the sum:

* A linear layer shares what an output holds among its inputs by their positive contributions (Eq. 5). The
  bias is no input and takes nothing. What is held by an output to which nothing contributes positively is
  spread evenly over the inputs, so that it is not lost.
* A sum and a matrix product of two operands share by value times gradient over output (Eq. 2 and 7), and the
  shares are then scaled so that the two together hold what there was (Eq. 9). Where an output is near 0 the
  quotient explodes, and a map would depend on rounding errors: `STEADY` keeps it from there (the epsilon of
  Bach et al. 2015, Eq. 58), and the scaling makes up for what that takes.
* What works on each element alone (GELU, softmax, norms, factors, turns) passes relevance on as it is.

Shapes: b batch, n tokens, i inputs, o outputs of a layer, h heads, m keys, k width of a head.
"""

from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

STEADY = 0.1
"""The least that an output counts for, as a share of the terms that it is the sum of."""
TINY = 1e-6
"""Positive contributions that are less than this share of all are rounding errors."""
LEAST = 1e-30
"""In the place of 0 below a fraction whose numerator is 0 as well."""
AT_ONCE = 2**19
"""Weights whose sizes are held at a time: as many as fit a processor's cache."""

Some: TypeAlias = Float[Tensor, "b *n"]


def share(parts: Float[Tensor, "*n i"], r: Float[Tensor, "*n"]) -> Float[Tensor, "*n i"]:
    """Share r by the positive parts along the last dimension; evenly if there are none."""
    parts = parts.clamp_min(0)
    whole = parts.sum(-1, keepdim=True)
    return torch.where(whole > 0, parts / whole.clamp_min(LEAST), 1 / parts.shape[-1]) * r[..., None]


def linear(
    x: Float[Tensor, "b n i"], weight: Float[Tensor, "o i"], r: Float[Tensor, "b n o"], exact: int
) -> Float[Tensor, "b n i"]:
    """From the relevance of `x @ weight.mT` to that of x: exactly for the first tokens, nearly for the rest.

    Exactly is by the positive contributions (Eq. 5). They are half of all and half of their sizes, since
    (xw)+ = (xw + |x||w|) / 2, which takes products of whole matrices only.

    Nearly is by the size of each input times that of its weights, which takes no product at all. An input's
    weights are of both signs and about as large for one output as for another; so, over many outputs, a token
    gets back about the same whichever of them held the relevance.
    """
    found, few, held = x.abs(), x[:, :exact], r.sum(-1, keepdim=True)
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
        s.masked_fill_(positive <= whole.mul_(TINY), 0)
        near += s @ size
        far += s @ w
    bulk.mul_(near).addcmul_(far, few)
    rest = found[:, exact:].mul_(column)
    rest.mul_(held[:, exact:] / rest.sum(-1, keepdim=True).clamp_min_(LEAST))
    return found.add_((held - found.sum(-1, keepdim=True)) / x.shape[-1])


def total(r: Some) -> Float[Tensor, "b"]:
    """The relevance of a whole picture."""
    return r.flatten(1).sum(1)


def normalise(ru: Some, rv: Float[Tensor, "b *m"], r: Float[Tensor, "b *k"]) -> None:
    """Scale the shares of two operands, in place, so that together they hold what r did (Eq. 9)."""
    u, v = total(ru), total(rv)
    factor = total(r) / (u.abs() + v.abs()).clamp_min(LEAST)
    for part, whole in ((ru, u), (rv, v)):
        part.mul_((factor * whole.sign()).reshape(-1, *[1] * (part.ndim - 1)))


def add(u: Some, v: Some, r: Some) -> tuple[Some, Some]:
    """From the relevance of `u + v` to that of u and v."""
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
    """From the relevance of `uv = u @ v` to that of u and v."""
    usual = torch.linalg.vector_norm(uv, dim=(-2, -1), keepdim=True) / uv[0, 0].numel() ** 0.5
    s = torch.copysign(usual.mul_(STEADY).add_(LEAST), uv).add_(uv)
    torch.div(r, s, out=s)
    ru, rv = (s @ v.mT).mul_(u), (u.mT @ s).mul_(v)
    normalise(ru, rv, r)
    return ru, rv
