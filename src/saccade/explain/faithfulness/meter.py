"""The faithfulness meter: whether a map shows where the evidence for an answer is, or only seems to.

A map is scored by perturbing the image in its order (perturbation.py) and compared with two controls that
always run (controls.py): random maps of the same image, rough and smooth, and the map that the same method
makes of a model with randomised weights. A map is better than random only if

1. there is something to explain: the image raises the odds of the target at least e-fold over the same image
   with all cells deleted, and more than it raises those of the predicted class of any of 19 models with
   randomised weights (of a set: the mean over images). If the model's own weights were random too, it would
   be exchangeable with the 19 and come first in 1 of 20 cases; so 95% of random models are refused, whatever
   the method. Deleted cells are blurred or, where that changes the answers of none of the 20 models, dropped
   (evidence.py). The choice treats all 20 alike, so they stay exchangeable;
2. at most 5% of random maps score as well (of a set: 5% of draws of one random map per image);
3. the map of the randomised weights scores lower.

Where neither fill changes the answer, no map can be tested, good or bad: it cannot be judged.

Shapes: n images, m random maps of each, k randomised models.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import ModelError, UsageError, check_number
from saccade.explain.faithfulness.controls import random_maps, randomise
from saccade.explain.faithfulness.evidence import Evidence, find_evidence
from saccade.explain.faithfulness.fills import BLUR, cell_grid
from saccade.explain.faithfulness.perturbation import Curves, perturbation_curves, resize_maps
from saccade.explain.target import Maps, MethodFunction, Target
from saccade.models.build import Vision
from saccade.nn.patch import Image

LEVEL = 0.05
"""How often an uninformative map may be called better than random."""
DRAWS = 40
"""Random maps for one image: enough that one lucky draw does not decide."""
RESAMPLES = 1999
BETTER, UNINFORMATIVE, UNJUDGED = "better than random", "uninformative", "cannot be judged"

_Gains = Float[np.ndarray, "n"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Faithfulness:
    """Perturbation scores of a map; means where there are several maps or images."""

    deletion: float
    """Area under the target's probability as the most important cells are deleted; low is good."""
    insertion: float
    """The same as they are inserted; high is good."""
    positive: float
    """Share of stages in which the target is still predicted, most important deleted first; low is good."""
    negative: float
    """The same, least important first; high is good."""
    gain: float
    """Insertion minus deletion, the number by which maps are compared; about 0 for a random map."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Whether a map, or a method on a set of images, is better than random, and why."""

    word: str
    """`BETTER`, `UNINFORMATIVE` or `UNJUDGED`."""
    reason: str
    p: float
    """Share of random maps, or of draws of them, that score as well."""
    fill: str = BLUR
    """What took the place of deleted cells: blur, drop or mean."""

    @property
    def better(self) -> bool:
        return self.word == BETTER

    def __str__(self) -> str:
        return f"{self.word}: {self.reason}"


class Effect(NamedTuple):
    """Probability of the target as it is, and with the most important cells deleted."""

    share: float
    """Share of the cells: the first tenths that at least halve the probability, or half of the cells."""
    whole: float
    deleted: float
    random: float
    """With as many deleted at random, the mean of rough and smooth maps."""


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """Curves of some images; columns: the maps of each method, the same on random weights, random maps."""

    names: tuple[str, ...]
    curves: Curves
    maps: dict[str, Maps]
    drawn: Float[Tensor, "b m r c"]
    evidence: Evidence

    def score(self, name: str) -> Faithfulness:
        """Return the mean over images."""
        return _score(self.curves, [self.names.index(name)])

    def control(self) -> Faithfulness:
        """Return the mean over images and random maps."""
        return _score(self.curves, list(range(2 * len(self.names), self.curves.deletion.shape[1])))

    def effect(self, name: str) -> Effect:
        """Return what deleting the most important cells does, as a mean over images."""
        whole = float(self.curves.whole.double().mean())
        stages = self.curves.deleted.double().mean(0)
        own, drawn = stages[self.names.index(name)], stages[2 * len(self.names) :].mean(0)
        halved = (own <= whole / 2).nonzero()
        stage = int(halved[0, 0]) if halved.numel() else own.shape[0] // 2
        return Effect(float(self.curves.shares[stage]), whole, float(own[stage]), float(drawn[stage]))

    def gains(self, name: str) -> tuple[_Gains, Float[np.ndarray, "n m"], _Gains]:
        """Return for each image the gain of its map, of its random maps, and of the map on random weights."""
        gain = (self.curves.insertion - self.curves.deletion).numpy()
        column, methods = self.names.index(name), len(self.names)
        return gain[:, column], gain[:, 2 * methods :], gain[:, methods + column]

    def verdict(self, name: str) -> Verdict:
        """Return the verdict on a method over all images together."""
        return verdict(*self.gains(name), self.evidence)

    def verdicts(self, name: str, label: str = "") -> list[Verdict]:
        """Return the verdict on each image by itself; `label` names the target of all of them."""
        own, drawn, shuffled = self.gains(name)
        each = (slice(i, i + 1) for i in range(own.shape[0]))
        return [verdict(own[i], drawn[i], shuffled[i], self.evidence.part(i), label) for i in each]


