"""What is told about one picture: its map, where that is hot, how true it is; the same wherever one asks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image as Pillow

from saccade import values
from saccade.data.image.resize import Pixels
from saccade.explain.describe import alt, tenth, where
from saccade.explain.faithfulness.meter import Measured, Score, Verdict, measure
from saccade.explain.heatmap import Heatmap
from saccade.explain.methods.table import METHODS, heatmaps
from saccade.models.build import Vision
from saccade.nn.patch import Image

SIDE = 224
"""Pixels of a side that an overlay has at least; smaller pictures are enlarged, their pixels kept square."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is asked about a picture."""

    name: str
    """Of the picture."""
    method: str
    target: int | None = None
    """The number of a class; None is the likeliest."""
    quick: bool = False
    """Whether to leave out the measurement of how true the map is."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Account:
    """A map with its name and its verdict."""

    name: str
    """Of the picture."""
    heatmap: Heatmap
    truth: Score | None = None
    verdict: Verdict | None = None

    @property
    def tenth(self) -> float:
        """The share of the heat in the hottest tenth of the map."""
        return tenth(self.heatmap.grid)

    @property
    def where(self) -> str:
        """The part of the picture with most of the heat."""
        return where(self.heatmap.grid)

    @property
    def alt(self) -> str:
        """The map in words."""
        return alt(self.heatmap.grid, self.heatmap.method, self.heatmap.label, self.name)

    def to_json(self) -> dict[str, Any]:
        """Numbers and words only."""
        known = {"picture": self.name, **self.heatmap.to_json()}
        known |= {"where": self.where, "tenth": self.tenth, "alt": self.alt, "truth": None}
        if self.truth is not None and self.verdict is not None:
            said = {"verdict": self.verdict.word, "reason": self.verdict.reason, "p": self.verdict.p}
            known["truth"] = {**values.to_json(self.truth), **said}
        return known

    def overlay(self) -> Pillow.Image:
        """The map over the picture, large enough to look at."""
        picture = self.heatmap.picture
        times = -(-SIDE // min(picture.size))
        large = picture.resize((picture.width * times, picture.height * times), Pillow.Resampling.NEAREST)
        return replace(self.heatmap, picture=large).overlay()


def measured(module: Vision, image: Image, target: int, names: Iterable[str]) -> Measured:
    """The truth meter on the maps of some methods, for one picture."""
    functions = {name: METHODS[name].function for name in names}
    return measure(module, image, torch.tensor([target], device=image.device), functions)


def account(
    module: Vision,
    image: Image,
    pixels: Pixels,
    label: Callable[[int], str],
    question: Question,
) -> Account:
    """Explain one picture, and measure how true that is unless it has to be quick.

    Args:
        image: what the model sees, a batch of one; `pixels` are the same before they were normalised.
    """
    (heatmap,) = heatmaps(METHODS[question.method], module, image, [pixels], label, question.target)
    if question.quick:
        return Account(name=question.name, heatmap=heatmap)
    return judged(question.name, heatmap, measured(module, image, heatmap.target, [question.method]))


def judged(name: str, heatmap: Heatmap, found: Measured) -> Account:
    """A map with what was measured of it."""
    score = found.score(heatmap.method)
    (verdict,) = found.verdicts(heatmap.method)
    return Account(name=name, heatmap=replace(heatmap, score=score.gain), truth=score, verdict=verdict)
