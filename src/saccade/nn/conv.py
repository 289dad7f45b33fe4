"""Weight-standardised convolutions (Qiao et al. 2019, https://arxiv.org/abs/1903.10520) with padding SAME.

Shapes: o channels out, i channels in, p and q kernel sides, r and c sides of the output map.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.nn.patch import Image

Map = Float[Tensor, "b d r c"]
GROUPS = 32


def pad_same(x: Image, kernel: int, stride: int, value: float = 0.0) -> Float[Tensor, "b channels r c"]:
    """Pad as TensorFlow's SAME does, for sides that are multiples of the stride.

    An odd border is wider on the right and at the bottom; torch's padding is symmetric, which shifts a stride
    of 2 by a pixel. The border does not depend on the sides, so an exported graph can leave them open.
    """
    total = max(kernel - stride, 0)
    low, high = total // 2, total - total // 2
    return F.pad(x, (low, high, low, high), value=value) if total else x


def max_pool(x: Image, kernel: int, stride: int) -> Float[Tensor, "b channels r c"]:
    """Return the maximum of each window; the SAME border never wins."""
    return F.max_pool2d(pad_same(x, kernel, stride, value=-torch.inf), kernel, stride)


def standardize(weight: Float[Tensor, "o i p q"], variance_eps: float = 0.0) -> Float[Tensor, "o i p q"]:
    """Give the kernel of each output channel mean 0 and standard deviation 1.

    Google adds 1e-5 to the deviation; timm adds `variance_eps` to the variance.
    """
    if variance_eps:
        var, mean = torch.var_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
        return (weight - mean) * (var + variance_eps).rsqrt()
    std, mean = torch.std_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
    return (weight - mean) / (std + 1e-5)


class StdConv(nn.Conv2d):
    """A convolution without bias whose kernels are standardised at each use; put a norm after it."""

    def __init__(
        self, channels: int, width: int, kernel: int, stride: int = 1, variance_eps: float = 0.0
    ) -> None:
        super().__init__(channels, width, kernel, stride, bias=False)
        self.variance_eps = variance_eps

    def forward(self, x: Image) -> Map:
        x = pad_same(x, self.kernel_size[0], self.stride[0])
        return F.conv2d(x, standardize(self.weight, self.variance_eps), stride=self.stride)


def group_norm(width: int, eps: float = 1e-6) -> nn.GroupNorm:
    """Build GroupNorm with the 32 groups of its paper (Wu and He 2018, https://arxiv.org/abs/1803.08494)."""
    return nn.GroupNorm(GROUPS, width, eps=eps)
