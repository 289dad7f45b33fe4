"""Images, labelled or not, and the vectors that a model makes of them."""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int64
from PIL import Image

from saccade.data.image.decode import decode
from saccade.data.pictures import Files, Packing, Pictures
from saccade.data.readers import folders
from saccade.data.readers.open import detect, open_images
from saccade.data.splits import Splits
from saccade.errors import DataError, UsageError
from saccade.report.thumbnails import shrink
from saccade.vision.features import Extract
from saccade.wording import count, show_name

SIDES = ((500, 112), (2500, 64), (20_000, 40))
"""Up to this many images, thumbnails of this side: the page stays below 10 MB."""
PIXELS = 32
"""Side of the image whose pixels are compared."""
TINY, QUALITY, CHUNK = 32, 65, 256


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EmbedData:
    """The images to embed, by split, all of one store."""

    splits: Mapping[str, Pictures]
    labelled: bool
    summary: str
    warnings: tuple[str, ...] = ()
    collection: Splits[Pictures] | None = None
    """As the reader returned them, if they are labelled."""

    def only(self, split: str) -> "EmbedData":
        """Keep a single split."""
        if split not in self.splits:
            raise UsageError(f"the data has no split {split!r}; it has {', '.join(self.splits)}")
        chosen = {split: self.splits[split]}
        return EmbedData(splits=chosen, labelled=self.labelled, summary=self.summary, warnings=self.warnings)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Embedded:
    """A vector for each image that could be read; row i of all of these is the same image."""

    vectors: Float32[np.ndarray, "n e"]
    images: Pictures
    splits: list[str]
    labelled: bool
    unread: list[str]
    """Names of the images that could not be read."""

    @property
    def labels(self) -> Int64[np.ndarray, "n"]:
        return self.images.labels.astype(np.int64)

    @property
    def names(self) -> list[str]:
        return [self.images.name(i) for i in range(len(self.images))]

    def label(self, i: int) -> str:
        """Return the class of an image, or "" without labels."""
        return self.images.classes[self.images.labels[i]] if self.labelled else ""

    def split(self) -> tuple[Int64[np.ndarray, "r"], Int64[np.ndarray, "m"]] | None:
        """Return the rows of the reference (train) and of the queries (val, test), or None without both."""
        train = np.array([split == "train" for split in self.splits], bool)
        reference, queries = np.flatnonzero(train), np.flatnonzero(~train)
        return (reference, queries) if len(reference) and len(queries) else None


def open_pictures(source: str | Path, kind: str = "auto") -> EmbedData:
    """Open any labelled source, or a folder of images without classes."""
    path = Path(source)
    if kind in ("auto", "folders") and os.path.isdir(path) and detect(source) == "folders":
        top = folders.look(os.fsencode(path))
        if top.pictures and len(top.folders) < 2:
            return _flat(path)
        try:
            return _labelled(open_images(source, kind, least=1))
        except DataError:
            if not top.pictures:
                raise
            return _flat(path)
    return _labelled(open_images(source, kind, least=1))


def _labelled(found: Splits[Pictures]) -> EmbedData:
    return EmbedData(
        splits=found.by_name, labelled=True, summary=found.summary, warnings=found.warnings, collection=found
    )


def _flat(root: Path) -> EmbedData:
    """Return all images of a folder and its subfolders, without labels."""
    names, warnings = Packing(), []
    waiting, seen = [b""], set()
    while waiting:
        folder = waiting.pop()
        where = os.fsencode(root) + b"/" + folder
        found = os.stat(where)
        if (found.st_dev, found.st_ino) in seen:
            continue
        seen.add((found.st_dev, found.st_ino))
        try:
            inside = folders.look(where)
        except OSError as error:
            warnings.append(f"{show_name(os.fsdecode(folder))} cannot be listed: {error.strerror}; skipped")
            continue
        warnings += inside.odd
        names.extend(folder, inside.pictures)
        waiting += [folder + name + b"/" for name in reversed(inside.folders)]
    n = len(names)
    files = Files(os.fspath(root), names.packed())
    images = Pictures(files, np.arange(n), np.zeros(n, np.int32), ["unlabelled"])
    summary = f"folder: {count(n, 'image')} without labels"
    return EmbedData(splits={"train": images}, labelled=False, summary=summary, warnings=tuple(warnings))


def embed(extract: Extract, data: EmbedData) -> Embedded:
    """Run every image through the model, or read its vectors from the cache."""
    vectors, rows, labels, splits, unread = [], [], [], [], []
    done = 0
    for split, images in data.splits.items():
        found, _ = extract(images, done)
        done += -(-len(images) // extract.batch)
        vectors.append(found.vectors)
        rows.append(images.rows[found.places])
        labels.append(images.labels[found.places])
        splits += [split] * len(found.places)
        unread += [images.name(i) for i in np.setdiff1d(np.arange(len(images)), found.places)]
    first = next(iter(data.splits.values()))
    joined = Pictures(first.store, np.concatenate(rows), np.concatenate(labels), first.classes)
    return Embedded(
        vectors=np.concatenate(vectors), images=joined, splits=splits, labelled=data.labelled, unread=unread
    )


class Sketches(NamedTuple):
    """Thumbnails for the page, and raw pixels as the vectors that a model has to beat."""

    thumbs: dict[int, str]
    """Data URLs by row; none for images that could not be read again."""
    tiny: bool
    """Whether each pixel is drawn as a square."""
    pixels: Float32[np.ndarray, "n p"]


def sketch(images: Pictures, shown: set[int], side: int = PIXELS, workers: int = 2) -> Sketches:
    """Decode every image once.

    Args:
        shown: rows that need a thumbnail.
        side: of the square that the pixels are taken from.
    """
    large = next((size for most, size in SIDES if len(shown) <= most), SIDES[-1][1])

    def one(i: int) -> tuple[np.ndarray | None, str, bool]:
        try:
            picture = decode(images.open(i), enough=(2 * large, 2 * large))
        except DataError:
            return None, "", False
        small = picture.resize((side, side), Image.Resampling.BOX)
        address, tiny = shrink(picture, large, TINY, "webp", QUALITY) if i in shown else ("", False)
        return np.asarray(small, np.float32).reshape(-1) / 255, address, tiny

    pixels = np.zeros((len(images), 3 * side * side), np.float32)
    thumbs, squares = {}, 0
    with ThreadPoolExecutor(max(1, workers)) as pool:
        for start in range(0, len(images), CHUNK):
            rows = range(start, min(start + CHUNK, len(images)))
            for i, (small, address, tiny) in zip(rows, pool.map(one, rows), strict=True):
                if small is not None:
                    pixels[i] = small
                if address:
                    thumbs[i] = address
                    squares += tiny
    return Sketches(thumbs, squares * 2 > len(thumbs), pixels)
