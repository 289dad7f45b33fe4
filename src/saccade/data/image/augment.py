"""The same picture, a little different each time: what training does between a file and a model's input."""

import math
from dataclasses import dataclass

import numpy as np
from einops import rearrange
from jaxtyping import Float32
from PIL import Image

from saccade.data.image.decode import Colour
from saccade.data.image.operations import LIMITS, OPERATIONS, operate
from saccade.data.image.preprocess import Picture, Preprocess, opened
from saccade.data.image.resize import Pixels, Sides, window
from saccade.data.randomness import Chance
from saccade.errors import UsageError, check_number, check_word

Box = tuple[int, int, int, int]
"""Top, left, height, width."""
Range = tuple[float, float]

POLICIES = ("none", *LIMITS)
_NAMES = tuple(OPERATIONS)
_JITTERS = ("brightness", "contrast", "colour")
_HOLE_AREA, _HOLE_RATIO = (0.02, 0.4), (0.3, 1 / 0.3)  # Zhong et al. 2020, section 4.1
_ATTEMPTS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Augment:
    """How pictures are varied in training; every draw is a function of its `Chance` alone."""

    crop: Range = (0.35, 1.0)
    """The share of the area that a random crop keeps, from and to; (1, 1): fitted as in evaluation."""
    ratio: Range = (3 / 4, 4 / 3)
    """Width by height of a random crop, from and to, before it is resized to the model's input."""
    flip: float = 0.5
    """How often left and right change places; 0 where that changes the meaning, as with letters."""
    policy: str = "none"
    """randaugment: some operations of one magnitude. trivial: one operation, any magnitude."""
    operations: int = 2
    """How many operations randaugment applies to a picture, N in the paper."""
    magnitude: float = 9.0
    """The strength of randaugment's operations, of 10, M in the paper."""
    colour: float = 0.0
    """Brightness, contrast and saturation change by up to this share of themselves, in any order."""
    erase: float = 0.0
    """How often a rectangle is covered with noise, random erasing."""
    pad: int = 0
    """For small pictures, in place of a random crop: shift by up to so many pixels, edges reflected."""

    def __post_init__(self) -> None:
        _check_range("augment.crop", self.crop, 0.01, 1)
        _check_range("augment.ratio", self.ratio, 0.1, 10)
        check_number("augment.flip", self.flip, 0, 1)
        check_word("augment.policy", self.policy, POLICIES)
        check_number("augment.operations", self.operations, 1, len(OPERATIONS))
        check_number("augment.magnitude", self.magnitude, 0, 10)
        check_number("augment.colour", self.colour, 0, 1)
        check_number("augment.erase", self.erase, 0, 1)
        check_number("augment.pad", self.pad, 0, 1024)

    def __call__(
        self, source: Picture, preprocess: Preprocess, chance: Chance
    ) -> Float32[np.ndarray, "3 height width"]:
        """Return a model's input; with everything off, `preprocess(source, fast=True)`."""
        pixels = self._framed(source, preprocess, chance)
        if chance.flip("flip", self.flip):
            pixels = pixels[:, ::-1]
        if self.policy != "none" or self.colour:
            picture = Image.fromarray(pixels)
            picture = self._jittered(self._distorted(picture, _fill(preprocess), chance), chance)
            pixels = np.asarray(picture)
        if chance.flip("erase", self.erase):
            pixels = erased(pixels, chance)
        return preprocess.normalise(pixels)

    def _framed(self, source: Picture, preprocess: Preprocess, chance: Chance) -> Pixels:
        if self.pad:
            return _shifted(preprocess.pixels(source, fast=True), self.pad, chance)
        if self.crop[0] == 1:
            return preprocess.pixels(source, fast=True)
        zoom = max(
            2.0, self.crop[0] ** -0.5
        )  # small crops are not enlarged, the whole is still twice too large
        height, width = (math.ceil(side * zoom) for side in preprocess.size)
        picture = opened(source, preprocess.background, (height, width))
        top, left, tall, wide = crop_box((picture.height, picture.width), self.crop, self.ratio, chance)
        cut = picture.crop((left, top, left + wide, top + tall))
        return window(
            cut, preprocess.size, preprocess.size, interpolation=preprocess.interpolation, fast=True
        )

    def _distorted(self, picture: Image.Image, fill: Colour, chance: Chance) -> Image.Image:
        count = {"none": 0, "randaugment": self.operations, "trivial": 1}[self.policy]
        for i in range(count):
            name = _NAMES[chance.integer("operation", len(_NAMES), i)]
            strength = self.magnitude / 10
            if self.policy == "trivial":
                strength = chance.integer("strength", 31, i) / 30
            picture = operate(picture, self.policy, name, strength, chance.flip("sign", 0.5, i), fill)
        return picture

    def _jittered(self, picture: Image.Image, chance: Chance) -> Image.Image:
        if self.colour:
            for i in chance.order("order of colours", len(_JITTERS)):
                name = _JITTERS[i]
                change = chance.between(f"jitter {name}", -self.colour, self.colour)
                picture = OPERATIONS[name](picture, change, (0, 0, 0))
        return picture


