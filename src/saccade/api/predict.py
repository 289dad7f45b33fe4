"""Predict: find images, ask a model about each, yield each answer as soon as it is ready."""

import os
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any

from saccade.api.inputs import identify_model, send
from saccade.data.image.formats import EXPECTED, Source
from saccade.engine.select import MANY
from saccade.engine.stream import BATCH, StreamModel
from saccade.errors import DataError, ModelError, UsageError, check_handles
from saccade.spellings import is_url
from saccade.task import Task
from saccade.tasks import task_of
from saccade.weights.identify import OURS
from saccade.wording import show_name

Named = tuple[str, Source]
NamedAnswer = tuple[str, Any]
"""The name of an image, and the answer to it or what is wrong with it."""
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
    if is_url(word):
        raise UsageError(
            f"{word!r} is a web address; expected a file or a folder; download it: `curl -LO {word}`"
        )
    if word == "-":
        return [("-", sys.stdin.buffer)]
    if not Path(word).is_dir():  # unlike os.path.isdir, it refuses a name that is too long
        return [(word, Path(word))]
    inside = _walk(os.fsencode(Path(word)), set(), skipped)
    first = next(inside, None)
    if first is None and (Path(word) / OURS).is_file():
        raise DataError(f"{word!r} is a model, not images; the model comes first, the images after it")
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
        raise DataError(f"{show_name(os.fsdecode(folder))} cannot be listed: {error.strerror}") from error
    if skipped is not None:
        skipped.add(os.fsdecode(os.path.join(folder, name)) for name in found.others)
    images = set(found.pictures)
    for name in sorted([*found.folders, *found.pictures]):
        path = os.path.join(folder, name)
        if name in images:
            yield os.fsdecode(path), Path(os.fsdecode(path))
        else:
            yield from _walk(path, above | {here}, skipped)


def open_model(
    model: str, engine: str = "", images: int | float = MANY, top: int = 5, device: str = "auto"
) -> tuple[Task, StreamModel[Any]]:
    """Return a model or an exported graph, ready to answer, and its task; see `Task.load`."""
    found = identify_model(model, "any")  # refuses a damaged file before torch is imported
    task = task_of(found)
    if found.text:
        found.check_images()
    if not task.outputs:
        raise ModelError(
            f"{show_name(model)} is for the task {task.name}, which `saccade predict` cannot run"
        )
    network = task.load(found, engine, images, top)
    send(network, device)
    return task, network


def predict(
    task: Task, model: StreamModel[Any], images: Iterable[Named], batch: int = BATCH
) -> Generator[NamedAnswer, None, None]:
    """Yield an answer to each image, in order; what cannot be read gives its error."""
    names: deque[str] = deque()

    def sources() -> Iterator[Source]:
        for name, source in images:
            names.append(name)
            yield source

    with closing(task.predict(model, sources(), batch)) as answers:
        for answer in answers:
            yield names.popleft(), answer


def count(words: Iterable[str], seconds: float = 0.3) -> int | None:
    """Return roughly how many images `find` yields; None if counting them takes too long."""
    end = monotonic() + seconds
    total = 0
    for _ in find(words):
        total += 1
        if total % 100 == 0 and monotonic() > end:
            return None
    return total
