"""The arrays of an npz file: names, shapes and dtypes from the headers, numbers on demand, objects never."""

import math
import warnings
from io import BytesIO
from mmap import mmap
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from saccade.files.paths import Flaw, check_name
from saccade.weights.formats.safetensors import RANK, SIZES, Header, nbytes
from saccade.weights.formats.zip import ZipMember, content, members, start_of
from saccade.wording import printable

HEADER = 10_000
TOTAL = 64 * 2**30
RATIO = 100
SLACK = 64 * 2**20


class ArrayLayout(NamedTuple):
    """One array as its own header describes it."""

    header: Header
    dtype: np.dtype[Any]
    fortran: bool
    start: int


def layouts(data: mmap) -> dict[str, tuple[ZipMember, ArrayLayout]]:
    """Describe every array of a mapped npz file under its name without ".npy", in the order of the zip."""
    found = {}
    files = members(data).values()
    total = sum(member.size for member in files)
    # Weights hardly compress. Only zeros do, and a fresh model with many of them still fits into the slack.
    if total > TOTAL or total > RATIO * len(data) + SLACK:
        raise Flaw(
            f"would unpack from {len(data):,} to {total:,} bytes, as a zip bomb does and weights do not"
        )
    for member in files:
        layout = _layout(member, start_of(data, member, HEADER))
        if layout.start + nbytes(layout.header) != member.size:
            raise Flaw(
                f"has array '{printable(member.name)}' of shape {printable(layout.header.shape)} and dtype "
                f"{layout.header.dtype} in {member.size:,} bytes; expected "
                f"{layout.start + nbytes(layout.header):,}"
            )
        name = member.name.removesuffix(".npy")
        check_name(name)
        found[name] = member, layout
    return found


def _layout(member: ZipMember, start: bytes) -> ArrayLayout:
    stream = BytesIO(start)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers of Python 2, which Google's files have
            version = npy.read_magic(stream)
            read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
            shape, fortran, dtype = read(stream, max_header_size=HEADER)
    except Exception:  # NumPy hands the text to Python's parser, which can fail in a dozen ways
        raise Flaw(f"has array '{printable(member.name)}' without a readable npy header") from None
    name = _dtype_name(dtype)
    if name is None:
        what = "Python objects, which are a pickle" if dtype.hasobject else f"dtype {printable(dtype, 60)}"
        raise Flaw(f"has array '{printable(member.name)}' of {what}; expected plain numbers")
    if len(shape) > RANK or min(shape, default=0) < 0 or math.prod(max(n, 1) for n in shape) >= 2**60:
        raise Flaw(
            f"has array '{printable(member.name)}' with the shape {printable(shape)}, larger than any memory"
        )
    return ArrayLayout(Header(shape, name), dtype, fortran, stream.tell())


def _dtype_name(dtype: np.dtype[Any]) -> str | None:
    if dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None and dtype.subdtype is None:
        return "bfloat16"  # NumPy has no bfloat16; this is its name for what JAX saved
    return dtype.name if dtype.kind in "biufc" and dtype.name in SIZES else None


def array(data: mmap, member: ZipMember, layout: ArrayLayout) -> NDArray[Any]:
    """Unpack one array, checksum verified, in this machine's byte order; bfloat16 comes as uint16."""
    numbers = np.frombuffer(content(data, member), layout.dtype, offset=layout.start)
    if layout.header.dtype == "bfloat16":
        numbers = numbers.view(np.uint16)
    shaped = numbers.reshape(layout.header.shape, order="F" if layout.fortran else "C")
    return np.array(shaped, shaped.dtype.newbyteorder("="), order="C")
