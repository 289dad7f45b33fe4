"""Pictures that can be read, for verbs that need some of many."""

import sys
from typing import SupportsIndex

import numpy as np

from saccade.data.image.decode import decode
from saccade.data.pictures import Images
from saccade.errors import DataError


def readable(images: Images, i: SupportsIndex) -> bool:
    """Is this one there, whole, and a picture?"""
    return _flaw(images, i) is None


def read(images: Images) -> Images:
    """Those that can be read; what is left out is told, and none at all is refused."""
    flaws = [_flaw(images, i) for i in range(len(images))]
    told = [flaw for flaw in flaws if flaw is not None]
    if len(told) == len(flaws):
        raise DataError(f"none of {len(flaws):,} pictures can be read; expected one or more ({told[0]})")
    if told:
        print(
            f"note: {len(told)} of {len(flaws):,} pictures cannot be read and are left out: {told[0]}",
            file=sys.stderr,
        )
    return images.take(np.flatnonzero([flaw is None for flaw in flaws]))


def _flaw(images: Images, i: SupportsIndex) -> DataError | None:
    try:
        decode(images.open(i))
    except DataError as error:
        return error
    return None
