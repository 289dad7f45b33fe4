"""The seam between a run and its task: what a run works with, and how it can end before its time."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import nn

from saccade.errors import SaccadeError
from saccade.processes import Team
from saccade.recipe import Training
from saccade.tasks.task import Batch, Task

Say = Callable[[str], None]


class StoppedError(SaccadeError):
    """SIGINT or SIGTERM came; the state is saved."""

    exit_code = 130


class DivergedError(SaccadeError):
    """Numbers were not finite, again and again."""

    exit_code = 1


@runtime_checkable
class Material(Protocol):
    """Pictures, sentence pairs or a text, with a model for them: all that `saccade.train.run.Run` knows."""

    @property
    def recipe(self) -> Training: ...

    @property
    def module(self) -> nn.Module:
        """What is to learn."""

    @property
    def team(self) -> Team: ...

    @property
    def choose(self) -> bool:
        """Keep the state that scores best on val; else the last one, so that val plays no part."""

    @property
    def nouns(self) -> tuple[str, str]:
        """What is learnt from (pictures), and what is counted by the second (images)."""

    @property
    def scored(self) -> tuple[str, ...]:
        """The numbers of a score that results.csv keeps."""

    @property
    def per_epoch(self) -> int:
        """Steps in an epoch."""

    def task(self, module: nn.Module, done: Callable[[], float]) -> Task:
        """The task for a module, which may be wrapped; `done` tells the share of the training behind."""

    def batches(self, first: int, last: int) -> Iterator[Batch]:
        """Batches by their numbers through the whole training."""

    def amount(self, batch: Batch) -> float:
        """What a batch of this process counts for by the second."""

    def note(self, failed: set[int], batch: Batch, say: Say) -> None:
        """Tell, and remember, what of a batch could not be read; too much of it is an error."""

    def name(self, number: int) -> str:
        """What a person would look for, of the example of that number."""

    def score(self, task: Task, module: nn.Module, failed: set[int], say: Say) -> dict[str, float]:
        """How good a module is on what is held back, by all processes together; empty if nothing is."""

    def merit(self, scores: dict[str, float]) -> float:
        """What the best state is chosen by: never below 0, and more is better."""

    def tell(self, scores: dict[str, float]) -> str:
        """The score in a few words."""

    def blank(self) -> nn.Module:
        """Another module of the same kind and size."""

    def keep(self, folder: Path, module: nn.Module) -> None:
        """Write a model folder."""
