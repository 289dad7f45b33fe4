"""The truth meter: whether a map tells where the reasons for an answer are, or only looks as if it did.

A map is scored by taking the picture apart in its order (explain/perturb.py); what it reaches is compared
with two controls that always run (explain/chance.py): random maps of the same picture, rough and smooth, and
the map that the same method makes of a model with randomised weights. A map is better than random only if

1. there is something to explain: the picture raises the odds of the target above those of the blurred picture
   at least e-fold, and more than it does for the own answer of any of 19 models with randomised weights (of a
   set: the mean over pictures). So 95 % of models with random weights are told to have no reasons, whatever
   the method, as the weights of the model itself and of the 19 might then change places;
2. at most 5 % of random maps score as well (of a set: 5 % of draws of one random map for each picture);
3. the map of the randomised weights scores lower.

Shapes: n pictures, m random maps of each.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import ModelError, UsageError, check_number
from saccade.explain.ask import Function, Maps, Target
from saccade.explain.faithfulness.controls import random_maps, randomised
from saccade.explain.faithfulness.perturbation import Curves, cells_of, curves, dependence, fitted
from saccade.models.build import Vision
from saccade.nn.patch import Image
from saccade.wording import number

LEVEL = 0.05
"""How often a map that knows nothing may be called better than random."""
DRAWS = 40
"""Random maps for one picture: enough that one lucky draw does not decide."""
COPIES = 19
"""Models with randomised weights whose dependence on the picture must be lower."""
EVIDENCE = 1.0
"""The least logarithm of the odds that a picture must add for its target."""
RESAMPLES = 1999
BETTER, UNINFORMATIVE = "better than random", "uninformative"

Scores = Float[np.ndarray, "n"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """What taking pictures apart by a map showed; a mean over maps or pictures where there are several."""

    deletion: float
    """Area under the target's probability while the most important cells go first; low is good."""
    insertion: float
    """The same while they come first; high is good."""
    positive: float
    """Share of the stages in which the target stays the answer, the most important gone; low is good."""
    negative: float
    """The same, the least important gone; high is good."""
    gain: float
    """Insertion less deletion, the one number by which maps are compared; a random map's is about 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Whether a map, or a method on a set of pictures, is better than random, and why one says so."""

    word: str
    """`BETTER` or `UNINFORMATIVE`."""
    reason: str
    p: float
    """The share of random maps, or of draws of them, that do as well."""

    @property
    def better(self) -> bool:
        return self.word == BETTER

    def __str__(self) -> str:
        return f"{self.word}: {self.reason}"


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Curves of some pictures: each method's maps, its maps on randomised weights, and the random maps."""

    names: tuple[str, ...]
    curves: Curves
    maps: dict[str, Maps]
    drawn: Float[Tensor, "b m r c"]
    others: Float[np.ndarray, "n k"]
    """How much the answers of models with randomised weights depend on each picture."""

    def score(self, name: str) -> Score:
        """Mean over pictures."""
        return _score(self.curves, [self.names.index(name)])

    def control(self) -> Score:
        """Mean over pictures and random maps."""
        return _score(self.curves, list(range(2 * len(self.names), self.curves.deletion.shape[1])))

    def gains(self, name: str) -> tuple[Scores, Float[np.ndarray, "n m"], Scores]:
        """Of each picture: the map's gain, those of its random maps, and that of the randomised weights."""
        gain = (self.curves.insertion - self.curves.deletion).numpy()
        place, many = self.names.index(name), len(self.names)
        return gain[:, place], gain[:, 2 * many :], gain[:, many + place]

    def verdict(self, name: str) -> Verdict:
        """Of the method on all these pictures together."""
        return verdict(*self.gains(name), self.curves.evidence.numpy(), self.others)

    def verdicts(self, name: str) -> list[Verdict]:
        """Of each picture by itself."""
        parts = (*self.gains(name), self.curves.evidence.numpy(), self.others)
        return [verdict(*(part[i : i + 1] for part in parts)) for i in range(parts[0].shape[0])]


def _score(found: Curves, columns: list[int]) -> Score:
    names = ("deletion", "insertion", "positive", "negative")
    means = {name: float(getattr(found, name)[:, columns].double().mean()) for name in names}
    return Score(**means, gain=means["insertion"] - means["deletion"])


def verdict(
    own: Scores,
    drawn: Float[np.ndarray, "n m"],
    shuffled: Scores,
    evidence: Scores,
    others: Float[np.ndarray, "n k"],
) -> Verdict:
    """Compare gains with those of the controls, picture by picture (module docstring)."""
    p = chance(own, drawn)
    few = own.shape[0] == 1
    as_well = (
        f"{int((drawn >= own[:, None]).sum())} of {drawn.shape[1]} random maps do as well"
        if few
        else f"random maps do as well in {round(p * (RESAMPLES + 1)) - 1:,} of {RESAMPLES:,} draws"
    )
    if why := _without_reasons(float(evidence.mean()), others.mean(0)):
        return Verdict(word=UNINFORMATIVE, reason=why, p=p)
    if p > LEVEL:
        return Verdict(word=UNINFORMATIVE, reason=f"not better than random, {as_well}", p=p)
    if own.mean() <= shuffled.mean():
        return Verdict(word=UNINFORMATIVE, reason="with randomised weights the same method does as well", p=p)
    return Verdict(word=BETTER, reason=as_well, p=p)