def crop_box(sides: Sides, area: Range, ratio: Range, chance: Chance) -> Box:
    """Draw the box of a random-resized crop (Szegedy et al. 2015), with torchvision's way out for strips."""
    box = _rectangle("crop", sides, area, ratio, chance)
    if box is not None:
        return box
    height, width = sides
    tall, wide = min(height, round(width / ratio[0])), min(width, round(height * ratio[1]))
    tall, wide = max(1, tall), max(1, wide)
    return (height - tall) // 2, (width - wide) // 2, tall, wide


def erased(pixels: Pixels, chance: Chance) -> Pixels:
    """Return the picture with a random rectangle of noise in it (Zhong et al. 2020)."""
    height, width, _ = pixels.shape
    box = _rectangle("hole", (height, width), _HOLE_AREA, _HOLE_RATIO, chance)
    if box is None:
        return pixels
    top, left, tall, wide = box
    result, noise = pixels.copy(), chance.noise("hole", tall * wide * 3)
    result[top : top + tall, left : left + wide] = rearrange(noise, "(h w c) -> h w c", h=tall, w=wide)
    return result


def _rectangle(what: str, sides: Sides, area: Range, ratio: Range, chance: Chance) -> Box | None:
    """Draw a share of the area and a shape until the rectangle fits, then its place."""
    height, width = sides
    for attempt in range(_ATTEMPTS):
        kept = chance.between(f"{what} area", *area, number=attempt) * height * width
        shape = math.exp(chance.between(f"{what} ratio", math.log(ratio[0]), math.log(ratio[1]), attempt))
        tall, wide = round(math.sqrt(kept / shape)), round(math.sqrt(kept * shape))
        if 0 < tall <= height and 0 < wide <= width:
            top = chance.integer(f"{what} top", height - tall + 1, attempt)
            return top, chance.integer(f"{what} left", width - wide + 1, attempt), tall, wide
    return None


def _shifted(pixels: Pixels, pad: int, chance: Chance) -> Pixels:
    """Return a window of the padded picture, of the picture's own size."""
    rows, columns = (
        _reflected(chance.integer(f"shift {axis}", 2 * pad + 1) - pad, side)
        for axis, side in enumerate(pixels.shape[:2])
    )
    return pixels[rows[:, None], columns]


def _reflected(start: int, side: int) -> np.ndarray:
    """Return `side` indices from start on, turned back at both ends without repeating the last pixel."""
    last = side - 1
    return last - np.abs(last - np.arange(start, start + side) % max(2 * last, 1))


def _fill(preprocess: Preprocess) -> Colour:
    red, green, blue = (min(255, max(0, round(255 * mean))) for mean in preprocess.mean)
    return red, green, blue


def _check_range(what: str, found: Range, low: int | float, high: int | float) -> None:
    for end in found:
        check_number(what, end, low, high)
    if found[0] > found[1]:
        raise UsageError(f"{what} is {found}; expected the smaller number first")
