"""The nouns that travel between rooms."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prediction:
    """One class and how sure the model is of it."""

    label: str
    score: float
    """A probability: the scores of all classes sum to 1."""
    index: int
    """The number of the class."""
