"""A window of a resized image: exactly as Pillow computes it, or several times faster with torch."""

import math

import numpy as np
from einops import rearrange
from PIL import Image

from saccade.shapes import UInt8

INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
Pixels = UInt8[np.ndarray, "height width 3"]
Sides = tuple[int, int]
"""Height and width, or row and column."""

_FAST = ("bilinear", "bicubic")  # torch has no other filter that averages what it shrinks
_ROOMY = 16  # times the window's pixels: the limit between resize and crop, an image of 13:1 at 224


def window(
    picture: Image.Image,
    whole: Sides,
    size: Sides,
    corner: Sides = (0, 0),
    interpolation: str = "bicubic",
    fast: bool = False,
) -> Pixels:
    """Return the pixels of an RGB image resized to `whole` and cropped to `size` at `corner`.

    `fast` needs torch. It is within three of 255 grey levels of Pillow (two if bilinear), as long as Pillow
    starts with the rows; Pillow 13 sometimes starts with the columns, and then differs more where bicubic
    overshoots white or black.
    """
    (tall, wide), (height, width), (top, left) = whole, size, corner
    if (picture.height, picture.width) == whole:
        cut = picture if size == whole else picture.crop((left, top, left + width, top + height))
        return np.asarray(cut)
    if tall * wide > _ROOMY * height * width:
        return np.asarray(_strip(picture, whole, size, corner, INTERPOLATIONS[interpolation]))
    if fast and interpolation in _FAST:
        made = _torch(picture, whole, size, corner, interpolation)
        if made is not None:
            return made
    resized = picture.resize((wide, tall), INTERPOLATIONS[interpolation])
    return np.asarray(resized.crop((left, top, left + width, top + height)))


def _torch(
    picture: Image.Image, whole: Sides, size: Sides, corner: Sides, interpolation: str
) -> Pixels | None:
    """Crop what lies right of the window or below it, and resize with torch's vectorised code.

    Return None where the cropped length stays the same: torch would skip the resize, whatever the scale.
    """
    import torch  # a server that only predicts does not need it
    import torch.nn.functional as F

    lengths, factors = [], []
    for length, total, first, count in zip((picture.height, picture.width), whole, corner, size, strict=True):
        scale = length / total
        lengths.append(min(length, math.ceil((first + count) * scale) + math.ceil(2 * max(scale, 1)) + 1))
        factors.append((1 + 1e-12) / scale)  # torch takes the floor of the product with the length
        if length != total and math.floor(lengths[-1] * factors[-1]) == lengths[-1]:
            return None
    tall, wide = lengths
    # Pillow keeps four bytes per pixel; with three, both the copy and torch would be slower
    samples = np.frombuffer(picture.tobytes("raw", "RGBX"), dtype=np.uint8)
    kept = rearrange(samples, "(b h w c) -> b h w c", b=1, h=picture.height, c=4)[:, :tall, :wide].copy()
    image = rearrange(torch.from_numpy(kept), "b h w c -> b c h w")
    result = F.interpolate(image, scale_factor=tuple(factors), mode=interpolation, antialias=True)
    (top, left), (height, width) = corner, size
    return rearrange(result[0, :3, top : top + height, left : left + width], "c h w -> h w c").numpy()


def _strip(
    picture: Image.Image, whole: Sides, size: Sides, corner: Sides, how: Image.Resampling
) -> Image.Image:
    """Resize only what the crop keeps; equal to resize and crop up to the rounding of Pillow's coordinates.

    A strip of 1 x 60,000 would otherwise become 248 x 14,880,000 on its way to 224 x 224.
    """
    starts, edges = [], []
    for length, total, first, count in zip((picture.height, picture.width), whole, corner, size, strict=True):
        scale = length / total
        low, high = first * scale, (first + count) * scale
        margin = math.ceil(3 * max(scale, 1)) + 1  # the reach of the widest filter, lanczos
        start, stop = max(0, math.floor(low) - margin), min(length, math.ceil(high) + margin)
        starts.append((start, stop))
        edges.append((low - start, min(high - start, stop - start)))  # rounding must not leave the image
    (top, bottom), (left, right) = starts
    (north, south), (west, east) = edges
    part = picture.crop((left, top, right, bottom))
    # rows first, columns second, as Pillow does for the whole: by itself it may choose the other order here
    rows = part.resize((size[1], part.height), how, box=(west, 0, east, part.height))
    return rows.resize((size[1], size[0]), how, box=(0, north, size[1], south))