def _without_reasons(evidence: float, others: Float[np.ndarray, "k"]) -> str:
    """Why there is nothing to explain; nothing if there is."""
    if evidence < EVIDENCE:
        return (
            f"the answer hardly depends on the picture, the odds are {_times(evidence)} those of the blurred "
            f"picture where {_times(EVIDENCE)} or more were expected"
        )
    as_much = int(np.sum(others >= evidence))
    if as_much:
        return (
            "the answer depends on the picture no more than at random, "
            f"{as_much} of {others.shape[0]} models with randomised weights depend on it as much"
        )
    return ""


def _times(evidence: float) -> str:
    return f"{number(float(np.exp(evidence)))} times"


def chance(own: Scores, drawn: Float[np.ndarray, "n m"]) -> float:
    """The share of draws, one random map for each picture, whose mean gain is as high; never quite 0.

    One picture: its random maps themselves. More: 1,999 draws, always the same ones. The map itself counts as
    one draw more, which makes the test exact (Phipson and Smyth 2010).
    """
    n, m = drawn.shape
    if n == 1:
        means = drawn[0]
    else:
        which = np.random.default_rng(0).integers(0, m, (RESAMPLES, n))
        means = drawn[np.arange(n), which].mean(1)
    return float((1 + np.sum(means >= own.mean())) / (1 + means.shape[0]))


def dependences(module: Vision, image: Image, seed: int = 0) -> Float[np.ndarray, "n k"]:
    """How much the answers of models with randomised weights depend on each picture."""
    found = [dependence(randomised(module, seed + i), image) for i in range(COPIES)]
    return torch.stack(found, 1).numpy()


def measure(
    module: Vision,
    image: Image,
    target: Target,
    methods: Mapping[str, Function],
    draws: int = DRAWS,
    seed: int = 0,
    others: Float[np.ndarray, "n k"] | None = None,
) -> Measured:
    """Score the maps of each method beside both controls: 18 forward passes for each map.

    Args:
        draws: random maps of each picture; a verdict on a single picture needs at least 19.
        seed: of the randomised weights.
        others: what `dependences` found, where that is known already.
    """
    check(module, image, target, methods)
    check_number("draws", draws, 1, 10**5)
    other = randomised(module, seed)
    grid = cells_of(module, image)
    maps = {name: method(module, image, target) for name, method in methods.items()}
    for name, made in maps.items():
        _check_finite(name, made)
    # what a method cannot explain at all is in no order, which is to say in any
    shuffled = [method(other, image, target).nan_to_num() for method in methods.values()]
    columns = [fitted(rearrange(one, "b r c -> b 1 r c").cpu(), grid) for one in (*maps.values(), *shuffled)]
    drawn = random_maps(image, grid, draws)
    found = curves(module, image, target, torch.cat([*columns, drawn], 1))
    others = dependences(module, image, seed) if others is None else others
    return Measured(tuple(methods), found, maps, drawn, others)


def _check_finite(name: str, found: Maps) -> None:
    if not bool(found.isfinite().all()):
        raise ModelError(
            f"the map of {name} holds numbers that are not finite, where finite ones were expected; "
            "the weights may be damaged: look at them with `saccade doctor`"
        )


def judge(
    module: Vision, image: Image, target: Target, method: Function, draws: int = DRAWS, seed: int = 0
) -> list[Verdict]:
    """The verdict on a method's map of each picture by itself."""
    return measure(module, image, target, {"map": method}, draws, seed).verdicts("map")


def check(module: Vision, image: Image, target: Int[Tensor, "n"], methods: Mapping[str, Function]) -> None:
    """Refuse what cannot be measured."""
    classes = module.config.classes
    if classes < 2:
        raise UsageError(
            f"the model has {classes} classes, so that no probability can rise or fall; expected 2 or more"
        )
    if not methods:
        raise UsageError("no method was given to the truth meter; expected one or more")
    if image.shape[0] != target.shape[0] or not target.shape[0]:
        raise UsageError(
            f"{target.shape[0]} targets were given for {image.shape[0]} pictures; expected one for each "
            "of one or more"
        )
    if int(target.min()) < 0 or int(target.max()) >= classes:
        raise UsageError(
            f"targets from {int(target.min())} to {int(target.max())} were found; expected 0 to {classes - 1}"
        )
