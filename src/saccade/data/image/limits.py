"""Limits on the structure of an image besides its pixels, and the messages that refuse more."""

from saccade.errors import DataError

READS = 100_000
"""Pieces of a header, each of which Pillow reads in Python: an ordinary header has a few hundred."""
HEADER = 20_000_000
"""Bytes before the pixels of a JPEG, and in one EXIF block: depth maps from phones take 10 MB."""
CHUNKS = 100_000
"""Chunks of a PNG or WebP: 50 million 16-bit pixels take 49,000 chunks of the usual 8 KB."""
SCANS = 100
"""Scans of a JPEG: encoders write about 10, and libtiff has the same limit."""
WORK = 1_000_000_000
"""Pixels times scans of a JPEG: 20 scans of the largest image, which take 2 seconds."""
ARITHMETIC = 10
"""How many times slower a scan may be with arithmetic coding."""
TAGS = 4_096
"""Tags of a TIFF: libtiff has the same limit."""
VALUES = 300_000
"""Values of one tag of a TIFF: one-row strips in 4 planes of 65,535 rows take 262,140."""
SLOW = 4_000_000
"""Pixels in formats that Pillow decodes in Python: they take 2 to 4 seconds."""
COMMENTS = 1_000
"""Comments in a text PPM: Pillow copies up to a megabyte for each."""


def millions(pixels: int) -> str:
    """Format a number of pixels for a message."""
    return f"{pixels / 1e6:,.0f} million pixels" if pixels >= 1e6 else f"{pixels:,} pixels"


def megabytes(count: int) -> str:
    """Format a number of bytes for a message."""
    return f"{count / 1e6:,.0f} MB"


def too_many(name: str, found: int, most: int, sides: str = "") -> str:
    """Return the message for an image with too many pixels."""
    return f"{name} has {millions(found)}{sides}; at most {millions(most)} are decoded; make it smaller"


def cut_short(name: str, kind: str, data: bytes, rows: str = "") -> str:
    """Return the message for a file that ends too early."""
    return (
        f"{name} is cut short: the {kind} ends after {len(data):,} bytes and part of it is missing{rows}; "
        "copy it again or leave it out"
    )


def excess(name: str, found: str, most: object) -> DataError:
    """Return the error for an image with too much of something."""
    most = f"{most:,}" if isinstance(most, int) else most
    return DataError(
        f"{name} has {found}; at most {most} are read; save it again as an ordinary image or leave it out"
    )


def check_size(name: str, size: tuple[int, int], pixels: int, side: int) -> None:
    """Refuse an image with too many pixels or too long a side."""
    width, height = size
    if width * height > pixels:
        raise DataError(too_many(name, width * height, pixels, f" ({width} x {height})"))
    if max(size) > side:
        raise DataError(
            f"{name} has a side of {max(size):,} pixels ({width} x {height}); "
            f"at most {side:,} are decoded; cut it into pieces"
        )


def check_scans(name: str, kind: str, scans: int, pixels: int, weight: int = 1) -> None:
    """Refuse too many scans: a few bytes may cover all pixels, and libjpeg decodes them without a pause."""
    if scans > SCANS:
        raise excess(name, f"{scans:,} scans in its {kind}", SCANS)
    most = max(1, WORK // weight // max(1, pixels))
    if scans > most:
        raise excess(name, f"{scans:,} scans of {millions(pixels)} in its {kind}", most)
