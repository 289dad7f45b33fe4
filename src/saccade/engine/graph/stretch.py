"""Resampling as two matrix products whose matrices are computed from the sizes: a graph with free sizes can.

The three ways of nn/resample.py, and Pillow's filters for pictures. A filter that averages (antialias) is as
wide as the pixels that it shrinks; Keys' cubic has a = -1/2 there and a = -3/4 without (Keys 1981).

Shapes: m samples out, n samples in.
"""

import torch
from jaxtyping import Float
from torch import Tensor

Matrix = Float[Tensor, "m n"]


def size(x: Tensor) -> Tensor:
    """|x|, written as a maximum: OpenVINO 2026.4 folds the Abs of a constant to the constant itself."""
    return torch.maximum(x, x * -1)


def cubic(x: Tensor, a: float) -> Tensor:
    """Keys' kernel (1981, Eq. 8 with another a), for |x| < 2."""
    x = size(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def triangle(x: Tensor) -> Tensor:
    """The linear kernel."""
    return (1 - size(x)).clamp_min(0)


def sinc3(x: Tensor) -> Tensor:
    """Lanczos' kernel of three lobes."""
    x = size(x)
    return torch.where(x < 3, torch.sinc(x) * torch.sinc(x / 3), torch.zeros_like(x))


def averaging(places: Float[Tensor, "m"], samples: Float[Tensor, "n"], scale: Tensor, how: str) -> Matrix:
    """Weights of an antialiased filter around `places`, in samples; `scale` samples become one."""
    width = scale.clamp_min(1)
    x = (samples[None] + 0.5 - places[:, None]) / width
    kernels = {"bicubic": lambda x: cubic(x, -0.5), "bilinear": triangle, "lanczos": sinc3}
    weight = kernels[how](x)
    return weight / weight.sum(-1, keepdim=True)


def _numbers(count: int | Tensor) -> Float[Tensor, "n"]:
    return torch.arange(count).float()  # type: ignore[arg-type]


def antialias(into: int | Tensor, table: int) -> Matrix:
    """Bicubic, averaging where it shrinks."""
    out = _numbers(into)
    scale = table / (out[-1:] + 1)  # a tensor, as its size is free
    return averaging((out + 0.5) * scale, _numbers(table), scale, "bicubic")


def bicubic(into: int | Tensor, table: int) -> Matrix:
    """Bicubic on the four nearest samples; beyond the border the last one counts again."""
    out, samples = _numbers(into), _numbers(table)
    place = (out + 0.5) * (table / (out[-1:] + 1)) - 0.5
    first = place.floor()
    weight = torch.zeros_like(place)[:, None] * samples
    for step in (-1, 0, 1, 2):
        here = (first + step).clamp(0, table - 1)
        weight = weight + (samples[None] == here[:, None]) * cubic(place - first - step, -0.75)[:, None]
    return weight


def corners(into: int | Tensor, table: int) -> Matrix:
    """Linear, with the corners on the corners."""
    out = _numbers(into)
    place = out * ((table - 1) / out[-1:].clamp_min(1))
    return triangle(_numbers(table)[None] - place[:, None])


def stretched(
    x: Float[Tensor, "1 d rows cols"], rows: int | Tensor, cols: int | Tensor, mode: str, aa: bool
) -> Float[Tensor, "1 d r c"]:
    """What F.interpolate gives for the ways of nn/resample.py."""
    way = antialias if aa else bicubic if mode == "bicubic" else corners
    down, right = way(rows, int(x.shape[-2])), way(cols, int(x.shape[-1]))
    return down @ x @ right.transpose(0, 1)
