"""Masks that say where the object of a picture is, cut and scaled as the model does it to the picture."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Int8

from saccade.data.image.decode import decode
from saccade.data.image.preprocess import Preprocess
from saccade.errors import DataError
from saccade.files.paths import shown
from saccade.metrics.localisation import BACKGROUND, IGNORED, OBJECT

ENDINGS = (".png", ".bmp", ".tif", ".tiff", ".gif")
TRIMAP = {1: OBJECT, 2: BACKGROUND, 3: IGNORED}
"""The values of the Oxford pets: pet, background, border."""
GREY = {OBJECT: 255, BACKGROUND: 0, IGNORED: 128}

Mask = Int8[np.ndarray, "height width"]


def masks(
    folder: Path, pictures: Iterable[Path], preprocess: Preprocess
) -> Int8[np.ndarray, "n height width"]:
    """The mask of each picture: the file of the same name, in the same folders or fewer."""
    return np.stack([fitted(read(find(folder, picture)), preprocess) for picture in pictures])


def find(folder: Path, picture: Path) -> Path:
    """The mask of a picture; with `a/b/c.jpg` first a/b/c.png is looked for, then b/c.png, then c.png."""
    parts = picture.parts
    for start in range(max(0, len(parts) - 4), len(parts)):
        place = folder.joinpath(*parts[start:]).with_suffix("")
        for ending in ENDINGS:
            if (path := place.with_name(place.name + ending)).is_file():
                return path
    raise DataError(
        f"{shown(picture)} has no mask in {shown(folder)}; expected {shown(picture.stem)}.png there, or in "
        "the same folders as the picture's"
    )


def read(path: Path) -> Mask:
    """1 on the object, 0 on the background, -1 where neither counts.

    A file of the values 1, 2 and 3 is a trimap of the Oxford pets; in any other one white is the object.
    """
    values = np.asarray(decode(path)).max(-1)
    if set(np.unique(values).tolist()) <= set(TRIMAP):
        table = np.array([0, *TRIMAP.values()], dtype=np.int8)
        return table[values]
    return (values >= (128 if values.max() > 1 else 1)).astype(np.int8)


def fitted(mask: Mask, preprocess: Preprocess) -> Int8[np.ndarray, "tall wide"]:
    """The part of a mask that the model sees of its picture, at the model's size."""
    grey = np.choose(mask + 1, [GREY[IGNORED], GREY[BACKGROUND], GREY[OBJECT]]).astype(np.uint8)
    how = replace(preprocess, interpolation="nearest", background=(0, 0, 0))
    seen = how.pixels(np.repeat(grey[..., None], 3, axis=-1))[..., 0]
    back = {value: key for key, value in GREY.items()}
    return np.vectorize(back.__getitem__, otypes=[np.int8])(seen)
