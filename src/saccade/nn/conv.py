"""Weight-standardised convolutions (Qiao et al. 2019, https://arxiv.org/abs/1903.10520) with padding SAME.

Shapes: o channels out, i channels in, p and q the sides of a kernel, r and c those of the map that comes out.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.nn.patch import Image

Map = Float[Tensor, "b d r c"]


def pad_same(x: Image, kernel: int, stride: int, value: float = 0.0) -> Float[Tensor, "b channels r c"]:
    """Add the border of padding SAME to a map whose sides are whole multiples of the stride.

    An odd border is wider on the right and at the bottom; torch's own is even, and shifts a stride of 2 by a
    pixel. It does not depend on the sides, so that an exported graph may leave them open.
    """
    total = max(kernel - stride, 0)
    low, high = total // 2, total - total // 2
    return F.pad(x, (low, high, low, high), value=value) if total else x


def max_pool(x: Image, kernel: int, stride: int) -> Float[Tensor, "b channels r c"]:
    """The largest value of each window; a border of padding SAME that never wins."""
    return F.max_pool2d(pad_same(x, kernel, stride, value=-torch.inf), kernel, stride)


def standardize(weight: Float[Tensor, "o i p q"], eps: float = 1e-5) -> Float[Tensor, "o i p q"]:
    """Give the kernel of each output channel mean 0 and deviation 1; eps is added to the deviation."""
    std, mean = torch.std_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
    return (weight - mean) / (std + eps)


class StdConv(nn.Conv2d):
    """A convolution without bias whose kernels are standardised at each use; a norm belongs behind it."""

    def __init__(self, channels: int, width: int, kernel: int, stride: int = 1) -> None:
        super().__init__(channels, width, kernel, stride, bias=False)

    def forward(self, x: Image) -> Map:
        x = pad_same(x, self.kernel_size[0], self.stride[0])
        return F.conv2d(x, standardize(self.weight), stride=self.stride)


def group_norm(width: int, eps: float = 1e-6) -> nn.GroupNorm:
    """GroupNorm with the 32 groups of its paper (Wu and He 2018, https://arxiv.org/abs/1803.08494)."""
    return nn.GroupNorm(32, width, eps=eps)
