"""Every kind of odd or damaged picture, each with what must happen: the right pixels or the right sentence.

`write(folder)` puts them all into a folder and returns {path: Odd}; `KINDS` is `GOOD` and `BAD`.
"""

import base64
import io
import json
import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, PngImagePlugin

Array = np.ndarray
FORMATS = {
    "jpg": "JPEG",
    "png": "PNG",
    "webp": "WEBP",
    "bmp": "BMP",
    "gif": "GIF",
    "tif": "TIFF",
    "ppm": "PPM",
}
# 24 x 16, written by libjpeg with arith_code = 1: Pillow reads arithmetic coding and cannot write it
ARITHMETIC = (
    "/9j/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQDQ4RDgsLEBYQERMUFRUVDA8XGBYUGBIUFRT/2wBD"
    "AQMEBAUEBQkFBQkUDQsNFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBT/yQARCAAQABgD"
    "ASIAAhEBAxEB/8wACgAQEAUBEBEF/9oADAMBAAIRAxEAPwD/AMmXPLVWIxmQE7OaaJr2yIbbzrysCh3JR0ieFYpN16e8dqoWl0r9"
    "PXjggoc6tWE+9UaYX9hVs6+ey3Vj+4j/2Q=="
)


@dataclass(frozen=True)
class Odd:
    """One file: how to make it, and the pixels it `shows` (up to `near`) or what the refusal `says`."""

    name: str
    plant: Callable[[Path], object]
    shows: Array | None = None
    near: int = 0
    says: str = ""

    @property
    def usable(self) -> bool:
        return self.shows is not None


def write(folder: Path, kinds: Iterable[Odd] | None = None) -> dict[Path, Odd]:
    """Make every kind inside the folder."""
    planted = {folder / odd.name: odd for odd in (KINDS if kinds is None else kinds)}
    for path, odd in planted.items():
        odd.plant(path)
    return planted


def scene(height: int = 32, width: int = 48) -> Array:
    """Return a smooth picture without any symmetry, so that a wrong turn cannot go unseen."""
    y, x = np.mgrid[:height, :width] / max(height, width)
    return np.stack([40 + 180 * x, 30 + 200 * y, 220 - 90 * x - 90 * y], axis=-1).astype(np.uint8)


def grey(height: int = 32, width: int = 48) -> Array:
    y, x = np.mgrid[:height, :width]
    return ((3 * x + 2 * y) % 256).astype(np.uint8)


def encode(picture: Image.Image | Array, kind: str = "PNG", **options: object) -> bytes:
    """Return the file that Pillow writes."""
    image = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def three(levels: Array) -> Array:
    """Return a grey picture as RGB."""
    return np.repeat(levels[..., None], 3, axis=-1)


def over(colours: Array, alpha: Array, background: tuple[int, int, int] = (255, 255, 255)) -> Array:
    """Return what is seen of colours through alpha on a background."""
    share = alpha[..., None] / 255
    return np.rint(colours * share + np.array(background) * (1 - share)).astype(np.uint8)


def turned(display: Array, orientation: int) -> Array:
    """Return the stored pixels that EXIF's orientation turns into the display, by the standard's table."""
    undo = {
        1: lambda a: a,
        2: np.fliplr,
        3: lambda a: np.rot90(a, 2),
        4: np.flipud,
        5: lambda a: a.swapaxes(0, 1),
        6: lambda a: np.rot90(a, 1),
        7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
        8: lambda a: np.rot90(a, -1),
    }
    return np.ascontiguousarray(undo[orientation](display))


def oriented(kind: str, orientation: int, picture: Array | None = None) -> bytes:
    """Return a file whose pixels need the turn that its EXIF block names."""
    stored = turned(scene() if picture is None else picture, orientation)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True}}.get(kind, {})
    return encode(stored, kind, exif=exif, **options)


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return one block of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_with(extra: bytes, picture: Array | None = None) -> bytes:
    """Return a PNG with blocks added after its header."""
    png = encode(scene() if picture is None else picture)
    return png[:33] + extra + png[33:]


