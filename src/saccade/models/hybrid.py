"""The hybrid: a ViT on the feature map of a small ResNet (Dosovitskiy et al. 2021, section 3.1).

The ResNet is like BiT's (Kolesnikov et al. 2020, https://arxiv.org/abs/1912.11370): weight-standardised
convolutions and GroupNorm. Its modules, left, and the names in Google's files, right; b and u count from 0
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
from saccade.nn.conv import Map, StdConv, group_norm, max_pool
from saccade.nn.patch import Image, Patches, check_size
from saccade.nn.stack import Stack


@dataclass(frozen=True, kw_only=True, slots=True)
class HybridConfig:
    """A ViT and the ResNet before it."""

    vit: ViTConfig
    """Its `patch` is what one token sees, in pixels of the picture."""
    layers: tuple[int, ...]
    """Units in each stage: (3, 4, 9) is R50 at stride 16, (2, 2, 2, 2) is R26 at 32, () the bare root, R."""
    factor: int = 1
    """How many times wider than BiT's narrowest ResNet."""
    eps: float = 1e-6
    """Of GroupNorm."""

    def __post_init__(self) -> None:
        check_number("the number of stages in layers", len(self.layers), 0, 8)
        for units in self.layers:
            check_number("units in a stage of layers", units, 1, 1024)
        check_number("factor", self.factor, 1, 16)
        check_number("eps", self.eps, 0, 0.1)
        if self.vit.patch % self.stride:
            raise UsageError(
                f"vit.patch is {self.vit.patch} pixels, but {len(self.layers)} stages shrink a picture "
                f"{self.stride} times; use a multiple of {self.stride}, or fewer stages"
            )

    @property
    def stride(self) -> int:
        """How many times the ResNet shrinks the picture: the root by 4, each stage but the first by 2."""
        return 4 * 2 ** max(0, len(self.layers) - 1)

    @property
    def patch(self) -> int:
        """Side of a patch on the feature map."""
        return self.vit.patch // self.stride


class Unit(nn.Module):
    """Three convolutions beside a residual path, which is projected when its width or stride changes."""

    def __init__(self, channels: int, width: int, stride: int = 1, eps: float = 1e-6) -> None:
        super().__init__()
        wide = 4 * width
        self.conv1, self.norm1 = StdConv(channels, width, 1), group_norm(width, eps)
        self.conv2, self.norm2 = StdConv(width, width, 3, stride), group_norm(width, eps)
        self.conv3, self.norm3 = StdConv(width, wide, 1), group_norm(wide, eps)
        self.project: nn.Module = nn.Identity()
        self.norm_project: nn.Module = nn.Identity()
        if channels != wide or stride != 1:
            self.project, self.norm_project = StdConv(channels, wide, 1, stride), group_norm(wide, eps)

    def forward(self, x: Image) -> Map:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return F.relu(self.norm_project(self.project(x)) + y)


class Stem(nn.Module):
    """A ResNet without its head, then patches of its feature map: in the place of `Patches`, and as wide."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.total, width = config.vit.patch, 64 * config.factor
        self.root, self.norm = StdConv(3, width, 7, stride=2), group_norm(width, config.eps)
        self.stages: Stack[nn.Sequential] = Stack()
        channels = width
        for b, units in enumerate(config.layers):
            inner = width * 2**b
            first = Unit(channels, inner, 2 if b else 1, config.eps)
            channels = 4 * inner
            rest = (Unit(channels, inner, 1, config.eps) for _ in range(units - 1))
            self.stages.append(nn.Sequential(first, *rest))
        self.embedding = Patches(config.vit.width, config.patch, channels)

    def forward(self, image: Image) -> Float[Tensor, "b r c d"]:
        check_size(image.shape[-2], image.shape[-1], self.total)
        x = max_pool(F.relu(self.norm(self.root(image))), 3, stride=2)
        for stage in self.stages:
            x = stage(x)
        return self.embedding(x)


def start_stem(vit: ViT) -> None:
    """Each unit of a stem starts as its residual path, as Google's do."""
    for module in vit.patches.modules():
        if isinstance(module, Unit):
            nn.init.zeros_(module.norm3.weight)


class Hybrid(ViT):
    """A ViT with a `Stem` for its patches; whatever runs over a ViT's blocks runs over these."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__(config.vit, Stem(config))
        self.hybrid = config
        start_stem(self)
