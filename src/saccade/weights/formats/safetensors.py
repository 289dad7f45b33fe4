"""The header of a safetensors file, read and written by hand: strict, and without touching the data.

Refuses all that the safetensors library refuses, and also repeated keys, files without any tensor, odd names
and absurd counts. A file is: 8 bytes length of the header, the header as JSON, the tensors without gap or
overlap.
"""

import json
import math
import os
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from saccade.files.paths import Flaw, check_name
from saccade.files.strict_json import LIMIT, parse_json
from saccade.wording import printable

TENSORS = 100_000
RANK = 64
DTYPES = {
    "BOOL": ("bool", 1), "U8": ("uint8", 1), "I8": ("int8", 1), "U16": ("uint16", 2),
    "I16": ("int16", 2), "U32": ("uint32", 4), "I32": ("int32", 4), "U64": ("uint64", 8),
    "I64": ("int64", 8), "F8_E4M3": ("float8_e4m3fn", 1), "F8_E5M2": ("float8_e5m2", 1),
    "F16": ("float16", 2), "BF16": ("bfloat16", 2), "F32": ("float32", 4), "F64": ("float64", 8),
    "C64": ("complex64", 8),
}  # fmt: skip
SIZES = dict(DTYPES.values())
"""Bytes of one number of each dtype; the names are torch's, and NumPy's where it has one."""
CODES = {name: code for code, (name, _) in DTYPES.items()}


class Header(NamedTuple):
    """What a file says about one tensor before its numbers are read; `dtype` is torch's name for it."""

    shape: tuple[int, ...]
    dtype: str


def nbytes(header: Header) -> int:
    """Return the number of bytes that the tensor occupies when it is contiguous."""
    return math.prod(header.shape) * SIZES[header.dtype]


def read_headers(descriptor: int) -> dict[str, Header]:
    """Read all names, shapes and dtypes of an open safetensors file, in the file's order."""
    size = os.fstat(descriptor).st_size
    start = os.pread(descriptor, 8, 0)
    if len(start) < 8:
        raise Flaw(f"has {size} bytes; a safetensors file has at least 10")
    (length,) = struct.unpack("<Q", start)
    if length > LIMIT:
        raise Flaw(f"announces a header of {length:,} bytes; expected at most {LIMIT:,}")
    if length > size - 8:
        raise Flaw(
            f"announces a header of {length:,} bytes but has {size:,} in all, as after a broken download"
        )
    entries = parse_json(os.pread(descriptor, length, 8))
    _check_metadata(entries.pop("__metadata__", {}))
    if not 0 < len(entries) <= TENSORS:
        raise Flaw(f"holds {len(entries):,} tensors; expected 1 to {TENSORS:,}")
    spans: list[tuple[int, int, str]] = []
    found: dict[str, Header] = {}
    for name, entry in entries.items():
        check_name(name)
        found[name], begin, end = _entry(name, entry)
        spans.append((begin, end, name))
    _check_spans(sorted(spans), size - 8 - length)
    return found


def _check_metadata(metadata: object) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise Flaw("has __metadata__ that is not text under names; expected a safetensors header")


def _entry(name: str, entry: Any) -> tuple[Header, int, int]:
    match entry:
        case {"dtype": str(code), "shape": list(shape), "data_offsets": [begin, end]} if len(entry) == 3:
            pass
        case _:
            raise Flaw(
                f"describes tensor '{printable(name)}' without exactly a dtype, a shape and two data_offsets"
            )
    if code not in DTYPES:
        raise Flaw(
            f"has tensor '{printable(name)}' of dtype '{printable(code, 20)}'; expected one of "
            f"{', '.join(DTYPES)}"
        )
    if len(shape) > RANK or not all(type(n) is int and 0 <= n < 2**63 for n in (*shape, begin, end)):
        raise Flaw(f"has tensor '{printable(name)}' with a shape or offset that is not a count")
    header = Header(tuple(shape), DTYPES[code][0])
    # The empty tensor (0, 2**62, 2**62) has no bytes, but its strides still overflow.
    if math.prod(max(n, 1) for n in shape) * SIZES[header.dtype] >= 2**63:
        raise Flaw(
            f"has tensor '{printable(name)}' with the shape {printable(shape)}, larger than any memory"
        )
    if end - begin != nbytes(header):
        raise Flaw(
            f"has tensor '{printable(name)}' of shape {printable(shape)} and dtype {code} in {end - begin:,} "
            f"bytes; expected {nbytes(header):,}"
        )
    return header, begin, end


def _check_spans(spans: list[tuple[int, int, str]], size: int) -> None:
    at = 0
    for begin, end, name in spans:
        if begin != at:
            what = "overlaps the one before" if begin < at else "leaves a gap before it"
            raise Flaw(f"has tensor '{printable(name)}' that {what}; expected tensors without gap or overlap")
        at = end
    if at != size:
        what = "is cut short" if at > size else "has bytes after its last tensor"
        raise Flaw(f"{what}: its header describes {at:,} bytes of tensors and {size:,} are there")


def arrange(headers: Mapping[str, Header]) -> list[str]:
    """Order names as they are written: wide numbers first, so that each starts on a multiple of its size."""
    return sorted(headers, key=lambda name: (-SIZES[headers[name].dtype], name))


def write_header(headers: Mapping[str, Header], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes in front of the tensors; equal input gives equal bytes, in whatever order it comes."""
    entries: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    at = 0
    for name in arrange(headers):
        header = headers[name]
        offsets = [at, at := at + nbytes(header)]
        entries[name] = {"dtype": CODES[header.dtype], "shape": list(header.shape), "data_offsets": offsets}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
