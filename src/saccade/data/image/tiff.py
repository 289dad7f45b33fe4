"""Check the directory of a TIFF before libtiff or Pillow trusts it."""

import math
import struct

from saccade.data.image.limits import TAGS, VALUES, check_scans, excess, millions
from saccade.errors import DataError

_WIDTH, _HEIGHT, _COMPRESSION, _STRIP_BYTES = 256, 257, 259, 279
_TILE_WIDTH, _TILE_HEIGHT, _TILE_BYTES = 322, 323, 325
_LOOKED_AT = {
    _WIDTH, _HEIGHT, _COMPRESSION, _STRIP_BYTES, _TILE_WIDTH, _TILE_HEIGHT, _TILE_BYTES,
}  # fmt: skip
_JPEG = (6, 7)
_SIZES = {3: (2, "H"), 4: (4, "I"), 16: (8, "Q")}  # the integer types
_BYTES = (1, 2, 6, 7)  # types that stay bytes, at any length
_PRIVATE = 32_768


def check_tiff(name: str, data: bytes, pixels: int) -> None:
    """Refuse too many tags or values, strips that share bytes, and tiles much larger than the image."""
    try:
        tags = _directory(name, data)
    except (struct.error, OverflowError):
        return  # damaged: Pillow will say so
    width, height, compression = (_first(tags, tag) for tag in (_WIDTH, _HEIGHT, _COMPRESSION))
    if _TILE_WIDTH in tags:
        _check_tiles(name, (width, height), (_first(tags, _TILE_WIDTH), _first(tags, _TILE_HEIGHT)), pixels)
    counts = max((tags.get(tag, ()) for tag in (_STRIP_BYTES, _TILE_BYTES)), key=len)
    if len(counts) > 1 and (total := sum(min(count, len(data)) for count in counts)) > 2 * len(data):
        raise DataError(
            f"{name} has {len(counts):,} strips or tiles in its TIFF that share bytes: they claim "
            f"{total:,} of {len(data):,}; expected each byte in one of them; save it again"
        )
    if compression in _JPEG:
        check_scans(name, "TIFF", data.count(b"\xff\xda") // max(1, len(counts)), width * height)


def _check_tiles(name: str, size: tuple[int, int], tile: tuple[int, int], pixels: int) -> None:
    area = math.prod(-(-whole // part) * part for whole, part in zip(size, tile, strict=True) if part)
    if area > 4 * pixels:
        raise DataError(
            f"{name} has tiles of {tile[0]} x {tile[1]} for an image of {size[0]} x {size[1]} in its TIFF, "
            f"{millions(area)} in all; at most {millions(4 * pixels)} are decoded; save it without tiles"
        )


def _first(tags: dict[int, tuple[int, ...]], tag: int) -> int:
    return tags[tag][0] if tags.get(tag) else 1


def _directory(name: str, data: bytes) -> dict[int, tuple[int, ...]]:
    """Return those tags of the first image that are checked."""
    order = "<" if data[:2] == b"II" else ">"
    big = 43 in data[2:4]
    room, entry = (8, struct.Struct(order + "HHQ8s")) if big else (4, struct.Struct(order + "HHI4s"))
    start = struct.unpack_from(order + ("Q" if big else "I"), data, room)[0]
    count = struct.unpack_from(order + ("Q" if big else "H"), data, start)[0]
    if count > TAGS:
        raise excess(name, f"{count:,} tags in its TIFF", TAGS)
    start += 8 if big else 2
    table = data[start : start + count * entry.size]
    tags: dict[int, tuple[int, ...]] = {}
    for tag, kind, number, value in entry.iter_unpack(table[: len(table) // entry.size * entry.size]):
        if number > VALUES and tag < _PRIVATE and kind not in _BYTES:
            raise excess(name, f"{number:,} values in tag {tag} of its TIFF", VALUES)
        if tag not in _LOOKED_AT or tag in tags or kind not in _SIZES:  # of two, Pillow takes the first
            continue
        size, code = _SIZES[kind]
        if number * size > room:
            place = int.from_bytes(value, "little" if order == "<" else "big")
            value = data[place : place + number * size]
        tags[tag] = struct.unpack_from(f"{order}{min(number, len(value) // size)}{code}", value)
    return tags
