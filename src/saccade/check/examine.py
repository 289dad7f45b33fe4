"""Examine every image of a dataset: readable, sizes, class balance, duplicates."""

import hashlib
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Int64

from saccade.check.near_duplicates import near, same, sketch
from saccade.data.image.decode import decode, header
from saccade.data.image.formats import recognise
from saccade.data.pictures import Pictures
from saccade.data.splits import Splits
from saccade.errors import DataError
from saccade.progress import track

CHUNK = 32


@dataclass(frozen=True, slots=True)
class ImageRef:
    """One image: its split, its index there, its name and its class name."""

    split: str
    index: int
    name: str
    label: str


@dataclass(frozen=True, slots=True)
class UnreadableImage:
    """An image that cannot be read, and why."""

    place: ImageRef
    reason: str


@dataclass(frozen=True, slots=True)
class DuplicateGroup:
    """Images with the same bytes, or that look the same."""

    exact: bool
    places: tuple[ImageRef, ...]

    @property
    def across_splits(self) -> bool:
        return len({place.split for place in self.places}) > 1

    @property
    def across_labels(self) -> bool:
        return len({place.label for place in self.places}) > 1


@dataclass(frozen=True, slots=True)
class Balance:
    """The number of images of a class in each split, and how many of them cannot be read."""

    label: str
    counts: dict[str, int]
    unreadable: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """Smallest, median and largest side in pixels, and the commonest (width, height, images)."""

    width: tuple[int, int, int]
    height: tuple[int, int, int]
    common: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Examination:
    """What `examine` found."""

    full: bool
    """Whether the pixels were decoded or only the headers; near duplicates need the pixels."""
    splits: dict[str, int]
    balance: tuple[Balance, ...]
    unreadable: tuple[UnreadableImage, ...]
    sizes: Sizes
    formats: dict[str, int]
    modes: dict[str, int]
    twins: tuple[DuplicateGroup, ...]

    @property
    def pictures(self) -> int:
        return sum(self.splits.values())

    @property
    def leaks(self) -> tuple[DuplicateGroup, ...]:
        """Duplicates in two splits: the model is evaluated on images it was trained on."""
        return tuple(group for group in self.twins if group.across_splits)

    @property
    def contradictions(self) -> tuple[DuplicateGroup, ...]:
        """Duplicates under two labels: one of them is wrong."""
        return tuple(group for group in self.twins if group.across_labels)

    @property
    def duplicates(self) -> tuple[DuplicateGroup, ...]:
        """Duplicates in one split under one label: harmless unless the split is divided again."""
        return tuple(group for group in self.twins if not (group.across_splits or group.across_labels))

    @property
    def sound(self) -> bool:
        """Whether nothing needs fixing; near duplicates of one class and split, such as a burst, are fine."""
        return not (
            self.unreadable or self.leaks or self.contradictions or any(t.exact for t in self.duplicates)
        )

    def bad(self, split: str = "train") -> Int64[np.ndarray, "_"]:
        """Return the sorted indices of the unreadable images of a split."""
        found = [each.place.index for each in self.unreadable if each.place.split == split]
        return np.array(sorted(found), np.int64)

    def groups(self, split: str = "train") -> Int64[np.ndarray, "n"]:
        """Return a group number for each image of a split; duplicates share one."""
        result = np.arange(self.splits[split], dtype=np.int64)
        for group in self.twins:
            places = [place.index for place in group.places if place.split == split]
            result[places] = min(places, default=0)
        return result

    def to_json(self) -> dict[str, object]:
        """Return what JSON can hold."""
        return {"pictures": self.pictures, "sound": self.sound, **asdict(self)}


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was found in one image."""

    digest: bytes
    size: tuple[int, int] = (0, 0)
    format: str = ""
    mode: str = ""
    hash: int = 0
    thumb: bytes = bytes(256)
    reason: str = ""


def _look(images: Pictures, i: int, full: bool) -> _Seen:
    digest = b""
    try:
        stream = images.open(i)
        data = stream.getvalue()
        digest = hashlib.sha256(data).digest()
        kind = recognise(images.name(i), data)
        size, mode = header(images.name(i), data)
        if full:
            code, thumb = sketch(decode(stream))
            return _Seen(digest, size, kind, mode, code, thumb.tobytes())
        return _Seen(digest, size, kind, mode)
    except DataError as error:
        return _Seen(digest, reason=str(error))


def _look_at_all(splits: dict[str, Pictures], full: bool, workers: int) -> Iterator[_Seen]:
    """Yield what was found in every image, in order; threads suffice, as decoding releases the GIL."""
    chunks = [(images, start) for images in splits.values() for start in range(0, len(images), CHUNK)]

    stopped = threading.Event()

    def look(chunk: tuple[Pictures, int]) -> list[_Seen]:
        images, start = chunk
        rows = range(start, min(start + CHUNK, len(images)))
        return [_look(images, i, full) for i in rows if not stopped.is_set()]

    with warnings.catch_warnings(), ThreadPoolExecutor(max(1, workers)) as pool:
        warnings.filterwarnings("ignore", module=r"PIL\.")
        try:
            for begin in range(0, len(chunks), 1024):  # not all futures at once
                for seen in pool.map(look, chunks[begin : begin + 1024]):
                    yield from seen
        finally:
            stopped.set()  # after Ctrl-C, each thread stops after its current image


def examine(
    pictures: Splits[Pictures] | Pictures,
    workers: int = 2,
    full: bool = False,
) -> Examination:
    """Read every image and return what was found; no file is ever changed.

    Args:
        full: Decode every pixel, not only the headers: finds all damage and near duplicates.
    """
    splits = pictures.by_name if isinstance(pictures, Splits) else {"train": pictures}
    ends = np.cumsum([len(images) for images in splits.values()])
    words, total = list(splits), int(ends[-1])
    digests = np.zeros((total, 32), np.uint8)
    sizes = np.zeros((total, 2), np.int64)
    hashes, thumbs = np.zeros(total, np.uint64), np.zeros((total if full else 0, 16, 16), np.uint8)
    formats, modes, reasons = Counter[str](), Counter[str](), dict[int, str]()
    for i, seen in enumerate(track(_look_at_all(splits, full, workers), total, "checking")):
        if seen.digest:
            digests[i] = np.frombuffer(seen.digest, np.uint8)
        if seen.reason:
            reasons[i] = seen.reason
            continue
        sizes[i], hashes[i] = seen.size, seen.hash
        formats[seen.format] += 1
        modes[seen.mode] += 1
        if full:
            thumbs[i] = np.frombuffer(seen.thumb, np.uint8).reshape(16, 16)

    def place(row: int) -> ImageRef:
        split = int(np.searchsorted(ends, row, side="right"))
        images, index = splits[words[split]], row - int(ends[split] - len(splits[words[split]]))
        return ImageRef(words[split], index, images.name(index), images.classes[images.labels[index]])

    good = np.setdiff1d(np.arange(total), np.array(list(reasons), np.int64))
    twins = [
        DuplicateGroup(exact, tuple(place(int(row)) for row in group))
        for exact, group in _groups(good, digests, hashes, thumbs)
    ]
    return Examination(
        full=full,
        splits={word: len(images) for word, images in splits.items()},
        balance=_balance(splits, list(reasons)),
        unreadable=tuple(UnreadableImage(place(row), reason) for row, reason in reasons.items()),
        sizes=_sizes(sizes[good]),
        formats=dict(formats.most_common()),
        modes=dict(modes.most_common()),
        twins=tuple(twins),
    )


def _groups(
    good: np.ndarray, digests: np.ndarray, hashes: np.ndarray, thumbs: np.ndarray
) -> Iterator[tuple[bool, np.ndarray]]:
    """Yield (exact, rows): equal files, then look-alikes, where one file stands for all its copies."""
    keys = np.ascontiguousarray(digests[good]).view("V32").reshape(-1)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    copies = first[inverse.reshape(-1)]
    for group in same(copies):
        yield True, good[group]
    if len(thumbs):
        originals = np.unique(copies)
        for group in near(hashes[good[originals]], thumbs[good[originals]]):
            yield False, good[originals[group]]


def _balance(splits: dict[str, Pictures], bad: list[int]) -> tuple[Balance, ...]:
    classes = next(iter(splits.values())).classes
    counts = {w: np.bincount(s.labels, minlength=len(classes)) for w, s in splits.items()}
    labels = np.concatenate([images.labels for images in splits.values()])
    lost = np.bincount(labels[np.array(bad, np.int64)], minlength=len(classes))
    return tuple(
        Balance(name, {word: int(count[i]) for word, count in counts.items()}, int(lost[i]))
        for i, name in enumerate(classes)
    )


def _sizes(sizes: np.ndarray) -> Sizes:
    if not len(sizes):
        return Sizes((0, 0, 0), (0, 0, 0), ())
    width, height = (
        (int(side.min()), int(np.median(side)), int(side.max())) for side in (sizes[:, 0], sizes[:, 1])
    )
    found, counts = np.unique(sizes, axis=0, return_counts=True)
    most = np.argsort(-counts, kind="stable")[:5]
    common = tuple((int(found[i, 0]), int(found[i, 1]), int(counts[i])) for i in most)
    return Sizes(width, height, common)
