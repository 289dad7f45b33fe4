"""How often `saccade check` finds a changed copy of a photograph again, and how many pairs it finds wrongly.

    python benchmarks/duplicates.py ../shared/data/imagenet_val_1000_224.zip MORE.zip

Of each archive at most 470 photographs are taken, evenly spread.
"""

import io
import sys
import zipfile
from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image, ImageEnhance

from saccade.check.near_duplicates import near, sketch

MOST = 470


def photographs(archives: list[str]) -> Iterator[Image.Image]:
    """The images of the archives."""
    for archive in archives:
        with zipfile.ZipFile(archive) as file:
            names = [n for n in file.namelist() if n.lower().endswith((".jpg", ".jpeg", ".png", ".webp"))]
            for name in names[:: max(1, len(names) // MOST)]:
                yield Image.open(io.BytesIO(file.read(name))).convert("RGB")


def jpeg(image: Image.Image) -> Image.Image:
    """The image after JPEG compression at quality 30."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=30)
    return Image.open(file).convert("RGB")


def half(image: Image.Image) -> Image.Image:
    """The image at half its size."""
    size = (max(1, image.width // 2), max(1, image.height // 2))
    return image.resize(size, Image.Resampling.BICUBIC)


CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG quality 30": jpeg,
    "half the size": half,
    "115% brightness": lambda image: ImageEnhance.Brightness(image).enhance(1.15),
}


def main() -> None:
    images = list(photographs(sys.argv[1:]))
    base = [sketch(image) for image in images]
    print(f"{len(images):,} photographs")
    for name, change in CHANGES.items():
        pairs = [(one, sketch(change(image))) for one, image in zip(base, images, strict=True)]
        found = sum(bool(_near([one, other])) for one, other in pairs)
        print(f"{name:16} {found / len(images):.1%} found again")
    print(f"{len(_near(base))} groups among the originals (look at them: some archives hold duplicates)")


def _near(sketches: list[tuple[int, np.ndarray]]) -> list[np.ndarray]:
    return near(np.array([h for h, _ in sketches], np.uint64), np.stack([thumb for _, thumb in sketches]))


if __name__ == "__main__":
    main()
