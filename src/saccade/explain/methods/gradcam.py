"""Grad-CAM (Selvaraju et al. 2017, https://arxiv.org/abs/1610.02391, equations 1 and 2).

Shapes: b batch, d channels; rows and columns of the map.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor

from saccade.explain.ask import Maps, Target, chosen, still
from saccade.explain.replay import Moment, grid_of, moments
from saccade.models.build import Vision
from saccade.models.resnet import ResNet
from saccade.models.vit import ViT
from saccade.nn.attention import Tokens
from saccade.nn.patch import Image
from saccade.tokens.unfold import read as unfolded_read

Channels = Float[Tensor, "b d rows columns"]
Read = Callable[[Tensor], Tensor]


def cam(channels: Channels, gradient: Channels) -> Maps:
    """Channels summed by the mean of their gradient over all places (Eq. 1), where positive (Eq. 2)."""
    weight = reduce(gradient, "b d r c -> b d 1 1", "mean")
    return F.relu(reduce(channels * weight, "b d r c -> b r c", "sum"))


@still
def gradcam(module: Vision, image: Image, target: Target) -> Maps:
    """Grad-CAM on the last tokens, or the last feature map of a CNN, that the answer reads places from.

    Where the answer is read from the patches, these are the patches after the last block. A class token
    reads nothing of those, and the gradient by them is zero: it last read the patches in the last block's
    attention, so these are the patches as they come out of the norm before it.
    """
    if isinstance(module, ResNet):
        with torch.no_grad():
            x = module.encode(image)
        return cam(x, _slope(x, module.read, target))
    x, read = _patches_read(module, image)
    rows, _ = grid_of(module, image)
    both = (t[:, module.config.front :] for t in (x, _slope(x, read, target)))
    x, found = (rearrange(t, "b (r c) d -> b d r c", r=rows) for t in both)
    return cam(x, found)


@torch.no_grad()
def _patches_read(vit: ViT, image: Image) -> tuple[Tokens, Read]:
    *_, last = moments(vit, image)
    if vit.config.pool in ("token", "pair"):
        return last.block.norm1(last.z), partial(_from_norm, vit, last)
    return last.out, partial(unfolded_read, vit, counted=last.stage.counted)


def _slope(x: Tensor, read: Read, target: Target) -> Tensor:
    """The gradient of the score by what is read."""
    x = x.detach().requires_grad_()
    return torch.autograd.grad(chosen(read(x), target).sum(), x)[0]


def _from_norm(vit: ViT, last: Moment, x: Tokens) -> Float[Tensor, "b classes"]:
    """The answer from what the last block's attention is given, and what goes around it."""
    block, stage = last.block, last.stage
    z = stage.between(block.add1(last.z, block.attention(x, None, stage.weight, stage.turn)))
    return vit.read(block.add2(z, block.mlp(block.norm2(z))))
