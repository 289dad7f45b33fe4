"""What a source of labelled pictures turned out to be: up to three splits, one list of classes."""

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
from jaxtyping import Int8, Int32, Int64

from saccade.data.image.formats import shown
from saccade.data.pictures import Images, Store
from saccade.errors import DataError

TRAIN, VAL, TEST = 0, 1, 2
SPLITS = {
    **dict.fromkeys(("train", "training"), TRAIN),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval"), VAL),
    **dict.fromkeys(("test", "testing"), TEST),
}
WORDS = ("train", "val", "test")
LISTS = ("classes.txt", "labels.txt")
NUMBER = re.compile(r"(0|[1-9]\d{0,8})(?:\.0)?", re.ASCII)  # a table with gaps turns 3 into 3.0
NAMED = 5


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Collection:
    """Labelled pictures in up to three splits that share one list of classes."""

    train: Images
    val: Images | None = None
    test: Images | None = None
    told: str
    """One line for the person at the keyboard: what was found."""
    warnings: tuple[str, ...] = ()
    groups: Int64[np.ndarray, "n"] | None = None
    """Of each training picture: pictures of one group (a patient, a scene) never part."""

    @property
    def splits(self) -> dict[str, Images]:
        """The splits that are there, by name."""
        found = {"train": self.train, "val": self.val, "test": self.test}
        return {word: images for word, images in found.items() if images is not None}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Listed:
    """All pictures of a source as its reader found them, before the classes are put in order."""

    source: str
    """For messages, safe to print."""
    kind: str
    store: Store
    labels: Int32[np.ndarray, "n"]
    names: list[str]
    """The class of each label, in any order."""
    splits: Int8[np.ndarray, "n"]
    """TRAIN, VAL, TEST, or -1 for what is left out."""
    groups: Int64[np.ndarray, "n"] | None = None
    classes: tuple[str, ...] = ()
    """The list of classes if the source states one: labels are then places in it, and `names` is not used."""
    warnings: tuple[str, ...] = ()


def some(names: Sequence[str]) -> str:
    """Name a few of many."""
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(shown(name) for name in names[:NAMED]) + more


def plural(count: int, noun: str) -> str:
    """Return "1 picture", "2,000 pictures", "3 classes"."""
    return f"{count:,} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"


def class_name(raw: str | bytes) -> str:
    """Return a name that fits on one line of a text file; the two ways to write é on a disk become one."""
    text = raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else raw
    text = unicodedata.normalize("NFC", text)
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def split_of(file: str) -> int | None:
    """Return the split that a shard's name speaks of: train-00000-of-00002.parquet, imagenet_val_07.tar."""
    found = {SPLITS[word] for word in re.split(r"[-_.]", file.lower()) if word in SPLITS}
    return found.pop() if len(found) == 1 else None


def splits_of(files: Sequence[str]) -> list[int]:
    """Return the split of each shard; without a word of training in any name, all are for training."""
    found = []
    for file in files:
        folder, name = os.path.split(file)
        split = split_of(name)
        found.append(split_of(os.path.basename(folder)) if split is None else split)
    return [TRAIN if split is None else split for split in found] if TRAIN in found else [TRAIN] * len(files)


def numbers_of(words: Sequence[str]) -> Int32[np.ndarray, "labels"] | None:
    """Return the labels as whole numbers, if all of them are."""
    found = [NUMBER.fullmatch(word) for word in words]
    return np.array([int(match[1]) for match in found if match], np.int32) if all(found) else None


