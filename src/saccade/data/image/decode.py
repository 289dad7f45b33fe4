"""Decode any image file into an upright RGB image, or say in one sentence why not."""

import math
import os
import re
import struct
import threading
import warnings

import numpy as np
from PIL import Image, ImageCms, UnidentifiedImageError

from saccade.data.image.formats import Source, read, recognise
from saccade.data.image.guard import open_image
from saccade.data.image.limits import cut_short, too_many
from saccade.errors import DataError
from saccade.wording import show_name

Colour = tuple[int, int, int]

WHITE: Colour = (255, 255, 255)
PIXELS = 50_000_000
SIDE = 65_535
"""JPEG's own longest side: a strip of 1 x 60,000 is an image, one of 1 x 50,000,000 is an attack."""

FULL = "full size"
"""The key in `info` for the full height and width of an image that was decoded at a reduced size."""

_ORIENTATION, _BITS, _PHOTOMETRIC = 0x0112, 258, 262  # tags of EXIF and TIFF
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_TURNED = (5, 6, 7, 8)  # height and width are swapped


class _Quiet:
    """Mute Pillow's warnings while any thread is inside, and put the filters back when the last one leaves.

    `warnings.catch_warnings` alone loses the filters for good when two threads overlap.
    """

    def __init__(self) -> None:
        self._reset()
        if hasattr(os, "register_at_fork"):  # a worker must not inherit a lock that another thread holds
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0

    def __enter__(self) -> None:
        with self.lock:
            if self.inside == 0:
                self.saved = warnings.catch_warnings()
                self.saved.__enter__()
                warnings.filterwarnings("ignore", module=r"PIL\.")
            self.inside += 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                self.saved.__exit__(None, None, None)


_quiet = _Quiet()
busy: dict[int, str] = {}
"""The image that each thread is decoding; an interrupted command names it."""


def decode(
    source: Source,
    *,
    background: Colour = WHITE,
    pixels: int = PIXELS,
    side: int = SIDE,
    enough: tuple[int, int] | None = None,
) -> Image.Image:
    """Return the image as a viewer shows it, in mode RGB; raise DataError if it cannot be used.

    The content decides the format, never the file name. Of an animation or a multi-page file the first frame
    is taken. EXIF and XMP orientation are applied. Transparency is laid on `background`. ICC profiles are
    ignored: the numbers are taken as sRGB, as timm, torchvision and Hugging Face do. 16-bit samples keep
    their high byte, float samples must lie in 0..1. A bit flipped inside JPEG data cannot be detected.

    Args:
        pixels: The most pixels to decode, checked in the header before any memory is allocated for them.
        side: The longest height or width; 1 x 1 is the smallest image.
        enough: A height and a width; a JPEG that is at least this large at 1/2, 1/4 or 1/8 of its size is
            decoded at that size, which is faster and differs slightly from shrinking the whole image.
    """
    name, data = read(source)
    kind = recognise(name, data)
    picture: Image.Image | None = None
    thread = threading.get_ident()
    busy[thread] = name
    with _quiet:
        try:
            picture = open_image(name, kind, data, pixels, side)
            whole = picture.size
            turned = enough is not None and _orientation(picture) in _TURNED
            if enough is not None:
                picture.draft(None, enough if turned else enough[::-1])
            drafted = picture.size != whole
            result = _rgb(_loaded(picture, data), background, name)
        except DataError:
            raise
        except Exception as error:  # a parser of untrusted bytes may raise anything: it all means the same
            raise _refusal(error, name, kind, data, picture, pixels) from error
        finally:
            del busy[thread]
    result.info.clear()  # the orientation is applied: the image must not be rotated again
    if drafted:
        result.info[FULL] = whole if turned else whole[::-1]
    return result


def header(name: str, data: bytes) -> tuple[tuple[int, int], str]:
    """Return size and mode as stored, without the pixels; the limits of `decode` apply here too."""
    kind = recognise(name, data)
    with _quiet:
        try:
            picture = open_image(name, kind, data, PIXELS, SIDE)
            return picture.size, picture.mode
        except DataError:
            raise
        except Exception as error:
            raise _refusal(error, name, kind, data, None, PIXELS) from error


def to_rgb(picture: Image.Image, *, background: Colour = WHITE) -> Image.Image:
    """Return an open Pillow image as `decode` would; the image itself stays as it is."""
    name = show_name(getattr(picture, "filename", "") or "the image")
    if not picture.width or not picture.height:
        raise DataError(f"{name} has no pixels ({picture.width} x {picture.height}); expected 1 x 1 or more")
    with _quiet:
        try:
            picture.load()
            return _rgb(picture, background, name)
        except DataError:
            raise
        except Exception as error:  # Pillow opens lazily: the damage shows only now
            text = str(error) or type(error).__name__
            raise DataError(f"{name} is cut short or damaged ({text}); open an undamaged copy") from error


