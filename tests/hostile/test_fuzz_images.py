"""Whatever is changed in an image file, `decode` gives an image or a sentence, in little time and memory."""

import base64
import struct
import zlib

import numpy as np
import pytest
from bombs import bmp_rle, gif_with, jpeg_scans, tiff_strips, webp_with
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from mutations import NUMBERS, mutated_bytes
from pictures import ARITHMETIC, encode, oriented, palette, png_of, png_with, scene, tiff, ycck
from promise import fuzz, keeps_promise

from saccade.data.image.decode import decode, header
from saccade.errors import DataError

PIXELS = 2_000_000
"""Lower than the default, so that a size changed to a large one costs little and is met often."""


def check(data: bytes) -> bool:
    """Assert the promise and return whether the pixels were reached."""
    refused = keeps_promise(lambda: decode(data, pixels=PIXELS), seconds=5, mebibytes=300)
    assert refused is None or isinstance(refused, DataError)
    unread = keeps_promise(lambda: header("x.img", data), seconds=5, mebibytes=300)
    assert refused is not None or unread is None
    return unread is None


def _chunks(png: bytes) -> list[tuple[bytes, bytes]]:
    found, start = [], 8
    while start < len(png):
        size = int.from_bytes(png[start : start + 4], "big")
        found.append((png[start + 4 : start + 8], png[start + 8 : start + 8 + size]))
        start += 12 + size
    return found


@st.composite
def mutated_png(draw: DrawFn, seed: bytes) -> bytes:
    """Chunks changed, repeated, left out or moved, with checksums that match; the pixels changed unpacked."""
    parts = _chunks(seed)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(parts) - 1))
        kind, body = parts[at]
        how = draw(st.sampled_from(("body", "body", "pixels", "kind", "repeat", "remove", "move")))
        if how == "body":
            parts[at] = kind, draw(mutated_bytes(body, 2))
        elif how == "pixels" and kind == b"IDAT":
            parts[at] = kind, zlib.compress(draw(mutated_bytes(bytes(3000), 2)))
        elif how == "kind":
            kinds = (b"IDAT", b"tRNS", b"PLTE", b"acTL", b"fcTL", b"fdAT", b"iCCP", b"iTXt", b"zTXt", b"eXIf")
            parts[at] = draw(st.sampled_from(kinds)), body
        elif how == "repeat":
            parts[at:at] = [parts[at]] * draw(st.integers(1, 50))
        elif how == "remove" and len(parts) > 1:
            del parts[at]
        else:
            parts.insert(draw(st.integers(0, len(parts) - 1)), parts.pop(at))
    blocks = (struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b)) for k, b in parts)
    return seed[:8] + b"".join(blocks)


@st.composite
def mutated_head(draw: DrawFn, seed: bytes, size: int) -> bytes:
    """Numbers and bits changed in the header alone, so that the file stays of its kind."""
    data = bytearray(seed)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(4, min(size, len(data)) - 1))
        if draw(st.booleans()):
            wide = draw(st.sampled_from((1, 2, 4)))
            value = draw(st.sampled_from(NUMBERS)) % 256**wide
            data[place : place + wide] = value.to_bytes(wide, draw(st.sampled_from(("little", "big"))))
        else:
            data[place] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)


