"""A picture made small enough for hundreds of them on one page."""

import base64
import io
from typing import NamedTuple

from PIL import Image

from saccade.data.image.decode import decode
from saccade.data.pictures import Images
from saccade.errors import DataError
from saccade.report.html import Html

SIDE = 144
QUALITY = 80


class Thumbnail(NamedTuple):
    """An address that holds the picture itself; `tiny` if each pixel is to be seen as a square."""

    address: Html
    tiny: bool


def thumbnail(images: Images, i: int) -> Thumbnail | None:
    """Return a picture of a set in small, or nothing where it cannot be read; a tiny one stays as it is."""
    try:
        picture = decode(images.open(i), enough=(SIDE, SIDE))
    except DataError:
        return None
    tiny = max(picture.size) <= SIDE // 2
    if not tiny:
        picture.thumbnail((SIDE, SIDE), Image.Resampling.BICUBIC)
    kind = "png" if tiny else "jpeg"
    file = io.BytesIO()
    picture.save(file, kind, quality=QUALITY)
    return Thumbnail(Html(f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"), tiny)
