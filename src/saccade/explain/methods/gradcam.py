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

from saccade.explain.replay import Moment, grid_of, moments
from saccade.explain.target import Maps, Target, evaluation_mode, target_score
from saccade.models.build import Vision
from saccade.models.resnet import ResNet
from saccade.models.vit import ViT
from saccade.nn.attention import Tokens
from saccade.nn.patch import Image
from saccade.tokens.unfold import read as unfolded_read

_Channels = Float[Tensor, "b d rows columns"]
_Read = Callable[[Tensor], Tensor]


def cam(channels: _Channels, gradient: _Channels) -> Maps:
    """Sum channels weighted by the mean of their gradient over all positions (Eq. 1), then ReLU (Eq. 2)."""
    weight = reduce(gradient, "b d r c -> b d 1 1", "mean")
    return F.relu(reduce(channels * weight, "b d r c -> b r c", "sum"))


@evaluation_mode
def gradcam(module: Vision, image: Image, target: Target) -> Maps:
    """Apply Grad-CAM to the last feature map of a CNN, or to the last patch tokens that the head depends on.

    Where the head reads patches, these are the patches after the last block. A head that reads a class token
    does not depend on those, and their gradient is zero: the class token last read the patches in the last
    block's attention, so these are the patches after the norm before it.
    """
    if isinstance(module, ResNet):
        with torch.no_grad():
            x = module.encode(image)
        return cam(x, _gradient(x, module.read, target))
    x, read = _patches_read(module, image)
    rows, _ = grid_of(module, image)
    both = (t[:, module.config.front :] for t in (x, _gradient(x, read, target)))
    x, found = (rearrange(t, "b (r c) d -> b d r c", r=rows) for t in both)
    return cam(x, found)


@torch.no_grad()
def _patches_read(vit: ViT, image: Image) -> tuple[Tokens, _Read]:
    *_, last = moments(vit, image)
    if vit.config.pool in ("token", "pair"):
        return last.block.norm1(last.z), partial(_from_norm, vit, last)
    return last.out, partial(unfolded_read, vit, counted=last.stage.counted)


def _gradient(x: Tensor, read: _Read, target: Target) -> Tensor:
    """Return the gradient of the score with respect to x."""
    x = x.detach().requires_grad_()
    return torch.autograd.grad(target_score(read(x), target).sum(), x)[0]


def _from_norm(vit: ViT, last: Moment, x: Tokens) -> Float[Tensor, "b classes"]:
    """Return the logits from the input of the last block's attention and its residual path."""
    block, stage = last.block, last.stage
    z = stage.between(block.add1(last.z, block.attention(x, None, stage.weight, stage.turn)))
    return vit.read(block.add2(z, block.mlp(block.norm2(z))))
