"""What a source of labelled images turned out to be: up to three splits, one list of classes."""

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int8, Int32, Int64

from saccade.data.class_names import check_list, class_name, quote
from saccade.data.pictures import Pictures, Store
from saccade.data.splits import Splits
from saccade.errors import DataError, check_handles, did_you_mean
from saccade.wording import count, show_name, some

TRAIN, VAL, TEST = 0, 1, 2
HUB = "hf:"
"""What the name of a dataset on the hub starts with."""
RANGE = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}", re.ASCII)
"""A range of shards, as in train-{000..127}.tar."""
SPLITS = {
    **dict.fromkeys(("train", "training"), TRAIN),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval"), VAL),
    **dict.fromkeys(("test", "testing"), TEST),
}
WORDS = ("train", "val", "test")
LISTS = ("classes.txt", "labels.txt")
NUMBER = re.compile(r"(0|[1-9]\d{0,8})(?:\.0)?", re.ASCII)  # a table with gaps turns 3 into 3.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Listing:
    """All images of a source as its reader found them, before the classes are put in order."""

    source: str
    """For messages, safe to print."""
    kind: str
    store: Store
    labels: Int32[np.ndarray, "n"]
    names: list[str]
    """The class of each label, in any order."""
    splits: Int8[np.ndarray, "n"]
    """TRAIN, VAL, TEST, or -1 for images that are left out."""
    groups: Int64[np.ndarray, "n"] | None = None
    classes: tuple[str, ...] = ()
    """The list of classes if the source has one: labels are then indices into it, and `names` is unused."""
    warnings: tuple[str, ...] = ()


def split_of(file: str) -> int | None:
    """Return the split that a shard's name mentions: train-00000-of-00002.parquet, imagenet_val_07.tar."""
    found = {SPLITS[word] for word in re.split(r"[-_.]", file.lower()) if word in SPLITS}
    return found.pop() if len(found) == 1 else None


