"""Augment training images: crops, flips, colours, RandAugment, random erasing."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from einops import rearrange
from jaxtyping import Float32
from PIL import Image, ImageEnhance, ImageOps

from saccade.data.image.decode import Colour
from saccade.data.image.geometry import Geometry, Six
from saccade.data.image.preprocess import PictureSource, Preprocess, open_rgb
from saccade.data.image.resize import Pixels, Sides, window
from saccade.data.randomness import Draws
from saccade.errors import UsageError
from saccade.values import one_of, validate, within

Box = tuple[int, int, int, int]
"""Top, left, height, width."""
Range = tuple[float, float]

Operation = Callable[[Image.Image, float, Colour], Image.Image]
Enhancer = (
    type[ImageEnhance.Color]
    | type[ImageEnhance.Contrast]
    | type[ImageEnhance.Brightness]
    | type[ImageEnhance.Sharpness]
)


def _identity(picture: Image.Image, _amount: float, _fill: Colour) -> Image.Image:
    return picture


def _autocontrast(picture: Image.Image, _amount: float, _fill: Colour) -> Image.Image:
    return ImageOps.autocontrast(picture)


def _equalize(picture: Image.Image, _amount: float, _fill: Colour) -> Image.Image:
    return ImageOps.equalize(picture)


def _rotate(picture: Image.Image, degrees: float, fill: Colour) -> Image.Image:
    return picture.rotate(degrees, Image.Resampling.BILINEAR, fillcolor=fill)


def _solarize(picture: Image.Image, levels: float, _fill: Colour) -> Image.Image:
    """Invert the brightest `levels` of the 256 levels."""
    return ImageOps.solarize(picture, 256 - round(levels))


def _posterize(picture: Image.Image, bits: float, _fill: Colour) -> Image.Image:
    """Clear the lowest `bits` of the 8 bits."""
    return ImageOps.posterize(picture, 8 - round(bits))


def _enhance(enhancer: Enhancer, picture: Image.Image, change: float, _fill: Colour) -> Image.Image:
    """Change a property by this share of itself; -1 removes it entirely."""
    return enhancer(picture).enhance(1 + change)


def _rotation(degrees: float, sides: Sides) -> Six:
    """Return the affine map of Pillow's `rotate`: counterclockwise about the centre, with y down."""
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y = sides[1] / 2, sides[0] / 2
    return (cosine, -sine, x - cosine * x + sine * y, sine, cosine, y - sine * x - cosine * y)


MOVES: dict[str, Callable[[float, Sides], Six]] = {
    "rotate": _rotation,
    "shear_x": lambda slope, _: (1.0, slope, 0.0, 0.0, 1.0, 0.0),
    "shear_y": lambda slope, _: (1.0, 0.0, 0.0, slope, 1.0, 0.0),
    "translate_x": lambda share, sides: (1.0, 0.0, share * sides[1], 0.0, 1.0, 0.0),
    "translate_y": lambda share, sides: (1.0, 0.0, 0.0, 0.0, 1.0, share * sides[0]),
}
"""The operations that move pixels, as maps from the result to its source, given an amount."""


def _affine(name: str, picture: Image.Image, amount: float, fill: Colour) -> Image.Image:
    back = MOVES[name](amount, (picture.height, picture.width))
    return picture.transform(
        picture.size, Image.Transform.AFFINE, back, Image.Resampling.BILINEAR, fillcolor=fill
    )


OPERATIONS: dict[str, Operation] = {
    "identity": _identity,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "rotate": _rotate,
    "solarize": _solarize,
    "colour": partial(_enhance, ImageEnhance.Color),
    "posterize": _posterize,
    "contrast": partial(_enhance, ImageEnhance.Contrast),
    "brightness": partial(_enhance, ImageEnhance.Brightness),
    "sharpness": partial(_enhance, ImageEnhance.Sharpness),
    **{name: partial(_affine, name) for name in ("shear_x", "shear_y", "translate_x", "translate_y")},
}
ONE_SIDED = ("solarize", "posterize")
"""Amounts of these are never negative; those of the others have a random sign."""


def _limits(
    rotate: float, posterize: float, enhance: float, shear: float, translate: float
) -> dict[str, float]:
    same = {"rotate": rotate, "solarize": 256.0, "posterize": posterize}
    same |= dict.fromkeys(("colour", "contrast", "brightness", "sharpness"), enhance)
    return same | {"shear_x": shear, "shear_y": shear, "translate_x": translate, "translate_y": translate}