def _loaded(picture: Image.Image, data: bytes) -> Image.Image:
    """Decode the pixels; use NumPy for a PPM whose maximum is not 255.

    Pillow would decode that one value at a time in Python: minutes for a large image.
    """
    tiles = getattr(picture, "tile", [])
    if not tiles or tiles[0][0] != "ppm":
        picture.load()
        return picture
    start, (_, most) = tiles[0][2:]
    kind = np.dtype(">u2" if most > 255 else "u1")
    shape = (picture.height, picture.width, len(picture.getbands()))
    if start + math.prod(shape) * kind.itemsize > len(data):
        raise OSError("image file is truncated")
    deep = 65_535 if picture.mode == "I" else 255
    levels = np.minimum(np.rint(np.arange(256**kind.itemsize) / most * deep), deep)
    levels = levels.astype(np.int32 if deep > 255 else np.uint8)
    rows = np.frombuffer(data, kind, math.prod(shape), start).reshape(shape)
    values = np.empty(shape, levels.dtype)
    for y, row in enumerate(rows):  # all rows at once would take 8 bytes per index
        values[y] = levels[row]
    return Image.fromarray(values if shape[2] > 1 else values[..., 0])


def _rgb(picture: Image.Image, background: Colour, name: str) -> Image.Image:
    turn = _TURNS.get(_orientation(picture))
    if picture.mode in ("I", "F") or picture.mode.startswith("I;16"):
        picture = _eight_bits(picture, name)
    elif picture.mode == "LAB":
        lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        picture = ImageCms.profileToProfile(picture, lab, srgb, outputMode="RGB") or picture
    if picture.has_transparency_data:
        picture = _opaque(picture, background)
    if picture.mode != "RGB":
        picture = picture.convert("RGB")
    return picture if turn is None else picture.transpose(turn)


def _orientation(picture: Image.Image) -> int:
    try:
        value = picture.getexif().get(_ORIENTATION, 1)
    except Exception:  # a broken EXIF block says nothing about the pixels
        return 1
    return value if isinstance(value, int) else 1


def _eight_bits(picture: Image.Image, name: str) -> Image.Image:
    """Scale deep grey samples to bytes; Pillow's own convert() clips them silently."""
    tags = getattr(picture, "tag_v2", {})  # of TIFF
    values = np.asarray(picture)
    low, high = values.min(), values.max()
    if picture.mode == "F":
        if not np.isfinite([low, high]).all():
            raise DataError(f"{name} holds NaN or infinite samples; expected 0 to 1; repair or leave it out")
        if low < 0 or high > 1:
            raise DataError(
                f"{name} holds float samples from {low:g} to {high:g}; expected 0 to 1; rescale it first"
            )
        grey = np.rint(values * np.float32(255)).astype(np.uint8)
    else:
        if low < 0 or high > 65_535:
            raise DataError(
                f"{name} holds integer samples from {low} to {high}; expected 0 to 65535; rescale it first"
            )
        twelve = tags.get(_BITS) == (12,)
        grey = (values >> (4 if twelve else 8)).astype(np.uint8)
    if tags.get(_PHOTOMETRIC) == 0:  # white is zero: Pillow inverts 8-bit samples itself, deeper ones not
        grey = 255 - grey
    result = Image.fromarray(grey)
    clear = picture.info.get("transparency")
    if isinstance(clear, int):
        result.putalpha(Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8)))
    return result


def _opaque(picture: Image.Image, background: Colour) -> Image.Image:
    clear = picture.info.get("transparency")
    if isinstance(clear, tuple) and max(clear) > 255:  # of a 16-bit PNG, whose samples Pillow cut to bytes
        picture = picture.copy()
        picture.info["transparency"] = tuple(sample >> 8 for sample in clear)
    if picture.mode == "La":
        picture = picture.convert("LA")
    front = picture.convert("RGBA")
    result = Image.new("RGB", front.size, background)
    result.paste(front, mask=front.getchannel("A"))
    return result


def _refusal(
    error: Exception, name: str, kind: str, data: bytes, picture: Image.Image | None, pixels: int
) -> DataError:
    if isinstance(error, Image.DecompressionBombError):
        # Pillow's own limit came first, and only its message has the number of pixels
        found = re.search(r"\d+", str(error))
        most = min(pixels, 2 * (Image.MAX_IMAGE_PIXELS or pixels))
        return DataError(too_many(name, int(found[0]) if found else 0, most))
    return DataError(_damage(name, kind, data, picture, error))


def _damage(name: str, kind: str, data: bytes, picture: Image.Image | None, error: Exception) -> str:
    """Turn whatever Pillow raised into a sentence."""
    text = str(error) or type(error).__name__
    riff = kind == "WEBP" and int.from_bytes(data[4:8], "little") + 8 > len(data)
    if riff or "truncated" in text.lower() or isinstance(error, EOFError):
        return cut_short(name, kind, data, _rows(picture))
    if "Decompressed data too large" in text or "memory used in text chunks" in text:
        return (
            f"{name} hides more text in its {kind} than any image needs, enough to fill the memory; "
            "save it again without the text or leave it out"
        )
    if isinstance(error, UnidentifiedImageError | struct.error):
        return (
            f"{name} starts like a {kind}, but its header is damaged, partly missing or not supported; "
            "copy it again, or save it as an ordinary PNG"
        )
    return f"{name} is a damaged {kind} ({text}); copy it again or leave it out"


def _rows(picture: Image.Image | None) -> str:
    """Say how many rows of a truncated JPEG are there; a progressive one has all of them, only blurred."""
    shrunk = getattr(picture, "decoderconfig", ())  # by `enough`: its rows are not the file's
    if picture is None or picture.format != "JPEG" or picture.info.get("progressive") or shrunk:
        return ""
    box = picture.im.getbbox()  # rows that were never written are still zero
    return f" (about {box[3]} of {picture.height} rows are there)" if box else ""
