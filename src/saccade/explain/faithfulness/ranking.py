"""All methods of explanation for one model and one set of pictures, ranked beside the controls."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int, Integer
from torch import Tensor

from saccade.errors import UsageError
from saccade.explain.ask import Function
from saccade.explain.faithfulness.meter import (
    BETTER,
    DRAWS,
    LEVEL,
    Measured,
    Score,
    Verdict,
    check,
    dependences,
    measure,
    verdict,
)
from saccade.explain.faithfulness.perturbation import cells_of
from saccade.metrics.localisation import IGNORED, OBJECT, Overlap, Segmented, overlap, segmented
from saccade.models.build import Vision
from saccade.nn.patch import Image
from saccade.report.plots import Axes, Cell, Ink, Plot
from saccade.wording import count, number

RANDOM = "random"
"""The name of the control's row; a method of that name is left out, as the control runs anyway."""
AT_ONCE = 8
"""Pictures whose maps are made together."""
FEWEST = 4
"""Random maps of each picture where there are many pictures."""

Masks = Integer[np.ndarray, "k high wide"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A method on all pictures."""

    method: str
    score: Score
    randomised: float
    """The gain of the same method's maps on randomised weights."""
    ahead: float
    """Share of the pictures on which the map gains more than the picture's random maps do on average."""
    verdict: Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranking:
    """Methods by gain, the best first, the random control among them; JSON by saccade.values."""

    pictures: int
    draws: int
    """Random maps of each picture."""
    cells: tuple[int, int]
    """Rows and columns of what is taken away."""
    level: float
    """How often a method that knows nothing may be called better than random."""
    rows: tuple[Row, ...]
    segmentation: tuple[Segmented, ...] = ()
    """For each row how well it finds the objects, where masks were given."""

    def row(self, method: str) -> Row:
        """The row of a method."""
        return next(row for row in self.rows if row.method == method)

    def segmented(self, method: str) -> Segmented:
        """How well a method finds the objects."""
        return self.segmentation[[row.method for row in self.rows].index(method)]

    def better(self) -> list[str]:
        """The methods that are better than random, the best first."""
        return [row.method for row in self.rows if row.verdict.better]

    def __str__(self) -> str:
        good = self.better()
        found = f"Better than random: {', '.join(good)}" if good else "No method is better than random"
        best = self.rows[0]
        more = f"; the best is {best.method}" if len(good) > 1 and best.method in good else ""
        return f"{found} ({count(self.pictures, 'picture')}){more}."


def rank(
    module: Vision,
    images: Image,
    targets: Int[Tensor, "n"],
    methods: Mapping[str, Function],
    masks: Masks | None = None,
    draws: int = 0,
    seed: int = 0,
    say: Callable[[int, int], None] | None = None,
) -> Ranking:
    """Measure every method on every picture beside both controls, and sort the methods by their gain.

    Args:
        masks: 1 on the object, 0 on the background, -1 where neither counts, at any size.
        draws: random maps of each picture; 0 means 40 for one picture, fewer of each for many.
        seed: of the randomised weights.
        say: is told after each batch how many of all pictures are done.
    """
    wanted = {name: method for name, method in methods.items() if name != RANDOM}
    check(module, images, targets, wanted)
    n = images.shape[0]
    _check_masks(masks, n)
    draws = draws or max(FEWEST, -(-DRAWS // n))
    others = dependences(module, images, seed)
    found: list[Measured] = []
    overlaps: dict[str, list[Overlap]] = {name: [] for name in (*wanted, RANDOM)}
    for at in range(0, n, AT_ONCE):
        part = slice(at, at + AT_ONCE)
        found.append(measure(module, images[part], targets[part], wanted, draws, seed, others[part]))
        if masks is not None:
            _overlap(overlaps, found[-1], masks[part])
        if say is not None:
            say(min(at + AT_ONCE, n), n)
    rows = [_row(name, found) for name in wanted] + [_control(found)]
    rows.sort(key=lambda row: (-row.score.gain, row.method))
    return Ranking(
        pictures=n,
        draws=draws,
        cells=cells_of(module, images),
        level=LEVEL,
        rows=tuple(rows),
        segmentation=tuple(segmented(overlaps[row.method]) for row in rows) if overlaps[RANDOM] else (),
    )


def _check_masks(masks: Masks | None, pictures: int) -> None:
    if masks is None:
        return
    if masks.shape[0] != pictures:
        raise UsageError(f"{masks.shape[0]} masks were given for {pictures} pictures; expected one for each")
    known = (masks >= IGNORED) & (masks <= OBJECT)
    if not known.all():
        raise UsageError(
            f"a mask holds {int(masks[~known][0])}; expected 1 (object), 0 (background) or -1 (neither)"
        )


def _overlap(overlaps: dict[str, list[Overlap]], found: Measured, masks: Masks) -> None:
    """Add what the maps of a batch share with their masks; a mask without an object counts for nothing."""
    kinds: dict[str, Float[Tensor, "b m r c"]] = {
        name: rearrange(maps, "b r c -> b 1 r c") for name, maps in found.maps.items()
    }
    for name, maps in (*kinds.items(), (RANDOM, found.drawn)):
        large = F.interpolate(maps.cpu().float(), masks.shape[-2:], mode="bilinear").numpy()
        for several, mask in zip(large, masks, strict=True):
            if (mask == OBJECT).any():
                overlaps[name] += [overlap(one, mask) for one in several]


def _mean(scores: list[Score], weights: list[int]) -> Score:
    names = Score.__dataclass_fields__
    return Score(
        **{name: float(np.average([getattr(s, name) for s in scores], weights=weights)) for name in names}
    )


def _sizes(found: list[Measured]) -> list[int]:
    return [part.curves.whole.shape[0] for part in found]


def _row(name: str, found: list[Measured]) -> Row:
    own, drawn, shuffled = (
        np.concatenate(parts) for parts in zip(*(part.gains(name) for part in found), strict=True)
    )
    evidence = torch.cat([part.curves.evidence for part in found]).numpy()
    others = np.concatenate([part.others for part in found])
    return Row(
        method=name,
        score=_mean([part.score(name) for part in found], _sizes(found)),
        randomised=float(shuffled.mean()),
        ahead=float(np.mean(own > drawn.mean(1))),
        verdict=verdict(own, drawn, shuffled, evidence, others),
    )


def _control(found: list[Measured]) -> Row:
    score = _mean([part.control() for part in found], _sizes(found))
    told = Verdict(word="the control", reason="maps drawn at random", p=1.0)
    return Row(method=RANDOM, score=score, randomised=score.gain, ahead=0.5, verdict=told)


def plot(ranking: Ranking) -> Plot:
    """Bars of gain, the best on top, beside the same method on randomised weights; the table has the rest."""
    columns = {
        "method": "text",
        "verdict": "text",
        **dict.fromkeys(("gain", "insertion", "deletion", "positive", "negative"), "number"),
        "randomised weights": "number",
        "p": "number",
        **({} if not ranking.segmentation else dict.fromkeys(SHARES, "percent")),
    }
    control = ranking.row(RANDOM).score.gain
    return Plot(
        name="ranking",
        title="How true the maps are",
        message=str(ranking),
        note=(
            "Gain is insertion less deletion: the probability of the target should rise soon when what a map "
            "calls important comes first, and fall soon when it goes first. "
            f"Random maps gain {number(control)}."
        ),
        columns=columns,
        rows=[_cells(ranking, i) for i in range(len(ranking.rows))],
        draw=lambda axes, ink: _draw(ranking, axes, ink),
        height=0.9 + 0.34 * len(ranking.rows),
    )


SHARES = {
    "pixel accuracy": "pixel_accuracy",
    "mAP": "average_precision",
    "mIoU": "iou",
    "pointing": "pointing",
}


def _cells(ranking: Ranking, i: int) -> tuple[Cell, ...]:
    row, score = ranking.rows[i], ranking.rows[i].score
    found = ranking.segmentation[i : i + 1]
    return (
        row.method,
        row.verdict.word,
        *(score.gain, score.insertion, score.deletion, score.positive, score.negative),
        row.randomised,
        row.verdict.p,
        *(getattr(each, name) for each in found for name in SHARES.values()),
    )


def _draw(ranking: Ranking, axes: Axes, ink: Ink) -> None:
    rows = ranking.rows[::-1]
    places = np.arange(len(rows))
    solid = [ink.first if row.verdict.word == BETTER else ink.grid for row in rows]
    axes.barh(places, [row.score.gain for row in rows], color=solid, height=0.6)
    axes.plot([row.randomised for row in rows], places, "o", color=ink.second, label="on randomised weights")
    axes.axvline(ranking.row(RANDOM).score.gain, color=ink.second, linestyle="--", label="random maps")
    axes.set_yticks(places, [row.method for row in rows])
    axes.set_xlabel("gain: insertion less deletion (grey: uninformative)")
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower right")