LIMITS = {
    "randaugment": _limits(rotate=30.0, posterize=4.0, enhance=0.9, shear=0.3, translate=150 / 331),
    # the paper's wide space; its 32 pixels are a share of 224, or they would shift a small image out of view
    "trivial": _limits(rotate=135.0, posterize=6.0, enhance=0.99, shear=0.99, translate=32 / 224),
}
"""The amount of each operation at full strength, for each policy."""


def amount_of(policy: str, name: str, strength: float, negative: bool) -> float:
    """Return the amount of an operation at a strength from 0 to 1 of the policy's limit."""
    amount = strength * LIMITS[policy].get(name, 0.0)
    return -amount if negative and name not in ONE_SIDED else amount


def operate(
    picture: Image.Image, policy: str, name: str, strength: float, negative: bool, fill: Colour
) -> Image.Image:
    """Apply one operation."""
    return OPERATIONS[name](picture, amount_of(policy, name, strength, negative), fill)


POLICIES = ("none", *LIMITS)
_NAMES = tuple(OPERATIONS)
_JITTERS = ("brightness", "contrast", "colour")
_HOLE_AREA, _HOLE_RATIO = (0.02, 0.4), (0.3, 1 / 0.3)  # Zhong et al. 2020, section 4.1
_ATTEMPTS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Augment:
    """How training images are augmented; every draw is a function of its `Draws` alone."""

    crop: Range = within(0.01, 1, default=(0.35, 1.0))
    """The smallest and largest share of the area that a random crop keeps; (1, 1) fits as in evaluation."""
    ratio: Range = within(0.1, 10, default=(3 / 4, 4 / 3))
    """The smallest and largest width / height of a random crop, before it is resized to the model's input."""
    flip: float = within(0, 1, default=0.5)
    """How often images are flipped left to right; 0 where that changes the meaning, as with letters."""
    policy: str = one_of(*POLICIES, default="none")
    """randaugment: some operations of one magnitude. trivial: one operation, any magnitude."""
    operations: int = within(1, len(OPERATIONS), default=2)
    """How many operations randaugment applies to an image, N in the paper."""
    magnitude: float = within(0, 10, default=9.0)
    """The strength of randaugment's operations, of 10, M in the paper."""
    colour: float = within(0, 1, default=0.0)
    """Brightness, contrast and saturation change by up to this share of themselves, in random order."""
    erase: float = within(0, 1, default=0.0)
    """Random erasing: how often a rectangle is covered with noise."""
    pad: int = within(0, 1024, default=0)
    """For small images, in place of a random crop: shift by up to this many pixels, edges reflected."""

    def __post_init__(self) -> None:
        validate(self, "augment.")
        for name, (low, high) in (("crop", self.crop), ("ratio", self.ratio)):
            if low > high:
                raise UsageError(f"augment.{name} is {(low, high)}; expected the smaller number first")

    def __call__(
        self, source: PictureSource, preprocess: Preprocess, draws: Draws
    ) -> Float32[np.ndarray, "3 height width"]:
        """Return a model's input; with everything off, `preprocess(source, fast=True)`."""
        return preprocess.normalise(self.trace(source, preprocess, draws)[0])

    def trace(self, source: PictureSource, preprocess: Preprocess, draws: Draws) -> tuple[Pixels, Geometry]:
        """Return the augmented image before it is normalised, and where its pixels came from."""
        pixels, geometry = self._framed(source, preprocess, draws)
        if draws.flip("flip", self.flip):
            pixels, geometry = pixels[:, ::-1], geometry.flip()
        if self.policy != "none" or self.colour:
            picture, geometry = self._distorted(Image.fromarray(pixels), geometry, _fill(preprocess), draws)
            pixels = np.asarray(self._jittered(picture, draws))
        if draws.flip("erase", self.erase):
            pixels = erase(pixels, draws)
        return pixels, geometry

    def _framed(self, source: PictureSource, preprocess: Preprocess, draws: Draws) -> tuple[Pixels, Geometry]:
        if self.pad:
            return _shifted(*preprocess.trace(source, fast=True), self.pad, draws)
        if self.crop[0] == 1:
            return preprocess.trace(source, fast=True)
        # large enough that the smallest crop is not enlarged, and at least twice the model's input
        zoom = max(2.0, self.crop[0] ** -0.5)
        height, width = (math.ceil(side * zoom) for side in preprocess.size)
        picture = open_rgb(source, preprocess.background, (height, width))
        top, left, tall, wide = crop_box((picture.height, picture.width), self.crop, self.ratio, draws)
        cut, size = picture.crop((left, top, left + wide, top + tall)), preprocess.size
        geometry = Geometry.of(picture).crop((top, left), (tall, wide)).resize(size)
        return window(cut, size, size, interpolation=preprocess.interpolation, fast=True), geometry

    def _distorted(
        self, picture: Image.Image, geometry: Geometry, fill: Colour, draws: Draws
    ) -> tuple[Image.Image, Geometry]:
        count = {"none": 0, "randaugment": self.operations, "trivial": 1}[self.policy]
        for i in range(count):
            name = _NAMES[draws.integer("operation", len(_NAMES), i)]
            strength = self.magnitude / 10
            if self.policy == "trivial":
                strength = draws.integer("strength", 31, i) / 30
            negative = draws.flip("sign", 0.5, i)
            picture = operate(picture, self.policy, name, strength, negative, fill)
            if name in MOVES:
                amount = amount_of(self.policy, name, strength, negative)
                back = Geometry(MOVES[name](amount, geometry.size), geometry.size, geometry.size)
                geometry = back.inverse @ geometry
        return picture, geometry

    def _jittered(self, picture: Image.Image, draws: Draws) -> Image.Image:
        if self.colour:
            for i in draws.order("order of colours", len(_JITTERS)):
                name = _JITTERS[i]
                change = draws.between(f"jitter {name}", -self.colour, self.colour)
                picture = OPERATIONS[name](picture, change, (0, 0, 0))
        return picture


