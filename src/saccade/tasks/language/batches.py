"""Running text in windows of one length; every draw is a function of (seed, epoch, batch)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Int32, Int64

from saccade.data.loader import Batch, Part
from saccade.data.randomness import Draws
from saccade.errors import DataError, check_number


@dataclass(slots=True, eq=False)
class Windows:
    """Neighbouring windows of a text, shuffled; each epoch starts at another offset.

    A batch holds `tokens` (b context + 1), each window with the word after it, `index` (the windows' numbers
    in the epoch) and `epoch`. Of several processes each takes an equal share of every batch.
    """

    tokens: Int32[np.ndarray, "n"]
    context: int
    batch: int
    seed: int = 0
    part: Part = (0, 1)
    count: int = field(init=False)
    """Windows in an epoch."""
    _held: int = field(default=-1, init=False, repr=False)
    _order: Int64[np.ndarray, "_"] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_number("context", self.context, 1, 2**24)
        check_number("batch", self.batch, 1, 2**24)
        room = len(self.tokens) - 1 - self.context
        if room < 0:
            raise DataError(
                f"the text has {len(self.tokens):,} tokens; expected more than the model's context, "
                f"{self.context:,}; give more text or a model with a shorter context"
            )
        self.count = max(1, (room + 1) // self.context)
        self.batch = max(self.part[1], min(self.batch, self.count) // self.part[1] * self.part[1])

    def __len__(self) -> int:
        """Return the number of full batches in an epoch."""
        return max(1, self.count // self.batch)

    def _starts(self, epoch: int) -> tuple[Int64[np.ndarray, "_"], int]:
        chance = Draws(self.seed, epoch, 0)
        if epoch != self._held:
            self._order, self._held = chance.order("order of windows", self.count), epoch
        room = len(self.tokens) - 1 - self.context * self.count
        return self._order, chance.integer("first window", min(room, self.context - 1) + 1)

    def __getitem__(self, number: int) -> Batch:
        epoch, place = divmod(number, len(self))
        order, offset = self._starts(epoch)
        rank, size = self.part
        chosen = np.resize(order[place * self.batch : (place + 1) * self.batch], self.batch)[rank::size]
        return _cut(self.tokens, chosen * self.context + offset, self.context, chosen, epoch)


def _cut(tokens: np.ndarray, starts: np.ndarray, context: int, index: np.ndarray, epoch: int) -> Batch:
    rows = tokens[starts[:, None] + np.arange(context + 1)].astype(np.int64)
    found = {"tokens": torch.from_numpy(rows), "index": torch.from_numpy(index.copy())}
    return {**found, "epoch": torch.tensor(epoch)}


def once(tokens: Int32[np.ndarray, "n"], context: int, batch: int, part: Part = (0, 1)) -> Iterator[Batch]:
    """Yield every full window once, in order, or this process's part of them."""
    context = min(context, len(tokens) - 1)
    if context < 1:
        raise DataError(f"the text has {len(tokens)} tokens; expected two or more to evaluate on")
    windows = np.arange((len(tokens) - 1) // context)[part[0] :: part[1]]
    for first in range(0, len(windows), batch):
        chosen = windows[first : first + batch]
        yield _cut(tokens, chosen * context, context, chosen, 0)
