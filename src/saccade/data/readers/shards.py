"""WebDataset shards: tars of key.jpg + key.cls (or .json, .txt), scanned once and read in place."""

import glob
import json
import os
import re
from array import array
from pathlib import Path

import numpy as np

from saccade.data.image.formats import BYTES, shown
from saccade.data.pictures import Packed, Packing
from saccade.data.readers.listing import (
    Collection,
    Listed,
    beside,
    class_name,
    collect,
    plural,
    some,
    splits_of,
)
from saccade.data.readers.tar import Member, members
from saccade.errors import DataError

PICTURES = frozenset(
    b"jpg jpeg jpe jfif mpo png apng webp gif bmp dib tif tiff ppm pgm pbm pnm heic avif jxl jp2".split()
)
LABELS = (b"cls", b"json", b"txt")
KEYS = ("label", "cls", "class", "target", "category")
TEXT = 1_000_000
RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
MOST = 100_000


class Shards:
    """Pictures inside of tars, found by shard, offset and size."""

    def __init__(
        self, paths: list[str], names: Packed, shard: np.ndarray, offset: np.ndarray, length: np.ndarray
    ) -> None:
        self.paths, self.names = [os.path.abspath(path) for path in paths], names
        self.shard, self.offset, self.length = shard, offset, length

    def __len__(self) -> int:
        return len(self.names)

    def name(self, row: int) -> bytes:
        return os.fsencode(os.path.basename(self.paths[self.shard[row]])) + b"/" + self.names[row]

    def read(self, row: int) -> bytes:
        path = self.paths[self.shard[row]]
        size = int(self.length[row])
        what = f"{shown(os.fsdecode(self.names[row]))} in {shown(path)}"
        if size > BYTES:
            raise DataError(f"{what} has {size / 1e6:,.0f} MB; at most {BYTES / 1e6:,.0f} MB are read")
        try:  # opened each time: five microseconds, and nothing that a fork or a thread could share
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                data = os.pread(descriptor, size, int(self.offset[row]))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise DataError(f"{what} cannot be read: {error.strerror}; bring the shard back") from error
        if len(data) != size:
            raise DataError(f"{what} is cut short: the shard became smaller; bring it back as it was")
        return data

    def size(self, row: int) -> int:
        return int(self.length[row])


def expand(pattern: str) -> list[str]:
    """Return the paths of "shard-{000..127}.tar" in order; several ranges multiply."""
    match = RANGE.search(pattern)
    if match is None:
        return [pattern]
    low, high, width = int(match[1]), int(match[2]), len(match[1])
    if not low <= high < low + MOST:
        raise DataError(f"{shown(pattern)} counts from {low} to {high}; expected a range that goes up")
    heads = (f"{pattern[: match.start()]}{number:0{width}}" for number in range(low, high + 1))
    return [head + tail for head in heads for tail in expand(pattern[match.end() :])]


def find(source: str | Path, ending: str) -> list[str]:
    """Return the files of a brace pattern, a glob, a folder (and its folders), or the one that is meant."""
    text = os.fspath(source)
    if os.path.isdir(text):
        inside = os.path.join(glob.escape(text), "**", f"*{ending}")
        found = sorted(glob.glob(inside, recursive=True), key=os.fsencode)
    elif RANGE.search(text):
        found = expand(text)
    elif os.path.exists(text) or not glob.has_magic(text):
        found = [text]
    else:
        found = sorted(glob.glob(text, recursive=True), key=os.fsencode)
    lost = [path for path in found if not os.path.isfile(path)]
    if lost:
        raise DataError(
            f"{plural(len(lost), 'shard')} of {shown(text)} not there: {some(lost)}; bring them back"
        )
    if not found:
        raise DataError(
            f"no file matches {shown(text)}; expected shards that end in {ending}; check the pattern"
        )
    return found


class _Reading:
    """The samples of all shards while they are scanned."""

    def __init__(self) -> None:
        self.names, self.shard, self.splits = Packing(), array("i"), array("b")
        self.offset, self.length, self.labels = array("q"), array("q"), array("i")
        self.known: dict[str, int] = {}
        self.unlabelled: list[str] = []

    def add(self, path: str, shard: int, split: int) -> None:
        samples: dict[bytes, dict[bytes, Member]] = {}
        for member in members(path):
            folder, slash, base = member.name.rpartition(b"/")
            stem, dot, ending = base.partition(b".")
            if dot and stem:  # hidden files, and macOS's notes among them, have no stem
                samples.setdefault(folder + slash + stem, {}).setdefault(ending.lower(), member)
        with open(path, "rb") as file:
            for parts in samples.values():
                picture = next(
                    (member for ending, member in parts.items() if _last(ending) in PICTURES), None
                )
                if picture is None:
                    continue
                label = next(
                    (found for kind in LABELS if (found := self._label(file.fileno(), parts.get(kind)))), ""
                )
                if not label:
                    self.unlabelled.append(f"{shown(path)}/{shown(os.fsdecode(picture.name))}")
                    continue
                self.names.append(picture.name)
                self.shard.append(shard)
                self.splits.append(split)
                self.offset.append(picture.offset)
                self.length.append(picture.size)
                self.labels.append(self.known.setdefault(class_name(label), len(self.known)))

    @staticmethod
    def _label(descriptor: int, member: Member | None) -> str:
        """Read a label out of a .cls, .json or .txt; what makes no sense is no label."""
        if member is None or member.size > TEXT:
            return ""
        data = os.pread(descriptor, member.size, member.offset)
        try:
            text = data.decode("utf-8-sig").strip()
            if not member.name.lower().endswith(b".json"):
                return text if "\n" not in text else ""
            found = json.loads(text)
        except (ValueError, RecursionError):
            return ""
        found = next((found[key] for key in KEYS if key in found), "") if isinstance(found, dict) else found
        return str(found).strip() if isinstance(found, str | int) and not isinstance(found, bool) else ""


def _last(ending: bytes) -> bytes:
    return ending.rpartition(b".")[2]


def open_shards(source: str | Path, *, least: int = 2) -> Collection:
    """Read the headers of WebDataset shards into a collection: a pattern, a glob, a folder or one tar."""
    paths = find(source, ".tar")
    reading = _Reading()
    for shard, (path, split) in enumerate(zip(paths, splits_of(paths), strict=True)):
        reading.add(path, shard, split)
    where, lost = shown(source), reading.unlabelled
    if not len(reading.names):
        raise DataError(
            f"{where} holds {plural(len(lost), 'picture')} and not one with a label; expected key.jpg with "
            'key.cls, key.txt or key.json ({"label": ...}) beside it in the tar'
        )
    warnings = [f"{plural(len(lost), 'picture')} without a label left out: {some(lost)}"] if lost else []
    labels = np.array(reading.labels, np.int32)
    classes, places = beside(where, Path(paths[0]).parent, list(reading.known))
    columns = (np.array(reading.shard, np.int32), np.array(reading.offset), np.array(reading.length))
    return collect(
        Listed(
            source=where,
            kind=f"WebDataset, {plural(len(paths), 'shard')}",
            store=Shards(paths, reading.names.packed(), *columns),
            labels=labels if places is None else places[labels],
            names=list(reading.known),
            splits=np.array(reading.splits, np.int8),
            classes=classes,
            warnings=tuple(warnings),
        ),
        least=least,
    )
