"""Folds of a collection: every picture is held out once; and the answers that were given to it then."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from saccade.data.image.formats import shown
from saccade.data.pictures import Images
from saccade.data.readers.listing import Collection, plural, some
from saccade.data.splits import Parts, kfold
from saccade.errors import DataError, ModelError, UsageError
from saccade.files.atomic import write_text

PREDICTIONS = "predictions.csv"


@dataclass(frozen=True, slots=True)
class Fold:
    """Which part of the pictures is held out: the first is 1; 0 is none, to learn from all of them."""

    number: int
    of: int


class Answer(NamedTuple):
    """A line of predictions.csv; a picture that could not be read has no answer."""

    name: str
    label: str
    predicted: str
    score: str
    fold: int


def pool(found: Collection) -> Collection:
    """Put train and val together, as folds are made of both; a test split stays apart."""
    if found.val is None:
        return found
    if found.groups is not None:
        raise DataError(
            "the pictures have groups and a val split of their own, and folds are made of train and val "
            "together, so a group could be parted; mark the val pictures as train"
        )
    train, val = found.train, found.val
    rows, labels = (
        np.concatenate([getattr(part, name) for part in (train, val)]) for name in ("rows", "labels")
    )
    both = Images(train.store, rows, labels, train.classes)
    return replace(found, train=both, val=None, told=f"{found.told}; train and val are put together")


def parts(pooled: Collection, folds: int, seed: int) -> list[Parts]:
    """Return the places to learn from and those held out, fold by fold; refuse what cannot be folded."""
    labels, classes, groups = pooled.train.labels, pooled.train.classes, pooled.groups
    counts = np.bincount(labels, minlength=len(classes))
    made = list(kfold(labels, folds, seed, groups))
    few = [i for i in np.flatnonzero(counts).tolist() if counts[i] < folds]
    if few and groups is None:
        rarest = min(few, key=lambda i: int(counts[i]))
        least = int(counts[rarest])
        less = f"ask for {least} or fewer folds, or add" if least > 1 else "add"
        raise UsageError(
            f"{folds} folds were asked for, but the class {shown(classes[rarest])} has only "
            f"{plural(least, 'picture')}; {less} pictures of it, or leave it out"
        )
    return made


def take(found: Collection, fold: Fold, seed: int) -> Collection:
    """Return a collection whose val are the pictures that the fold holds out."""
    pooled = pool(found)
    if fold.number == 0:
        return pooled
    train, val = parts(pooled, fold.of, seed)[fold.number - 1]
    groups = None if pooled.groups is None else pooled.groups[train]
    return replace(
        pooled,
        train=pooled.train.take(train),
        val=pooled.train.take(val),
        told=f"{pooled.told}; fold {fold.number} of {fold.of} held out (seed {seed})",
        groups=groups,
    )


def never_learnt(pooled: Collection, made: Sequence[Parts]) -> list[str]:
    """A note for each fold that holds out all pictures of a class, as groups may force it to."""
    images, notes = pooled.train, []
    for number, (train, val) in enumerate(made, 1):
        lost = np.setdiff1d(images.labels[val], images.labels[train])
        if len(lost):
            names = some([images.classes[i] for i in lost.tolist()])
            notes.append(f"fold {number} has {plural(len(lost), 'class')} with no picture to learn: {names}")
    return notes


def answered(
    images: Images, p: Float64[np.ndarray, "n classes"], numbers: Int64[np.ndarray, "n"], fold: int
) -> list[Answer]:
    """A line for each picture, in their order, of the probabilities for those that could be read."""
    said = {
        number: (images.classes[int(row.argmax())], f"{row.max():.6f}")
        for row, number in zip(p, numbers.tolist(), strict=True)
    }
    labels = [images.classes[label] for label in images.labels.tolist()]
    return [
        Answer(images.name(i), label, *said.get(i, ("", "")), fold=fold) for i, label in enumerate(labels)
    ]


def write(path: Path, rows: Sequence[Answer]) -> None:
    """Write predictions.csv, whole or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Answer._fields)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def read(path: Path, fold: int, pictures: int) -> list[Answer]:
    """Read what `write` wrote for one fold."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.reader(file))[1:]
        rows = [Answer(n, label, said, score, int(place)) for n, label, said, score, place in lines]
    except (OSError, ValueError, csv.Error) as error:
        raise ModelError(f"{shown(path)} cannot be read ({error}); remove it and resume") from error
    if len(rows) != pictures or any(row.fold != fold for row in rows):
        raise ModelError(
            f"{shown(path)} does not hold the {pictures} answers of fold {fold}; remove it and resume"
        )
    return rows