def png_of(
    width: int, height: int, depth: int = 8, colour: int = 2, rows: bytes = b"", extra: bytes = b""
) -> bytes:
    """Return a PNG from its header and raw filtered rows; without rows it is a bomb's header."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    blocks = chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + blocks


def jpeg_with(marker: int, payload: bytes) -> bytes:
    """Return a JPEG with one more segment after its start."""
    jpeg = encode(scene(), "JPEG", quality=95, subsampling=0)
    return jpeg[:2] + bytes([0xFF, marker]) + struct.pack(">H", len(payload) + 2) + payload + jpeg[2:]


def tiff(
    width: int, height: int, bits: int, samples: int, data: bytes, photometric: int = 1, next_ifd: int = 0
) -> bytes:
    """Return a little-endian TIFF with one uncompressed strip, for depths that Pillow does not write."""
    after = 8 + 2 + 12 * 9 + 4
    depths = struct.pack(f"<{samples}H", *[bits] * samples)
    entries = [
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, samples, bits if samples == 1 else after),
        (259, 3, 1, 1),
        (262, 3, 1, photometric),
        (273, 4, 1, after + len(depths)),
        (277, 3, 1, samples),
        (278, 4, 1, height),
        (279, 4, 1, len(data)),
    ]
    table = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<IH", 8, 9) + table + struct.pack("<I", next_ifd) + depths + data


def ycck() -> bytes:
    """Return a YCCK JPEG in Adobe's way: a CMYK file that holds the inverse's YCbCr, and says so."""
    ycc = np.asarray(Image.fromarray(255 - scene()).convert("YCbCr"))
    planes = [Image.fromarray(255 - ycc[..., i]) for i in range(3)] + [Image.new("L", (48, 32), 0)]
    data = encode(Image.merge("CMYK", planes), "JPEG", quality=95)
    flag = data.index(b"Adobe") + 11
    assert data[flag] == 0
    return data[:flag] + b"\x02" + data[flag + 1 :]


def palette() -> tuple[Image.Image, Array, Array]:
    """Return a palette picture, its 16 colours and its indices."""
    colours = np.random.default_rng(5).integers(0, 256, (16, 3)).astype(np.uint8)
    y, x = np.mgrid[:32, :48]
    indices = ((x // 6 + 3 * (y // 5)) % 16).astype(np.uint8)
    picture = Image.fromarray(indices).convert("P")
    picture.putpalette(colours.tobytes())
    picture.putdata(indices.ravel().tolist())
    return picture, colours, indices


def lab() -> tuple[Image.Image, Array]:
    """Return white, mid-grey, black and sRGB's red in CIELAB (D50)."""
    values = np.array([[255, 128, 128], [137, 128, 128], [0, 128, 128], [138, 209, 198]], dtype=np.uint8)
    planes = [Image.fromarray(values[None, :, i].copy()) for i in range(3)]
    shows = np.array([[[255, 255, 255], [128, 128, 128], [0, 0, 0], [255, 0, 0]]], dtype=np.uint8)
    return Image.merge("LAB", planes), shows


def noisy(kind: str) -> bytes:
    """Return a file with enough data that a cut hits the pixels and not only the header."""
    noise = np.random.default_rng(3).integers(0, 256, (96, 128, 3)).astype(np.uint8)
    return encode(noise, kind)


