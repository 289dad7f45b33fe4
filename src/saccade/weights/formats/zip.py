"""The directory of a zip file, read by our own strict rules, so that what is checked is what is used.

Both npz files and torch checkpoints are zips. `zipfile` accepts comments, prefixes, repeated names, overlaps
and any number of entries; none of them occurs in a model file, and each has carried an attack.
"""

import struct
import zlib
from mmap import mmap
from typing import NamedTuple

from saccade.files.paths import Flaw, check_name
from saccade.wording import printable

ENTRIES = 100_000
DIRECTORY = 32_000_000
STORED, DEFLATED = 0, 8
FULL32 = 0xFFFFFFFF


class ZipMember(NamedTuple):
    """One file inside: where its bytes start, how many there are packed and unpacked, and their checksum."""

    name: str
    method: int
    crc: int
    packed: int
    size: int
    header: int
    start: int


def members(data: mmap) -> dict[str, ZipMember]:
    """Read the directory at the end; refuse odd or repeated names and members that overlap."""
    try:
        count, size, offset = _ending(data)
        directory = data[offset : offset + size]
        found: dict[str, ZipMember] = {}
        at = 0
        while at < len(directory):
            member, at = _entry(data, directory, at, offset)
            if member.name in found:
                raise Flaw(f"is a zip file with two members named '{printable(member.name)}'")
            found[member.name] = member
    except (struct.error, UnicodeDecodeError, IndexError):
        raise Flaw("is a zip file with a broken directory") from None
    if len(found) != count:
        raise Flaw(f"is a zip file that announces {count:,} members and lists {len(found):,}")
    end = 0
    for member in sorted(found.values(), key=lambda m: m.header):
        if member.header < end:
            raise Flaw(
                f"is a zip file whose member '{printable(member.name)}' overlaps another, as zip bombs do"
            )
        end = member.start + member.packed
    return found


def _ending(data: mmap) -> tuple[int, int, int]:
    """Return the number of entries, the size and the offset of the directory."""
    end = len(data) - 22
    if end < 0 or data[end : end + 4] != b"PK\5\6":
        raise Flaw("is a zip file without a directory at its end, as after a broken download")
    disks, here, count, size, offset, comment = struct.unpack_from("<4xL2H2LH", data, end)
    closing = end
    if end >= 76 and data[end - 20 : end - 16] == b"PK\6\7":  # zip64, which torch always writes
        (closing,) = struct.unpack_from("<8xQ", data, end - 20)
        if closing != end - 76 or data[closing : closing + 4] != b"PK\6\6":
            raise Flaw("is a zip file with a broken zip64 directory")
        disks, here, count, size, offset = struct.unpack_from("<16xQ4Q", data, closing)
    if disks or comment or here != count or offset + size != closing:
        raise Flaw("is a zip file with extra bytes around its directory")
    if count > ENTRIES or size > DIRECTORY:
        raise Flaw(
            f"is a zip file with {count:,} members ({size:,} bytes of names); expected at most {ENTRIES:,}"
        )
    if count * 46 > size:
        raise Flaw(f"is a zip file that announces {count:,} members in {size:,} bytes of directory")
    return count, size, offset


def _entry(data: mmap, directory: bytes, at: int, limit: int) -> tuple[ZipMember, int]:
    """Read one entry of the directory and the matching header in front of the member's bytes."""
    fields = struct.unpack_from("<4s4x2H4x3L3H8xL", directory, at)
    signature, flags, method, crc, packed, size, named, extra, comment, header = fields
    at += 46
    raw, more = directory[at : at + named], directory[at + named : at + named + extra]
    at += named + extra + comment
    if signature != b"PK\1\2" or at > len(directory):
        raise Flaw("is a zip file with a broken directory")
    name = raw.decode("utf-8" if flags & 0x800 else "ascii")
    check_name(name)
    if FULL32 in (size, packed, header):
        size, packed, header = _zip64(more, size, packed, header)
    if flags & 1 or method not in (STORED, DEFLATED):
        how = "encrypted" if flags & 1 else f"packed by method {method}"
        raise Flaw(f"is a zip file whose member '{printable(name)}' is {how}; expected stored or deflated")
    if data[header : header + 4] != b"PK\3\4" or data[header + 30 : header + 30 + named] != raw:
        raise Flaw(f"is a zip file whose member '{printable(name)}' is not where its directory says")
    start = header + 30 + sum(struct.unpack_from("<2H", data, header + 26))
    if start + packed > limit or (method == STORED and size != packed):
        raise Flaw(
            f"is a zip file whose member '{printable(name)}' is longer than the file, or lies about its size"
        )
    return ZipMember(name, method, crc, packed, size, header, start), at


def _zip64(extra: bytes, size: int, packed: int, header: int) -> tuple[int, int, int]:
    """Fill the fields that did not fit into 32 bits, in their fixed order, from the extra field number 1."""
    while extra:
        number, length = struct.unpack_from("<2H", extra)
        body, extra = extra[4 : 4 + length], extra[4 + length :]
        if number == 1:
            wide = iter(struct.unpack_from(f"<{length // 8}Q", body))
            values = [next(wide, -1) if value == FULL32 else value for value in (size, packed, header)]
            if min(values) >= 0:
                return values[0], values[1], values[2]
    raise Flaw("is a zip file with a broken zip64 entry; expected sizes of 64 bits")


def start_of(data: mmap, member: ZipMember, length: int) -> bytes:
    """Return at most `length` first bytes of a member, unpacked, without touching the rest."""
    if member.method == STORED:
        return data[member.start : member.start + min(length, member.size)]
    # Deflate grows by a few bytes at worst, so this much input is enough, unless it is made to give nothing.
    packed = data[member.start : member.start + min(member.packed, length + 1024)]
    try:
        return zlib.decompressobj(-15).decompress(packed, min(length, member.size))
    except zlib.error:
        raise Flaw(
            f"has a member '{printable(member.name)}' that does not unpack, as after a broken download"
        ) from None


def check_stored(data: mmap, member: ZipMember) -> None:
    """Verify the checksum of a stored member without copying it."""
    with memoryview(data)[member.start : member.start + member.size] as view:
        if member.method != STORED or zlib.crc32(view) != member.crc:
            raise Flaw(
                f"has a member '{printable(member.name)}' with a wrong checksum, as after a broken download"
            )


def content(data: mmap, member: ZipMember) -> bytes:
    """Return a whole member, unpacked to the announced size and not a byte more, checksum verified."""
    made = data[member.start : member.start + member.packed]
    if member.method == DEFLATED:
        try:
            made = zlib.decompressobj(-15).decompress(made, member.size + 1)
        except zlib.error:
            made = b""
    if len(made) != member.size or zlib.crc32(made) != member.crc:
        raise Flaw(
            f"has a member '{printable(member.name)}' with a wrong checksum, as after a broken download"
        )
    return made
