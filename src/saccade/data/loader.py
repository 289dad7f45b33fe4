"""Batches by number: each is a function of seed and number, whatever the number of workers and processes."""

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from saccade.data.pictures import Pictures
from saccade.data.randomness import Draws, permutation
from saccade.errors import DataError

Batch = dict[str, Tensor]
Arrays = dict[str, np.ndarray]
Example = Callable[[Any, Any, Draws | None], Arrays]
"""Turns an image and its target into arrays; without draws, always into the same ones."""
Finish = Callable[[Batch, Draws], Batch]
"""Changes a whole batch, as mixup does."""
Part = tuple[int, int]
"""This process's rank and the number of processes."""
Key = tuple[int, int, int]
"""Epoch, number of the batch in the whole run, number of the image."""
Item = tuple[Arrays | None, Key]
"""The arrays of an example, None if it cannot be read."""
AHEAD = 4
"""Batches that each worker prepares in advance."""
TENSORS = 5
"""Tensors in a batch; each holds a file open while it travels from a worker."""
OTHERS = 64
"""Files that a process keeps open for everything else."""
TEMPORARY = 70
"""Bytes in the path of the temporary folder: a socket's path has at most 107, and Python adds 32."""


def steps_in(count: int, batch: int, accumulate: int = 1) -> int:
    """Return the steps of an epoch: whole batches only, but at least one."""
    return max(1, count // (batch * accumulate))


class Order(Sampler[list[Key]]):
    """The keys of every batch from `first` to `last`, in a new order each epoch.

    Each of several processes takes its own slice of every batch, all of one length, so that together they
    train on the batches that a single one would.
    """

    def __init__(
        self, count: int, batch: int, per_epoch: int, seed: int, first: int, last: int, part: Part = (0, 1)
    ) -> None:
        self.count, self.batch, self.per_epoch = count, batch, per_epoch
        self.seed, self.first, self.last, self.part = seed, first, last, part

    def __len__(self) -> int:
        return self.last - self.first

    def __iter__(self) -> Iterator[list[Key]]:
        order, held = np.empty(0), -1
        rank, size = self.part
        each = min(self.batch, self.count) // size
        for number in range(self.first, self.last):
            epoch, i = divmod(number, self.per_epoch)
            if epoch != held:
                order, held = permutation(self.seed, epoch, self.count), epoch
            chosen = order[i * self.batch : (i + 1) * self.batch]
            yield [(epoch, number, int(i)) for i in chosen[rank * each : (rank + 1) * each]]


class Once(Sampler[list[Key]]):
    """The keys of every `size`-th image from `rank` on, once, in batches."""

    def __init__(self, count: int, batch: int, part: Part = (0, 1)) -> None:
        self.numbers, self.batch = range(part[0], count, part[1]), batch

    def __len__(self) -> int:
        return -(-len(self.numbers) // self.batch)

    def __iter__(self) -> Iterator[list[Key]]:
        for number in range(len(self)):
            chosen = self.numbers[number * self.batch : (number + 1) * self.batch]
            yield [(0, number, i) for i in chosen]


@dataclass(frozen=True, slots=True)
class _Examples(Dataset[Item]):
    """Examples by key; one that cannot be read is reported, never replaced."""

    pictures: Pictures
    example: Example
    seed: int | None
    """None: no draws."""

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, key: Key) -> Item:
        epoch, _, i = key
        draws = None if self.seed is None else Draws(self.seed, epoch, i)
        try:
            return self.example(self.pictures.open(i), self.pictures.targets[i], draws), key
        except DataError:
            return None, key


@dataclass(frozen=True, slots=True)
class _Collate:
    """Stack the readable examples; `index` has their numbers, `failed` those of the rest."""

    seed: int
    finish: Finish | None

    def __call__(self, items: list[Item]) -> Batch:
        made = [arrays for arrays, _ in items if arrays is not None]
        index, failed = (
            torch.tensor([key[-1] for arrays, key in items if (arrays is None) == lost], dtype=torch.int64)
            for lost in (False, True)
        )
        names = made[0] if made else ()
        batch = {name: torch.from_numpy(np.stack([arrays[name] for arrays in made])) for name in names}
        batch |= {"index": index, "failed": failed}
        if self.finish is None or not items:
            return batch
        epoch, number, _ = items[0][-1]
        return self.finish(batch, Draws(self.seed, epoch, number))


def by_number(
    pictures: Pictures,
    example: Example,
    *,
    batch: int,
    per_epoch: int,
    seed: int,
    first: int,
    last: int,
    part: Part = (0, 1),
    workers: int = 1,
    finish: Finish | None = None,
) -> Iterator[Batch]:
    """Yield the training batches from number `first` to `last`, or this process's part of each.

    A batch of which nothing can be read has only `index` and `failed`, unless `finish` adds to it.

    Args:
        per_epoch: Batches in an epoch.
        example: Gets the draws of its image in its epoch.
        finish: Gets the draws of its batch.
    """
    order = Order(len(pictures), batch, per_epoch, seed, first, last, part)
    return _start(_Examples(pictures, example, seed), order, _Collate(seed, finish), workers)


def once(
    pictures: Pictures, example: Example, *, batch: int = 32, workers: int = 0, part: Part = (0, 1)
) -> Iterator[Batch]:
    """Yield every image once, in order and without draws, or this process's part of them.

    Batches of which nothing can be read are left out.
    """
    order = Once(len(pictures), batch, part)
    found = _start(_Examples(pictures, example, None), order, _Collate(0, None), workers)
    return (batch for batch in found if len(batch["index"]))


def _start(examples: _Examples, order: Order | Once, collate: _Collate, workers: int) -> Iterator[Batch]:
    workers = fit_workers(workers)
    loader = DataLoader(
        examples,
        batch_sampler=order,
        collate_fn=collate,
        num_workers=workers,
        prefetch_factor=AHEAD if workers else None,
        generator=torch.Generator(),  # without one, torch would draw from the global generator
    )
    return start_workers(loader)


def fit_workers(workers: int) -> int:
    """Return how many workers can send batches, after raising the limit on open files where possible.

    With more workers than that, torch silently loses batches and training waits for them forever.
    """
    if len(os.fsencode(tempfile.gettempdir())) > TEMPORARY:
        return 0
    try:
        import resource

        needed = OTHERS + TENSORS * AHEAD * (workers + 1)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY or soft >= needed:
            return workers
        most = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
        if most > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (ImportError, OSError, ValueError):  # Windows has no such limit; a container may forbid raising it
        return workers
    return max(0, min(workers, (most - OTHERS) // (TENSORS * AHEAD) - 1))


def start_workers(loader: DataLoader[Any]) -> Iterator[Batch]:
    """Return the loader's iterator; a worker that dies raises at the next batch and nowhere else.

    Torch would also raise from a signal, in the middle of an optimiser's step or of a checkpoint.
    """
    if threading.current_thread() is not threading.main_thread():  # only there may signals be caught
        return iter(loader)
    before = signal.getsignal(signal.SIGCHLD)
    started = iter(loader)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL if before is None else before)
    return started


def restart_on_death(
    batches: Callable[[int], Iterable[Batch]], first: int, died: Callable[[], None]
) -> Iterator[Batch]:
    """Yield batches from `first` on; when a worker dies, resume with a new loader, unless `died` raises."""
    number = first
    while True:
        try:
            for batch in batches(number):
                number += 1
                yield batch
            return
        except (RuntimeError, ConnectionError, EOFError, FileNotFoundError) as error:
            met = isinstance(error, RuntimeError) and "exited unexpectedly" not in str(error)
            if met or "in DataLoader worker process" in str(error):  # raised by a worker that is alive
                raise
            died()


@runtime_checkable
class Batches(Protocol):
    """Batches by number, as a loader requests them."""

    def __len__(self) -> int:
        """Return the batches in an epoch."""

    def __getitem__(self, number: int, /) -> Batch: ...


def load_batches(batches: Batches, first: int, last: int, workers: int = 0) -> Iterator[Batch]:
    """Yield batches from number `first` to `last`, made here or by workers."""
    workers = fit_workers(workers)
    if not workers:
        return (batches[number] for number in range(first, last))
    loader: DataLoader[Batch] = DataLoader(
        batches,  # type: ignore[arg-type]
        batch_size=None,
        sampler=range(first, last),
        num_workers=workers,
        prefetch_factor=AHEAD,
        generator=torch.Generator(),  # without one, torch would draw from the global source
    )
    return start_workers(loader)