def crop_box(sides: Sides, area: Range, ratio: Range, draws: Draws) -> Box:
    """Draw the box of a random-resized crop (Szegedy et al. 2015), with torchvision's fallback for strips."""
    box = _rectangle("crop", sides, area, ratio, draws)
    if box is not None:
        return box
    height, width = sides
    tall, wide = min(height, round(width / ratio[0])), min(width, round(height * ratio[1]))
    tall, wide = max(1, tall), max(1, wide)
    return (height - tall) // 2, (width - wide) // 2, tall, wide


def erase(pixels: Pixels, draws: Draws) -> Pixels:
    """Return the image with a random rectangle of noise in it (Zhong et al. 2020)."""
    height, width, _ = pixels.shape
    box = _rectangle("hole", (height, width), _HOLE_AREA, _HOLE_RATIO, draws)
    if box is None:
        return pixels
    top, left, tall, wide = box
    result, noise = pixels.copy(), draws.noise("hole", tall * wide * 3)
    result[top : top + tall, left : left + wide] = rearrange(noise, "(h w c) -> h w c", h=tall, w=wide)
    return result


def _rectangle(what: str, sides: Sides, area: Range, ratio: Range, draws: Draws) -> Box | None:
    """Draw a share of the area and a shape until the rectangle fits, then its position."""
    height, width = sides
    for attempt in range(_ATTEMPTS):
        kept = draws.between(f"{what} area", *area, number=attempt) * height * width
        shape = math.exp(draws.between(f"{what} ratio", math.log(ratio[0]), math.log(ratio[1]), attempt))
        tall, wide = round(math.sqrt(kept / shape)), round(math.sqrt(kept * shape))
        if 0 < tall <= height and 0 < wide <= width:
            top = draws.integer(f"{what} top", height - tall + 1, attempt)
            return top, draws.integer(f"{what} left", width - wide + 1, attempt), tall, wide
    return None


def _shifted(pixels: Pixels, geometry: Geometry, pad: int, draws: Draws) -> tuple[Pixels, Geometry]:
    """Return a window of the padded image, of the image's own size; the geometry ignores the padding."""
    top, left = (draws.integer(f"shift {axis}", 2 * pad + 1) - pad for axis in range(2))
    rows, columns = _reflected(top, pixels.shape[0]), _reflected(left, pixels.shape[1])
    return pixels[rows[:, None], columns], geometry.crop((top, left), geometry.size)


def _reflected(start: int, side: int) -> np.ndarray:
    """Return `side` indices from start on, turned back at both ends without repeating the last pixel."""
    last = side - 1
    return last - np.abs(last - np.arange(start, start + side) % max(2 * last, 1))


def _fill(preprocess: Preprocess) -> Colour:
    red, green, blue = (min(255, max(0, round(255 * mean))) for mean in preprocess.mean)
    return red, green, blue
