"""Images by number with their targets, a million of them without a Python object for each."""

import hashlib
import io
import os
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, SupportsIndex, runtime_checkable
from weakref import WeakKeyDictionary

import numpy as np

from saccade.data.class_names import quote
from saccade.data.image.formats import read
from saccade.data.splits import Parts, Splits, kfold, nested, stratified
from saccade.errors import DataError, UsageError
from saccade.files.digest import DIGEST, sample_digest
from saccade.shapes import Int64, Integer, UInt8, UInt64
from saccade.wording import count, show_name, some

Rows = Integer[np.ndarray, "n"]
READERS = 8
"""Threads that read samples: a disk, and even more a network, serves many reads at once."""
CHUNK = 1000
"""Images that a thread reads at a time."""


@runtime_checkable
class Store(Protocol):
    """Where encoded images are stored: plain data without open files or locks, so workers can copy it."""

    def __len__(self) -> int: ...

    def name(self, row: int, /) -> bytes:
        """Return the name below the root, as the file system or archive spells it."""

    def read(self, row: int, /) -> bytes: ...

    def size(self, row: int, /) -> int:
        """Return the size of the file in bytes, -1 if it is gone."""

    def digest(self, row: int, /) -> bytes:
        """Return a short hash of the image's bytes, or of samples of them; see `saccade.files.digest`."""


class Packed:
    """Many short byte strings in one buffer, instead of a million Python objects."""

    def __init__(self, buffer: UInt8[np.ndarray, "bytes"], ends: Int64[np.ndarray, "n"]) -> None:
        self.buffer, self.ends = buffer, ends

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> bytes:
        start = self.ends[row - 1] if row else 0
        return self.buffer[start : self.ends[row]].tobytes()


class Packing:
    """Builds a `Packed`."""

    def __init__(self) -> None:
        self.buffer, self.ends = bytearray(), array("q")

    def __len__(self) -> int:
        return len(self.ends)

    def append(self, text: bytes) -> None:
        self.buffer += text
        self.ends.append(len(self.buffer))

    def extend(self, prefix: bytes, texts: Iterable[bytes]) -> None:
        """Append each text with the prefix; one call for a folder with all its files."""
        size, end, ends = len(prefix), len(self.buffer), self.ends
        for text in texts:
            self.buffer += prefix
            self.buffer += text
            end += size + len(text)
            ends.append(end)

    def packed(self) -> Packed:
        return Packed(np.frombuffer(bytes(self.buffer), np.uint8), np.array(self.ends, np.int64))


class Files:
    """Image files below a root."""

    def __init__(self, root: str, names: Packed) -> None:
        self.root, self.names = os.path.abspath(root), names

    def __len__(self) -> int:
        return len(self.names)

    def path(self, row: int) -> str:
        """Return the whole path; an absolute name stays as it is."""
        return os.path.join(self.root, os.fsdecode(self.names[row]))

    def name(self, row: int) -> bytes:
        return self.names[row]

    def read(self, row: int) -> bytes:
        return read(self.path(row))[1]

    def size(self, row: int) -> int:
        try:
            return os.stat(self.path(row)).st_size
        except (OSError, ValueError):
            return -1

    def digest(self, row: int) -> bytes:
        return sample_digest(self.path(row))


