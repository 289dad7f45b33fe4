"""PowerNorm: divide each channel by a running quadratic mean (Shen et al. 2020, arXiv 2003.07845, section 4).

Batch normalisation without the mean and without relying on one batch: a channel is divided by psi, the root
of a running mean of its squares, and the backward pass uses a running correction nu instead of the batch's
own. The GroupScaling in front of it in the authors' code is not part of this module, which is written from
the paper's equations (their code is GPL).
Shapes: n all leading dimensions, d channels.
"""

from typing import Any

import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Channels = Float[Tensor, "d"]


class Normalise(torch.autograd.Function):
    """x / psi, with the paper's approximate gradient; the backward pass updates `nu` in place."""

    @staticmethod
    def forward(
        ctx: Any, x: Float[Tensor, "*n d"], psi: Channels, nu: Channels, warm: Tensor, momentum: float
    ) -> Float[Tensor, "*n d"]:
        y = x / psi
        ctx.save_for_backward(y, psi, warm)
        ctx.nu, ctx.momentum = nu, momentum
        return y

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Float[Tensor, "*n d"]
    ) -> tuple[Float[Tensor, "*n d"], None, None, None, None]:
        y, psi, warm = ctx.saved_tensors
        slope, power = (reduce(t * y, "... d -> d", "mean") for t in (grad, y))  # Lambda and Gamma
        gradient = (grad - torch.where(warm, slope, ctx.nu) * y) / psi
        ctx.nu.add_((1 - ctx.momentum) * (slope - ctx.nu * power))
        return gradient, None, None, None, None


class PowerNorm(nn.Module):
    """PN: forward X / psi(t-1), backward with nu(t-1), then both statistics are updated.

    In the first `warmup` training steps psi and the correction are the batch's own: PN-V, with the exact
    gradient. Evaluation divides by the running psi.

    Args:
        momentum: the paper's alpha, the share of the past in both running statistics.
    """

    square: Tensor
    nu: Tensor
    step: Tensor

    def __init__(self, width: int, eps: float = 1e-6, momentum: float = 0.9, warmup: int = 4000) -> None:
        super().__init__()
        self.eps, self.momentum, self.warmup = eps, momentum, warmup
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("square", torch.ones(width))
        self.register_buffer("nu", torch.zeros(width))
        self.register_buffer("step", torch.tensor(0))

    def _normalise(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        square = reduce(x.detach() ** 2, "... d -> d", "mean")
        warm = self.step < self.warmup
        psi = (torch.where(warm, square, self.square) + self.eps).sqrt()
        self.square.lerp_(square, 1 - self.momentum)
        self.step += 1
        return Normalise.apply(x, psi, self.nu, warm, self.momentum)  # type: ignore[no-untyped-call]

    def forward(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        wide = x.to(self.square.dtype)  # squares of half precision overflow at 256
        y = self._normalise(wide) if self.training else wide / (self.square + self.eps).sqrt()
        return (self.weight * y + self.bias).to(x.dtype)
