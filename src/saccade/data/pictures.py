"""Labelled pictures by number, a million of them without a Python object for each."""

import hashlib
import io
import os
from array import array
from collections.abc import Iterable, Sequence
from typing import Protocol, SupportsIndex, runtime_checkable

import numpy as np

from saccade.data.image.formats import read, shown
from saccade.errors import DataError
from saccade.shapes import Int32, Int64, Integer, UInt8, UInt64

Rows = Integer[np.ndarray, "n"]


@runtime_checkable
class Store(Protocol):
    """Where encoded pictures lie: plain data without open files or locks, so that workers can have a copy."""

    def __len__(self) -> int: ...

    def name(self, row: int, /) -> bytes:
        """The name below the root, as the file system or the archive spells it."""

    def read(self, row: int, /) -> bytes: ...

    def size(self, row: int, /) -> int:
        """The bytes that the picture takes, -1 where it is gone."""


class Packed:
    """Many short byte strings in one buffer; the list that a million Python objects would be."""

    def __init__(self, buffer: UInt8[np.ndarray, "bytes"], ends: Int64[np.ndarray, "n"]) -> None:
        self.buffer, self.ends = buffer, ends

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> bytes:
        start = self.ends[row - 1] if row else 0
        return self.buffer[start : self.ends[row]].tobytes()


class Packing:
    """A `Packed` while it grows."""

    def __init__(self) -> None:
        self.buffer, self.ends = bytearray(), array("q")

    def __len__(self) -> int:
        return len(self.ends)

    def append(self, text: bytes) -> None:
        self.buffer += text
        self.ends.append(len(self.buffer))

    def extend(self, prefix: bytes, texts: Iterable[bytes]) -> None:
        """Append each text behind the prefix; one call for a folder with all its files."""
        size, end, ends = len(prefix), len(self.buffer), self.ends
        for text in texts:
            self.buffer += prefix
            self.buffer += text
            end += size + len(text)
            ends.append(end)

    def packed(self) -> Packed:
        return Packed(np.frombuffer(bytes(self.buffer), np.uint8), np.array(self.ends, np.int64))


class Files:
    """Picture files below a root."""

    def __init__(self, root: str, names: Packed) -> None:
        self.root, self.names = os.path.abspath(root), names

    def __len__(self) -> int:
        return len(self.names)

    def path(self, row: int) -> str:
        """Return the whole path; a name that is absolute already stays as it is."""
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


class _Named(io.BytesIO):
    """An encoded picture that knows what to be called in a message."""

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self.name = name


class Images:
    """Labelled pictures by number: `decode(images.open(i))` is the picture, `images.labels[i]` its class."""

    def __init__(
        self, store: Store, rows: Rows, labels: Int32[np.ndarray, "n"], classes: Sequence[str]
    ) -> None:
        assert len(rows) == len(labels)
        self.store, self.rows, self.labels, self.classes = store, rows, labels, list(classes)

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, i: SupportsIndex) -> bytes:
        """Return the encoded file, whole; DataError names a file that has vanished or changed its kind."""
        return self.store.read(int(self.rows[i]))

    def open(self, i: SupportsIndex) -> io.BytesIO:
        """Return what `read` gives as a stream that carries the picture's name into `decode`'s messages."""
        return _Named(self.read(i), self.name(i))

    def name(self, i: SupportsIndex) -> str:
        """Return the name below the root, safe to print."""
        return shown(os.fsdecode(self.store.name(int(self.rows[i]))))

    def take(self, indices: Rows) -> "Images":
        """Return the pictures at these places, in this order; the names are shared, not copied."""
        return Images(self.store, self.rows[indices], self.labels[indices], self.classes)

    def relabel(self, classes: Sequence[str]) -> "Images":
        """Return the same pictures with their labels counted in another list, a model's, of class names."""
        places = {name: i for i, name in enumerate(classes)}
        used = np.flatnonzero(np.bincount(self.labels, minlength=len(self.classes)))
        lost = [self.classes[i] for i in used if self.classes[i] not in places]
        if lost:
            raise DataError(
                f"{len(lost)} classes of the pictures are not among the {len(classes)} known ones: "
                f"{', '.join(map(shown, lost[:5]))}; rename them or leave them out"
            )
        to = np.array([places.get(name, -1) for name in self.classes], np.int32)
        return Images(self.store, self.rows, to[self.labels], classes)

    def keys(self) -> UInt64[np.ndarray, "n"]:
        """Return a number for each name, the same wherever the root lies and whatever lies beside it."""
        name = self.store.name
        digests = b"".join(hashlib.blake2b(name(row), digest_size=8).digest() for row in self.rows.tolist())
        return np.frombuffer(digests, "<u8").astype(np.uint64)

    def fingerprint(self) -> str:
        """Return the SHA-256 of names, labels and file sizes in their order, which is never the disk's."""
        total = hashlib.sha256()
        for word in self.classes:
            total.update(word.encode("utf-8", "surrogatepass") + b"\0")
        total.update(self.labels.astype("<i4").tobytes())
        for row in self.rows.tolist():
            name = self.store.name(row)
            total.update(b"%d %d " % (self.store.size(row), len(name)) + name)
        return total.hexdigest()