def beside(source: str, folder: Path, words: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray | None]:
    """Return the list of a classes.txt or labels.txt and each number's place in it, if labels are numbers."""
    numbers = numbers_of(words)
    file = next((folder / file for file in LISTS if (folder / file).is_file()), None)
    if numbers is None or file is None:
        return (), None
    try:
        lines = [line.strip() for line in file.read_text("utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{shown(file)} cannot be read ({error}); expected a class name a line") from error
    classes = tuple(class_name(line) for line in lines if line)
    if numbers.max() >= len(classes):
        raise DataError(
            f"{source} has the class {numbers.max()}, but {shown(file)} names {len(classes)} classes, "
            "counted from 0; complete the list or remove it"
        )
    return classes, numbers


def collect(listed: Listed, *, numbers: bool = True, least: int = 2) -> Collection:
    """Put the classes in order, part the splits, and refuse what cannot be learnt from.

    Args:
        numbers: Whether labels that are all whole numbers are ordered as such (2 before 10), not as text.
        least: The fewest classes that make sense; 1 to look at the pictures of a single one.
    """
    if not (listed.splits >= 0).any():
        raise DataError(f"{listed.source} holds no pictures; expected some of at least two classes")
    classes, place = _ordered(listed, numbers)
    labels = place[listed.labels]
    counts = np.stack([np.bincount(labels[listed.splits == s], minlength=len(classes)) for s in range(3)])
    if not counts[TRAIN].any():
        there = " and ".join(word for word, count in zip(WORDS, counts, strict=True) if count.any())
        raise DataError(f"{listed.source} has pictures only for {there}; expected some to train on")
    _check_agreement(listed.source, classes, counts)
    if np.count_nonzero(counts.sum(0)) < least:
        [only] = np.flatnonzero(counts.sum(0))
        raise DataError(
            f"{listed.source} has only one class, {shown(classes[only])}; expected two or more to tell "
            "apart; add pictures of another, or give the place where all classes are"
        )
    rows = [np.flatnonzero(listed.splits == split) for split in range(3)]
    train, val, test = (Images(listed.store, r, labels[r], classes) for r in rows)
    warnings = [*listed.warnings, *_odd_names(classes), *_missing(classes, counts)]
    if listed.groups is not None:
        warnings += _parted(listed.groups, rows)
    return Collection(
        train=train,
        val=val if len(val) else None,
        test=test if len(test) else None,
        told=_told(listed.kind, len(classes), counts.sum(1)),
        warnings=tuple(warnings),
        groups=None if listed.groups is None else listed.groups[rows[TRAIN]],
    )


def _ordered(listed: Listed, numbers: bool) -> tuple[list[str], Int32[np.ndarray, "labels"]]:
    """Return the classes and where each label has its place among them."""
    if listed.classes:
        return list(listed.classes), np.arange(len(listed.classes), dtype=np.int32)
    found = numbers_of(listed.names) if numbers else None
    names = listed.names if found is None else [str(number) for number in found]
    classes = sorted(set(names)) if found is None else sorted(set(names), key=int)
    places = {name: i for i, name in enumerate(classes)}
    return classes, np.array([places[name] for name in names], np.int32)


def _check_agreement(source: str, classes: list[str], counts: np.ndarray) -> None:
    for split in (VAL, TEST):
        strays = np.flatnonzero((counts[TRAIN] == 0) & (counts[split] > 0))
        if len(strays):
            name = classes[strays[0]]
            known = [classes[i] for i in np.flatnonzero(counts[TRAIN])]
            near = get_close_matches(name, known, n=1)
            others = f" (and {len(strays) - 1:,} more such classes)" if len(strays) > 1 else ""
            hint = f"did you mean {near[0]!r}?" if near else "add pictures of it to train, or leave it out"
            raise DataError(
                f"class {name!r} of {source} is only in {WORDS[split]}, never in train{others}; {hint}"
            )


def _odd_names(classes: list[str]) -> list[str]:
    alike: dict[str, list[str]] = defaultdict(list)
    for name in classes:
        alike[" ".join(name.split()).casefold()].append(name)
    warnings = [
        f"classes {' and '.join(map(repr, names))} differ only in capital letters or spaces and are kept "
        "apart; merge them if they mean the same"
        for names in alike.values()
        if len(set(names)) > 1
    ]
    padded = [repr(name) for name in classes if name != name.strip()]
    if padded:
        warnings.append(f"class names begin or end with a space: {some(padded)}; rename them")
    return warnings


def _missing(classes: list[str], counts: np.ndarray) -> list[str]:
    warnings = []
    for split in (TRAIN, VAL, TEST):
        absent = np.flatnonzero(counts[split] == 0)
        if len(absent) and counts[split].any():
            where = "the pictures" if split == TRAIN else WORDS[split]
            names = some([classes[i] for i in absent])
            warnings.append(f"{plural(len(absent), 'class')} without a picture in {where}: {names}")
    return warnings


def _parted(groups: np.ndarray, rows: list[np.ndarray]) -> list[str]:
    shared = {
        int(group)
        for a, b in ((TRAIN, VAL), (TRAIN, TEST), (VAL, TEST))
        for group in np.intersect1d(groups[rows[a]], groups[rows[b]])
    }
    if not shared:
        return []
    return [f"{plural(len(shared), 'group')} of pictures in more than one split; the scores will be too good"]


def _told(kind: str, classes: int, counts: np.ndarray) -> str:
    parts = [f"{word} {count:,}" for word, count in zip(WORDS, counts, strict=True) if count]
    split = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    return f"{kind}: {plural(int(counts.sum()), 'picture')} of {plural(classes, 'class')}{split}"


def nearest(path: str) -> str:
    """Return a hint at a neighbour whose name is almost the one that was given."""
    folder, name = os.path.split(os.path.abspath(path))
    try:
        near = get_close_matches(name, os.listdir(folder), n=1)
    except OSError:
        near = []
    return f"did you mean {shown(near[0])}?" if near else "check the path"
