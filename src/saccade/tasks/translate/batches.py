"""Batches of sentences of similar length, padded on the right; draws depend on (seed, epoch, batch) alone.

The sentences of an epoch are sorted into buckets by length, and the batch boundaries are fixed. An epoch only
shuffles sentences within their bucket and then the batches, so all epochs have the same number of steps, and
any batch can be made from its number alone, whatever the workers or restarts.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Int64, Integer
from torch import Tensor

from saccade.data.randomness import Draws
from saccade.errors import DataError, UsageError
from saccade.text.vocabulary import BOS, EOS, EncodedTexts, pad
from saccade.values import validate, within

Batch = dict[str, Tensor]
Part = tuple[int, int]
"""The rank of this process, and the number of processes."""
Rows = Int64[np.ndarray, "_"]
STEP = 4
"""Lengths per bucket; wider buckets mix better and pad more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """The largest batch: its tokens, padding included, and its sentences."""

    tokens: int = within(1, 2**30, default=4096)
    sentences: int = within(1, 2**20, default=1024)

    def __post_init__(self) -> None:
        validate(self, "limit.")

    def count(self, length: int) -> int:
        """Return how many sentences of that length fit; one always does."""
        return max(1, min(self.sentences, self.tokens // max(length, 1)))


@dataclass(slots=True, eq=False)
class Buckets:
    """Assigns sentences to the batches of each epoch."""

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
            raise DataError("no sentence pairs to train on; expected one or more")
        self._bucket = -(-self.lengths // STEP)
        tops = (
            np.sort(self._bucket)[::-1] * STEP
        )  # the longest first, so that a batch starts with its longest
        cuts = [0]
        while cuts[-1] < len(tops):
            cuts.append(cuts[-1] + self.limit.count(int(tops[cuts[-1]])))
        cuts[-1] = len(tops)
        self._cuts = np.array(cuts, np.int64)

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return len(self._cuts) - 1

    def rows(self, number: int) -> Rows:
        """Return the sentences of a batch; batches are numbered through the whole training."""
        epoch, place = divmod(number, len(self))
        if epoch != self._held:
            chance = Draws(self.seed, epoch, 0)
            rank = chance.order("order of sentences", len(self.lengths))
            self._order = np.lexsort((rank, -self._bucket)).astype(np.int64)
            self._batches, self._held = chance.order("order of batches", len(self)), epoch
        chosen = int(self._batches[place])
        return self._order[self._cuts[chosen] : self._cuts[chosen + 1]]


def _mine(rows: Rows, part: Part) -> tuple[Rows, bool]:
    """Return this process's rows of a batch and True, or the first row, to be masked, and False."""
    rank, size = part
    mine = rows[rank::size]
    return (mine, True) if len(mine) else (rows[:1], False)


def _padded(sentences: Iterable[np.ndarray]) -> tuple[Tensor, Tensor]:
    words, mask = pad(list(sentences))
    return torch.from_numpy(words), torch.from_numpy(mask)


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Sentences and their translations as numbers.

    A batch holds `source`, `source_mask`, `target_in` (after the start mark), `target_out` (up to the end
    mark), `target_mask`, `index` (the sentences' indices), `epoch`, and `words`: the target's words in
    the whole batch over the number of processes, by which a loss is divided. So the mean over processes is
    the mean over words, however the words are distributed.
    """

    source: EncodedTexts
    target: EncodedTexts

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise UsageError(f"there are {len(self.source)} sources but {len(self.target)} targets")

    def __len__(self) -> int:
        return len(self.source)

    @property
    def lengths(self) -> Int64[np.ndarray, "n"]:
        """Lengths of the longer side, with the end mark."""
        return np.maximum(self.source.lengths, self.target.lengths) + 1

    def within(self, most: int) -> Rows:
        """Return the indices of the pairs of at most this length."""
        return np.flatnonzero(self.lengths <= most)

    def take(self, rows: Rows) -> "Pairs":
        """Return some of the pairs, by index."""
        return Pairs(self.source.take(rows), self.target.take(rows))

    def batch(self, rows: Rows, epoch: int = 0, part: Part = (0, 1)) -> Batch:
        """Return the padded batch of these pairs."""
        mine, learnt = _mine(rows, part)
        source, source_mask = map(
            torch.from_numpy, pad([np.append(self.source[i], EOS) for i in mine.tolist()])
        )
        target_in, mask = map(
            torch.from_numpy, pad([np.insert(self.target[i], 0, BOS) for i in mine.tolist()])
        )
        target_out, _ = _padded(np.append(self.target[i], EOS) for i in mine.tolist())
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
    """An endless sequence of training batches."""

    pairs: Pairs
    buckets: Buckets
    part: Part = (0, 1)

    def __len__(self) -> int:
        return len(self.buckets)

    def __getitem__(self, number: int) -> Batch:
        return self.pairs.batch(self.buckets.rows(number), number // len(self), self.part)


def once(pairs: Pairs, limit: Limit, part: Part = (0, 1)) -> Iterator[Batch]:
    """Yield every pair once, the longest first, or this process's part of them."""
    order = np.argsort(-pairs.lengths, kind="stable")[part[0] :: part[1]]
    while len(order):
        count = limit.count(int(pairs.lengths[order[0]]))
        yield pairs.batch(order[:count])
        order = order[count:]
