"""Refuse images whose structure, not their pixels, would take minutes: count everything before decoding."""

import io
import re
import struct
import zlib

from PIL import Image, ImageFile

from saccade.data.image.limits import (
    ARITHMETIC,
    CHUNKS,
    COMMENTS,
    HEADER,
    READS,
    SLOW,
    check_scans,
    check_size,
    cut_short,
    excess,
    megabytes,
    millions,
)
from saccade.data.image.tiff import check_tiff
from saccade.errors import DataError

_MARKER = re.compile(b"\xff[\x01-\xcf\xd8-\xfe]")  # JPEG; libjpeg skips stuffing, restarts and junk
_SLOW = {"ppm_plain": "text form of PPM", "bmp_rle": "run-length form of BMP"}


class _Strict(io.BytesIO):
    """Raise at the end of the data, where LOAD_TRUNCATED_IMAGES would let Pillow invent the rest."""

    strict = False

    def read(self, size: int | None = -1, /) -> bytes:
        part = super().read(size)
        if self.strict and size and not part:
            raise OSError("image file is truncated")
        return part


class _Counted(_Strict):
    """Limit how often and how far Pillow reads in a header, until `lift` is called."""

    def __init__(self, name: str, kind: str, data: bytes) -> None:
        super().__init__(data)
        self.image, self.kind = name, kind
        self.reads = READS
        self.far = HEADER if kind == "JPEG" else len(data)

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads -= 1
        if self.reads < 0:
            found = f"more than {READS:,} pieces in its {self.kind} header (blocks, comments or stray bytes)"
            raise excess(self.image, found, READS)
        if self.tell() > self.far:
            most = megabytes(self.far)
            raise excess(self.image, f"more than {most} of metadata in its {self.kind}", most)
        return super().read(size)

    def lift(self, size: int) -> None:
        """Allow as many reads as decoding takes: by now the pieces of every format but TIFF are counted."""
        self.reads = 10 * READS if self.kind == "TIFF" else size + READS
        self.far = size


def open_image(name: str, kind: str, data: bytes, pixels: int, side: int) -> Image.Image:
    """Return an image with its header parsed, its limits checked and its pixels not yet decoded."""
    if kind == "PNG":
        check_png(name, data)
    elif kind == "WEBP":
        check_size(name, check_webp(name, data), pixels, side)
    elif kind == "TIFF":
        check_tiff(name, data, pixels)
    # a short file costs half a second at most, and counting would add 5% to every small image
    stream = _Strict(data) if len(data) <= 5 * READS else _Counted(name, kind, data)
    picture = Image.open(stream, formats=(kind,))
    check_size(name, picture.size, pixels, side)
    if kind == "JPEG":
        check_jpeg(name, data, picture.size, stream.tell(), getattr(picture, "layers", 0))
    else:
        check_tiles(name, data, picture)
    if isinstance(stream, _Counted):
        stream.lift(len(data))
    stream.strict = kind in ("JPEG", "BMP", "GIF")  # the other decoders read past the end
    return picture


