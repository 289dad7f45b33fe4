"""Turn an image of any size into the array that a model expects: fitted, scaled and normalised."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from reprlib import repr as brief  # a message stays one line, however long the value in it

import numpy as np
from PIL import Image

from saccade.data.image.decode import WHITE, Colour, decode, to_rgb
from saccade.data.image.formats import Source
from saccade.data.image.geometry import Geometry
from saccade.data.image.resize import INTERPOLATIONS, Pixels, Sides, window
from saccade.errors import DataError, UsageError, did_you_mean
from saccade.shapes import Float32, UInt8

Triple = tuple[float, float, float]
PictureSource = Source | Image.Image | np.ndarray

IMAGENET: tuple[Triple, Triple] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and std of ImageNet's training images: DeiT, DINOv2, MAE, most ResNets."""
HALF: tuple[Triple, Triple] = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""Maps 0..255 to -1..1: Google's ViTs."""
FITS = ("crop", "squash", "squash+crop", "pad")
_LARGEST = 16_384
TOKENS = 16_384
"""Patches per image that any model may be given: 1024 x 1024 pixels in patches of 8."""
LARGER = 16
"""A model whose positions can be resampled may be given this many times the patches it was trained on."""


def tokens(size: Sides, patch: int) -> int:
    """Return how many patches an image has."""
    return -(-size[0] // patch) * -(-size[1] // patch)


def check_tokens(size: Sides, patch: int, most: int = TOKENS) -> None:
    """Refuse more patches than `most`: attention among them would take minutes and all memory."""
    if (found := tokens(size, patch)) > most:
        raise UsageError(
            f"images of {size[0]} x {size[1]} pixels are {found:,} patches of {patch} pixels; "
            f"expected at most {most:,}; use smaller images"
        )


def most_tokens(trained: int, position: str) -> int:
    """Return how many patches a model that was trained on `trained` of them may be given.

    Relative positions need a table of all pairs of tokens, and a graph forms all pairs of its attention, so
    their limits are lower.

    Args:
        position: The config's kind of positions, or "graph" for an exported model.
    """
    if position == "graph":
        return min(max(TOKENS // 4, LARGER * trained), TOKENS)
    if position == "relative":
        return max(TOKENS // 4, trained)
    return max(TOKENS, LARGER * trained) if position == "learned" else TOKENS


def _numbers(name: str, value: object, count: int) -> tuple[int | float, ...]:
    """Read a tuple, or JSON's list, of plain numbers; whole ones stay whole."""
    numbers = tuple(value) if isinstance(value, list | tuple) else ()
    if len(numbers) != count or not all(isinstance(n, Real) and not isinstance(n, bool) for n in numbers):
        raise UsageError(f"{name} is {brief(value)}; expected {count} numbers")
    return tuple(int(n) if isinstance(n, Integral) else float(n) for n in numbers)


def _whole(name: str, value: object, count: int, low: int, high: int) -> tuple[int | float, ...]:
    numbers = _numbers(name, value, count)
    if not all(isinstance(n, int) and low <= n <= high for n in numbers):
        raise UsageError(f"{name} is {brief(value)}; expected {count} whole numbers from {low} to {high}")
    return numbers


def _finite(name: str, value: object, low: float) -> tuple[float, ...]:
    numbers = _numbers(name, value, 3)
    if not all(low <= n <= 1e6 for n in numbers):
        raise UsageError(f"{name} is {brief(value)}; expected 3 finite numbers from {low:g} to 1e+06")
    return tuple(float(n) for n in numbers)


def _fraction(name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.01 <= value <= 1:
        raise UsageError(f"{name} is {brief(value)}; expected a number from 0.01 to 1")
    return float(value)


def _word(name: str, value: object, words: Iterable[str]) -> str:
    if not isinstance(value, str) or value not in words:
        raise UsageError(f"{name} is {brief(value)}; expected one of {', '.join(words)}")
    return value


def _checked(name: str, value: object) -> object:
    """Return a field's value with lists as tuples and 1 as 1.0, so that JSON gives back what was saved."""
    match name:
        case "size":
            return _whole(name, value, 2, 1, _LARGEST)
        case "background":
            return _whole(name, value, 3, 0, 255)
        case "mean":
            return _finite(name, value, -1e6)
        case "std":
            return _finite(name, value, 1e-6)
        case "crop":
            return _fraction(name, value)
        case "fit":
            return _word(name, value, FITS)
        case _:
            return _word(name, value, INTERPOLATIONS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Preprocess:
    """Everything between an image file and a model's input; saved as JSON next to the weights."""

    size: tuple[int, int] = (224, 224)
    """Height and width of the result."""
    fit: str = "crop"
    """crop: cover size / crop, keep the centre (timm). squash: resize straight to size (Hugging Face's ViT).
    squash+crop: resize straight to size / crop, keep the centre (Hugging Face's DeiT). pad: keep everything,
    fill the rest with the background."""
    crop: float = 0.9
    """The fraction of the resized sides that a crop keeps, timm's crop_pct; the other fits do not use it."""
    interpolation: str = "bicubic"
    mean: Triple = HALF[0]
    std: Triple = HALF[1]
    background: Colour = WHITE
    """The colour behind transparent pixels and around a padded image."""

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _checked(field.name, getattr(self, field.name)))

    def __call__(self, source: PictureSource, *, fast: bool = False) -> Float32[np.ndarray, "3 height width"]:
        """Return the model's input for a path, bytes, an open file, a Pillow image or a (h, w, 3) array.

        Args:
            fast: For training: twice the speed, within the tolerance that `pixels` describes.
        """
        return self.normalise(self.pixels(source, fast=fast))

    def batch(self, sources: Iterable[PictureSource]) -> Float32[np.ndarray, "n 3 height width"]:
        """Return the inputs of several images as one array; each equals the image's own."""
        if isinstance(sources, str | bytes):
            raise UsageError(f"batch was given one {type(sources).__name__}; expected a list of images")
        items = list(sources)
        result = np.empty((len(items), 3, *self.size), dtype=np.float32)
        for place, item in zip(result, items, strict=True):
            place[:] = self(item)
        return result

    def view(self, source: PictureSource) -> Image.Image:
        """Return what the model sees before normalising: RGB, upright, of exactly `size`."""
        return Image.fromarray(self.pixels(source))

    def pixels(self, source: PictureSource, *, fast: bool = False) -> Pixels:
        """Return `view` as an array; `fast` may differ from it.

        torch resizes, within three grey levels of Pillow except for rare pixels (see `window`). A JPEG that
        is still twice as large as needed at 1/2, 1/4 or 1/8 of its size is decoded at that size, which
        changes a photograph by about one grey level on average, a very sharp one by four.
        """
        return self.trace(source, fast=fast)[0]

    def trace(self, source: PictureSource, *, fast: bool = False) -> tuple[Pixels, Geometry]:
        """Return `pixels`, and where they came from."""
        picture = open_rgb(source, self.background, self._plenty() if fast else None)
        whole, corner = self._window(picture.height, picture.width)
        return self._fitted(picture, fast), Geometry.of(picture).resize(whole).crop(corner, self.size)

    def normalise(self, picture: Image.Image | Pixels) -> Float32[np.ndarray, "3 height width"]:
        """Return (samples / 255 - mean) / std of an RGB image, equal to torchvision's to the last bit."""
        mean, std = self._statistics()
        samples = np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1)).astype(np.float32)
        # three steps, as there: a single fused one is faster and differs in the last bit
        samples /= np.float32(255)
        samples -= mean
        samples /= std
        return samples

    def undo(self, array: np.ndarray) -> UInt8[np.ndarray, "height width 3"]:
        """Map a normalised array back to displayable pixels."""
        if array.ndim != 3 or array.shape[0] != 3 or not np.isfinite(array).all():
            raise UsageError(f"undo got {_described(array)}; expected finite numbers of shape (3, h, w)")
        mean, std = self._statistics()
        samples = np.clip(np.rint((array.astype(np.float32) * std + mean) * 255), 0, 255)
        return np.ascontiguousarray(samples.transpose(1, 2, 0), dtype=np.uint8)

    def to_json(self) -> dict[str, object]:
        """Return plain numbers, words and lists, which survive a round trip through a JSON file."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, values: object) -> "Preprocess":
        """Return the value that `to_json` wrote; every key must be there, and no other."""
        names = [field.name for field in fields(cls)]
        if not isinstance(values, Mapping):
            raise UsageError(f"preprocessing is {brief(values)}; expected an object with {', '.join(names)}")
        for key in values:
            if key not in names:
                hint = did_you_mean(key, names, f"; expected {', '.join(names)}")
                raise UsageError(f"preprocessing has no key {brief(key)}{hint}")
        for name in names:
            if name not in values:
                raise UsageError(f"preprocessing lacks the key {name!r}; expected {', '.join(names)}")
        return cls(**{name: _checked(name, values[name]) for name in names})  # type: ignore[arg-type]

    def _statistics(self) -> Float32[np.ndarray, "2 3 1 1"]:
        return np.array([self.mean, self.std], dtype=np.float32)[..., None, None]

    def _plenty(self) -> Sides:
        """Return twice the size that an image is resized to, so that a reduced decoding does not show."""
        share = self.crop if self.fit in ("crop", "squash+crop") else 1.0
        height, width = (math.ceil(2 * side / share) for side in self.size)
        return height, width

    def _fitted(self, picture: Image.Image, fast: bool) -> Pixels:
        whole, corner = self._window(picture.height, picture.width)
        if self.fit != "pad":
            return window(picture, whole, self.size, corner, self.interpolation, fast)
        result = np.full((*self.size, 3), self.background, dtype=np.uint8)
        inner = window(picture, whole, whole, interpolation=self.interpolation, fast=fast)
        result[-corner[0] : whole[0] - corner[0], -corner[1] : whole[1] - corner[1]] = inner
        return result

    def _window(self, height: int, width: int) -> tuple[Sides, Sides]:
        """Return the size to resize to, and the corner of the crop in it; a negative corner pads."""
        if self.fit == "squash":
            return self.size, (0, 0)
        if self.fit == "pad":
            ratio = min(self.size[0] / height, self.size[1] / width)
            tall, wide = max(1, round(height * ratio)), max(1, round(width * ratio))
            return (tall, wide), (-((self.size[0] - tall) // 2), -((self.size[1] - wide) // 2))
        if self.fit == "squash+crop":
            tall, wide = (math.floor(side / self.crop) for side in self.size)
        else:
            tall, wide = self._covering(height, width)
        return (tall, wide), (round((tall - self.size[0]) / 2), round((wide - self.size[1]) / 2))

    def _covering(self, height: int, width: int) -> tuple[int, int]:
        """Return the size to resize to before the crop, with the roundings of torchvision and timm."""
        tall, wide = (math.floor(side / self.crop) for side in self.size)
        if tall == wide:  # torchvision's Resize cuts the longer side to an integer
            return (tall * height // width, tall) if width <= height else (tall, tall * width // height)
        ratio = min(height / tall, width / wide)  # timm's ResizeKeepRatio rounds it
        return round(height / ratio), round(width / ratio)


def open_rgb(source: PictureSource, background: Colour = WHITE, enough: Sides | None = None) -> Image.Image:
    """Return any kind of image as an upright RGB one; for `enough` see `decode`."""
    if isinstance(source, np.ndarray):
        if source.dtype != np.uint8 or source.ndim != 3 or source.shape[2] != 3 or source.size == 0:
            raise DataError(
                f"the array is {_described(source)}; expected uint8 RGB of shape (h, w, 3); convert it first"
            )
        return Image.fromarray(source)
    if isinstance(source, Image.Image):
        return to_rgb(source, background=background)
    return decode(source, background=background, enough=enough)


def _described(array: np.ndarray) -> str:
    return f"{array.dtype} of shape {array.shape}"
