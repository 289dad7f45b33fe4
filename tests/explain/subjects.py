"""Small models of every kind to be explained, with no weight left at zero, and pictures for them."""

import torch
from torch import Tensor, nn

import saccade
from saccade.explain.methods.table import METHODS
from saccade.models.build import Vision, build
from saccade.models.hybrid import HybridConfig
from saccade.models.resnet import ResNet
from saccade.models.vit import ViTConfig
from saccade.nn.block import BlockStyle

TINY = {"image": (16, 16), "patch": 4, "width": 16, "depth": 2, "heads": 2, "hidden": 24, "classes": 3}
VITS = {
    "token": {},
    "pair": {"pool": "pair"},
    "token+mean": {"pool": "token+mean", "registers": 2},
    "mean": {"pool": "mean", "position": "sincos2d"},
    "mean_norm": {"pool": "mean_norm", "position": "rope2d"},
    "map": {"pool": "map", "registers": 1},
    "relative": {"position": "relative", "registers": 1},
    "learned2d": {"position": "learned2d", "prelogits": 8},
    "no position": {"position": "none", "classes": 1000},
    "post-norm": {"block": BlockStyle(placement="post")},
    "rms": {"block": BlockStyle(norm="rms", layerscale=0.5, dropout=0.2, droppath=0.2)},
    "one block": {"depth": 1},
    "convolutions": {"convs": (8, 16), "pool": "mean"},
}
KINDS = (*VITS, "hybrid", "cnn", "cnn with a large root")


def awake(module: Vision) -> Vision:
    """Add noise to each weight: heads start at zero, and a model that says nothing has nothing to explain."""
    with torch.no_grad():
        for p in module.parameters():
            p += torch.randn(p.shape) * (p.shape[-1] ** -0.5 if p.ndim > 1 else 0.1)
        for buffer in module.buffers():
            if buffer.is_floating_point():
                buffer += 0.1 * torch.rand(buffer.shape)
    return module.eval()


def subject(kind: str, seed: int = 0) -> Vision:
    """A model by its key in `KINDS`."""
    torch.manual_seed(seed)
    if kind == "cnn":
        return awake(saccade.create("resnet18_small_w4_16", classes=3))
    if kind == "cnn with a large root":
        return awake(saccade.create("resnet18_w4_64", classes=3))
    if kind == "hybrid":
        vit = ViTConfig(**{**TINY, "patch": 8})
        return awake(build(HybridConfig(vit=vit, layers=(1,), factor=1)))
    return awake(build(ViTConfig(**{**TINY, **VITS[kind]})))


def pictures(module: nn.Module, count: int = 2) -> Tensor:
    """Pictures that are higher than wide, and no whole number of a CNN's strides."""
    size = (23, 17) if isinstance(module, ResNet) else (24, 16)
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(count))


def asked(name: str, module: Vision, image: Tensor, target: list[int] | None = None) -> Tensor:
    """Maps by a method, for a class that differs from picture to picture."""
    targets = torch.tensor(target or [(2 * i + 1) % 3 for i in range(image.shape[0])])
    return METHODS[name].function(module, image, targets)
