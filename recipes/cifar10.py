"""Write CIFAR-10 as class folders of PNG files: python recipes/cifar10.py cifar10_lossless_webp.zip cifar10

The zip holds sprites of 100 x 100 pictures (data_batch_1.webp ... test_batch.webp), the labels as .npy and
the names of the classes; every pixel is CIFAR-10's own (Krizhevsky 2009).
"""

import io
import sys
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image


def pictures(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """The 10,000 pictures of one sprite."""
    Image.MAX_IMAGE_PIXELS = None
    with Image.open(io.BytesIO(archive.read(name))) as sprite:
        rows = np.asarray(sprite.convert("RGB")).reshape(100, 32, 100, 32, 3)
    return rows.transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3)


def write(source: Path, target: Path) -> None:
    """One folder for each split and class."""
    with zipfile.ZipFile(source) as archive:
        names = archive.read("class_names.txt").decode().split()
        sprites = {"train": [f"data_batch_{i}.webp" for i in range(1, 6)], "test": ["test_batch.webp"]}
        for split, parts in sprites.items():
            labels = np.load(io.BytesIO(archive.read(f"{split}_labels.npy")))
            found = np.concatenate([pictures(archive, part) for part in parts])
            for name in names:
                (target / split / name).mkdir(parents=True)
            for i, (picture, label) in enumerate(zip(found, labels, strict=True)):
                Image.fromarray(picture).save(target / split / names[label] / f"{i:05}.png")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
