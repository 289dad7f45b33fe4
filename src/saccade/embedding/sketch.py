"""Each picture in small: a thumbnail for the page, and raw pixels as the vector that a model has to beat."""

import base64
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32
from PIL import Image

from saccade.data.image.decode import decode
from saccade.data.pictures import Images
from saccade.errors import DataError

SIDES = ((500, 112), (2500, 64), (20_000, 40))
"""Up to so many pictures, thumbnails of this side: the page stays below 10 MB."""
PIXELS = 32
"""Side of the picture whose pixels are compared."""
QUALITY = 65
CHUNK = 256


class Sketches(NamedTuple):
    """What is kept of the pictures themselves."""

    thumbs: dict[int, str]
    """By row: an address that holds the picture; none for what could not be read again."""
    tiny: bool
    """Whether each pixel is to be seen as a square."""
    pixels: Float32[np.ndarray, "n p"]


def sketch(
    images: Images,
    shown: set[int],
    side: int = PIXELS,
    workers: int = 2,
    told: Callable[[int], None] | None = None,
) -> Sketches:
    """Decode every picture once.

    Args:
        shown: The rows that need a thumbnail.
        side: Of the square that the pixels are taken from.
        told: Called with the number of pictures that are done.
    """
    large = next((size for most, size in SIDES if len(shown) <= most), SIDES[-1][1])

    def one(i: int) -> tuple[np.ndarray | None, str, bool]:
        try:
            picture = decode(images.open(i), enough=(2 * large, 2 * large))
        except DataError:
            return None, "", False
        small = picture.resize((side, side), Image.Resampling.BOX)
        address, tiny = _thumbnail(picture, large) if i in shown else ("", False)
        return np.asarray(small, np.float32).reshape(-1) / 255, address, tiny

    pixels = np.zeros((len(images), 3 * side * side), np.float32)
    thumbs, squares = {}, 0
    with ThreadPoolExecutor(max(1, workers)) as pool:
        for start in range(0, len(images), CHUNK):
            rows = range(start, min(start + CHUNK, len(images)))
            for i, (small, address, tiny) in zip(rows, pool.map(one, rows), strict=True):
                if small is not None:
                    pixels[i] = small
                if address:
                    thumbs[i] = address
                    squares += tiny
            if told is not None:
                told(len(rows) + start)
    return Sketches(thumbs, squares * 2 > len(thumbs), pixels)


def _thumbnail(picture: Image.Image, side: int) -> tuple[str, bool]:
    tiny = max(picture.size) <= 32
    if not tiny:
        picture.thumbnail((side, side), Image.Resampling.BICUBIC)
    file, kind = io.BytesIO(), "png" if tiny else "webp"
    picture.save(file, kind, quality=QUALITY)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}", tiny
