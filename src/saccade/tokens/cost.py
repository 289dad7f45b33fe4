"""The cost of a model that drops or merges patches, counted on the meta device.

As usual in the literature, all remaining tokens of the last block count, though `forward` computes only those
that the head reads.
"""

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.models import cost
from saccade.models.build import Vision, blank, config_of
from saccade.models.hybrid import HybridConfig
from saccade.models.looped import LoopConfig, vit_of
from saccade.models.resnet import ResNetConfig
from saccade.models.vit import ViT, ViTConfig
from saccade.nn.patch import Image
from saccade.tokens.walk import run, start

Config = ViTConfig | HybridConfig | LoopConfig


class _Whole(nn.Module):
    """All remaining tokens of all blocks, and the logits."""

    def __init__(self, vit: ViT) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, image: Image) -> Float[Tensor, "b classes"]:
        return self.vit.read(run(self.vit, start(self.vit, image), self.vit.embed(image)))


def _blank(config: Config) -> ViT:
    made = blank(config).eval()
    assert isinstance(made, ViT)
    return made


@cache
def macs(config: Config, image: tuple[int, int] | None = None) -> int:
    """Return the multiply-accumulates for one image, at the training size or another."""
    return cost.macs(_Whole(_blank(config)), image or vit_of(config).image)


def macs_of(module: Vision, image: tuple[int, int]) -> int:
    """Return the same for any vision model, a ResNet too."""
    config = config_of(module)
    return cost.macs(blank(config).eval(), image) if isinstance(config, ResNetConfig) else macs(config, image)


@cache
def lengths(config: Config, image: tuple[int, int] | None = None) -> tuple[int, ...]:
    """Return how many tokens enter each block."""
    vit, found = _blank(config), []
    for block in vit.blocks:
        block.norm1.register_forward_pre_hook(lambda _, given: found.append(given[0].shape[1]))
    blank_image = torch.zeros(1, 3, *(image or vit_of(config).image), device="meta")
    with torch.no_grad():
        run(vit, start(vit, blank_image), vit.embed(blank_image))
    return tuple(found)