class _Digests:
    """The digests of a store's images, each computed once for all splits and folds."""

    def __init__(self) -> None:
        self.known: WeakKeyDictionary[Store, UInt8[np.ndarray, "n b"]] = WeakKeyDictionary()

    def of(self, store: Store, rows: Rows) -> UInt8[np.ndarray, "m b"]:
        """Return a row of bytes for each image."""
        found = self.known.setdefault(store, np.zeros((len(store), DIGEST), np.uint8))
        new = rows[~found[rows].any(1)]
        parts = [part.tolist() for part in np.array_split(new, -(-len(new) // CHUNK))] if len(new) else []

        def read(part: list[int]) -> None:
            digests = b"".join(map(store.digest, part))
            found[part] = np.frombuffer(digests, np.uint8).reshape(-1, DIGEST)

        with ThreadPoolExecutor(READERS) as pool:
            list(pool.map(read, parts))
        return found[rows]


_digests = _Digests()


class _Named(io.BytesIO):
    """An encoded image with the name that messages call it by."""

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self.name = name


class Pictures:
    """Images by number: `decode(pictures.open(i))` is an image, `pictures.targets[i]` its target.

    Targets are class numbers, if there are `classes` to name them, else floats or any objects, such as boxes.
    """

    def __init__(
        self,
        store: Store,
        rows: Rows,
        targets: np.ndarray | Sequence[Any],
        classes: Sequence[str] = (),
        groups: Int64[np.ndarray, "n"] | None = None,
    ) -> None:
        assert len(rows) == len(targets)
        self.store, self.rows, self.classes = store, rows, list(classes)
        self.targets = np.asarray(targets, np.int64) if classes else array_of(targets)
        self.groups = groups
        """Images of one group (a patient, a scene) are never split up."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labels(self) -> Int64[np.ndarray, "n"]:
        """The targets, where they are class numbers."""
        assert self.classes, "these targets are not classes"
        return self.targets

    def label(self, i: SupportsIndex) -> str:
        """Return the class name of an image."""
        return self.classes[self.labels[i]]

    def read(self, i: SupportsIndex) -> bytes:
        """Return the encoded file; DataError if it has vanished or is no longer a file."""
        return self.store.read(int(self.rows[i]))

    def open(self, i: SupportsIndex) -> io.BytesIO:
        """Return what `read` gives as a stream that carries the image's name into `decode`'s messages."""
        return _Named(self.read(i), self.name(i))

    def file(self, i: SupportsIndex) -> str:
        """Return the path of an image's own file; empty if it is inside another file."""
        return self.store.path(int(self.rows[i])) if isinstance(self.store, Files) else ""

    def name(self, i: SupportsIndex) -> str:
        """Return the name below the root, safe to print."""
        return show_name(os.fsdecode(self.store.name(int(self.rows[i]))))

    def take(self, indices: Rows) -> "Pictures":
        """Return the images at these indices, in this order; the names are shared, not copied."""
        groups = None if self.groups is None else self.groups[indices]
        return Pictures(self.store, self.rows[indices], self.targets[indices], self.classes, groups)

    def join(self, other: "Pictures") -> "Pictures":
        """Return these images and then the others, which must be of the same store and classes."""
        if self.groups is not None:
            raise DataError(
                "the images have groups and a val split; folds are made of train and val together, which "
                "could split a group; mark the val images as train"
            )
        rows, targets = (
            np.concatenate([getattr(part, name) for part in (self, other)]) for name in ("rows", "targets")
        )
        return Pictures(self.store, rows, targets, self.classes)

    def split(self, share: float, seed: int) -> Splits["Pictures"]:
        """Hold out a share of every class for validation; see `stratified`."""

        strata = self._strata()
        counts = np.bincount(strata, minlength=len(self.classes))
        if counts.max(initial=0) < 2:
            raise DataError(
                f"{'every class has' if self.classes else 'there is'} a single image, so none can be held "
                "out for validation; expected two or more of each class; add images, or a val folder"
            )
        train, val = stratified(strata, share, seed, self.groups, keys=self.keys())
        lonely = [self.classes[i] for i in np.flatnonzero(counts == 1)] if self.classes else []
        notes = (f"{count(len(lonely), 'class')} with a single image, never validated: {some(lonely)}",)
        summary = f"{len(val):,} of them held out for validation (seed {seed})"
        return Splits(
            train=self.take(train), val=self.take(val), summary=summary, warnings=notes if lonely else ()
        )

    def folds(self, k: int, seed: int) -> list[Parts]:
        """Return the training and validation indices of each fold; refuse a class too small for them."""

        strata = self._strata()
        counts = np.bincount(strata, minlength=len(self.classes))
        made = kfold(strata, k, seed, self.groups)
        few = [i for i in np.flatnonzero(counts).tolist() if counts[i] < k]
        if few and self.groups is None:
            rarest = min(few, key=lambda i: int(counts[i]))
            least = int(counts[rarest])
            less = f"ask for {least} or fewer folds, or add" if least > 1 else "add"
            raise UsageError(
                f"{k} folds were asked for, but the class {show_name(self.classes[rarest])} has only "
                f"{count(least, 'image')}; {less} images of it, or leave it out"
            )
        return made

    def fewer(self, fraction: float, seed: int) -> "Pictures":
        """Return a fraction of every class; see `nested`."""
        return self.take(nested(self._strata(), fraction, seed, keys=self.keys()))

    def _strata(self) -> Int64[np.ndarray, "n"]:
        """Return what a split balances: the classes, if there are any."""
        return self.targets if self.classes else np.zeros(len(self), np.int64)

    def relabel(self, classes: Sequence[str], model: str = "the model") -> "Pictures":
        """Return the same images with their labels counted in a model's list of classes."""

        if list(classes) == self.classes:
            return self
        numbers = {name: i for i, name in enumerate(classes)}
        used = np.flatnonzero(np.bincount(self.labels, minlength=len(self.classes)))
        lost = [self.classes[i] for i in used if self.classes[i] not in numbers]
        if lost:
            raise DataError(
                f"the images have {count(len(lost), 'class')} that {model} does not know ({some(lost)}); "
                f"expected classes among its {len(classes):,} ({some(classes)}); rename or remove the others"
            )
        if len(numbers) < len(classes):
            times = Counter(classes)
            twice = [self.classes[i] for i in used if times[self.classes[i]] > 1]
            if twice:
                raise DataError(
                    f"{times[twice[0]]} of the {len(classes)} known classes are called {quote(twice[0])}, so "
                    "the images could show any of them; give each its own name"
                )
        to = np.array([numbers.get(name, -1) for name in self.classes], np.int64)
        return Pictures(self.store, self.rows, to[self.labels], classes, self.groups)

    def keys(self) -> UInt64[np.ndarray, "n"]:
        """Return a hash of each name, the same wherever the root is and whatever other files there are."""
        name = self.store.name
        digests = b"".join(hashlib.blake2b(name(row), digest_size=8).digest() for row in self.rows.tolist())
        return np.frombuffer(digests, "<u8").astype(np.uint64)

    def fingerprint(self) -> str:
        """Return the SHA-256 of names, targets and file sizes in their order, which is never the disk's."""
        total = hashlib.sha256()
        for word in self.classes:
            total.update(word.encode("utf-8", "surrogatepass") + b"\0")
        total.update(self.labels.astype("<i4").tobytes() if self.classes else _bytes_of(self.targets))
        for row in self.rows.tolist():
            name = self.store.name(row)
            total.update(b"%d %d " % (self.store.size(row), len(name)) + name)
        return total.hexdigest()

    def content(self) -> str:
        """Return the SHA-256 of samples of the files' content; it changes if two images are swapped."""
        return hashlib.sha256(_digests.of(self.store, self.rows).tobytes()).hexdigest()


def array_of(targets: np.ndarray | Sequence[Any]) -> np.ndarray:
    """Return targets as an array of numbers or of objects, which `take` can index."""
    if isinstance(targets, np.ndarray):
        return targets
    if all(isinstance(target, int | float) for target in targets):
        return np.array(targets, np.float64)
    result = np.empty(len(targets), object)
    for i, target in enumerate(targets):  # one by one: numpy would unpack lists of one length
        result[i] = target
    return result


def _bytes_of(targets: np.ndarray) -> bytes:
    if targets.dtype != object:
        return targets.astype("<f8").tobytes()
    with np.printoptions(threshold=sys.maxsize, floatmode="unique"):
        return "\0".join(map(repr, targets)).encode("utf-8", "surrogatepass")
