"""Resize a model to other image and patch sizes: its positions and its patch kernels are resampled.

Kernels by pseudo-inverse (Beyer et al. 2023, FlexiViT, section 3.4): the new kernel answers a resized patch
as the old one answers the patch. Plain interpolation would change the scale of every token.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from saccade.errors import UsageError
from saccade.models.build import Vision, build, config_of
from saccade.models.looped import with_vit
from saccade.models.resnet import ResNetConfig
from saccade.models.vit import ViT
from saccade.nn.patch import Patches
from saccade.nn.resample import resample


def resize_matrix(old: int, new: int) -> Float[Tensor, "new2 old2"]:
    """Return the matrix that resizes a flattened old x old patch to new x new."""
    basis = rearrange(torch.eye(old * old), "n (h w) -> n 1 h w", h=old)
    resized = F.interpolate(basis, size=(new, new), mode="bicubic", antialias=True, align_corners=False)
    return rearrange(resized, "n 1 h w -> (h w) n")


def resize_kernel(kernel: Float[Tensor, "d c p p"], patch: int) -> Float[Tensor, "d c q q"]:
    """Return the kernel for another patch size: `new · resized patch` is `old · patch` where possible."""
    old = kernel.shape[-1]
    if old == patch:
        return kernel
    inverse = torch.linalg.pinv(resize_matrix(old, patch).mT)
    flat = rearrange(kernel.float(), "d c h w -> d c (h w)")
    return rearrange(flat @ inverse.mT, "d c (h w) -> d c h w", h=patch).to(kernel.dtype)


def resize(module: Vision, image: tuple[int, int] | None = None, patch: int | None = None) -> Vision:
    """Return a copy of a ViT for other image and patch sizes; without either, the weights are the same."""
    if not isinstance(module, ViT):
        return module
    old = module.config
    bare = isinstance(module.patches, Patches)
    if not bare and patch not in (None, old.patch):
        raise UsageError(
            f"a model with convolutions before its tokens cannot change its patch size; "
            f"it stays {old.patch}, and {patch} was given"
        )
    new = replace(old, image=image or old.image, patch=patch or old.patch)
    config = config_of(module)
    assert not isinstance(config, ResNetConfig)
    made = build(with_vit(config, new))
    tensors = dict(module.state_dict())
    if "position.table" in tensors:
        tensors["position.table"] = resample(tensors["position.table"], *new.grid, old.resample)
    if "position.bias" in tensors:
        rows, cols = (2 * side - 1 for side in new.grid)
        tensors["position.bias"] = resample(tensors["position.bias"], rows, cols, old.resample)
    for name, (rows, cols) in {"row": (new.grid[0], 1), "col": (1, new.grid[1])}.items():
        if (key := f"position.{name}.table") in tensors:
            tensors[key] = resample(tensors[key], rows, cols, old.resample)
    if bare:
        tensors["patches.weight"] = resize_kernel(tensors["patches.weight"], new.patch)
    made.load_state_dict(tensors)
    return made.train(module.training)
