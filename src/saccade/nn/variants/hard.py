"""Hard attention: a query attends to exactly one key (Xu et al. 2015, arXiv 1502.03044, section 4.1).

Soft attention (nn/attention.py) averages all values and has a gradient; here one key is drawn, in training
and at test time, and the gradient is that of a relaxation (`gumbel`) or estimated from rewards (`reinforce`).
Shapes: b batch, h heads, n queries, m keys, k width of a query and a key, e width of a value.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from jaxtyping import Float, Int
from torch import Tensor

from saccade.nn.attention import Weight, probabilities

Probabilities = Float[Tensor, "b h n m"]


def perturb(p: Probabilities, generator: torch.Generator | None = None) -> Probabilities:
    """Return log p plus Gumbel noise: the largest entry is a draw (Maddison et al. 2017, section 2)."""
    p = p.to(torch.promote_types(p.dtype, torch.float))  # half precision cannot tell 0 from rare
    tiny = torch.finfo(p.dtype).tiny
    noise = torch.empty_like(p).exponential_(generator=generator).clamp_min(tiny).log()
    return p.clamp_min(tiny).log() - noise


def relax(
    p: Probabilities, temperature: float = 1.0, generator: torch.Generator | None = None
) -> Probabilities:
    """Soften a draw from p (Jang et al. 2017, Eq. 2): near one-hot when cold, near uniform when hot."""
    if temperature <= 0:
        raise ValueError(
            f"temperature is {temperature}; use a positive number, small for nearly hard choices"
        )
    return (perturb(p, generator) / temperature).softmax(-1)


def one_place(index: Int[Tensor, "b h n"], p: Probabilities) -> Probabilities:
    """Return 1 at each query's key, 0 elsewhere; a query that may attend to no key gets zeros."""
    return F.one_hot(index, p.shape[-1]).to(p.dtype) * (p > 0)


def gumbel(
    q: Float[Tensor, "b h n k"],
    k: Float[Tensor, "b h m k"],
    v: Float[Tensor, "b h m e"],
    weight: Weight | None = None,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "b h n e"]:
    """Attend to one key, drawn from `probabilities(q, k, weight)`; the gradient is that of `relax`."""
    p = probabilities(q, k, weight)
    soft = relax(p, temperature, generator).to(p.dtype) * (p > 0)
    hard = one_place(soft.argmax(-1), p)
    return (hard + (soft - soft.detach())) @ v  # the bracket is exactly 0 and carries the gradient


class Glimpse(NamedTuple):
    """The value attended to, and the log-probability of that choice."""

    value: Float[Tensor, "b h n e"]
    log_prob: Float[Tensor, "b h n"]


def reinforce(
    q: Float[Tensor, "b h n k"],
    k: Float[Tensor, "b h m k"],
    v: Float[Tensor, "b h m e"],
    weight: Weight | None = None,
    generator: torch.Generator | None = None,
) -> Glimpse:
    """Attend to one key, drawn from `probabilities(q, k, weight)`; train it with `surrogate`."""
    p = probabilities(q, k, weight)
    hard = one_place(perturb(p.detach(), generator).argmax(-1), p)
    chosen = p.clamp_min(torch.finfo(p.dtype).tiny).log() * hard
    return Glimpse(hard @ v, reduce(chosen, "b h n m -> b h n", "sum"))


def surrogate(
    log_prob: Float[Tensor, "b h n"], reward: Float[Tensor, "b"], baseline: Float[Tensor, "#b"] | float = 0.0
) -> Float[Tensor, ""]:
    """Return a loss whose gradient estimates that of minus the mean reward (Williams 1992, REINFORCE).

    A `baseline` that does not depend on the draw, such as a running mean of rewards, changes the variance of
    the estimate but not its mean (Xu et al. 2015, section 4.1).
    """
    advantage = rearrange((reward - baseline).detach(), "b -> b 1 1")
    return -reduce(log_prob * advantage, "b h n -> b", "sum").mean()
