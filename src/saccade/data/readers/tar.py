"""Find the members of an uncompressed tar from its headers alone; nothing is ever extracted.

POSIX.1-1988 ustar, the long names of GNU tar and the extended headers of POSIX.1-2001 (pax).
"""

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from saccade.errors import DataError, check_handles
from saccade.wording import show_name

BLOCK = 512
LONG = 1_000_000
"""More than any real name or extended header takes."""
PACKED = ((b"\x1f\x8b", "gzip"), (b"BZh", "bzip2"), (b"\xfd7zXZ", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"))
REGULAR = b"0\07"
OCTAL = rb"\s*[0-7]*\s*(\0|$)"
RECORD = re.compile(rb"(\d{1,7}) ([^=]{1,1000})=")


class TarMember(NamedTuple):
    """A regular file inside a tar; its name is never used as a path."""

    name: bytes
    offset: int
    size: int


def members(path: str) -> Iterator[TarMember]:
    """Yield the regular files of a tar in order; refuse a damaged one, naming the byte."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        check_handles(error)
        raise DataError(
            f"{show_name(path)} cannot be read: {error.strerror}; expected a tar archive"
        ) from error
    try:
        yield from _scan(show_name(path), descriptor, os.fstat(descriptor).st_size)
    except OSError as error:
        check_handles(error)
        raise DataError(
            f"{show_name(path)} cannot be read: {error.strerror}; expected a tar archive"
        ) from error
    finally:
        os.close(descriptor)


def _scan(where: str, descriptor: int, total: int) -> Iterator[TarMember]:
    start, name, size = 0, b"", -1
    while start + BLOCK <= total:
        block = os.pread(descriptor, BLOCK, start)
        if not block.strip(b"\0"):
            return
        _check(where, block, start)
        kind = block[156:157]
        length = size if size >= 0 and kind in REGULAR else _number(where, block[124:136], start)
        body, end = start + BLOCK, start + BLOCK + -(-length // BLOCK) * BLOCK
        if body + length > total:
            raise DataError(
                f"{where} is cut short: a member at byte {start:,} needs {length:,} bytes, but the file ends "
                "first; copy it again or leave it out"
            )
        if kind in b"LKxg":
            if length > LONG:
                raise DataError(f"{where} has a header of {length:,} bytes at byte {start:,}; leave it out")
            text = os.pread(descriptor, length, body)
            if kind == b"L":
                name = text.split(b"\0", 1)[0]
            elif kind == b"x":
                fields = _extended(text)
                name = fields.get(b"path", name)
                size = _size(where, fields, start)
        else:
            if kind in REGULAR:
                yield TarMember(name or _name(block), body, length)
            name, size = b"", -1
        start = end
    if start != total or total == 0:
        raise DataError(f"{where} is cut short: it ends at byte {total:,}, inside a block; copy it again")


def _check(where: str, block: bytes, start: int) -> None:
    """Compare a header with its checksum, which some old programs computed over signed bytes."""
    stored = _number(where, block[148:156], start) if start or re.match(OCTAL, block[148:156]) else -1
    plain = sum(block) - sum(block[148:156]) + 8 * 32
    if stored == plain or stored == plain - 256 * sum(byte > 127 for byte in block[:148] + block[156:]):
        return
    if start == 0:
        packed = next((word for sign, word in PACKED if block.startswith(sign)), "")
        if packed:
            raise DataError(
                f"{where} is compressed with {packed}; expected a plain tar; unpack it to .tar first"
            )
        raise DataError(f"{where} is not a tar archive; expected a WebDataset shard; leave it out")
    raise DataError(
        f"{where} is damaged: the header at byte {start:,} does not match its checksum; copy it again"
    )


def _number(where: str, field: bytes, start: int) -> int:
    """Read an octal number, or GNU's binary one for files beyond 8 GB."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    text = field.split(b"\0", 1)[0].strip()
    if not re.fullmatch(rb"[0-7]*", text):
        raise DataError(f"{where} is damaged: no number in the header at byte {start:,}; copy it again")
    return int(text or b"0", 8)


def _size(where: str, fields: dict[bytes, bytes], start: int) -> int:
    """Return the size in a pax header, or -1 if there is none; no real file needs more than 19 digits."""
    text = fields.get(b"size")
    if text is None:
        return -1
    if not re.fullmatch(rb"\d{1,19}", text):
        raise DataError(
            f"{where} is damaged: the header at byte {start:,} gives a size of {len(text):,} characters that "
            "is not a number of bytes; copy it again"
        )
    return int(text)


def _name(block: bytes) -> bytes:
    name = block[:100].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _extended(text: bytes) -> dict[bytes, bytes]:
    """Read pax records, "length key=value"; stop at the first malformed one."""
    fields: dict[bytes, bytes] = {}
    start = 0
    while match := RECORD.match(text, start):
        end = start + int(match[1])
        if not match.end() < end <= len(text):
            break
        fields[match[2]] = text[match.end() : end - 1]
        start = end
    return fields