def flipped(data: bytes, place: float) -> bytes:
    """Return the file with one bit changed at a fraction of its length."""
    at = int(len(data) * place)
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def _file(make: Callable[[], bytes]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(make())


def _good(name: str, make: Callable[[], bytes], shows: Array, near: int = 0) -> Odd:
    return Odd(name, _file(make), shows=shows, near=near)


def _bad(name: str, make: Callable[[], bytes], says: str) -> Odd:
    return Odd(name, _file(make), says=says)


def _ordinary() -> list[Odd]:
    y, x = np.mgrid[:16, :24]
    arithmetic = np.stack([40 + 8 * x, 40 + 10 * y, 200 - 4 * x], axis=-1).astype(np.uint8)
    best = {"quality": 95, "subsampling": 0}
    second = Image.fromarray(255 - scene())
    return [
        _good("plain.png", lambda: encode(scene()), scene()),
        _good("plain.jpg", lambda: encode(scene(), "JPEG", **best), scene(), 4),
        _good("plain.webp", lambda: encode(scene(), "WEBP", lossless=True), scene()),
        _good("plain.bmp", lambda: encode(scene(), "BMP"), scene()),
        _good("plain.tif", lambda: encode(scene(), "TIFF"), scene()),
        _good("lzw.tif", lambda: encode(scene(), "TIFF", compression="tiff_lzw"), scene()),
        _good("plain.ppm", lambda: encode(scene(), "PPM"), scene()),
        _good(
            "words.ppm",
            lambda: b"P3 2 1 255  1 2 3 4 5 66",
            np.array([[[1, 2, 3], [4, 5, 66]]], dtype=np.uint8),
        ),
        _good("wrong extension.jpg", lambda: encode(scene()), scene()),
        _good("no extension", lambda: encode(scene()), scene()),
        _good("progressive.jpg", lambda: encode(scene(), "JPEG", progressive=True, **best), scene(), 4),
        _good("arithmetic.jpg", lambda: base64.b64decode(ARITHMETIC), arithmetic, 10),
        _good("trailing.jpg", lambda: encode(scene(), "JPEG", **best) + b"x" * 1_000_000, scene(), 4),
        _good("trailing.png", lambda: encode(scene()) + b"x" * 1000, scene()),
        _good(
            "stereo.mpo",
            lambda: encode(scene(), "MPO", save_all=True, append_images=[second], **best),
            scene(),
            4,
        ),
        _good("animated.gif", _animated_gif, _blocks()),
        _good("animated.webp", lambda: _animated("WEBP", lossless=True), scene()),
        _good("animated.png", lambda: _animated("PNG"), scene()),
        _good("pages.tif", lambda: _animated("TIFF"), scene()),
        _good("1x1.png", lambda: encode(scene(1, 1)), scene(1, 1)),
        _good("wide.png", lambda: encode(scene(1, 60_000)), scene(1, 60_000)),
        _good("tall.png", lambda: encode(scene(60_000, 1)), scene(60_000, 1)),
    ]


def _blocks() -> Array:
    _, colours, indices = palette()
    return colours[indices]


def _animated(kind: str, **options: object) -> bytes:
    return encode(scene(), kind, save_all=True, append_images=[Image.fromarray(255 - scene())], **options)


def _animated_gif() -> bytes:
    first, _, indices = palette()
    second = first.copy()
    second.putdata((15 - indices).ravel().tolist())
    return encode(first, "GIF", save_all=True, append_images=[second])


def _modes() -> list[Odd]:
    cmyk = Image.fromarray(scene()).convert("CMYK")
    paletted, colours, indices = palette()
    see_through = np.linspace(0, 255, 16).astype(np.uint8)
    alpha = np.broadcast_to(np.linspace(0, 255, 48).astype(np.uint8), (32, 48))
    rgba = np.dstack([scene(), alpha])
    rgba[alpha == 0] = (255, 0, 255, 0)  # a colour that nobody may ever see
    bits = (grey() > 60).astype(np.uint8)
    lab_picture, lab_shows = lab()
    return [
        _good("cmyk.jpg", lambda: encode(cmyk, "JPEG", quality=95), scene(), 6),
        _good("cmyk.tif", lambda: encode(cmyk, "TIFF"), scene(), 1),
        _good("ycck.jpg", ycck, scene(), 8),
        _good("grey.jpg", lambda: encode(grey(), "JPEG", quality=95), three(grey()), 12),
        _good("grey.png", lambda: encode(grey()), three(grey())),
        _good("palette.png", lambda: encode(paletted), colours[indices]),
        _good("palette.gif", lambda: encode(paletted, "GIF"), colours[indices]),
        _good(
            "palette alpha.png",
            lambda: encode(paletted, transparency=see_through.tobytes()),
            over(colours[indices], see_through[indices]),
            1,
        ),
        _good(
            "palette index.gif",
            lambda: encode(paletted, "GIF", transparency=3),
            over(colours[indices], np.where(indices == 3, 0, 255)),
        ),
        _good(
            "la.png",
            lambda: encode(Image.merge("LA", [Image.fromarray(p) for p in (grey(), alpha.copy())])),
            over(three(grey()), alpha),
            1,
        ),
        _good("rgba.png", lambda: encode(rgba), over(rgba[..., :3], alpha), 1),
        _good(
            "rgba.webp",
            lambda: encode(rgba, "WEBP", lossless=True, exact=True),
            over(rgba[..., :3], alpha),
            1,
        ),
        _good("rgba.tif", lambda: encode(rgba, "TIFF"), over(rgba[..., :3], alpha), 1),
        _good(
            "key.png", lambda: encode(scene(), transparency=tuple(int(v) for v in scene()[3, 4])), _keyed()
        ),
        _good(
            "grey key.png",
            lambda: encode(grey(), transparency=9),
            over(three(grey()), np.where(grey() == 9, 0, 255)),
        ),
        _good("1 bit.png", lambda: encode(Image.fromarray(bits * 255).convert("1")), three(bits * 255)),
        _good(
            "1 bit.tif",
            lambda: encode(Image.fromarray(bits * 255).convert("1"), "TIFF", compression="group4"),
            three(bits * 255),
        ),
        _good("lab.tif", lambda: encode(lab_picture, "TIFF"), lab_shows, 6),
        _good("ycbcr.tif", lambda: encode(Image.fromarray(scene()).convert("YCbCr"), "TIFF"), scene(), 3),
    ]


def _keyed() -> Array:
    hit = (scene() == scene()[3, 4]).all(axis=-1)
    return over(scene(), np.where(hit, 0, 255))


def _deep() -> list[Odd]:
    g16 = grey().astype(np.uint16) * 256 + 77
    rgb16 = scene().astype(np.uint16) * 256 + 200
    unit = (grey() / np.float32(255)).astype(np.float32)
    rows16 = b"".join(b"\0" + row.astype(">u2").tobytes() for row in rgb16)
    key16 = chunk(b"tRNS", struct.pack(">3H", *rgb16[3, 4].tolist()))
    grey_rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in g16)
    grey_key = chunk(b"tRNS", struct.pack(">H", int(g16[0, 3])))
    keyed = over(three(grey()), np.where(grey() == grey()[0, 3], 0, 255))
    g12 = grey().astype(np.uint32) * 16 + 5
    pairs = (g12[:, 0::2] << 12) | g12[:, 1::2]
    packed = np.stack([pairs >> 16, pairs >> 8, pairs], axis=-1).astype(np.uint8).tobytes()
    return [
        _good("16 grey.png", lambda: encode(g16), three(grey())),
        _good("16 grey.tif", lambda: encode(g16, "TIFF"), three(grey())),
        _good("16 grey big endian.tif", lambda: encode(g16.astype(">u2"), "TIFF"), three(grey())),
        _good(
            "16 grey white is zero.tif",
            lambda: tiff(48, 32, 16, 1, (65535 - g16).tobytes(), 0),
            three(grey()),
        ),
        _good("12 grey.tif", lambda: tiff(48, 32, 12, 1, packed), three(grey())),
        _good("16 grey key.png", lambda: png_of(48, 32, 16, 0, grey_rows, grey_key), keyed),
        _good("32 grey.tif", lambda: encode(g16.astype(np.int32), "TIFF"), three(grey())),
        _good("16 grey.pgm", lambda: b"P5 48 32 65535\n" + g16.astype(">u2").tobytes(), three(grey())),
        _good("16 rgb.png", lambda: png_of(48, 32, 16, 2, rows16), scene()),
        _good("16 rgb key.png", lambda: png_of(48, 32, 16, 2, rows16, key16), _keyed()),
        _good("16 rgb.tif", lambda: tiff(48, 32, 16, 3, rgb16.tobytes(), 2), scene()),
        _good("16 rgb.ppm", lambda: b"P6 48 32 65535\n" + rgb16.astype(">u2").tobytes(), scene(), 1),
        _good("float.tif", lambda: encode(unit, "TIFF"), three(grey())),
        _bad("float wide.tif", lambda: encode(unit * 300 - 5, "TIFF"), "holds float samples from -5 to 23"),
        _bad("float nan.tif", lambda: encode(_with_nan(unit), "TIFF"), "holds NaN or infinite samples"),
        _bad("32 wide.tif", lambda: encode(g16.astype(np.int32) * 9, "TIFF"), "integer samples from 693 to"),
        _bad("32 negative.tif", lambda: encode(-g16.astype(np.int32), "TIFF"), "integer samples from -"),
        _bad("float rgb.tif", lambda: tiff(4, 4, 32, 3, bytes(192), 2), "starts like a TIFF, but its header"),
    ]


