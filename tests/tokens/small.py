"""Small models and pictures for the tests of this folder."""

from dataclasses import replace

import torch

from saccade.models.build import build
from saccade.models.hybrid import HybridConfig
from saccade.models.vit import ViTConfig

SMALL = ViTConfig(image=(32, 32), patch=4, width=24, depth=4, heads=2, hidden=48, classes=5)
HYBRID = HybridConfig(layers=(1, 1), vit=replace(SMALL, patch=8))


def made(config=SMALL):
    """A model whose every weight does something."""
    vit = build(config).eval()
    with torch.no_grad():
        for parameter in vit.parameters():
            parameter.normal_(std=0.2)
    return vit


def pictures(count=3, height=32, width=24):
    return torch.randn(count, 3, height, width)
