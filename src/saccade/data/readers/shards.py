"""WebDataset shards: tars of key.jpg + key.cls (or .json, .txt), scanned once and read in place."""

import glob
import json
import os
from array import array
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

from saccade.data.class_names import Classes
from saccade.data.image.formats import BYTES
from saccade.data.pictures import Packed, Packing, Pictures
from saccade.data.readers.listing import RANGE, Listing, beside, collect, splits_of
from saccade.data.readers.tar import TarMember, members
from saccade.data.splits import Splits
from saccade.errors import DataError, check_handles
from saccade.files.digest import sample_digest
from saccade.wording import count, show_name, some

PICTURES = frozenset(
    b"jpg jpeg jpe jfif mpo png apng webp gif bmp dib tif tiff ppm pgm pbm pnm heic avif jxl jp2".split()
)
LABELS = (b"cls", b"json", b"txt")
KEYS = ("label", "cls", "class", "target", "category")
TEXT = 1_000_000
MOST = 100_000


class Shards:
    """Images inside tars, found by shard, offset and size."""

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
        what = f"{show_name(os.fsdecode(self.names[row]))} in {show_name(path)}"
        if size > BYTES:
            raise DataError(f"{what} is {size / 1e6:,.0f} MB; at most {BYTES / 1e6:,.0f} MB are read")
        try:  # opened each time: five microseconds, and nothing that a fork or a thread could share
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                data = os.pread(descriptor, size, int(self.offset[row]))
            finally:
                os.close(descriptor)
        except OSError as error:
            check_handles(error)
            raise DataError(f"{what} cannot be read: {error.strerror}; restore the shard") from error
        if len(data) != size:
            raise DataError(f"{what} is cut short: the shard has shrunk; restore it")
        return data

    def size(self, row: int) -> int:
        return int(self.length[row])

    def digest(self, row: int) -> bytes:
        return sample_digest(self.paths[self.shard[row]], int(self.offset[row]), int(self.length[row]))


def expand(pattern: str) -> list[str]:
    """Return the paths of "shard-{000..127}.tar" in order; several ranges multiply."""
    match = RANGE.search(pattern)
    if match is None:
        return [pattern]
    low, high, width = int(match[1]), int(match[2]), len(match[1])
    if low > high:
        raise DataError(f"{show_name(pattern)} counts from {low} to {high}; expected a range that goes up")
    tails = expand(pattern[match.end() :])
    if (high + 1 - low) * len(tails) > MOST:
        raise DataError(
            f"{show_name(pattern, 200)} stands for more than {MOST:,} shards; give a folder or a glob"
        )
    heads = (f"{pattern[: match.start()]}{number:0{width}}" for number in range(low, high + 1))
    return [head + tail for head in heads for tail in tails]


def _below(root: str, ending: str) -> Iterator[str]:
    """Yield the files in a folder and its subfolders; visit each once, even if several links lead there."""
    seen: set[tuple[int, int]] = set()
    for folder, folders, names in os.walk(root, followlinks=True):
        found = os.stat(folder)
        if (found.st_dev, found.st_ino) in seen:
            folders.clear()
            continue
        seen.add((found.st_dev, found.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (os.path.join(folder, name) for name in names if fnmatch(name, f"[!.]*{ending}"))


def find(source: str | Path, ending: str) -> list[str]:
    """Return the files of a brace pattern, a glob, a folder (and its subfolders), or a single file."""
    text = os.fspath(source)
    if os.path.isdir(text):
        found = sorted(_below(text, ending), key=os.fsencode)
    elif RANGE.search(text):
        found = expand(text)
    elif os.path.exists(text) or not glob.has_magic(text):
        found = [text]
    else:
        found = sorted(glob.glob(text, recursive=True), key=os.fsencode)
    lost = [path for path in found if not os.path.isfile(path)]
    if lost:
        raise DataError(
            f"{count(len(lost), 'shard')} of {show_name(text, 200)} missing: {some(lost)}; restore them"
        )
    if not found:
        raise DataError(
            f"no file matches {show_name(text, 200)}; expected shards that end in {ending}; check the pattern"
        )
    return found


class _Reading:
    """The samples of all shards while they are scanned."""

    def __init__(self, source: str) -> None:
        self.names, self.shard, self.splits = Packing(), array("i"), array("b")
        self.offset, self.length, self.labels = array("q"), array("q"), array("i")
        self.known = Classes(source)
        self.unlabelled: list[str] = []

    def add(self, path: str, shard: int, split: int) -> None:
        samples: dict[bytes, dict[bytes, TarMember]] = {}
        for member in members(path):
            folder, slash, base = member.name.rpartition(b"/")
            stem, dot, ending = base.partition(b".")
            if dot and stem:  # hidden files, such as macOS metadata, have no stem
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
                    self.unlabelled.append(f"{show_name(path)}/{show_name(os.fsdecode(picture.name))}")
                    continue
                self.names.append(picture.name)
                self.shard.append(shard)
                self.splits.append(split)
                self.offset.append(picture.offset)
                self.length.append(picture.size)
                self.labels.append(self.known.number(label))

    @staticmethod
    def _label(descriptor: int, member: TarMember | None) -> str:
        """Read the label in a .cls, .json or .txt; "" if there is none."""
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


def open_shards(source: str | Path, *, least: int = 2) -> Splits[Pictures]:
    """Read the headers of WebDataset shards into a collection: a pattern, a glob, a folder or one tar."""
    paths = find(source, ".tar")
    where, reading = show_name(source), _Reading(show_name(source))
    for shard, (path, split) in enumerate(zip(paths, splits_of(paths), strict=True)):
        reading.add(path, shard, split)
    lost = reading.unlabelled
    if not len(reading.names):
        raise DataError(
            f"{where} holds {count(len(lost), 'image')} and none with a label; expected key.jpg with "
            'key.cls, key.txt or key.json ({"label": ...}) next to it in the tar'
        )
    warnings = [f"{count(len(lost), 'image')} without a label left out: {some(lost)}"] if lost else []
    labels = np.array(reading.labels, np.int32)
    classes, places = beside(where, Path(paths[0]).parent, list(reading.known.names))
    columns = (np.array(reading.shard, np.int32), np.array(reading.offset), np.array(reading.length))
    return collect(
        Listing(
            source=where,
            kind=f"WebDataset, {count(len(paths), 'shard')}",
            store=Shards(paths, reading.names.packed(), *columns),
            labels=labels if places is None else places[labels],
            names=list(reading.known.names),
            splits=np.array(reading.splits, np.int8),
            classes=classes,
            warnings=(*warnings, *reading.known.warnings()),
        ),
        least=least,
    )
