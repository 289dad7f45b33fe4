"""Class folders: root/cat/1.jpg, or root/train/cat/1.jpg and root/val/cat/2.jpg."""

import os
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from saccade.data.class_names import Classes
from saccade.data.image.formats import read, recognise
from saccade.data.pictures import Files, Packing, Pictures
from saccade.data.readers.listing import SPLITS, TRAIN, WORDS, Listing, collect
from saccade.data.splits import Splits
from saccade.errors import DataError, check_handles
from saccade.wording import count, show_name, some

ENDINGS = frozenset(
    b"jpg jpeg jpe jfif mpo png apng webp gif bmp dib tif tiff ppm pgm pbm pnm "
    # unsupported images, listed so that each is reported with the reason instead of skipped silently
    b"heic heif avif jxl jp2 j2k svg eps psd ico cr2 nef arw dng raw".split()
)
OTHERS = frozenset(b"txt xml json jsonl csv tsv md yaml yml html htm py log db ini npy npz tar zip".split())
IGNORED = frozenset((b"thumbs.db", b"ehthumbs.db", b"desktop.ini", b"__macosx", b"@eadir", b"lost+found"))
MOST = 1000


class Folder(NamedTuple):
    """The content of one folder, sorted: folders, images, and files that are neither."""

    folders: list[bytes]
    pictures: list[bytes]
    others: list[bytes]
    odd: list[str]
    """A sentence for each pipe, socket and device."""


def look(path: bytes) -> Folder:
    """Sort the content of one folder by kind, without opening files whose name is enough."""
    folders: list[bytes] = []
    pictures: list[bytes] = []
    others: list[bytes] = []
    odd: list[str] = []
    with os.scandir(path) as entries:
        for entry in entries:
            name = entry.name
            if name[:1] == b"." or name.lower() in IGNORED:
                continue
            try:
                if entry.is_dir():
                    folders.append(name)
                    continue
                regular = entry.is_file()
            except OSError:  # a link that leads back to itself
                regular = False
            ending = name.rpartition(b".")[2].lower()
            if not regular and (reason := _irregular(entry.path)):
                odd.append(reason)
            elif ending in ENDINGS or (ending not in OTHERS and regular and _is_picture(entry.path)):
                pictures.append(name)
            else:
                others.append(name)
    return Folder(sorted(folders), sorted(pictures), sorted(others), sorted(odd))


def _irregular(path: bytes) -> str:
    """Say what a pipe, a socket or a device is; a dangling link is reported when it is read."""
    if os.path.islink(path) and not os.path.exists(path):
        return ""
    try:
        read(os.fsdecode(path))
    except DataError as error:
        return str(error)
    return ""


def _is_picture(path: bytes) -> bool:
    """Recognise a file without a known extension by its first bytes."""
    try:
        with open(path, "rb") as file:
            recognise("the file", file.read(64))
    except (DataError, OSError) as error:
        check_handles(error)
        return False
    return True


class _Tree:
    """Collects images, labels and warnings while walking the folders."""

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.names, self.labels, self.splits = Packing(), array("i"), array("b")
        self.classes = Classes(show_name(os.fsdecode(root)))
        self.warnings: list[str] = []
        self.others: list[str] = []
        self.empty: list[str] = []

    def add(self, place: bytes, split: int) -> None:
        """Take the folders in `place` (b"" or b"train/") as classes, with all that is below each."""
        top = look(self.root + b"/" + place)
        self._note(place, top)
        for folder in top.folders:
            before = len(self.names)
            for prefix, pictures in self._walk(place + folder + b"/"):
                self.names.extend(prefix, pictures)
            if new := len(self.names) - before:
                label = self.classes.number(folder)
                self.labels.extend([label] * new)
                self.splits.extend([split] * new)
            else:
                self.empty.append(os.fsdecode(place + folder))
        if top.pictures and len(self.names):
            strays = [os.fsdecode(place + name) for name in top.pictures]
            self.warnings.append(
                f"{count(len(strays), 'image')} outside the class folders left out: {some(strays)}"
            )

    def _walk(self, start: bytes) -> Iterator[tuple[bytes, list[bytes]]]:
        """Yield every folder below, with its images; a folder that two links lead to is taken once."""
        seen: set[tuple[int, int]] = set()
        waiting = [start]
        while waiting:
            place = waiting.pop()
            path = self.root + b"/" + place
            try:
                found = os.stat(path)
                if (found.st_dev, found.st_ino) in seen:
                    self._warn(
                        f"{show_name(os.fsdecode(place))} is a link to a folder of the same class; skipped"
                    )
                    continue
                seen.add((found.st_dev, found.st_ino))
                folder = look(path)
            except OSError as error:
                check_handles(error)
                self._warn(f"{show_name(os.fsdecode(place))} cannot be listed: {error.strerror}; skipped")
                continue
            self._note(place, folder)
            waiting += [place + name + b"/" for name in reversed(folder.folders)]
            yield place, folder.pictures

    def _note(self, place: bytes, folder: Folder) -> None:
        for reason in folder.odd:
            self._warn(reason)
        if len(self.others) < MOST:
            self.others += [os.fsdecode(place + name) for name in folder.others]

    def _warn(self, text: str) -> None:
        if len(self.warnings) < MOST:
            self.warnings.append(text)

    def listing(self) -> Listing:
        if self.empty:
            self.warnings.append(
                f"{count(len(self.empty), 'class folder')} without an image left out: {some(self.empty)}"
            )
        if self.others:
            self.warnings.append(f"{count(len(self.others), 'other file')} left out: {some(self.others)}")
        self.warnings += self.classes.warnings()
        return Listing(
            source=show_name(os.fsdecode(self.root)),
            kind="class folders",
            store=Files(os.fsdecode(self.root), self.names.packed()),
            labels=np.array(self.labels, np.int32),
            names=list(self.classes.names),
            splits=np.array(self.splits, np.int8),
            warnings=tuple(self.warnings),
        )


