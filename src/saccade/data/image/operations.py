"""The fourteen operations of RandAugment (Cubuk et al. 2020) and TrivialAugment (Müller and Hutter 2021).

Each takes an amount in its own unit, of which 0 changes nothing, and the colour for what comes into sight.
"""

from collections.abc import Callable
from functools import partial

from PIL import Image, ImageEnhance, ImageOps

from saccade.data.image.decode import Colour

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
    """Invert the brightest so many of the 256 levels."""
    return ImageOps.solarize(picture, 256 - round(levels))


def _posterize(picture: Image.Image, bits: float, _fill: Colour) -> Image.Image:
    """Clear the lowest so many of the 8 bits."""
    return ImageOps.posterize(picture, 8 - round(bits))


def _enhance(enhancer: Enhancer, picture: Image.Image, change: float, _fill: Colour) -> Image.Image:
    """Change a property by that share of itself; -1 takes all of it away."""
    return enhancer(picture).enhance(1 + change)


def _affine(picture: Image.Image, matrix: tuple[float, ...], fill: Colour) -> Image.Image:
    return picture.transform(
        picture.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=fill
    )


def _shear_x(picture: Image.Image, slope: float, fill: Colour) -> Image.Image:
    return _affine(picture, (1.0, slope, 0.0, 0.0, 1.0, 0.0), fill)


def _shear_y(picture: Image.Image, slope: float, fill: Colour) -> Image.Image:
    return _affine(picture, (1.0, 0.0, 0.0, slope, 1.0, 0.0), fill)


def _translate_x(picture: Image.Image, share: float, fill: Colour) -> Image.Image:
    return _affine(picture, (1.0, 0.0, share * picture.width, 0.0, 1.0, 0.0), fill)


def _translate_y(picture: Image.Image, share: float, fill: Colour) -> Image.Image:
    return _affine(picture, (1.0, 0.0, 0.0, 0.0, 1.0, share * picture.height), fill)


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
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
}
ONE_SIDED = ("solarize", "posterize")
"""Amounts of these are never negative; of the others either sign is as likely."""


def _limits(
    rotate: float, posterize: float, enhance: float, shear: float, translate: float
) -> dict[str, float]:
    same = {"rotate": rotate, "solarize": 256.0, "posterize": posterize}
    same |= dict.fromkeys(("colour", "contrast", "brightness", "sharpness"), enhance)
    return same | {"shear_x": shear, "shear_y": shear, "translate_x": translate, "translate_y": translate}


LIMITS = {
    "randaugment": _limits(rotate=30.0, posterize=4.0, enhance=0.9, shear=0.3, translate=150 / 331),
    # the paper's wide space; its 32 pixels are taken as a share of 224, or small pictures would be emptied
    "trivial": _limits(rotate=135.0, posterize=6.0, enhance=0.99, shear=0.99, translate=32 / 224),
}
"""The amount of each operation at full strength, for each policy."""


def operate(
    picture: Image.Image, policy: str, name: str, strength: float, negative: bool, fill: Colour
) -> Image.Image:
    """Apply one operation at a strength from 0 to 1 of the policy's limit."""
    amount = strength * LIMITS[policy].get(name, 0.0)
    return OPERATIONS[name](picture, -amount if negative and name not in ONE_SIDED else amount, fill)
