"""Small image files that would keep a decoder busy for minutes, made here and never stored."""

import struct
import zlib

from pictures import chunk, encode, png_with, scene

MILLION = 1_000_000
PIECES = "has more than 100,000 pieces in its"


def segment(marker: int, payload: bytes) -> bytes:
    """Return one segment of a JPEG."""
    return bytes([0xFF, marker]) + struct.pack(">H", len(payload) + 2) + payload


def jpeg_scans(
    scans: int, side: int = 1000, *, arithmetic: bool = False, between: bytes = b"", tail: bytes = b"\xff\xd9"
) -> bytes:
    """Return a progressive JPEG whose scans after the second refine nothing at all, in a few bytes each.

    Args:
        between: put in front of the last scans.
    """
    blocks = ((side + 7) // 8) ** 2
    runs = "011111111111111" * -(-blocks // 32_767)  # each says: the next 32,767 blocks have no coefficient
    runs += "1" * (-len(runs) % 8)
    nothing = bytes(int(runs[i : i + 8], 2) for i in range(0, len(runs), 8)).replace(b"\xff", b"\xff\0")
    nothing = b"" if arithmetic else nothing
    head = segment(0xDB, b"\0" + bytes([1] * 64))
    head += segment(
        0xCA if arithmetic else 0xC2, struct.pack(">BHHB", 8, side, side, 1) + bytes([1, 0x11, 0])
    )
    if not arithmetic:
        head += segment(0xC4, b"\0\1" + bytes(15) + b"\0") + segment(0xC4, b"\x10\1" + bytes(15) + b"\xe0")
    first = segment(0xDA, b"\1\1\0\0\0\0") + bytes((blocks + 7) // 8)
    second = segment(0xDA, b"\1\1\0\1\x3f\1") + nothing
    refine = segment(0xDA, b"\1\1\0\1\x3f\x10") + nothing
    return b"\xff\xd8" + head + first + second + between + refine * (scans - 2) + tail


def jpeg_planes(scans: int) -> bytes:
    """Return a baseline JPEG with a scan for each of its planes, the last one many times."""
    data = encode(scene(), "JPEG")
    at = data.index(b"\xff\xda")
    single = b"".join(segment(0xDA, bytes([1, plane, 0, 0, 63, 0])) + b"\0" * 40 for plane in (1, 2))
    return data[:at] + single + (segment(0xDA, bytes([1, 3, 0, 0, 63, 0])) + b"\0" * 40) * scans + b"\xff\xd9"


def jpeg_head(extra: bytes) -> bytes:
    """Return a JPEG with bytes put behind its first two."""
    data = encode(scene(), "JPEG")
    return data[:2] + extra + data[2:]


def gif_with(extra: bytes) -> bytes:
    """Return a GIF with blocks in front of its image."""
    data = encode(scene(), "GIF")
    at = data.index(b",", 13 + (3 << ((data[10] & 7) + 1)))
    return data[:at] + extra + data[at:]


def webp_with(extra: bytes) -> bytes:
    """Return a WebP in the extended form with more chunks behind its pixels."""
    plain = encode(scene(), "WEBP", lossless=True)[12:]
    width, height = (48 - 1).to_bytes(3, "little"), (32 - 1).to_bytes(3, "little")
    body = b"WEBPVP8X" + struct.pack("<II", 10, 0) + width + height + plain + extra
    return b"RIFF" + struct.pack("<I", len(body)) + body


def webp_canvas(width: int, height: int) -> bytes:
    """Return a WebP that holds few pixels and claims many."""
    data = bytearray(webp_with(b""))
    data[24:27], data[27:30] = (width - 1).to_bytes(3, "little"), (height - 1).to_bytes(3, "little")
    return bytes(data)


def tiff_of(entries: dict[int, tuple[int, int, bytes]], *, big: bool = False, tail: bytes = b"") -> bytes:
    """Return a little-endian TIFF from {tag: (type, count, value)}; long values lie behind the table."""
    head, size, number = (16, 20, "<HHQ") if big else (8, 12, "<HHI")
    room = 8 if big else 4
    after = head + (8 if big else 2) + size * len(entries) + room
    table, values = b"", b""
    for tag, (kind, count, value) in sorted(entries.items()):
        if len(value) > room:
            place = (after + len(values)).to_bytes(room, "little")
            values += value
        else:
            place = value.ljust(room, b"\0")
        table += struct.pack(number, tag, kind, count) + place
    start = b"II+\0\x08\0\0\0" + struct.pack("<Q", 16) if big else b"II*\0" + struct.pack("<I", 8)
    many = len(entries).to_bytes(8 if big else 2, "little")
    return start + many + table + bytes(room) + values + tail


def tiff_strips(
    width: int,
    height: int,
    rows: int,
    offsets: list[int],
    counts: list[int] | None,
    compression: int = 1,
    tail: bytes = b"",
    **extra: tuple[int, int, bytes],
) -> bytes:
    """Return a grey TIFF whose strips lie where the caller says, counted from the end of its table."""

    def build(shift: int) -> bytes:
        numbers = struct.pack(f"<{len(offsets)}I", *(shift + offset for offset in offsets))
        entries = {
            256: (4, 1, struct.pack("<I", width)),
            257: (4, 1, struct.pack("<I", height)),
            258: (3, 1, struct.pack("<H", 8)),
            259: (3, 1, struct.pack("<H", compression)),
            262: (3, 1, struct.pack("<H", 1)),
            273: (4, len(offsets), numbers),
            277: (3, 1, struct.pack("<H", 1)),
            278: (4, 1, struct.pack("<I", rows)),
        }
        if counts is not None:
            entries[279] = (4, len(counts), struct.pack(f"<{len(counts)}I", *counts))
        return tiff_of(entries)

    return build(len(build(0))) + tail


def bmp_rle(width: int, height: int, stream: bytes) -> bytes:
    """Return a run-length coded BMP with a palette of 256 colours."""
    palette = bytes(byte for i in range(256) for byte in (i, 255 - i, 0, 0))
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(stream), 0, 0, 256, 0)
    start = 14 + len(info) + len(palette)
    return b"BM" + struct.pack("<IHHI", start + len(stream), 0, 0, start) + info + palette + stream


def png_idats(count: int) -> bytes:
    """Return a PNG with its pixels in blocks of one byte, and empty ones up to the count."""
    data = encode(scene())
    at = data.index(b"IDAT")
    size = int.from_bytes(data[at - 4 : at], "big")
    pixels = data[at + 4 : at + 4 + size]
    blocks = b"".join(chunk(b"IDAT", pixels[i : i + 1]) for i in range(size))
    return data[: at - 4] + blocks + chunk(b"IDAT", b"") * (count - size) + data[at + 8 + size :]


def exif_of(count: int, kind: int = 3, tag: int = 0x0112) -> bytes:
    """Return an EXIF block whose orientation has so many values."""
    return b"II*\0\x08\0\0\0\1\0" + struct.pack("<HHII", tag, kind, count, 26) + bytes(4) + b"\6\0" * count


def _tiff_cycle() -> bytes:
    """Raw strips that cover the image again and again: 20 seconds for each megabyte of their table."""
    return tiff_strips(4000, 4000, 2000, [0] * 250_000, [1] * 250_000, tail=bytes(8_000_000))


def _tiff_overlap() -> bytes:
    """Compressed strips that all read the same bytes, of which most say nothing."""
    stream = zlib.compressobj(0)
    row = stream.compress(bytes(100)) + stream.flush(zlib.Z_SYNC_FLUSH)
    data = row[:2] + b"\0\0\0\xff\xff" * 200_000 + row[2:]
    return tiff_strips(100, 60_000, 1, [0] * 60_000, [len(data)] * 60_000, 8, data)


BOMBS = {
    "scans.jpg": (lambda: jpeg_scans(20_000), "has 20,000 scans in its JPEG; at most 100"),
    "hidden scans.jpg": (
        lambda: jpeg_scans(20_000, between=segment(0xFE, b"\xff\xd9")),
        "has 20,000 scans in its JPEG",
    ),
    "large scans.jpg": (
        lambda: jpeg_scans(90, 7000),
        "has 90 scans of 49 million pixels in its JPEG; at most 20",
    ),
    "arithmetic scans.jpg": (
        lambda: jpeg_scans(90, 4000, arithmetic=True),
        "has 90 scans of 16 million pixels in its JPEG; at most 6",
    ),
    "planes.jpg": (lambda: jpeg_planes(20_000), "has 20,002 scans in its JPEG"),
    "comments.jpg": (lambda: jpeg_head(segment(0xFE, b"x") * MILLION), PIECES),
    "applications.jpg": (lambda: jpeg_head(segment(0xE5, b"") * MILLION), PIECES),
    "junk.jpg": (lambda: jpeg_head(segment(0xFE, b"") + b"x" * 20 * MILLION), PIECES),
    "padding.jpg": (lambda: jpeg_head(b"\xff" * 20 * MILLION), PIECES),
    "restarts.jpg": (lambda: jpeg_head(b"\xff\xd0" * 5 * MILLION), PIECES),
    "markers.jpg": (
        lambda: jpeg_scans(90, tail=b"\xff\x01" * 5 * MILLION),
        "has more than 100,000 segments in its JPEG",
    ),
    "exif.jpg": (
        lambda: jpeg_head(segment(0xE1, b"Exif\0\0" + bytes(65_000)) * 1500),
        "has more than 20 MB of metadata in its JPEG",
    ),
    "chunks.png": (
        lambda: png_with(chunk(b"tEXt", b"a\0b") * MILLION),
        "has more than 100,000 chunks in its PNG",
    ),
    "unknown.png": (
        lambda: png_with(chunk(b"abCd", b"") * MILLION),
        "has more than 100,000 chunks in its PNG",
    ),
    "idat.png": (lambda: png_idats(MILLION), "has more than 100,000 chunks in its PNG"),
    "ztxt.png": (
        lambda: png_with(chunk(b"zTXt", b"a\0\0" + zlib.compress(b"")) * MILLION),
        "has more than 100,000 chunks",
    ),
    "itxt.png": (
        lambda: png_with(chunk(b"iTXt", b"a\0\1\0\0\0" + zlib.compress(b"")) * MILLION),
        "has more than 100,000 chunks",
    ),
    "exif.png": (
        lambda: png_with(chunk(b"eXIf", exif_of(12 * MILLION))),
        "has 24 MB of EXIF data in its PNG; at most 20 MB",
    ),
    "exif.webp": (
        lambda: webp_with(b"EXIF" + struct.pack("<I", 24_000_026) + exif_of(12 * MILLION)),
        "has 24 MB of EXIF data in its WEBP; at most 20 MB",
    ),
    "chunks.webp": (
        lambda: webp_with((b"abcd" + bytes(4)) * MILLION),
        "has more than 100,000 chunks in its WEBP",
    ),
    "canvas.webp": (
        lambda: webp_canvas(12_000, 12_000),
        "has 144 million pixels (12000 x 12000); at most 50 million",
    ),
    "extensions.gif": (lambda: gif_with(b"!\x01\x01x\0" * MILLION), PIECES),
    "comment.gif": (lambda: gif_with(b"!\xfe" + b"\x01x" * MILLION + b"\0"), PIECES),
    "application.gif": (lambda: gif_with(b"!\xff" + b"\x01x" * MILLION + b"\0"), PIECES),
    "comment.ppm": (
        lambda: b"P6\n#" + b"x" * 50 * MILLION + b"\n4 4 255\n" + bytes(48),
        PIECES,
    ),
    "spaces.ppm": (lambda: b"P6\n" + b" " * 50 * MILLION + b"4 4 255\n" + bytes(48), PIECES),
    "notes.ppm": (
        lambda: b"P3 4 4 255\n" + b"#\n" * MILLION + b"1 " * 48,
        "has 1,000,000 comments in its PPM; at most 1,000",
    ),
    "words.ppm": (
        lambda: b"P3 5000 5000 255\n" + b"1 " * 10 * MILLION,
        "has 25 million pixels in the text form of PPM, which decodes slowly; at most 4 million",
    ),
    "runs.bmp": (
        lambda: bmp_rle(5000, 5000, b"\xff\0" * MILLION),
        "has 25 million pixels in the run-length form of BMP, which decodes slowly; at most 4 million",
    ),
    "still.bmp": (
        lambda: bmp_rle(16, 16, b"\0\2\0\0" * 5 * MILLION),
        "has 20,001,078 bytes for 256 pixels in the run-length form of BMP; at most 101,056",
    ),
    "tags.tif": (
        lambda: tiff_of(dict.fromkeys(range(300, 60_000), (3, 1, b"\1\0"))),
        "has 59,700 tags in its TIFF",
    ),
    "tags big.tif": (
        lambda: tiff_of({300: (3, 1, b"\1\0")}, big=True).replace(
            (1).to_bytes(8, "little"), (2**40).to_bytes(8, "little"), 1
        ),
        "has 1,099,511,627,776 tags in its TIFF; at most 4,096",
    ),
    "values.tif": (
        lambda: tiff_of(
            {256: (3, 1, b"\4\0"), 257: (3, 1, b"\4\0"), 258: (3, 20 * MILLION, b"\x08\1" * 20 * MILLION)}
        ),
        "has 20,000,000 values in tag 258 of its TIFF; at most 300,000",
    ),
    "cycle.tif": (_tiff_cycle, "has 250,000 strips or tiles that cover its pixels 125,000 times; at most 8"),
    "overlap.tif": (_tiff_overlap, "has 60,000 strips or tiles in its TIFF that share bytes"),
    "tile.tif": (
        lambda: tiff_of(
            {
                256: (4, 1, struct.pack("<I", 16)),
                257: (4, 1, struct.pack("<I", 16)),
                258: (3, 1, b"\x08\0"),
                259: (3, 1, b"\x08\0"),
                262: (3, 1, b"\1\0"),
                277: (3, 1, b"\1\0"),
                322: (4, 1, struct.pack("<I", 32_768)),
                323: (4, 1, struct.pack("<I", 32_768)),
                324: (4, 1, struct.pack("<I", 200)),
                325: (4, 1, struct.pack("<I", 1000)),
            },
            tail=zlib.compress(bytes(10**6)),
        ),
        "has tiles of 32768 x 32768",
    ),
    "scans.tif": (
        lambda: (data := jpeg_scans(90, 7000)) and tiff_strips(7000, 7000, 7000, [0], [len(data)], 7, data),
        "has 90 scans of 49 million pixels in its TIFF; at most 20",
    ),
}
"""Each with a part of the sentence that refuses it."""
