"""Batches of labelled images for a model; images that cannot be read are counted, and too many refused.

torch is imported only by the functions that make batches.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from saccade.data.image.augment import Augment
from saccade.data.image.decode import decode
from saccade.data.image.preprocess import Preprocess
from saccade.data.pictures import Pictures
from saccade.data.randomness import Draws
from saccade.errors import DataError

if TYPE_CHECKING:
    from saccade.data.image.mixup import Mix
    from saccade.data.loader import Batch


@dataclass(frozen=True, slots=True)
class Labelled:
    """Makes `image` and `label` of an image and its class, augmented where there are draws."""

    preprocess: Preprocess
    augment: Augment | None = None

    def __call__(self, source: Any, target: Any, draws: Draws | None) -> dict[str, np.ndarray]:
        if draws is None or self.augment is None:
            image = self.preprocess(source)
        else:
            image = self.augment(source, self.preprocess, draws)
        return {"image": image, "label": np.asarray(target, np.int64)}


@dataclass(frozen=True, slots=True)
class Mixed:
    """Mixes the images of a batch, and adds the probability of each class as `target`."""

    mix: "Mix"
    classes: int
    size: tuple[int, int]

    def __call__(self, batch: "Batch", draws: Draws) -> "Batch":
        import torch

        if "image" not in batch:  # nothing could be read: an empty batch of the right shapes moves nothing
            shapes = {"image": torch.empty(0, 3, *self.size), "target": torch.empty(0, self.classes)}
            return {**batch, **shapes, "label": batch["index"]}
        image, target = self.mix(batch["image"], batch["label"], self.classes, draws)
        return {**batch, "image": image, "target": target}


def training(
    pictures: Pictures, preprocess: Preprocess, augment: Augment, mix: "Mix", **order: Any
) -> "Iterator[Batch]":
    """Yield batches to train a classifier on; `order` goes to `by_number`."""
    from saccade.data.loader import by_number

    finish = Mixed(mix, len(pictures.classes), preprocess.size)
    return by_number(pictures, Labelled(preprocess, augment), finish=finish, **order)


def scoring(
    pictures: Pictures, preprocess: Preprocess, batch: int, workers: int = 0, part: tuple[int, int] = (0, 1)
) -> "Iterator[Batch]":
    """Yield every image once, in order and not augmented, or this process's part of them."""
    from saccade.data.loader import once

    return once(pictures, Labelled(preprocess), batch=batch, workers=workers, part=part)


def note_seen(batches: "Iterable[Batch]", seen: set[int]) -> "Iterator[Batch]":
    """Yield the same batches, and add the numbers of their images to `seen`."""
    for batch in batches:
        seen.update(batch["index"].tolist())
        yield batch


def check_unreadable(count: int, pictures: Pictures, limit: float) -> None:
    """Refuse more unreadable images than this share; a single one, which says little, is always allowed."""
    if count > max(limit * len(pictures), 1):
        raise DataError(
            f"{count} of {len(pictures)} images cannot be read (limit {limit:.0%}); "
            "run `saccade check` to see which, or raise `bad`"
        )


def flaw(pictures: Pictures, i: SupportsIndex) -> DataError | None:
    """Return why an image cannot be read, if it cannot."""
    try:
        decode(pictures.open(i))
    except DataError as error:
        return error
    return None


def keep_readable(pictures: Pictures) -> Pictures:
    """Return the images that can be read, with a note on the others; refuse if there are none."""
    flaws = [flaw(pictures, i) for i in range(len(pictures))]
    found = [each for each in flaws if each is not None]
    if len(found) == len(flaws):
        raise DataError(f"none of the {len(flaws):,} images can be read; expected one or more ({found[0]})")
    if found:
        print(
            f"note: {len(found)} of {len(flaws):,} images cannot be read and are left out: {found[0]}",
            file=sys.stderr,
        )
    return pictures.take(np.flatnonzero([each is None for each in flaws]))