RGB = scene()
STRIPS = tiff_strips(8, 8, 1, list(range(0, 64, 8)), [8] * 8, tail=bytes(64))
SEEDS = {
    "baseline.jpg": (encode(RGB, "JPEG"), 640),
    "progressive.jpg": (encode(RGB, "JPEG", progressive=True), 640),
    "refined.jpg": (jpeg_scans(8, 64), 200),
    "arithmetic.jpg": (base64.b64decode(ARITHMETIC), 180),
    "turned.jpg": (oriented("JPEG", 6, RGB), 100),
    "stereo.mpo": (encode(RGB, "MPO", save_all=True, append_images=[palette()[0].convert("RGB")]), 200),
    "ycck.jpg": (ycck(), 640),
    "lossy.webp": (encode(RGB, "WEBP"), 60),
    "lossless.webp": (encode(RGB, "WEBP", lossless=True), 60),
    "extended.webp": (webp_with(b"EXIF\x08\0\0\0II*\0\x08\0\0\0"), 80),
    "animated.webp": (encode(RGB, "WEBP", save_all=True, append_images=[palette()[0].convert("RGB")]), 80),
    "plain.bmp": (encode(RGB, "BMP"), 54),
    "palette.bmp": (encode(palette()[0], "BMP"), 120),
    "runs.bmp": (bmp_rle(16, 4, b"\x10\5\0\0\x08\1\0\6\1\2\3\4\5\6\0\2\1\1\4\3\0\1"), 60),
    "palette.gif": (encode(palette()[0], "GIF"), 120),
    "blocks.gif": (gif_with(b"!\xf9\4\1\0\0\3\0!\xfe\3abc\0!\xff\x0bNETSCAPE2.0\3\1\0\0\0"), 120),
    "animated.gif": (encode(palette()[0], "GIF", save_all=True, append_images=[palette()[0]]), 120),
    "plain.tif": (tiff(16, 8, 8, 3, bytes(384), 2), 130),
    "strips.tif": (STRIPS, len(STRIPS) - 64),
    "lzw.tif": (encode(RGB, "TIFF", compression="tiff_lzw"), 200),
    "deflate.tif": (encode(RGB, "TIFF", compression="tiff_adobe_deflate"), 200),
    "jpeg.tif": (encode(RGB, "TIFF", compression="jpeg"), 200),
    "zstd.tif": (encode(RGB, "TIFF", compression="zstd"), 200),
    "lzma.tif": (encode(RGB, "TIFF", compression="lzma"), 200),
    "packbits.tif": (encode(RGB, "TIFF", compression="packbits"), 200),
    "fax.tif": (encode(palette()[0].convert("1"), "TIFF", compression="group4"), 200),
    "turned.tif": (oriented("TIFF", 6, RGB), 200),
    "deep.tif": (encode(np.arange(64, dtype=np.uint16).reshape(8, 8), "TIFF"), 130),
    "colour.ppm": (encode(RGB, "PPM"), 14),
    "deep.ppm": (b"P5 8 8 4095\n" + bytes(128), 12),
    "plain.ppm": (b"P3 4 2 255 # note\n" + b"12 3 255 " * 8, 40),
    "bits.ppm": (b"P1 8 8\n" + b"10 " * 32, 40),
    "float.ppm": (b"Pf 4 4\n-1.0\n" + bytes(64), 14),
}
PNGS = {
    "plain.png": encode(RGB),
    "palette.png": encode(palette()[0], transparency=bytes(range(16))),
    "deep.png": png_of(4, 4, 16, 2, (b"\0" + bytes(24)) * 4),
    "turned.png": oriented("PNG", 6, RGB),
    "animated.png": encode(RGB, save_all=True, append_images=[palette()[0].convert("RGB")]),
    "text.png": png_with(b"", RGB),
}


@pytest.mark.parametrize("name", SEEDS)
def test_any_change_of_an_image_file_keeps_the_promise(name):
    seed, size = SEEDS[name]
    assert check(seed)
    reached = []

    @fuzz
    @given(st.one_of(mutated_head(seed, size), mutated_head(seed, size), mutated_bytes(seed)))
    def change(data):
        reached.append(check(data))

    change()
    assert sum(reached) > len(reached) // 20  # deep enough


@pytest.mark.parametrize("name", PNGS)
def test_any_change_of_a_png_with_checksums_that_match_keeps_the_promise(name):
    seed = PNGS[name]
    assert check(seed)
    reached = []

    @fuzz
    @given(st.one_of(mutated_png(seed), mutated_png(seed), mutated_png(seed), mutated_bytes(seed)))
    def change(data):
        reached.append(check(data))

    change()
    assert sum(reached) > len(reached) // 20