def _with_nan(values: Array) -> Array:
    values = values.copy()
    values[2, 2] = np.nan
    return values


def _metadata() -> list[Odd]:
    turns = [
        _good(f"exif {turn}.{suffix}", lambda kind=kind, turn=turn: oriented(kind, turn), scene(), near)
        for suffix, kind, near in (
            ("jpg", "JPEG", 4),
            ("png", "PNG", 0),
            ("tif", "TIFF", 0),
            ("webp", "WEBP", 0),
        )
        for turn in range(1, 9)
    ]
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf tiff:Orientation="6"/></x:xmpmeta>'
    info = PngImagePlugin.PngInfo()
    info.add_itxt("XML:com.adobe.xmp", xmp.decode())
    nine = Image.Exif()
    nine[0x0112] = 9
    endless = b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\x12\x01\x03\0\xff\xff\xff\xff" * 20
    looped = tiff(48, 32, 8, 3, scene().tobytes(), 2, next_ifd=8)
    return [
        *turns,
        _good("xmp 6.png", lambda: encode(turned(scene(), 6), pnginfo=info), scene()),
        _good(
            "exif broken.jpg",
            lambda: jpeg_with(0xE1, b"Exif\0\0II*\0\xff\xff\xff\x7f" + b"\xff" * 40),
            scene(),
            4,
        ),
        _good("exif endless.jpg", lambda: jpeg_with(0xE1, endless), scene(), 4),
        _good("exif orientation 9.jpg", lambda: jpeg_with(0xE1, nine.tobytes()), scene(), 4),
        _good("exif broken.png", lambda: png_with(chunk(b"eXIf", b"not EXIF at all")), scene()),
        _good(
            "exif text broken.png",
            lambda: png_with(chunk(b"tEXt", b"Raw profile type exif\0a\nb\nc\nzz")),
            scene(),
        ),
        _good(
            "icc broken.jpg", lambda: jpeg_with(0xE2, b"ICC_PROFILE\0\x01\x01" + b"\x99" * 200), scene(), 4
        ),
        _good(
            "icc broken.png",
            lambda: png_with(chunk(b"iCCP", b"name\0\0" + zlib.compress(b"\x99" * 200))),
            scene(),
        ),
        _good("icc not zlib.png", lambda: png_with(chunk(b"iCCP", b"name\0\0garbage")), scene()),
        _good("looped.tif", lambda: looped, scene()),
        _good("apng broken.png", lambda: png_with(chunk(b"acTL", struct.pack(">II", 0, 0))), scene()),
    ]


