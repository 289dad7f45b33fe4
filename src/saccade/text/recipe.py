"""The settings that all tasks on text share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp
from typing import ClassVar

from saccade.errors import UsageError, check_number
from saccade.recipe import Recipe
from saccade.text.vocabulary import KINDS, MARKS, MOST
from saccade.values import one_of, validate, within


@dataclass(frozen=True, kw_only=True, slots=True)
class VocabularySettings:
    """How text is split into tokens."""

    kind: str = one_of(*KINDS, default="pairs")
    """pairs (pieces of words, by byte pairs) or characters."""
    size: int = 0
    """Entries; 0: up to 8,000 pieces, or all characters."""
    shared: bool = True
    """One vocabulary for both languages of a translation; otherwise one for each."""

    def __post_init__(self) -> None:
        validate(self, "words.")
        if self.size:
            check_number("words.size", self.size, len(MARKS) + 1, MOST)


SCHEDULES: dict[str, Callable[[float], float]] = {
    "linear": lambda done: done,
    "exponential": lambda done: (1 - 0.01**done) / 0.99,
    "sigmoid": lambda done: 1 / (1 + exp(-12 * (done - 0.5))),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Own:
    """Scheduled sampling: the share of the words before that are the model's own, by the training done."""

    most: float = within(0, 1, default=0.0)
    """The share at the end; 0 is teacher forcing."""
    schedule: str = one_of(*SCHEDULES, default="linear")
    """linear, exponential or sigmoid, as in section 2.4 of the paper."""

    def __post_init__(self) -> None:
        validate(self, "own.")

    def share(self, done: float) -> float:
        """Return the share at a point of the training."""
        return self.most * SCHEDULES[self.schedule](done)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRecipe(Recipe):
    """Everything that decides a run on text, the data aside."""

    subject: ClassVar[str] = "a text model"
    task: str = ""
    """The task, which the data and the model decide."""
    pair: str = ""
    """The languages to translate from and to, as de-en; needed if the data has more than two."""
    words: VocabularySettings = field(default_factory=VocabularySettings)
    smoothing: float = within(0, 0.99, default=0.0)
    """Label smoothing: the share of the probability that is spread over all other words."""
    own: Own = field(default_factory=Own)
    """Scheduled sampling, for translation."""
    tokens: int = within(1, 2**30, default=2048)
    """The most tokens in a batch of sentence pairs, padding included; budget.batch counts the pairs."""

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        if self.parallel != "ddp":
            raise UsageError(
                "parallel is 'fsdp', which keeps a shard of the model in each process, but a text model "
                "needs all of it to generate; set parallel=ddp"
            )
