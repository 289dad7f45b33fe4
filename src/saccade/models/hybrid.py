"""The hybrid: a ViT on the feature map of a small ResNet (Dosovitskiy et al. 2021, section 3.1).

The ResNet is like BiT's (Kolesnikov et al. 2020, https://arxiv.org/abs/1912.11370): weight-standardised
convolutions and GroupNorm. Our module names, left, and those in Google's files, right; b and u count from 0
here and from 1 there:

    root                                              conv_root
    norm                                              gn_root
    stages.{b}.{u}.conv1, conv2, conv3, project       block{b}/unit{u}/conv1, conv2, conv3, conv_proj
    stages.{b}.{u}.norm1, norm2, norm3, norm_project  block{b}/unit{u}/gn1, gn2, gn3, gn_proj
    embedding                                         embedding
"""

from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import UsageError, check_number
from saccade.models.vit import ViT, ViTConfig
from saccade.nn.conv import GROUPS, Map, StdConv, group_norm, max_pool
from saccade.nn.patch import Image, Patches, check_size
from saccade.nn.stack import Stack
from saccade.values import validate, within


@dataclass(frozen=True, kw_only=True, slots=True)
class HybridConfig:
    """A ViT and the ResNet in front of it."""

    vit: ViTConfig
    """Its `patch` is what one token covers, in pixels of the image."""
    layers: tuple[int, ...] = within(1, 1024, name="units in a stage of layers")
    """Units in each stage: (3, 4, 9) is R50 at stride 16, (2, 2, 2, 2) is R26 at 32, () the bare root, R."""
    factor: int | float = within(GROUPS / 64, 16, default=1)
    """Width as a multiple of 64 channels; GroupNorm needs at least 0.5."""
    eps: float = within(0, 0.1, default=1e-6)
    """Of GroupNorm."""
    variance_eps: float = within(0, 0.1, default=0.0)
    """Added to a kernel's variance, as in timm (1e-8); 0 adds 1e-5 to its deviation, as Google does."""

    def __post_init__(self) -> None:
        validate(self)
        check_number("the number of stages in layers", len(self.layers), 0, 8)
        if 64 * self.factor % GROUPS:
            raise UsageError(
                f"factor is {self.factor:g}, which gives {64 * self.factor:g} channels; expected a multiple "
                f"of {GROUPS} channels, such as factor 0.5, 1 or 1.5: GroupNorm has {GROUPS} groups"
            )
        if self.vit.patch % self.stride:
            raise UsageError(
                f"vit.patch is {self.vit.patch} pixels, but {len(self.layers)} stages shrink an image "
                f"{self.stride} times; use a multiple of {self.stride}, or fewer stages"
            )

    @property
    def stride(self) -> int:
        """How many times the ResNet shrinks the image: the root by 4, each stage but the first by 2."""
        return 4 * 2 ** max(0, len(self.layers) - 1)

    @property
    def channels(self) -> int:
        """Channels of the root."""
        return int(64 * self.factor)

    @property
    def patch(self) -> int:
        """Side of a patch on the feature map."""
        return self.vit.patch // self.stride


def factor_of(channels: int) -> int | float:
    """Return the `factor` of a root with this many channels."""
    return channels / 64 if channels % 64 else channels // 64


class Unit(nn.Module):
    """Three convolutions with a residual connection, projected where the width or stride changes."""

    def __init__(
        self, channels: int, width: int, stride: int = 1, eps: float = 1e-6, variance_eps: float = 0.0
    ) -> None:
        super().__init__()
        wide = 4 * width
        self.conv1, self.norm1 = StdConv(channels, width, 1, 1, variance_eps), group_norm(width, eps)
        self.conv2, self.norm2 = StdConv(width, width, 3, stride, variance_eps), group_norm(width, eps)
        self.conv3, self.norm3 = StdConv(width, wide, 1, 1, variance_eps), group_norm(wide, eps)
        self.project: nn.Module = nn.Identity()
        self.norm_project: nn.Module = nn.Identity()
        if channels != wide or stride != 1:
            self.project = StdConv(channels, wide, 1, stride, variance_eps)
            self.norm_project = group_norm(wide, eps)

    def forward(self, x: Image) -> Map:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return F.relu(self.norm_project(self.project(x)) + y)


class Stem(nn.Module):
    """A ResNet without its head, then patches of its feature map; it replaces `Patches`."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.total, width = config.vit.patch, config.channels
        self.root = StdConv(3, width, 7, 2, config.variance_eps)
        self.norm = group_norm(width, config.eps)
        self.stages: Stack[nn.Sequential] = Stack()
        channels = width
        for b, units in enumerate(config.layers):
            inner = width * 2**b
            first = Unit(channels, inner, 2 if b else 1, config.eps, config.variance_eps)
            channels = 4 * inner
            rest = (Unit(channels, inner, 1, config.eps, config.variance_eps) for _ in range(units - 1))
            self.stages.append(nn.Sequential(first, *rest))
        self.embedding = Patches(config.vit.width, config.patch, channels)

    def forward(self, image: Image) -> Float[Tensor, "b r c d"]:
        check_size(image.shape[-2], image.shape[-1], self.total)
        x = max_pool(F.relu(self.norm(self.root(image))), 3, stride=2)
        for stage in self.stages:
            x = stage(x)
        return self.embedding(x)


def start_stem(vit: ViT) -> None:
    """Let each unit of a stem start as the identity, as in Google's code."""
    for module in vit.patches.modules():
        if isinstance(module, Unit):
            nn.init.zeros_(module.norm3.weight)


class Hybrid(ViT):
    """A ViT with a `Stem` for its patches; whatever loops over a ViT's blocks works here."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__(config.vit, Stem(config))
        self.hybrid = config
        start_stem(self)