def _not_pictures() -> list[Odd]:
    page = b"\n<!DOCTYPE html>\n<html><body>404 Not Found</body></html>"
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    svg = b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n"
    return [
        _bad("empty.jpg", lambda: b"", "is empty (0 bytes)"),
        _bad("page.jpg", lambda: page, "is not an image: an HTML page saved as .jpg"),
        _bad("answer.jpg", lambda: json.dumps({"error": 404}).encode(), "a JSON document saved as .jpg"),
        _bad("pointer.png", lambda: pointer, "a git-lfs pointer saved as .png; expected JPEG, PNG"),
        _bad("drawing.png", lambda: svg, "an SVG drawing saved as .png"),
        _bad("feed.png", lambda: b"<?xml version='1.0'?><rss/>", "an XML document saved as .png"),
        _bad("notes.jpg", lambda: "Zürich, 3 h\n".encode() * 200, "a text file saved as .jpg"),
        _bad(
            "noise.jpg",
            lambda: b"\x01\x02\x03\x04\0\0",
            "an unknown kind of file (it starts with 01 02 03 04) saved as .jpg",
        ),
        _bad("latin.jpg", lambda: b"caf\xe9 \xff\xfe" * 9, "an unknown kind of file (it starts with 63 61"),
        _bad("drawing.eps", lambda: eps, "is an EPS or PostScript drawing; expected JPEG, PNG"),
        _bad("drawing.jpg", lambda: eps, "is an EPS or PostScript drawing saved as .jpg"),
        _bad("paper.jpg", lambda: b"%PDF-1.7\n", "is a PDF document saved as .jpg"),
        _bad("many.jpg", lambda: b"PK\x03\x04....", "is a zip archive saved as .jpg"),
        _bad("icon.ico", lambda: encode(scene(16, 16), "ICO"), "is a Windows icon"),
        _bad("new.avif", lambda: b"\0\0\0\x20ftypavif\0\0\0\0", "is an AVIF image; expected JPEG"),
        _bad("phone.heic", lambda: b"\0\0\0\x24ftypheic\0\0\0\0", "is a HEIC image; expected JPEG"),
        _bad("film.jpg", lambda: b"\0\0\0\x18ftypisom\0\0\0\0", "is a video saved as .jpg"),
        _bad("._x.jpg", lambda: b"\0\x05\x16\x07\0\2\0\0Mac OS X", "is macOS metadata about another file"),
        _bad(".DS_Store", lambda: b"\0\0\0\1Bud1\0\0", "is macOS metadata about a folder"),
        _bad("Thumbs.db", lambda: b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "is a Windows thumbnail cache"),
    ]