def _score(found: Curves, columns: list[int]) -> Faithfulness:
    names = ("deletion", "insertion", "positive", "negative")
    means = {name: float(getattr(found, name)[:, columns].double().mean()) for name in names}
    return Faithfulness(**means, gain=means["insertion"] - means["deletion"])


def verdict(
    own: _Gains, drawn: Float[np.ndarray, "n m"], shuffled: _Gains, evidence: Evidence, label: str = ""
) -> Verdict:
    """Compare gains with those of the controls (see the module docstring)."""
    p = p_value(own, drawn)
    few = own.shape[0] == 1
    as_well = (
        f"{int((drawn >= own[:, None]).sum())} of {drawn.shape[1]} random maps score as well"
        if few
        else f"random maps score as well in {round(p * (RESAMPLES + 1)) - 1:,} of {RESAMPLES:,} draws"
    )
    word, reason = UNINFORMATIVE, ""
    if why := evidence.weakness(label):
        word, reason = UNJUDGED, why
    elif evidence.as_much:
        reason = (
            f"the answer depends on the image no more than at random; {evidence.copies} depend on it as much"
        )
    elif p > LEVEL:
        reason = f"not better than random, {as_well}"
    elif own.mean() <= shuffled.mean():
        reason = "the same method scores as well with randomised weights"
    else:
        word, reason = BETTER, as_well
    return Verdict(word=word, reason=reason, p=p, fill=evidence.fill)


def p_value(own: _Gains, drawn: Float[np.ndarray, "n m"]) -> float:
    """Return the share of draws, one random map per image, whose mean gain is as high; never quite 0.

    For one image the draws are its random maps; for more, 1,999 draws from a fixed seed. The map itself
    counts as one more draw, which makes the test exact (Phipson and Smyth 2010).
    """
    n, m = drawn.shape
    if n == 1:
        means = drawn[0]
    else:
        which = np.random.default_rng(0).integers(0, m, (RESAMPLES, n))
        means = drawn[np.arange(n), which].mean(1)
    return float((1 + np.sum(means >= own.mean())) / (1 + means.shape[0]))


def measure(
    module: Vision,
    image: Image,
    target: Target,
    methods: Mapping[str, MethodFunction],
    draws: int = DRAWS,
    seed: int = 0,
    evidence: Evidence | None = None,
) -> Measurement:
    """Score the maps of each method and both controls: 18 forward passes per map, or half their cost.

    Args:
        draws: random maps per image; a verdict on a single image needs at least 19.
        seed: of the randomised weights.
        evidence: what `find_evidence` returned, if that is known already.
    """
    check_inputs(module, image, target, methods)
    check_number("draws", draws, 1, 10**5)
    other = randomise(module, seed)
    grid = cell_grid(module, image)
    maps = {name: method(module, image, target) for name, method in methods.items()}
    for name, made in maps.items():
        _check_finite(name, made)
    # Where a method fails on random weights its map ranks nothing: equal cells are ordered at random.
    shuffled = [method(other, image, target).nan_to_num() for method in methods.values()]
    columns = [
        resize_maps(rearrange(one, "b r c -> b 1 r c").cpu(), grid) for one in (*maps.values(), *shuffled)
    ]
    drawn = random_maps(image, grid, draws)
    evidence = find_evidence(module, image, target, seed) if evidence is None else evidence
    found = perturbation_curves(module, image, target, torch.cat([*columns, drawn], 1), evidence.fill)
    return Measurement(tuple(methods), found, maps, drawn, evidence)


def _check_finite(name: str, found: Maps) -> None:
    if not bool(found.isfinite().all()):
        raise ModelError(
            f"the map of {name} is not finite; expected finite numbers. The weights may be damaged: "
            "check them with `saccade doctor`"
        )


def map_verdicts(
    module: Vision, image: Image, target: Target, method: MethodFunction, draws: int = DRAWS, seed: int = 0
) -> list[Verdict]:
    """Return the verdict on a method's map of each image by itself."""
    return measure(module, image, target, {"map": method}, draws, seed).verdicts("map")


def check_inputs(
    module: Vision, image: Image, target: Int[Tensor, "n"], methods: Mapping[str, MethodFunction]
) -> None:
    """Refuse what cannot be measured."""
    classes = module.config.classes
    if not classes:
        raise UsageError("the model has no head, so there is no answer to measure; expected one with a head")
    if not methods:
        raise UsageError("no method was given to the faithfulness meter; expected one or more")
    if image.shape[0] != target.shape[0] or not target.shape[0]:
        raise UsageError(
            f"{target.shape[0]} targets were given for {image.shape[0]} images; expected one for each "
            "image, and at least one image"
        )
    if int(target.min()) < 0 or int(target.max()) >= classes:
        raise UsageError(
            f"targets from {int(target.min())} to {int(target.max())} were found; expected 0 to {classes - 1}"
        )
