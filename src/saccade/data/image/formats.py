"""The bytes of a file that may be anything, and what they are."""

import errno
import os
import stat
from pathlib import Path
from typing import Protocol, runtime_checkable

from saccade.errors import DataError, check_handles
from saccade.spellings import is_url
from saccade.wording import show_name


@runtime_checkable
class Stream(Protocol):
    """An open binary file, a socket's file, an upload: anything that returns bytes."""

    def read(self, size: int, /) -> bytes: ...


Source = Path | str | bytes | Stream

BYTES = 500_000_000
EXPECTED = "expected JPEG, PNG, WebP, BMP, GIF, TIFF or PPM"

# without O_NONBLOCK, opening a pipe waits for a writer that may never come
_FLAGS = os.O_RDONLY | sum(getattr(os, flag, 0) for flag in ("O_NONBLOCK", "O_NOCTTY", "O_BINARY"))
# MPO is absent because Pillow opens it as JPEG
_FORMATS = {
    "JPEG": (b"\xff\xd8\xff",),
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "GIF": (b"GIF87a", b"GIF89a"),
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
    "BMP": (b"BM",),
    "PPM": (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6", b"P7", b"Pf"),
}
_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"}
_OTHERS = (
    (0, b"%!PS", "an EPS or PostScript drawing"),
    (0, b"\xc5\xd0\xd3\xc6", "an EPS or PostScript drawing"),
    (0, b"%PDF", "a PDF document"),
    (0, b"8BPS", "a Photoshop document"),
    (0, b"PK\x03\x04", "a zip archive"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"\x93NUMPY", "a numpy array"),
    (0, b"\0\0\1\0", "a Windows icon"),
    (0, b"\0\0\0\x0cjP", "a JPEG 2000 image"),
    (0, b"\0\0\0\x0cJXL", "a JPEG XL image"),
    (0, b"\xff\x0a", "a JPEG XL image"),
    (4, b"ftypavi", "an AVIF image"),
    (4, b"ftyphe", "a HEIC image"),
    (4, b"ftypmif1", "a HEIC image"),
    (4, b"ftyp", "a video"),
    (8, b"AVI ", "a video"),
    (0, b"\0\x05\x16\x07", "macOS metadata about another file"),
    (0, b"\0\0\0\1Bud1", "macOS metadata about a folder"),
    (0, b"\xd0\xcf\x11\xe0", "a Windows thumbnail cache or an old Office document"),
)


def read(source: Source) -> tuple[str, bytes]:
    """Return the name for messages and the whole content; open a file once and never block on it."""
    if isinstance(source, bytes):
        return "the image", _bounded("the image", source, len(source))
    if not isinstance(source, Path | str):
        label = getattr(source, "name", None)
        name = show_name(label) if label and isinstance(label, str) else "the image"
        return name, _drain(source, name)
    name = show_name(source)
    try:
        descriptor = os.open(source, _FLAGS)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise DataError(f"{name} is {_irregular(found.st_mode)}")
            _bounded(name, b"", found.st_size)
            with open(descriptor, "rb", closefd=False) as file:
                return name, _drain(file, name)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        check_handles(error)
        raise DataError(_unreadable(source, error)) from error


def _bounded(name: str, data: bytes, size: int) -> bytes:
    if size > BYTES:
        raise DataError(
            f"{name} is {size / 1e6:,.0f} MB; at most {BYTES / 1e6:,.0f} MB are read; save a smaller copy"
        )
    return data


def _drain(stream: Stream, name: str) -> bytes:
    """Read to the end, or to the limit: a stream does not know its size in advance."""
    parts: list[bytes] = []
    size = 0
    while size <= BYTES and (part := stream.read(BYTES + 1 - size)):
        if not isinstance(part, bytes):
            raise DataError(f"{name} was opened as text; expected bytes; open it with mode 'rb'")
        parts.append(part)
        size += len(part)
    return _bounded(name, parts[0] if len(parts) == 1 else b"".join(parts), size)


def _irregular(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder; expected an image; give the images inside it"
    if stat.S_ISFIFO(mode):
        return "a pipe; expected a regular file; leave it out"
    return "a device; expected a regular file; leave it out"


def _unreadable(path: Path | str, error: OSError | ValueError) -> str:
    """Say why the operating system could not open the file."""
    name, number = show_name(path), getattr(error, "errno", None)
    if number == errno.ELOOP:
        return f"{name} is a link that leads back to itself; expected an image; remove the link"
    if number in (errno.ENOENT, errno.ENOTDIR):
        if os.path.islink(path):
            return f"{name} is a link to a file that does not exist; restore the file or remove the link"
        if is_url(str(path)):
            return f"{name} is a web address; expected a file; download the image first"
        return f"{name} does not exist; expected an image; check the path"
    if number in (errno.EACCES, errno.EPERM):
        return f"you have no permission to read {name}; allow it (chmod u+r) or leave the file out"
    if number == errno.ENXIO:
        return f"{name} is a socket; expected a regular file; leave it out"
    return f"{name} cannot be read: {getattr(error, 'strerror', None) or error}; check the path and the disk"


def recognise(name: str, data: bytes) -> str:
    """Return Pillow's name of the format, by content alone; refuse what is not an image."""
    if not data:
        raise DataError(f"{name} is empty (0 bytes); {EXPECTED}; copy it again or leave it out")
    for kind, starts in _FORMATS.items():
        if data.startswith(starts):
            return kind
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    for offset, sign, found in _OTHERS:
        if data.startswith(sign, offset):
            advice = "save it as one of these" if found.endswith(("image", "drawing")) else "leave it out"
            raise DataError(f"{name} is {found}{_disguise(name)}; {EXPECTED}; {advice}")
    found, advice = _text(data)
    raise DataError(f"{name} is not an image: {found}{_disguise(name)}; {EXPECTED}; {advice}")


def _disguise(name: str) -> str:
    suffix = os.path.splitext(name)[1]
    return f" saved as {suffix}" if suffix.lower() in _SUFFIXES else ""


def _text(data: bytes) -> tuple[str, str]:
    """Name what downloads leave behind in place of an image, and what to do about it."""
    head = data[:1024].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    fetch = "download the image itself or leave it out"
    if head.startswith(b"version https://git-lfs"):
        return "a git-lfs pointer", "run `git lfs pull` to fetch the image itself"
    if head.startswith((b"<svg", b"<?xml")) and b"<svg" in head:
        return "an SVG drawing", "save it as one of these"
    if head.startswith((b"<!doctype html", b"<html", b"<head", b"<body", b"<script")):
        return "an HTML page", fetch
    if head.startswith((b"<?xml", b"<")):
        return "an XML document", fetch
    if head.startswith((b"{", b"[")):
        return "a JSON document", fetch
    if head and all(byte in b"\t\n\r\f\x1b" or byte >= 32 for byte in head) and b"\x7f" not in head:
        try:
            data[:1021].decode("utf-8")
        except UnicodeDecodeError as error:
            if error.end < min(len(data), 1021):  # our own limit may cut a character in two
                return _unknown(data)
        return "a text file", fetch
    return _unknown(data)


def _unknown(data: bytes) -> tuple[str, str]:
    return f"an unknown kind of file (it starts with {data[:4].hex(' ')})", "leave it out"
