"""Ask a model about one class of each picture, and hold it still meanwhile.

Shapes: b batch; rows and columns of a map.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TypeAlias

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from saccade.explain.replay import Grid, grid_of
from saccade.models.build import Vision
from saccade.models.resnet import ResNet
from saccade.nn.patch import Image

Target: TypeAlias = Int[Tensor, "b"]
Maps: TypeAlias = Float[Tensor, "b rows columns"]
Function: TypeAlias = Callable[[Vision, Image, Target], Maps]
"""A method of explanation: one map a picture, higher where it speaks more for that picture's target."""


def chosen(logits: Float[Tensor, "b classes"], target: Target) -> Float[Tensor, "b"]:
    """The score of each picture's target: its logit, which goes on moving where a probability is near 1."""
    return rearrange(logits.gather(1, target[:, None]), "b 1 -> b")


def grid(module: Vision, image: Image) -> Grid:
    """Rows and columns of the patches of a ViT, or of the last feature map of a CNN."""
    if not isinstance(module, ResNet):
        return grid_of(module, image)
    halvings = len(module.config.layers) - 1 + (0 if module.config.small else 2)
    rows, columns = (-(-side // 2**halvings) for side in image.shape[-2:])
    return rows, columns


@contextmanager
def held(module: Vision) -> Iterator[None]:
    """Gradients on, whatever the caller switched off; dropout and batch statistics off until the end."""
    training = [part for part in module.modules() if part.training]
    try:
        for part in training:
            part.training = False
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for part in training:
            part.training = True


def still(function: Function) -> Function:
    """Make a method safe to call from anywhere: it sees a model at rest, and gives maps without a graph."""

    @wraps(function)
    def asked(module: Vision, image: Image, target: Target) -> Maps:
        with held(module):
            return function(module, image.detach().clone(), target.clone()).detach().float()

    return asked
