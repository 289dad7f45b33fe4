"""The explanation of one answer: its map, the map in words, and the verdict of the faithfulness meter."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image as Pillow

from saccade import values
from saccade.data.image.resize import Pixels
from saccade.explain.faithfulness.fills import BLUR, DROP, MEAN
from saccade.explain.faithfulness.meter import Effect, Faithfulness, Measurement, Verdict, measure
from saccade.explain.heatmap import Heatmap
from saccade.explain.methods.table import METHODS, heatmaps
from saccade.models.build import Vision
from saccade.nn.patch import Image
from saccade.wording import percent, printable

MapValues = Float[np.ndarray, "rows columns"]
ACROSS = ("left", "centre", "right")
DOWN = ("upper", "middle", "lower")
DELETING = {BLUR: "Blurring", DROP: "Dropping", MEAN: "Covering"}
SIDE = 224
"""Smallest side of an overlay in pixels; smaller images are enlarged, their pixels kept square."""


class Spot(NamedTuple):
    """A cell of a map; row and column count from 1 at the upper left."""

    row: int
    column: int
    value: float
    share: float
    """Share of all the heat; evidence against the class counts as none."""
    where: str


def region(row: int, column: int, rows: int, columns: int) -> str:
    """Return the ninth of the image that a cell lies in; row and column count from 0.

    >>> region(0, 0, 14, 14), region(0, 7, 14, 14), region(7, 7, 14, 14), region(7, 13, 14, 14)
    ('upper left', 'top', 'middle', 'right')
    """
    down, across = DOWN[row * 3 // rows], ACROSS[column * 3 // columns]
    if across == "centre":
        return {"upper": "top", "middle": "middle", "lower": "bottom"}[down]
    return across if down == "middle" else f"{down} {across}"


def hottest(grid: MapValues, count: int) -> list[Spot]:
    """Return the cells with the most heat, hottest first."""
    rows, columns = grid.shape
    heat = np.clip(grid.astype(np.float64), 0, None)
    total = heat.sum() or 1.0
    order = np.argsort(-grid.ravel(), kind="stable")[:count]
    spots = []
    for row, column in (divmod(int(i), columns) for i in order):
        value, share = float(grid[row, column]), float(heat[row, column] / total)
        spots.append(Spot(row + 1, column + 1, value, share, region(row, column, rows, columns)))
    return spots


def hottest_tenth(grid: MapValues) -> float:
    """Return the share of the heat in the hottest tenth of the map; 0.1 means a map without information."""
    return sum(spot.share for spot in hottest(grid, math.ceil(grid.size / 10)))


def hottest_region(grid: MapValues) -> str:
    """Return the ninth of the image with the most heat, or "nowhere"."""
    rows, columns = grid.shape
    heat = np.clip(grid.astype(np.float64), 0, None)
    if not heat.any():
        return "nowhere"
    sums: dict[str, float] = {}
    for (row, column), value in np.ndenumerate(heat):
        there = region(row, column, rows, columns)
        sums[there] = sums.get(there, 0.0) + float(value)
    return max(sums, key=lambda there: sums[there])


def alt_text(grid: MapValues, method: str, label: str, picture: str) -> str:
    """Describe a map for someone who cannot see it."""
    title = f"Heat map of {method_title(method)} for {label!r} on {picture}"
    if not (grid > 0).any():
        return f"{title}: no evidence for it anywhere."
    (top,) = hottest(grid, 1)
    return (
        f"{title}: hottest {at_region(top.where)} (row {top.row}, column {top.column} of {grid.shape[0]} x "
        f"{grid.shape[1]}); the hottest tenth holds {percent(hottest_tenth(grid), 0)} of the heat, most of "
        f"which is {at_region(hottest_region(grid))}."
    )


def at_region(where: str) -> str:
    """Return a region as it stands in a sentence: "at the upper left", "in the middle"."""
    return {"nowhere": "nowhere", "middle": "in the middle"}.get(where, f"at the {where}")


def join_words(words: Sequence[str]) -> str:
    """Return words as they stand in a sentence: "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def effect_words(effect: Effect, fill: str, label: str) -> str:
    """Say what deleting the hottest part of the image does."""
    before, after, chance = (percent(p, 0) for p in effect[1:])
    change = (
        f"leaves P({label}) at {after}"
        if before == after
        else f"{'lowers' if effect.deleted < effect.whole else 'raises'} P({label}) from {before} to {after}"
    )
    hottest = f"the hottest {percent(effect.share, 0)} of the image"
    return f"{DELETING[fill]} {hottest} {change}; random parts: {chance}."