def open_folders(root: str | Path, *, least: int = 2) -> Splits[Pictures]:
    """Read a tree of class folders, with or without train, val and test above them."""
    where = os.fsencode(root)
    try:
        top = look(where)
    except OSError as error:
        check_handles(error)
        raise DataError(f"{show_name(root)} cannot be listed: {error.strerror}; expected a folder") from error
    tree = _Tree(where)
    parts = _parts(show_name(root), where, top)
    for split, folder in parts.items():
        tree.add(folder + b"/", split)
    if parts:
        rest = [os.fsdecode(name) for name in top.folders if name not in parts.values()]
        if rest:
            tree.warnings.append(f"{count(len(rest), 'folder')} next to train left out: {some(rest)}")
    else:
        tree.add(b"", TRAIN)
    if not len(tree.names):
        raise DataError(_nothing(show_name(root), where, top, parts.values()))
    if len(tree.classes) == 1 and least > 1 and not parts:
        _check_depth(show_name(root), where, top)
    return collect(tree.listing(), numbers=False, least=least)


def _parts(root: str, where: bytes, top: Folder) -> dict[int, bytes]:
    """Return the folder of each split, or nothing where the folders are the classes themselves."""
    found: dict[int, bytes] = {}
    for folder in top.folders:
        split = SPLITS.get(os.fsdecode(folder).lower())
        if split is None:
            continue
        if split in found:
            raise DataError(
                f"{root} has both {show_name(os.fsdecode(found[split]))} and "
                f"{show_name(os.fsdecode(folder))}, which mean the same; expected one folder for "
                f"{WORDS[split]}; rename or merge one of them"
            )
        found[split] = folder
    if TRAIN not in found:
        return {}
    if len(found) == len(top.folders):
        return dict(sorted(found.items()))
    # among others, "train" may be a class, like the one of CIFAR-100: it holds images, not classes
    return dict(sorted(found.items())) if look(where + b"/" + found[TRAIN]).folders else {}


def _nothing(root: str, where: bytes, top: Folder, parts: Iterable[bytes]) -> str:
    """Say why no image was found in class folders."""
    for place, folder in [
        ("", top),
        *((os.fsdecode(part) + "/", look(where + b"/" + part)) for part in parts),
    ]:
        if folder.pictures:
            names = some([place + os.fsdecode(name) for name in folder.pictures])
            inside = f"{root}/{place[:-1]}" if place else root
            return (
                f"{count(len(folder.pictures), 'image')} directly in {inside} ({names}); expected one "
                "folder per class; move them into class folders, or write a manifest with path,label"
            )
    if not top.folders and not top.others:
        return f"{root} is empty; expected a folder for each class with images in it"
    return (
        f"{root} holds {count(len(top.folders), 'folder')} but no image; expected a folder for each "
        "class with JPEG, PNG, WebP, BMP, GIF, TIFF or PPM files in it; check the path"
    )


def _check_depth(root: str, where: bytes, top: Folder) -> None:
    """Refuse the folder above the right one, as an unpacked archive often leaves it."""
    [only] = [name for name in top.folders if any(look(where + b"/" + name)[:2])][:1] or [b""]
    below = look(where + b"/" + only) if only else top
    if only and len(below.folders) > 1 and not below.pictures:
        inside = show_name(os.path.join(root, os.fsdecode(only)))
        raise DataError(
            f"{root} has only one class, {show_name(os.fsdecode(only))}, with {len(below.folders):,} folders "
            f"in it; expected two or more classes; did you mean {inside}?"
        )