def splits_of(files: Sequence[str]) -> list[int]:
    """Return the split of each shard; if no name mentions training, all are for training."""
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
    """Return the list of a classes.txt or labels.txt and each number's index in it, if labels are numbers."""
    numbers = numbers_of(words)
    file = next((folder / file for file in LISTS if (folder / file).is_file()), None)
    if numbers is None or file is None:
        return (), None
    try:
        lines = [line.strip() for line in file.read_text("utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        check_handles(error)
        raise DataError(
            f"{show_name(file)} cannot be read ({error}); expected one class name per line"
        ) from error
    classes = tuple(class_name(line) for line in lines if line)
    if numbers.max() >= len(classes):
        raise DataError(
            f"{source} has the class {numbers.max()}, but {show_name(file)} names {len(classes)} classes, "
            "counted from 0; complete the list or remove it"
        )
    check_list(classes, show_name(file))
    return classes, numbers


def collect(listing: Listing, *, numbers: bool = True, least: int = 2) -> Splits[Pictures]:
    """Sort the classes, form the splits, and refuse what cannot be trained on.

    Args:
        numbers: Whether labels that are all whole numbers are ordered as such (2 before 10), not as text.
        least: The fewest classes that make sense; 1 to look at the images of a single one.
    """
    if not (listing.splits >= 0).any():
        raise DataError(f"{listing.source} has no images; expected images of at least two classes")
    classes, place = _ordered(listing, numbers)
    labels = place[listing.labels]
    counts = np.stack([np.bincount(labels[listing.splits == s], minlength=len(classes)) for s in range(3)])
    if not counts[TRAIN].any():
        there = " and ".join(word for word, count in zip(WORDS, counts, strict=True) if count.any())
        raise DataError(f"{listing.source} has images only for {there}; expected some to train on")
    _check_agreement(listing.source, classes, counts)
    if np.count_nonzero(counts.sum(0)) < least:
        [only] = np.flatnonzero(counts.sum(0))
        raise DataError(
            f"{listing.source} has only one class, {show_name(classes[only], 80)}; expected two or more; "
            "add images of another, or give the folder that holds all classes"
        )
    return divide(listing, labels, classes, (*_odd_names(classes), *_missing(classes, counts)))


def divide(
    listing: Listing, targets: np.ndarray, classes: Sequence[str] = (), warnings: Sequence[str] = ()
) -> Splits[Pictures]:
    """Return the images in their splits, each with its target."""
    rows = [np.flatnonzero(listing.splits == split) for split in range(3)]
    groups = None if listing.groups is None else listing.groups[rows[TRAIN]]
    train = Pictures(listing.store, rows[TRAIN], targets[rows[TRAIN]], classes, groups)
    val, test = (Pictures(listing.store, r, targets[r], classes) for r in rows[VAL:])
    shared = [] if listing.groups is None else _in_two_splits(listing.groups, rows)
    return Splits(
        train=train,
        val=val if len(val) else None,
        tests={"test": test} if len(test) else {},
        summary=_summary(listing.kind, len(classes), [len(r) for r in rows]),
        warnings=(*listing.warnings, *warnings, *shared),
    )


def _ordered(listing: Listing, numbers: bool) -> tuple[list[str], Int32[np.ndarray, "labels"]]:
    """Return the classes, and the index of each label among them."""
    if listing.classes:
        check_list(listing.classes, listing.source)
        return list(listing.classes), np.arange(len(listing.classes), dtype=np.int32)
    found = numbers_of(listing.names) if numbers else None
    names = listing.names if found is None else [str(number) for number in found]
    classes = sorted(set(names)) if found is None else sorted(set(names), key=int)
    places = {name: i for i, name in enumerate(classes)}
    return classes, np.array([places[name] for name in names], np.int32)


def _check_agreement(source: str, classes: list[str], counts: np.ndarray) -> None:
    for split in (VAL, TEST):
        strays = np.flatnonzero((counts[TRAIN] == 0) & (counts[split] > 0))
        if len(strays):
            name = classes[strays[0]]
            known = [classes[i] for i in np.flatnonzero(counts[TRAIN])]
            others = f" (and {len(strays) - 1:,} more such classes)" if len(strays) > 1 else ""
            hint = did_you_mean(name, known, "; add images of it to train, or leave it out", show=quote)
            raise DataError(
                f"class {quote(name)} of {source} is only in {WORDS[split]}, never in train{others}{hint}"
            )


def _odd_names(classes: list[str]) -> list[str]:
    alike: dict[str, list[str]] = defaultdict(list)
    for name in classes:
        alike[name.casefold()].append(name)
    return [
        f"classes {' and '.join(map(quote, names))} differ only in case and are kept apart; merge "
        "them if they mean the same"
        for names in alike.values()
        if len(set(names)) > 1
    ]


def _missing(classes: list[str], counts: np.ndarray) -> list[str]:
    warnings = []
    for split in (TRAIN, VAL, TEST):
        absent = np.flatnonzero(counts[split] == 0)
        if len(absent) and counts[split].any():
            where = "" if split == TRAIN else f" in {WORDS[split]}"
            names = some([classes[i] for i in absent])
            warnings.append(f"{count(len(absent), 'class')} without an image{where}: {names}")
    return warnings


def _in_two_splits(groups: np.ndarray, rows: list[np.ndarray]) -> list[str]:
    shared = {
        int(group)
        for a, b in ((TRAIN, VAL), (TRAIN, TEST), (VAL, TEST))
        for group in np.intersect1d(groups[rows[a]], groups[rows[b]])
    }
    if not shared:
        return []
    return [f"{count(len(shared), 'group')} of images in more than one split; the scores will be too high"]


def _summary(kind: str, classes: int, counts: Sequence[int]) -> str:
    parts = [f"{word} {count:,}" for word, count in zip(WORDS, counts, strict=True) if count]
    split = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    of = f" of {count(classes, 'class')}" if classes else ""
    return f"{kind}: {count(sum(counts), 'image')}{of}{split}"


def nearest(path: str) -> str:
    """Return a hint at a neighbour with almost the given name."""
    folder, name = os.path.split(os.path.abspath(path))
    try:
        beside = os.listdir(folder)
    except OSError:
        beside = []
    return did_you_mean(name, beside, "check the path", show=show_name, lead="")
