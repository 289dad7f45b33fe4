"""Predict: find images, ask a model about each, hand out every answer as soon as it is there."""

import os
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from time import monotonic

from saccade.data.image.formats import EXPECTED, Source, shown
from saccade.engine.stream import BATCH, stream
from saccade.errors import DataError, SaccadeError, UsageError, check_handles
from saccade.types import Prediction
from saccade.vision.model import VisionModel

Named = tuple[str, Source]
NamedAnswer = tuple[str, list[Prediction] | SaccadeError]
"""The name of an image, and its likeliest classes or what is wrong with it."""
NAMED = 3


class Skipped:
    """The number of files in folders that are not images, and the first few names."""

    def __init__(self) -> None:
        self.count, self.names = 0, list[str]()

    def add(self, names: Iterable[str]) -> None:
        """Count some more."""
        for name in names:
            self.count += 1
            if len(self.names) < NAMED:
                self.names.append(name)


def find(words: Iterable[str], skipped: Skipped | None = None) -> Iterator[Named]:
    """Yield the images that files, folders and - (stdin) stand for, with their names; folders in order.

    A folder gives the images below it, recognised as `train` recognises them; hidden files are passed over.
    A word that gives no image raises at once, before the first image.
    """
    return chain.from_iterable([_meant(word, skipped) for word in words])


def _meant(word: str, skipped: Skipped | None) -> Iterable[Named]:
    if not word:
        raise UsageError("the name of an image is empty; expected a file, a folder, or - for stdin")
    if word == "-":
        return [("-", sys.stdin.buffer)]
    if not Path(word).is_dir():  # unlike os.path.isdir, it refuses a name that is too long
        return [(word, Path(word))]
    inside = _walk(os.fsencode(Path(word)), set(), skipped)
    first = next(inside, None)
    if first is None:
        raise DataError(f"the folder {word!r} contains no images; {EXPECTED} files in it; check the path")
    return chain([first], inside)


def _walk(folder: bytes, above: set[tuple[int, int]], skipped: Skipped | None) -> Iterator[tuple[str, Path]]:
    """Yield the images below a folder, sorted; a link back to a folder above is not followed."""
    from saccade.data.readers.folders import look

    try:
        status = os.stat(folder)
        here = status.st_dev, status.st_ino
        if here in above:
            return
        found = look(folder)
    except OSError as error:
        check_handles(error)
        raise DataError(f"{shown(os.fsdecode(folder))} cannot be listed: {error.strerror}") from error
    if skipped is not None:
        skipped.add(os.fsdecode(os.path.join(folder, name)) for name in found.others)
    images = set(found.pictures)
    for name in sorted([*found.folders, *found.pictures]):
        path = os.path.join(folder, name)
        if name in images:
            yield os.fsdecode(path), Path(os.fsdecode(path))
        else:
            yield from _walk(path, above | {here}, skipped)


def predict(
    model: VisionModel, images: Iterable[Named], batch: int = BATCH
) -> Generator[NamedAnswer, None, None]:
    """Yield an answer to each image, in order; what cannot be read gives its error."""
    names: deque[str] = deque()

    def sources() -> Iterator[Source]:
        for name, source in images:
            names.append(name)
            yield source

    with closing(stream(model, sources(), batch)) as answers:
        for answer in answers:
            yield names.popleft(), answer


def count(words: Iterable[str], seconds: float = 0.3) -> int | None:
    """Return how many images `find` would give, roughly; None if it takes longer to find out."""
    end = monotonic() + seconds
    total = 0
    for _ in find(words):
        total += 1
        if total % 100 == 0 and monotonic() > end:
            return None
    return total
