"""Files to batches, in an order that is a function of seed and epoch, whatever the number of workers."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from saccade.data.feed import begin
from saccade.data.image.augment import Augment
from saccade.data.image.mixup import Mix
from saccade.data.image.preprocess import Preprocess
from saccade.data.pictures import Images
from saccade.data.randomness import Chance, permutation
from saccade.errors import DataError

Batch = dict[str, Tensor]
Key = tuple[int, int, int]
"""Epoch, number of the batch in the whole training, number of the picture."""
Item = tuple[np.ndarray | None, int, Key]
"""The array (None: it could not be read), the label and the key it was asked by."""


def steps_in(count: int, batch: int, accumulate: int = 1) -> int:
    """Steps in an epoch: whole batches only, as every epoch has another order; a small set is one batch."""
    return max(1, count // (batch * accumulate))


class Order(Sampler[list[Key]]):
    """The keys of every batch from `first` to `last`, a new permutation each epoch.

    Of several processes each takes its own slice of every batch, all of one length, so that together they
    learn from the batches that a single one would.
    """

    def __init__(
        self,
        count: int,
        batch: int,
        per_epoch: int,
        seed: int,
        first: int,
        last: int,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        self.count, self.batch, self.per_epoch = count, batch, per_epoch
        self.seed, self.first, self.last = seed, first, last
        self.part = part

    def __len__(self) -> int:
        return self.last - self.first

    def __iter__(self) -> Iterator[list[Key]]:
        order, held = np.empty(0), -1
        rank, size = self.part
        each = min(self.batch, self.count) // size
        for number in range(self.first, self.last):
            epoch, place = divmod(number, self.per_epoch)
            if epoch != held:
                order, held = permutation(self.seed, epoch, self.count), epoch
            chosen = order[place * self.batch : (place + 1) * self.batch]
            yield [(epoch, number, int(i)) for i in chosen[rank * each : (rank + 1) * each]]


class Once(Sampler[list[Key]]):
    """The keys of every `size`-th picture from `rank` on, once, in batches."""

    def __init__(self, count: int, batch: int, part: tuple[int, int] = (0, 1)) -> None:
        self.places, self.batch = range(part[0], count, part[1]), batch

    def __len__(self) -> int:
        return -(-len(self.places) // self.batch)

    def __iter__(self) -> Iterator[list[Key]]:
        for number in range(len(self)):
            yield [(0, number, i) for i in self.places[number * self.batch : (number + 1) * self.batch]]


class Pictures(Dataset[Item]):
    """Decoded pictures, augmented or not. One that cannot be read is reported, never replaced."""

    def __init__(self, images: Images, preprocess: Preprocess, augment: Augment | None, seed: int) -> None:
        self.images, self.preprocess, self.augment, self.seed = images, preprocess, augment, seed

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: Key) -> Item:
        epoch, _, index = key
        label = int(self.images.labels[index])
        try:
            if self.augment is None:
                return self.preprocess(self.images.read(index)), label, key
            chance = Chance(self.seed, epoch, index)
            return self.augment(self.images.read(index), self.preprocess, chance), label, key
        except DataError:
            return None, label, key


@dataclass(frozen=True, slots=True)
class Collate:
    """Stack what could be read, mix if a `Mix` is given; `failed` holds the numbers of the others.

    A batch of which nothing could be read holds no picture: nothing is put in their place.
    """

    classes: int
    mix: Mix | None
    seed: int
    size: tuple[int, int]

    def __call__(self, items: list[Item]) -> Batch:
        whole = [(array, label, key) for array, label, key in items if array is not None]
        failed = torch.tensor([key[-1] for array, _, key in items if array is None], dtype=torch.int64)
        label = torch.tensor([label for _, label, _ in whole], dtype=torch.int64)
        index = torch.tensor([key[-1] for _, _, key in whole], dtype=torch.int64)
        if not whole:
            nothing = {"image": torch.empty(0, 3, *self.size), "target": torch.empty(0, self.classes)}
            return {**nothing, "label": label, "index": index, "failed": failed}
        image = torch.from_numpy(np.stack([array for array, _, _ in whole]))
        batch = {"image": image, "label": label, "index": index, "failed": failed}
        if self.mix is not None:
            epoch, number, _ = whole[0][2]
            chance = Chance(self.seed, epoch, number)
            batch["image"], batch["target"] = self.mix(image, label, self.classes, chance)
        return batch


def training(
    images: Images, preprocess: Preprocess, augment: Augment, mix: Mix, seed: int, order: Order, workers: int
) -> Iterator[Batch]:
    """Batches to learn from, in the order given."""
    collate = Collate(len(images.classes), mix, seed, preprocess.size)
    return begin(_loader(Pictures(images, preprocess, augment, seed), order, collate, workers))


def scoring(
    images: Images, preprocess: Preprocess, batch: int, workers: int = 0, part: tuple[int, int] = (0, 1)
) -> Iterator[Batch]:
    """Every picture once, in the order of the set, not augmented; or this process's part of them."""
    order = Once(len(images), batch, part)
    collate = Collate(len(images.classes), None, 0, preprocess.size)
    found = begin(_loader(Pictures(images, preprocess, None, 0), order, collate, workers))
    return (batch for batch in found if len(batch["index"]))


def _loader(pictures: Pictures, order: Order | Once, collate: Collate, workers: int) -> DataLoader[Item]:
    return DataLoader(
        pictures,
        batch_sampler=order,
        collate_fn=collate,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        generator=torch.Generator(),  # without one, torch would draw from the global source
    )
