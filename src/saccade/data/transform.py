"""A picture of any size into the array that a model was trained on: fitted, scaled and normalised."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from numbers import Integral, Real
from reprlib import repr as brief  # a message stays one line, however long the value in it

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image

from saccade.data.decode import WHITE, Colour, decode, to_rgb
from saccade.data.source import Source
from saccade.errors import DataError, UsageError

Triple = tuple[float, float, float]
Picture = Source | Image.Image | np.ndarray

IMAGENET: tuple[Triple, Triple] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and std of ImageNet's training pictures: DeiT, DINOv2, MAE, most ResNets."""
HALF: tuple[Triple, Triple] = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""Maps 0..255 to -1..1: Google's ViTs."""
FITS = ("crop", "squash", "squash+crop", "pad")
INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
_LARGEST = 16_384
_ROOMY = 16  # times the result's pixels: what the picture between resize and crop may take, 13:1 at 224


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
    """Everything between a picture file and a model's input; saved as JSON beside the weights."""

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
    """What shows through transparent pixels and beside a padded picture."""

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _checked(field.name, getattr(self, field.name)))

    def __call__(self, source: Picture) -> Float32[np.ndarray, "3 height width"]:
        """Return the model's input for a path, bytes, an open file, a Pillow picture or a (h, w, 3) array."""
        return self.normalise(self.view(source))

    def batch(self, sources: Iterable[Picture]) -> Float32[np.ndarray, "n 3 height width"]:
        """Return the inputs of several pictures as one array; each equals the picture's own."""
        if isinstance(sources, str | bytes):
            raise UsageError(f"batch was given one {type(sources).__name__}; expected a list of pictures")
        items = list(sources)
        result = np.empty((len(items), 3, *self.size), dtype=np.float32)
        for place, item in zip(result, items, strict=True):
            place[:] = self(item)
        return result

    def view(self, source: Picture) -> Image.Image:
        """Return what the model sees before normalising: RGB, upright, of exactly `size`."""
        return self._fitted(_opened(source, self.background))

    def normalise(self, picture: Image.Image) -> Float32[np.ndarray, "3 height width"]:
        """Return (samples / 255 - mean) / std of an RGB picture, equal to torchvision's to the last bit."""
        mean, std = self._statistics()
        samples = np.asarray(picture).transpose(2, 0, 1).astype(np.float32, order="C")
        # three steps, as there: a single fused one is faster and differs in the last bit
        samples /= np.float32(255)
        samples -= mean
        samples /= std
        return samples

    def undo(self, array: np.ndarray) -> UInt8[np.ndarray, "height width 3"]:
        """Map a normalised array back to the pixels that a person can look at."""
        if array.ndim != 3 or array.shape[0] != 3 or not np.isfinite(array).all():
            raise UsageError(f"undo got {_described(array)}; expected finite numbers of shape (3, h, w)")
        mean, std = self._statistics()
        samples = np.clip(np.rint((array.astype(np.float32) * std + mean) * 255), 0, 255)
        return np.ascontiguousarray(samples.transpose(1, 2, 0), dtype=np.uint8)

    def to_json(self) -> dict[str, object]:
        """Return plain numbers, words and lists, equal to themselves after a trip through a JSON file."""
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
                near = get_close_matches(str(key), names, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"expected {', '.join(names)}"
                raise UsageError(f"preprocessing has no key {brief(key)}; {hint}")
        for name in names:
            if name not in values:
                raise UsageError(f"preprocessing lacks the key {name!r}; expected {', '.join(names)}")
        return cls(**{name: _checked(name, values[name]) for name in names})  # type: ignore[arg-type]

    def _statistics(self) -> Float32[np.ndarray, "2 3 1 1"]:
        return np.array([self.mean, self.std], dtype=np.float32)[..., None, None]

    def _fitted(self, picture: Image.Image) -> Image.Image:
        height, width = self.size
        how = INTERPOLATIONS[self.interpolation]
        if self.fit == "squash":
            return picture.resize((width, height), how)
        if self.fit == "pad":
            ratio = min(height / picture.height, width / picture.width)
            tall, wide = max(1, round(picture.height * ratio)), max(1, round(picture.width * ratio))
            result = Image.new("RGB", (width, height), self.background)
            result.paste(picture.resize((wide, tall), how), ((width - wide) // 2, (height - tall) // 2))
            return result
        if self.fit == "squash+crop":
            tall, wide = (round(side / self.crop) for side in self.size)
        else:
            tall, wide = self._covering(picture.height, picture.width)
        top, left = round((tall - height) / 2), round((wide - width) / 2)
        if tall * wide <= _ROOMY * height * width:
            whole = picture.resize((wide, tall), how)
            return whole.crop((left, top, left + width, top + height))
        return _window(picture, (tall, wide), (top, left), self.size, how)

    def _covering(self, height: int, width: int) -> tuple[int, int]:
        """Return the size to resize to before the crop, with the roundings of torchvision and timm."""
        tall, wide = (math.floor(side / self.crop) for side in self.size)
        if tall == wide:  # torchvision's Resize cuts the longer side to an integer
            return (tall * height // width, tall) if width <= height else (tall, tall * width // height)
        ratio = min(height / tall, width / wide)  # timm's ResizeKeepRatio rounds it
        return round(height / ratio), round(width / ratio)


def _window(
    picture: Image.Image,
    whole: tuple[int, int],
    corner: tuple[int, int],
    size: tuple[int, int],
    how: Image.Resampling,
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
        edges.append((low - start, min(high - start, stop - start)))  # rounding must not leave the picture
    (top, bottom), (left, right) = starts
    (north, south), (west, east) = edges
    part = picture.crop((left, top, right, bottom))
    # rows first, columns second, as Pillow does for the whole: by itself it may choose the other order here
    rows = part.resize((size[1], part.height), how, box=(west, 0, east, part.height))
    return rows.resize((size[1], size[0]), how, box=(0, north, size[1], south))


def _opened(source: Picture, background: Colour) -> Image.Image:
    if isinstance(source, np.ndarray):
        if source.dtype != np.uint8 or source.ndim != 3 or source.shape[2] != 3 or source.size == 0:
            raise DataError(
                f"the array is {_described(source)}; expected uint8 RGB of shape (h, w, 3); "
                "convert it, so that nothing has to be guessed"
            )
        return Image.fromarray(source)
    if isinstance(source, Image.Image):
        return to_rgb(source, background=background)
    return decode(source, background=background)


def _described(array: np.ndarray) -> str:
    return f"{array.dtype} of shape {array.shape}"
