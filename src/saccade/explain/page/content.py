"""All that the page about one picture tells, as values: maps, answers, attention, how far to trust them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32
from PIL import Image

from saccade.explain.page.attention_data import Gaze
from saccade.types import Prediction

Grid = Float32[np.ndarray, "rows columns"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """A method of explanation, and what the truth meter says of its map for the first class."""

    name: str
    source: str
    by_class: bool
    figures: dict[str, float]
    """What was measured, by name."""
    verdict: str = ""
    """In a few words."""
    reason: str = ""
    good: bool | None = None
    """Whether it is better than random; None where nothing was measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """One map; `target` is the number of a class, or None for a map that is the same for all."""

    method: str
    target: int | None
    grid: Grid


@dataclass(frozen=True, kw_only=True, slots=True)
class Story:
    """What is known about one answer."""

    name: str
    """Of the picture."""
    model: str
    picture: Image.Image
    """What the model saw."""
    answers: Sequence[Prediction]
    """The classes there are maps for; the first is the one the truth meter looked at."""
    method: str
    """The one shown first."""
    ways: Sequence[Way]
    maps: Sequence[Shown]
    gaze: Gaze | None = None
    why: str = ""
    """Why there is no attention to look at."""
    lens: Sequence[Sequence[float]] = ()
    """The probability of each answer, were it read after the embedding, after the first block, ..."""
    guesses: Sequence[Prediction] = ()
    """The likeliest class at each of these depths."""
    left: Sequence[str] = ()
    """Methods that would fit the model and were left out, as they take long."""

    def map(self, method: str, target: int) -> Shown:
        """The map of a method for a class."""
        return next(each for each in self.maps if each.method == method and each.target in (target, None))
