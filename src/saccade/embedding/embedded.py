"""Pictures and the vectors that a model makes of them, labelled or not."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int64

from saccade.data.image.formats import shown
from saccade.data.pictures import Files, Images, Packing
from saccade.data.readers import folders
from saccade.data.readers.listing import Collection, plural
from saccade.data.readers.open import detect, open_images
from saccade.errors import DataError, UsageError
from saccade.vision.features import Extract


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pictures:
    """What DATA turned out to be: pictures by split, all of one store."""

    splits: Mapping[str, Images]
    labelled: bool
    told: str
    warnings: tuple[str, ...] = ()
    collection: Collection | None = None
    """Where they are labelled: as the reader of the source found them."""

    def only(self, split: str) -> "Pictures":
        """Keep a single split."""
        if split not in self.splits:
            raise UsageError(f"the data has no split {split!r}; it has {', '.join(self.splits)}")
        chosen = {split: self.splits[split]}
        return Pictures(splits=chosen, labelled=self.labelled, told=self.told, warnings=self.warnings)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Embedded:
    """A vector for each picture that could be read; row i of all of these is the same picture."""

    vectors: Float32[np.ndarray, "n e"]
    images: Images
    splits: list[str]
    labelled: bool
    unread: list[str]
    """The names of the pictures that could not be read."""

    @property
    def labels(self) -> Int64[np.ndarray, "n"]:
        return self.images.labels.astype(np.int64)

    @property
    def names(self) -> list[str]:
        return [self.images.name(i) for i in range(len(self.images))]

    def label(self, i: int) -> str:
        """The class of a picture, empty where nobody gave one."""
        return self.images.classes[self.images.labels[i]] if self.labelled else ""

    def parted(self) -> tuple[Int64[np.ndarray, "r"], Int64[np.ndarray, "m"]] | None:
        """Return the rows to compare with (train) and those to ask about (val, test), if both are there."""
        train = np.array([split == "train" for split in self.splits], bool)
        reference, queries = np.flatnonzero(train), np.flatnonzero(~train)
        return (reference, queries) if len(reference) and len(queries) else None


def open_pictures(source: str | Path, kind: str = "auto") -> Pictures:
    """Open any labelled source, or a folder that holds pictures and no classes."""
    path = Path(source)
    if kind in ("auto", "folders") and path.is_dir() and detect(source) == "folders":
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


def _labelled(found: Collection) -> Pictures:
    return Pictures(
        splits=found.splits, labelled=True, told=found.told, warnings=found.warnings, collection=found
    )


def _flat(root: Path) -> Pictures:
    """All pictures of a folder and of those below it, without labels."""
    names, warnings = Packing(), []
    waiting, seen = [b""], set()
    while waiting:
        place = waiting.pop()
        where = os.fsencode(root) + b"/" + place
        found = os.stat(where)
        if (found.st_dev, found.st_ino) in seen:
            continue
        seen.add((found.st_dev, found.st_ino))
        try:
            inside = folders.look(where)
        except OSError as error:
            warnings.append(f"{shown(os.fsdecode(place))} cannot be listed: {error.strerror}; skipped")
            continue
        warnings += inside.odd
        names.extend(place, inside.pictures)
        waiting += [place + name + b"/" for name in reversed(inside.folders)]
    count = len(names)
    images = Images(
        Files(os.fspath(root), names.packed()), np.arange(count), np.zeros(count, np.int32), ["unlabelled"]
    )
    told = f"folder: {plural(count, 'picture')} without labels"
    return Pictures(splits={"train": images}, labelled=False, told=told, warnings=tuple(warnings))


def embed(extract: Extract, pictures: Pictures) -> Embedded:
    """Send every picture through the model, or find the vectors where they were kept."""
    vectors, rows, labels, splits, unread = [], [], [], [], []
    done = 0
    for split, images in pictures.splits.items():
        found, _ = extract(images, done)
        done += -(-len(images) // extract.batch)
        vectors.append(found.vectors)
        rows.append(images.rows[found.places])
        labels.append(images.labels[found.places])
        splits += [split] * len(found.places)
        unread += [images.name(i) for i in np.setdiff1d(np.arange(len(images)), found.places)]
    first = next(iter(pictures.splits.values()))
    joined = Images(first.store, np.concatenate(rows), np.concatenate(labels), first.classes)
    return Embedded(
        vectors=np.concatenate(vectors),
        images=joined,
        splits=splits,
        labelled=pictures.labelled,
        unread=unread,
    )
