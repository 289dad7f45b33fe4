"""Files to batches, in an order that is a function of seed and epoch, whatever the number of workers."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from saccade.data.augment import Augment
from saccade.data.chance import Chance, permutation
from saccade.data.images import Images
from saccade.data.mix import Mix
from saccade.data.transform import Preprocess
from saccade.errors import DataError

Batch = dict[str, Tensor]
Item = tuple[np.ndarray | None, int, int]
"""The array (None: it could not be read), the label and the number of a picture."""


def steps_in(count: int, batch: int, accumulate: int = 1) -> int:
    """Steps in an epoch: whole batches only, as every epoch has another order; a small set is one batch."""
    return max(1, count // (batch * accumulate))


class Order(Sampler[list[tuple[int, int]]]):
    """The (epoch, picture) pairs of every batch from `first` to `last`, a new permutation each epoch."""

    def __init__(self, count: int, batch: int, per_epoch: int, seed: int, first: int, last: int) -> None:
        self.count, self.batch, self.per_epoch = count, batch, per_epoch
        self.seed, self.first, self.last = seed, first, last

    def __len__(self) -> int:
        return self.last - self.first

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        order, held = np.empty(0), -1
        for number in range(self.first, self.last):
            epoch, place = divmod(number, self.per_epoch)
            if epoch != held:
                order, held = permutation(self.seed, epoch, self.count), epoch
            chosen = order[place * self.batch : (place + 1) * self.batch]
            yield [(epoch, int(i)) for i in chosen]


class Pictures(Dataset[Item]):
    """Decoded pictures, augmented or not. One that cannot be read is reported, never replaced."""

    def __init__(self, images: Images, preprocess: Preprocess, augment: Augment | None, seed: int) -> None:
        self.images, self.preprocess, self.augment, self.seed = images, preprocess, augment, seed

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: tuple[int, int]) -> Item:
        epoch, index = key
        label = int(self.images.labels[index])
        try:
            if self.augment is None:
                return self.preprocess(self.images.read(index)), label, index
            chance = Chance(self.seed, epoch, index)
            return self.augment(self.images.read(index), self.preprocess, chance), label, index
        except DataError:
            return None, label, index


@dataclass(frozen=True, slots=True)
class Collate:
    """Stack what could be read, mix if a `Mix` is given; `failed` holds the numbers of the others."""

    classes: int
    mix: Mix | None
    seed: int

    def __call__(self, items: list[Item]) -> Batch:
        whole = [(array, label, index) for array, label, index in items if array is not None]
        failed = torch.tensor([index for array, _, index in items if array is None], dtype=torch.int64)
        if not whole:
            raise DataError(
                f"none of the {len(items)} pictures of a batch could be read; run `saccade check`"
            )
        image = torch.from_numpy(np.stack([array for array, _, _ in whole]))
        label = torch.tensor([label for _, label, _ in whole])
        index = torch.tensor([index for _, _, index in whole])
        batch = {"image": image, "label": label, "index": index, "failed": failed}
        if self.mix is not None:
            chance = Chance(self.seed, int(index[0]), int(index.sum()))
            batch["image"], batch["target"] = self.mix(image, label, self.classes, chance)
        return batch


def training(
    images: Images, preprocess: Preprocess, augment: Augment, mix: Mix, seed: int, order: Order, workers: int
) -> Iterator[Batch]:
    """Batches to learn from, in the order given."""
    collate = Collate(len(images.classes), mix, seed)
    return iter(_loader(Pictures(images, preprocess, augment, seed), order, collate, workers))


def scoring(images: Images, preprocess: Preprocess, batch: int, workers: int = 0) -> Iterator[Batch]:
    """Every picture once, in the order of the set, not augmented."""
    order = [[(0, i) for i in range(s, min(s + batch, len(images)))] for s in range(0, len(images), batch)]
    collate = Collate(len(images.classes), None, 0)
    return iter(_loader(Pictures(images, preprocess, None, 0), order, collate, workers))


def _loader(
    pictures: Pictures, order: Order | list[list[tuple[int, int]]], collate: Collate, workers: int
) -> DataLoader[Item]:
    return DataLoader(
        pictures,
        batch_sampler=order,
        collate_fn=collate,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        generator=torch.Generator(),  # without one, torch would draw from the global source
    )
