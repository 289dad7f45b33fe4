"""Convolutions instead of the patch projection (Xiao et al. 2021, https://arxiv.org/abs/2106.14881).

A ViT has to learn locality from the data; a few 3x3 convolutions have it built in, which helps most with
few images.
"""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import UsageError, check_number
from saccade.nn.patch import Image, Patches, check_size
from saccade.nn.stack import Stack


def patches(width: int, patch: int, convs: tuple[int, ...] = ()) -> nn.Module:
    """Build the map from an image to tokens: linear, or through convolutions of the widths in `convs`."""
    return Convolutions(width, patch, convs) if convs else Patches(width, patch)


def usual(width: int, patch: int) -> tuple[int, ...]:
    """Return the widths of a usual stem, each twice the one before.

    Small patches mean small images, which get one convolution before the first halving.
    """
    halvings = patch.bit_length() - 1
    if patch > 8:
        return tuple(max(width >> (halvings - 1 - i), 8) for i in range(halvings))
    return tuple(min(32 << i, 2 * width) for i in range(halvings + 1))


def check(patch: int, convs: tuple[int, ...]) -> None:
    """Refuse convolutions that cannot make patches of this size."""
    for width in convs:
        check_number("convs", width, 1, 2**16)
    if convs and (patch.bit_count() != 1 or len(convs) < patch.bit_length() - 1):
        raise UsageError(
            f"convs has {len(convs)} convolutions, each of which can halve the image once, and a patch has "
            f"{patch} pixels; use a patch of 2, 4, 8, ... and at least one convolution per halving"
        )


class Convolutions(nn.Module):
    """3x3 convolutions with batch norm and ReLU, the last ones with stride 2, then a linear map."""

    def __init__(self, width: int, patch: int, convs: tuple[int, ...]) -> None:
        super().__init__()
        check(patch, convs)
        self.patch, halvings = patch, patch.bit_length() - 1
        self.convs: Stack[nn.Conv2d] = Stack()
        self.norms: Stack[nn.BatchNorm2d] = Stack()
        channels = 3
        for i, out in enumerate(convs):
            stride = 1 if i < len(convs) - halvings else 2
            self.convs.append(nn.Conv2d(channels, out, 3, stride, padding=1, bias=False))
            self.norms.append(nn.BatchNorm2d(out))
            channels = out
        self.project = nn.Linear(channels, width)

    def forward(self, image: Image) -> Float[Tensor, "b r c d"]:
        check_size(image.shape[-2], image.shape[-1], self.patch)
        x = image.contiguous(memory_format=torch.channels_last)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
        return self.project(rearrange(x, "b d r c -> b r c d"))