def check_png(name: str, data: bytes) -> None:
    """Check every checksum of a PNG; Pillow skips those of the pixels and accepts a missing end."""
    view, start, kind, count = memoryview(data), 8, b"", 0
    while kind != b"IEND":
        end = start + 12 + int.from_bytes(view[start : start + 4], "big")
        if start + 12 > len(data) or end > len(data):
            raise DataError(cut_short(name, "PNG", data))
        kind = data[start + 4 : start + 8]
        if zlib.crc32(view[start + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            raise DataError(
                f"{name} is a damaged PNG: its {ascii(kind)[2:-1]} block at byte {start:,} does not match "
                "its checksum; copy it again or leave it out"
            )
        if kind == b"eXIf":
            _check_exif(name, "PNG", end - start)
        count += 1
        if count > CHUNKS:
            raise excess(name, f"more than {CHUNKS:,} chunks in its PNG", CHUNKS)
        start = end


def check_webp(name: str, data: bytes) -> tuple[int, int]:
    """Count the chunks of a WebP and return its size: Pillow allocates memory before it reports the size."""
    start, count = 12, 0
    while start < len(data):
        size = int.from_bytes(data[start + 4 : start + 8], "little")
        if data[start : start + 4] == b"EXIF":
            _check_exif(name, "WEBP", size)
        count += 1
        if count > CHUNKS:
            raise excess(name, f"more than {CHUNKS:,} chunks in its WEBP", CHUNKS)
        start += 8 + size + size % 2
    if data[12:16] == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if data[12:16] == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return bits % 2**14 + 1, (bits >> 14) % 2**14 + 1
    return int.from_bytes(data[26:28], "little") % 2**14, int.from_bytes(data[28:30], "little") % 2**14


def _check_exif(name: str, kind: str, size: int) -> None:
    if size > HEADER:
        raise excess(name, f"{megabytes(size)} of EXIF data in its {kind}", megabytes(HEADER))


def check_jpeg(name: str, data: bytes, size: tuple[int, int], start: int, layers: int) -> None:
    """Count the scans of a JPEG, unless libjpeg decodes only the first.

    Args:
        start: Where the coded pixels of the first scan begin.
    """
    header = data[max(0, start - 8 - 2 * layers) : start]
    whole = header[:5] == b"\xff\xda" + struct.pack(">HB", 6 + 2 * layers, layers)
    if not whole or header[-3:] != b"\0\x3f\0":  # some components or coefficients: more scans follow
        scans, arithmetic = _count_scans(name, data)
        check_scans(name, "JPEG", scans, size[0] * size[1], ARITHMETIC if arithmetic else 1)


def _count_scans(name: str, data: bytes) -> tuple[int, bool]:
    """Count from marker to marker, as libjpeg does, and return whether the coding is arithmetic."""
    scans, arithmetic, place = 0, False, 2
    for _ in range(CHUNKS):
        found = _MARKER.search(data, place)
        if found is None or found[0] == b"\xff\xd9":
            return scans, arithmetic
        place = found.end()
        marker = data[place - 1]
        if marker not in (0x01, 0xD8):  # these have no length
            place += int.from_bytes(data[place : place + 2], "big")
        scans += marker == 0xDA
        arithmetic |= marker in (0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF)
    raise excess(name, f"more than {CHUNKS:,} segments in its JPEG", CHUNKS)


def check_tiles(name: str, data: bytes, picture: Image.Image) -> None:
    """Refuse tiles that cover the image many times, and large images that Pillow decodes in Python."""
    if not isinstance(picture, ImageFile.ImageFile) or not picture.tile:
        return
    boxes = [tile.extents or (0, 0, 0, 0) for tile in picture.tile]
    area = sum(max(0, right - left) * max(0, low - top) for left, top, right, low in boxes)
    pixels = picture.width * picture.height
    times = area // pixels
    if times > 8:  # planes of 4 samples, each with an extra one
        raise excess(name, f"{len(picture.tile):,} strips or tiles that cover its pixels {times:,} times", 8)
    coding = picture.tile[0][0]
    if coding not in _SLOW:
        return
    if pixels > SLOW:
        raise DataError(
            f"{name} has {millions(pixels)} in the {_SLOW[coding]}, which decodes slowly; "
            f"at most {millions(SLOW)} are decoded; save it as PNG"
        )
    if coding == "ppm_plain" and (comments := data.count(b"#")) > COMMENTS:
        raise excess(name, f"{comments:,} comments in its PPM", COMMENTS)
    most = 4 * pixels + 2 * picture.height + 100_000  # runs or jumps of one pixel, and row ends
    if coding == "bmp_rle" and len(data) > most:
        raise excess(
            name,
            f"{len(data):,} bytes for {millions(pixels)} in the run-length form of BMP",
            f"{most:,} bytes",
        )
