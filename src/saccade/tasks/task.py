"""What one asks of a model: a task owns its loss and its score, and the one loop owns the time."""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

Batch = dict[str, Tensor]


@runtime_checkable
class Task(Protocol):
    """All that `saccade.train.loop.fit` knows of what it trains."""

    @property
    def module(self) -> nn.Module:
        """What learns."""

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """`loss`, the mean over the batch, and whatever else is worth logging."""

    def score(self, module: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """How good a module is on unseen batches; the first number is the one to choose the best by."""