def _damaged() -> list[Odd]:
    cuts = [
        _bad(
            f"cut {percent}.{suffix}",
            lambda kind=kind, percent=percent: (d := noisy(kind))[: max(12, len(d) * percent // 100)],
            "missing",
        )
        for suffix, kind in FORMATS.items()
        for percent in (1, 20, 60, 99)
    ]
    png = encode(scene())
    data = png.index(b"IDAT")
    bomb = chunk(b"zTXt", b"note\0\0" + zlib.compress(b"0" * 5_000_000))
    return [
        *cuts,
        _bad("cut 200.jpg", lambda: noisy("JPEG")[:200], "is cut short: the JPEG ends after 200 bytes"),
        _bad(
            "cut progressive.jpg",
            lambda: encode(scene(300, 300), "JPEG", progressive=True)[:-900],
            "is cut short",
        ),
        _bad("no end.png", lambda: png[:-12], "is cut short: the PNG ends after"),
        _bad(
            "crc header.png", lambda: flipped(png, 30 / len(png)), "its IHDR block at byte 8 does not match"
        ),
        _bad("crc data.png", lambda: png[: data + 20] + b"\0\1" + png[data + 22 :], "its IDAT block at byte"),
        _bad("crc only.png", lambda: flipped(png, (len(png) - 14) / len(png)), "does not match its checksum"),
        _bad("bad zlib.png", lambda: png_of(8, 8, rows=b"\0" * 10), "missing"),
        _bad("bad body.webp", lambda: flipped_body("WEBP"), "is a damaged WEBP"),
        _bad(
            "bad header.jpg",
            lambda: b"\xff\xd8\xff\xe0\0\x10JFIF\0" + b"\xff\xc4\0\x05\x99\x99\x99" * 9,
            "JPEG",
        ),
        _bad(
            "50000.png", lambda: png_of(50_000, 50_000), "has 2,500 million pixels; at most 50 million pixels"
        ),
        _bad(
            "8000.png", lambda: png_of(8000, 8000), "has 64 million pixels (8000 x 8000); at most 50 million"
        ),
        _bad(
            "10000.gif",
            lambda: (
                b"GIF89a"
                + struct.pack("<HH", 10_000, 10_000)
                + b"\x80\0\0"
                + bytes(6)
                + b","
                + struct.pack("<4H", 0, 0, 10_000, 10_000)
                + b"\0\x02\0;"
            ),
            "has 100 million pixels",
        ),
        _bad(
            "strip.png", lambda: png_of(70_000, 1), "has a side of 70,000 pixels (70000 x 1); at most 65,535"
        ),
        _bad("text bomb.png", lambda: png_with(bomb), "hides more text in its PNG than any image needs"),
        _bad(
            "profile bomb.png",
            lambda: png_with(chunk(b"iCCP", b"n\0\0" + zlib.compress(bytes(5_000_000)))),
            "hides more text",
        ),
    ]


def flipped_body(kind: str) -> bytes:
    """Return a file of the right length whose pixels make no sense."""
    data = bytearray(encode(scene(), kind, lossless=True))
    data[30:60] = b"\xff" * 30
    return bytes(data)


def _linked(path: Path) -> None:
    (path.parent / "kept.bin").write_bytes(encode(scene()))
    path.symlink_to("kept.bin")


def _places() -> list[Odd]:
    """Names and kinds of files that are no ordinary file at all."""
    names = (
        "new\nline.png",
        "\U0001f98a.png",
        "rtl \u202egnp.png",
        "n" * 251 + ".png",
        "bad \udcff utf8.png",
    )
    return [
        *(_good(name, lambda: encode(scene()), scene()) for name in names),
        Odd("link.png", _linked, shows=scene()),
        Odd(
            "dangling.png",
            lambda path: path.symlink_to("nowhere.png"),
            says="is a link to a file that does not exist",
        ),
        Odd("loop.png", lambda path: path.symlink_to(path.name), says="is a link that leads back to itself"),
        Odd("folder.png", lambda path: path.mkdir(), says="is a folder; expected an image"),
        Odd("pipe.png", lambda path: os.mkfifo(path), says="is a pipe; expected a regular file"),
        Odd(
            "socket.png",
            lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
            says="is a socket; expected a regular",
        ),
        Odd(
            "zero.png", lambda path: path.symlink_to("/dev/zero"), says="is a device; expected a regular file"
        ),
    ]


KINDS = [*_ordinary(), *_modes(), *_deep(), *_metadata(), *_not_pictures(), *_damaged(), *_places()]
GOOD = [odd for odd in KINDS if odd.usable]
BAD = [odd for odd in KINDS if not odd.usable]
