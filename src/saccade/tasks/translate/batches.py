"""Sentences of like length in batches, padded on the right; every draw is a function of (seed, epoch, batch).

The places of an epoch are sorted by bucket of length, and the cuts between batches lie at fixed places. An
epoch only shuffles sentences within their bucket and then the batches, so that all epochs have as many steps,
any batch can be made from its number alone, and neither workers nor a restart change it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int64, Integer
from torch import Tensor
from torch.utils.data import DataLoader

from saccade.data.feed import begin
from saccade.data.randomness import Chance
from saccade.errors import DataError, UsageError, check_number
from saccade.text.vocabulary import BOS, EOS, PAD, Numbered

Batch = dict[str, Tensor]
Part = tuple[int, int]
"""The number of this process and how many there are."""
Rows = Int64[np.ndarray, "_"]
STEP = 4
"""Lengths in a bucket; wider ones mix better and pad more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """How much a batch holds: the longest sentence's tokens times the sentences, and the sentences."""

    tokens: int = 4096
    sentences: int = 1024

    def __post_init__(self) -> None:
        check_number("limit.tokens", self.tokens, 1, 2**30)
        check_number("limit.sentences", self.sentences, 1, 2**20)

    def count(self, length: int) -> int:
        """Sentences of that length that fit; a single one always does."""
        return max(1, min(self.sentences, self.tokens // max(length, 1)))


@dataclass(slots=True, eq=False)
class Buckets:
    """Which sentences make each batch of each epoch."""

    lengths: Integer[np.ndarray, "n"]
    limit: Limit
    seed: int = 0
    _bucket: np.ndarray = field(init=False, repr=False)
    _cuts: Rows = field(init=False, repr=False)
    _held: int = field(default=-1, init=False, repr=False)
    _order: Rows = field(init=False, repr=False)
    _batches: Rows = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not len(self.lengths):
            raise DataError("there is no sentence to make a batch of; expected some to learn from")
        self._bucket = -(-self.lengths // STEP)
        tops = np.sort(self._bucket)[::-1] * STEP  # the longest first, so that a cut knows its longest
        cuts = [0]
        while cuts[-1] < len(tops):
            cuts.append(cuts[-1] + self.limit.count(int(tops[cuts[-1]])))
        cuts[-1] = len(tops)
        self._cuts = np.array(cuts, np.int64)

    def __len__(self) -> int:
        """Batches in an epoch, the same in each."""
        return len(self._cuts) - 1

    def rows(self, number: int) -> Rows:
        """The sentences of a batch, numbered through the whole training."""
        epoch, place = divmod(number, len(self))
        if epoch != self._held:
            chance = Chance(self.seed, epoch, 0)
            rank = chance.order("order of sentences", len(self.lengths))
            self._order = np.lexsort((rank, -self._bucket)).astype(np.int64)
            self._batches, self._held = chance.order("order of batches", len(self)), epoch
        chosen = int(self._batches[place])
        return self._order[self._cuts[chosen] : self._cuts[chosen + 1]]


def padded(sentences: Sequence[np.ndarray]) -> tuple[Int64[Tensor, "b n"], Bool[Tensor, "b n"]]:
    """Sentences as the rows of one array, filled up on the right, and where they have words."""
    lengths = np.array([len(sentence) for sentence in sentences])
    mask = np.arange(max(int(lengths.max(initial=0)), 1)) < lengths[:, None]
    made = np.full(mask.shape, PAD, np.int64)
    if lengths.any():
        made[mask] = np.concatenate(sentences)
    return torch.from_numpy(made), torch.from_numpy(mask)


@runtime_checkable
class Batches(Protocol):
    """Batches by number; what a loader asks for."""

    def __len__(self) -> int:
        """Batches in an epoch."""

    def __getitem__(self, number: int, /) -> Batch: ...


def _mine(rows: Rows, part: Part) -> tuple[Rows, bool]:
    """This process's share of a batch, and whether there is any; else the first row stands in, unlearnt."""
    rank, size = part
    mine = rows[rank::size]
    return (mine, True) if len(mine) else (rows[:1], False)


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Sentences and their translations as numbers.

    A batch holds `source`, `source_mask`, `target_in` (after the beginning mark), `target_out` (up to the end
    mark), `target_mask`, `index` (the sentences' numbers), `epoch`, and `words`: the target's words in the
    whole batch over the number of processes, by which a loss is divided. So the mean over processes is the
    mean over words, however the words are spread.
    """

    source: Numbered
    target: Numbered

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise UsageError(f"there are {len(self.source)} sources but {len(self.target)} targets")

    def __len__(self) -> int:
        return len(self.source)

    @property
    def lengths(self) -> Int64[np.ndarray, "n"]:
        """Of the longer side, with the end mark."""
        return np.maximum(self.source.lengths, self.target.lengths) + 1

    def within(self, most: int) -> Rows:
        """The places of the pairs that are at most so long."""
        return np.flatnonzero(self.lengths <= most)

    def take(self, rows: Rows) -> "Pairs":
        """Some of the pairs, by their places."""
        return Pairs(self.source.take(rows), self.target.take(rows))

    def batch(self, rows: Rows, epoch: int = 0, part: Part = (0, 1)) -> Batch:
        """Pad the pairs named."""
        mine, learnt = _mine(rows, part)
        source, source_mask = padded([np.append(self.source[i], EOS) for i in mine.tolist()])
        target_in, mask = padded([np.insert(self.target[i], 0, BOS) for i in mine.tolist()])
        target_out, _ = padded([np.append(self.target[i], EOS) for i in mine.tolist()])
        words = int((self.target.lengths[rows] + 1).sum())
        return {
            "source": source,
            "source_mask": source_mask,
            "target_in": target_in,
            "target_out": target_out,
            "target_mask": mask & learnt,
            "index": torch.from_numpy(mine.copy()),
            "epoch": torch.tensor(epoch),
            "words": torch.tensor(words / part[1]),
        }


@dataclass(frozen=True, slots=True, eq=False)
class Shuffled:
    """Batches of pairs to learn from, for ever."""

    pairs: Pairs
    buckets: Buckets
    part: Part = (0, 1)

    def __len__(self) -> int:
        return len(self.buckets)

    def __getitem__(self, number: int) -> Batch:
        return self.pairs.batch(self.buckets.rows(number), number // len(self), self.part)


def once(pairs: Pairs, limit: Limit, part: Part = (0, 1)) -> Iterator[Batch]:
    """Every pair once, the longest first; or this process's part of them."""
    order = np.argsort(-pairs.lengths, kind="stable")[part[0] :: part[1]]
    while len(order):
        count = limit.count(int(pairs.lengths[order[0]]))
        yield pairs.batch(order[:count])
        order = order[count:]


def stream(batches: Batches, first: int, last: int, workers: int = 0) -> Iterator[Batch]:
    """Batches from number `first` to `last`, made here or by workers."""
    if not workers:
        return (batches[number] for number in range(first, last))
    loader: DataLoader[Batch] = DataLoader(
        batches,  # type: ignore[arg-type]
        batch_size=None,
        sampler=range(first, last),
        num_workers=workers,
        prefetch_factor=4,
        generator=torch.Generator(),  # without one, torch would draw from the global source
    )
    return begin(loader)