def method_title(method: str) -> str:
    """Return the name of a method without underscores."""
    return method.replace("_", " ")


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What to explain about an image."""

    name: str
    """Name of the image."""
    method: str
    target: int | None = None
    """Index of a class; None is the predicted one."""
    quick: bool = False
    """Skip the faithfulness meter."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation:
    """A map with the name of its image and, unless skipped, its faithfulness."""

    name: str
    """Name of the image."""
    heatmap: Heatmap
    faithfulness: Faithfulness | None = None
    verdict: Verdict | None = None
    effect: Effect | None = None
    """What deleting the hottest part of the image does."""

    @property
    def tenth(self) -> float:
        """The share of the heat in the hottest tenth of the map."""
        return hottest_tenth(self.heatmap.grid)

    @property
    def where(self) -> str:
        """The region of the image with the most heat."""
        return hottest_region(self.heatmap.grid)

    @property
    def alt(self) -> str:
        """The map in words."""
        return alt_text(self.heatmap.grid, self.heatmap.method, self.heatmap.label, self.name)

    def to_json(self) -> dict[str, Any]:
        """Return numbers and words only."""
        known = {"picture": self.name, **self.heatmap.to_json()}
        known |= {"where": self.where, "tenth": self.tenth, "alt": self.alt, "truth": None}
        if self.faithfulness is not None and self.verdict is not None and self.effect is not None:
            verdict = {"verdict": self.verdict.word, "reason": self.verdict.reason, "p": self.verdict.p}
            tried = {"fill": self.verdict.fill, "effect": self.effect._asdict()}
            known["truth"] = {**values.to_json(self.faithfulness), **verdict, **tried}
        return known

    @property
    def words(self) -> str:
        """The verdict and what it rests on, in a sentence or two; empty if it was not measured."""
        if self.verdict is None or self.effect is None:
            return ""
        said = f"{sentence(self.verdict)} "
        return said + effect_words(self.effect, self.verdict.fill, printable(self.heatmap.label, 60))

    def enlarged(self) -> Pillow.Image:
        """Return the image, at least `SIDE` pixels wide and high."""
        picture = self.heatmap.picture.convert("RGB")
        times = -(-SIDE // min(picture.size))
        return picture.resize((picture.width * times, picture.height * times), Pillow.Resampling.NEAREST)

    def overlay(self) -> Pillow.Image:
        """Draw the map over the enlarged image."""
        return replace(self.heatmap, picture=self.enlarged()).overlay()


def sentence(verdict: Verdict) -> str:
    """Return a verdict as a sentence."""
    said = verdict.reason if verdict.reason.startswith("not better than random") else str(verdict)
    return f"{said[0].upper()}{said[1:]}."


def measure_methods(module: Vision, image: Image, target: int, names: Iterable[str]) -> Measurement:
    """Run the faithfulness meter on the maps of some methods for one image."""
    functions = {name: METHODS[name].function for name in names}
    return measure(module, image, torch.tensor([target], device=image.device), functions)


def add_verdict(name: str, heatmap: Heatmap, found: Measurement) -> Explanation:
    """Return the explanation of a map that was measured."""
    faithfulness = found.score(heatmap.method)
    (verdict,) = found.verdicts(heatmap.method, printable(heatmap.label, 60))
    return Explanation(
        name=name,
        heatmap=replace(heatmap, score=faithfulness.gain),
        faithfulness=faithfulness,
        verdict=verdict,
        effect=found.effect(heatmap.method),
    )


def explain_image(
    module: Vision, image: Image, pixels: Pixels, label: Callable[[int], str], question: Question
) -> Explanation:
    """Explain one answer, and measure the map's faithfulness unless `question.quick`.

    Args:
        image: what the model sees, a batch of one; `pixels` are the same before normalisation.
    """
    (heatmap,) = heatmaps(METHODS[question.method], module, image, [pixels], label, question.target)
    if question.quick:
        return Explanation(name=question.name, heatmap=heatmap)
    found = measure_methods(module, image, heatmap.target, [question.method])
    return add_verdict(question.name, heatmap, found)
