"""Small models that differ in all that a graph has to hold, for the tests of export."""

from dataclasses import replace

import torch

from saccade.models.build import build
from saccade.models.hybrid import HybridConfig
from saccade.models.resnet import ResNetConfig
from saccade.models.vit import ViTConfig
from saccade.nn.block import BlockStyle
from saccade.tokens.light import lighten
from saccade.tokens.merge import merge
from saccade.tokens.prune import prune

SMALL = ViTConfig(image=(32, 32), patch=8, width=24, depth=3, heads=3, hidden=48, classes=5)
CONFIGS = {
    "vit": SMALL,
    "google": replace(SMALL, resample="bilinear", block=BlockStyle(gelu="tanh"), pool="mean"),
    "registers": replace(
        SMALL, registers=2, pool="token+mean", resample="bicubic", block=BlockStyle(layerscale=0.1)
    ),
    "distilled": replace(SMALL, pool="pair"),
    "map": replace(SMALL, pool="map", position="sincos2d", prelogits=8),
    "relative": replace(SMALL, position="relative"),
    "rotary": replace(SMALL, position="rope2d"),
    "post-norm": replace(SMALL, position="learned2d", block=BlockStyle(norm="rms", placement="post")),
    "hybrid": HybridConfig(layers=(1, 1), vit=SMALL),
    "resnet": ResNetConfig(layers=(1, 1), bottleneck=False, width=16, classes=5, image=(32, 32)),
}
SIZES = ((1, 3, 32, 32), (2, 3, 16, 80), (5, 3, 72, 24), (1, 3, 48, 48), (3, 3, 32, 40))


def random(module, seed=0):
    """Weights that make every part of a model count."""
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=chance) * 0.3)
    return module.eval()


def make(name):
    """A model by name: one of CONFIGS, alone or with merged, pruned, dropped or chunked after it."""
    config, _, loop = name.partition(" ")
    module = random(build(CONFIGS[config]))
    match loop:
        case "merged":
            return merge(module, 3)
        case "merged as published":
            return merge(module, 3, "paper")
        case "pruned":
            made = prune(module, 0.7, (1, 2))
            random(made.predictors, 1)
            return made.eval()
        case "dropped":
            return prune(module, 0.7, (1, 2), by="attention")
        case "chunked":
            return lighten(module, "chunked", 7)
        case _:
            return module
