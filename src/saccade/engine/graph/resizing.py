"""Resampling as matrix products, so that a graph with free sizes can resize tables and images.

The matrices are computed from the sizes: the three kinds of nn/resample.py for position tables, and Pillow's
filters for images. A filter that averages (antialias) is as wide as the pixels that it shrinks; Keys' cubic
has a = -1/2 there and a = -3/4 without (Keys 1981).

Pillow resizes along the rows, rounds to whole grey levels, then goes down the columns and rounds again; so
does `fit_images`. Pillow's weights are integers of 22 bits, so a few samples differ by one grey level.

Shapes: m samples out, n samples in; h and w of the image, height and width of the model's input.
"""

import math

import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from torch import Tensor

from saccade.data.image.preprocess import Preprocess
from saccade.errors import UsageError

_Matrix = Float[Tensor, "m n"]


def _abs(x: Tensor) -> Tensor:
    """|x| as a maximum: OpenVINO 2026.4 folds the Abs of a constant to the constant itself."""
    return torch.maximum(x, x * -1)


def cubic(x: Tensor, a: float) -> Tensor:
    """Keys' kernel (1981, Eq. 8 with another a), for |x| < 2."""
    x = _abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def triangle(x: Tensor) -> Tensor:
    """The linear kernel."""
    return (1 - _abs(x)).clamp_min(0)


def sinc3(x: Tensor) -> Tensor:
    """Lanczos' kernel of three lobes."""
    x = _abs(x)
    return torch.where(x < 3, torch.sinc(x) * torch.sinc(x / 3), torch.zeros_like(x))


def averaging(centres: Float[Tensor, "m"], samples: Float[Tensor, "n"], scale: Tensor, how: str) -> _Matrix:
    """Return the weights of an antialiased filter around `centres`; `scale` samples become one."""
    width = scale.clamp_min(1)
    x = (samples[None] + 0.5 - centres[:, None]) / width
    kernels = {"bicubic": lambda x: cubic(x, -0.5), "bilinear": triangle, "lanczos": sinc3}
    weight = kernels[how](x)
    return weight / weight.sum(-1, keepdim=True)


def _numbers(count: int | Tensor) -> Float[Tensor, "n"]:
    return torch.arange(count).float()  # type: ignore[arg-type]


def antialias(into: int | Tensor, table: int) -> _Matrix:
    """Bicubic, averaging where it shrinks."""
    out = _numbers(into)
    scale = table / (out[-1:] + 1)  # a tensor, because the size is free
    return averaging((out + 0.5) * scale, _numbers(table), scale, "bicubic")


def bicubic(into: int | Tensor, table: int) -> _Matrix:
    """Bicubic on the four nearest samples; beyond the border the last one repeats."""
    out, samples = _numbers(into), _numbers(table)
    centre = (out + 0.5) * (table / (out[-1:] + 1)) - 0.5
    first = centre.floor()
    weight = torch.zeros_like(centre)[:, None] * samples
    for step in (-1, 0, 1, 2):
        here = (first + step).clamp(0, table - 1)
        weight = weight + (samples[None] == here[:, None]) * cubic(centre - first - step, -0.75)[:, None]
    return weight


def corners(into: int | Tensor, table: int) -> _Matrix:
    """Linear, with aligned corners."""
    out = _numbers(into)
    centre = out * ((table - 1) / out[-1:].clamp_min(1))
    return triangle(_numbers(table)[None] - centre[:, None])


def resample(
    x: Float[Tensor, "1 d rows cols"], rows: int | Tensor, cols: int | Tensor, mode: str, aa: bool
) -> Float[Tensor, "1 d r c"]:
    """Return what F.interpolate gives for the kinds of nn/resample.py."""
    kind = antialias if aa else bicubic if mode == "bicubic" else corners
    down, right = kind(rows, int(x.shape[-2])), kind(cols, int(x.shape[-1]))
    return down @ x @ right.transpose(0, 1)


def _along(
    count: int, first: Tensor, whole: Tensor, samples: Float[Tensor, "n"], how: str
) -> Float[Tensor, "m n"]:
    """Return weights of `count` samples from number `first` on, of a side of `samples` resized to `whole`."""
    scale = samples.shape[0] / whole
    return averaging((torch.arange(count).float() + first + 0.5) * scale, samples, scale, how)


def _sides(h: Tensor, w: Tensor, preprocess: Preprocess) -> tuple[Tensor, Tensor]:
    """Return height and width to resize to before the crop, rounded as `Preprocess` rounds them."""
    height, width = preprocess.size
    tall, wide = (math.floor(side / preprocess.crop) for side in preprocess.size)
    match preprocess.fit:
        case "squash":
            return torch.zeros_like(h) + height, torch.zeros_like(w) + width
        case "squash+crop":
            return torch.zeros_like(h) + tall, torch.zeros_like(w) + wide
        case "pad":
            ratio = torch.minimum(height / h, width / w)
            return (h * ratio).round().clamp_min(1), (w * ratio).round().clamp_min(1)
    if tall == wide:
        least = torch.minimum(h, w)
        return (tall * h / least + 1e-4).floor(), (tall * w / least + 1e-4).floor()
    ratio = torch.minimum(h / tall, w / wide)
    return (h / ratio).round(), (w / ratio).round()


def fit_images(
    picture: UInt8[Tensor, "b h w 3"], preprocess: Preprocess
) -> Float[Tensor, "b 3 height width"]:
    """Return what `Preprocess` gives for decoded, upright images of one size."""
    if preprocess.interpolation == "nearest":
        raise UsageError("graphs do not support interpolation 'nearest'; export with --pixels floats")
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
