"""Preprocessing as part of a graph: what data/transform.py does with Pillow, in operations on tensors.

Pillow resizes along the rows, rounds to whole grey levels, then goes down the columns and rounds again; so
does this. Its weights are whole numbers of 22 bits, so that rarely a sample differs by one grey level.

Shapes: h and w of the picture, height and width of the model's input.
"""

import math

import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from torch import Tensor

from saccade.data.image.preprocess import Preprocess
from saccade.engine.graph.stretch import averaging
from saccade.errors import UsageError


def _along(
    count: int, first: Tensor, whole: Tensor, samples: Float[Tensor, "n"], how: str
) -> Float[Tensor, "m n"]:
    """Weights of `count` samples from number `first` on, of a side of `samples` resized to `whole`."""
    scale = samples.shape[0] / whole
    places = (torch.arange(count).float() + first + 0.5) * scale
    return averaging(places, samples, scale, how)


def _sides(h: Tensor, w: Tensor, preprocess: Preprocess) -> tuple[Tensor, Tensor]:
    """Height and width to resize to before the crop, with the roundings of `Preprocess`."""
    height, width = preprocess.size
    match preprocess.fit:
        case "squash":
            return torch.zeros_like(h) + height, torch.zeros_like(w) + width
        case "squash+crop":
            tall, wide = (math.floor(side / preprocess.crop) for side in preprocess.size)
            return torch.zeros_like(h) + tall, torch.zeros_like(w) + wide
        case "pad":
            ratio = torch.minimum(height / h, width / w)
            return (h * ratio).round().clamp_min(1), (w * ratio).round().clamp_min(1)
    tall, wide = (math.floor(side / preprocess.crop) for side in preprocess.size)
    if tall == wide:
        least = torch.minimum(h, w)
        return (tall * h / least + 1e-4).floor(), (tall * w / least + 1e-4).floor()
    ratio = torch.minimum(h / tall, w / wide)
    return (h / ratio).round(), (w / ratio).round()


def fitted(picture: UInt8[Tensor, "b h w 3"], preprocess: Preprocess) -> Float[Tensor, "b 3 height width"]:
    """What `Preprocess` gives for pictures of one size, decoded and upright."""
    if preprocess.interpolation == "nearest":
        raise UsageError("interpolation 'nearest' is not part of graphs; export with --pixels floats")
    rows, cols = (torch.arange(n).float() for n in picture.shape[1:3])
    h, w = rows[-1:] + 1, cols[-1:] + 1
    tall, wide = _sides(h, w, preprocess)
    (height, width), pad = preprocess.size, preprocess.fit == "pad"
    margins = ((tall - height) / 2, (wide - width) / 2)
    top, left = (-(-margin).floor() if pad else margin.round() for margin in margins)
    down = _along(height, top, tall, rows, preprocess.interpolation)
    right = _along(width, left, wide, cols, preprocess.interpolation)
    x = rearrange(picture, "b h w c -> b c h w").float()
    x = (x @ right.transpose(0, 1)).round().clamp(0, 255)
    x = (down @ x).round().clamp(0, 255)
    if pad:
        i, j = torch.arange(height).float() + top, torch.arange(width).float() + left
        inside = ((i >= 0) & (i < tall))[:, None] & ((j >= 0) & (j < wide))
        x = torch.where(inside, x, torch.tensor(preprocess.background).float()[:, None, None])
    mean, std = (torch.tensor(values)[:, None, None] for values in (preprocess.mean, preprocess.std))
    return (x / 255 - mean) / std
