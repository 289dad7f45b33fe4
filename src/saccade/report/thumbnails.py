"""Thumbnails small enough for hundreds of them on one page."""

import base64
import io
from typing import NamedTuple

from PIL import Image

from saccade.data.image.decode import decode
from saccade.data.pictures import Pictures
from saccade.errors import DataError
from saccade.report.html import Html

SIDE = 144
QUALITY = 80
ENLARGED = 112
"""Pixels of the thumbnails in a run folder."""


class Thumbnail(NamedTuple):
    """A data URL; `tiny` if each pixel is drawn as a square."""

    address: Html
    tiny: bool


def shrink(
    picture: Image.Image, side: int = SIDE, tiny: int = SIDE // 2, kind: str = "jpeg", quality: int = QUALITY
) -> Thumbnail:
    """Return an image of at most `side` pixels; one of at most `tiny` is kept as it is, as PNG."""
    small = max(picture.size) <= tiny
    if not small:
        picture.thumbnail((side, side), Image.Resampling.BICUBIC)
    kind = "png" if small else kind
    file = io.BytesIO()
    picture.save(file, kind, quality=quality)
    return Thumbnail(Html(f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"), small)


def thumbnail(images: Pictures, i: int) -> Thumbnail | None:
    """Return the thumbnail of an image of a set, or None where it cannot be read."""
    try:
        return shrink(decode(images.open(i), enough=(SIDE, SIDE)))
    except DataError:
        return None


def enlarged(picture: Image.Image) -> str:
    """Return 112 pixels in base64, as run folders store them: a JPEG, or large squares for tiny images."""
    scale = ENLARGED / max(picture.size)
    how = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BICUBIC
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    file = io.BytesIO()
    picture.convert("RGB").resize(size, how).save(file, "PNG" if scale > 1 else "JPEG", quality=QUALITY)
    return base64.b64encode(file.getvalue()).decode()
