"""A speed that one chooses: which plan of dropping or merging reaches it and answers best, measured here.

A family of plans (a way, and the blocks where it acts) is a line from gentle to rough. Of each family the
gentlest plan that should reach the wanted speed is tried: its time is predicted from that of one block with
fewer and fewer tokens, then measured, and a rougher one is taken where it was too slow. Those that reach it
are compared on labelled pictures, and the best of them that reaches it again, measured for longer, is taken.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import numpy as np
import torch
from torch import nn

from saccade.data.image.preprocess import Preprocess
from saccade.data.pictures import Images
from saccade.data.splits import spread
from saccade.errors import UsageError
from saccade.models.hybrid import Hybrid
from saccade.models.looped import LoopConfig, Looped, vit_of
from saccade.models.vit import ViT
from saccade.tokens.merge import MergedConfig, constant, decreasing, merge
from saccade.tokens.plan import rates, saves, told
from saccade.tokens.prune import PrunedConfig, prune, usual_places
from saccade.vision.pruned import Speed, race, right_of, speed

KEEPS = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1)
STEPS = 8
"""Numbers of tokens at which a block is timed."""
SLACK = 1.03
"""How much faster than wanted a plan has to be predicted before it is tried."""
TRIES = 4
"""Plans of a family that are measured before it is given up."""
SECONDS = 1.5
"""For measuring one plan beside the dense model."""
NOISE = 0.05
"""How much of the wanted speed may be missing when a plan that had it is measured again."""
DRIFT = 0.1
"""How far the wanted speed may be from what it would be by now, on a machine that is faster or slower."""
HARDER = (1.0, 1.1)
"""How many times the wanted speed plans are made for; more only where none was as fast again."""
ENOUGH = 512
"""Pictures on which plans are compared; the one that is chosen is scored on others."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Tried:
    """A plan that was measured."""

    config: LoopConfig
    predicted: float
    """Seconds for a batch."""
    taken: float
    ratio: float
    """How many times as fast as the dense model."""
    right: float = 0.0
    """Share of the pictures."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The plan that is taken."""

    tried: Tried
    aim: float
    """How many times as fast it had to be."""
    speed: Speed
    """Measured again, for longer."""


class Clock:
    """Predicts the time of a plan from that of one block at several numbers of tokens."""

    def __init__(self, vit: ViT, batch: int, seconds: float) -> None:
        """`seconds`: what the whole model takes."""
        full = vit.config.front + vit.config.grid[0] * vit.config.grid[1]
        self.at = sorted({max(1, round(full * (i + 1) / STEPS)) for i in range(STEPS)})
        block = vit.blocks[len(vit.blocks) // 2]
        self.taken = _timed(block, [torch.randn(batch, n, vit.config.width) for n in self.at])
        self.rest = max(seconds - len(vit.blocks) * self.taken[-1], 0.0)
        self.extra = {"pruned": 0.0, "merged": 0.0}
        """Seconds that one act of dropping or merging takes."""

    def blocks(self, tokens: Sequence[int]) -> float:
        """Seconds of blocks that get so many tokens each, and of what is before and after them."""
        return self.rest + float(np.interp(tokens, self.at, self.taken).sum())

    def predict(self, config: LoopConfig) -> float:
        """Seconds of a plan."""
        return self.blocks(tokens(config)) + acts(config) * self.extra[config.kind]

    def learn(self, config: LoopConfig, seconds: float) -> None:
        """What the acts take, from a plan that was measured."""
        self.extra[config.kind] = max(0.0, (seconds - self.blocks(tokens(config))) / max(acts(config), 1))


def _timed(block: nn.Module, inputs: list[torch.Tensor], rounds: int = 9) -> list[float]:
    found: list[list[float]] = [[] for _ in inputs]
    with torch.inference_mode():
        for number in range(-1, rounds):
            for z, row in zip(inputs, found, strict=True):
                before = perf_counter()
                block(z)
                if number >= 0:
                    row.append(perf_counter() - before)
    return [median(row) for row in found]


def tokens(config: LoopConfig) -> list[int]:
    """What `saccade.tokens.cost.lengths` finds by running, in a moment: there are many plans."""
    vit = vit_of(config)
    patches, front, found = vit.grid[0] * vit.grid[1], vit.front, []
    left, merged = patches, rates(config) if isinstance(config, MergedConfig) else (0,) * vit.depth
    for block in range(vit.depth):
        if isinstance(config, PrunedConfig) and block in config.places:
            left = config.count(config.places.index(block), patches)
        found.append(left + front)
        left -= merged[block]
    return found


def acts(config: LoopConfig) -> int:
    """How often patches are dropped or merged."""
    if isinstance(config, PrunedConfig):
        return len(config.places)
    assert isinstance(config, MergedConfig)
    return sum(rate > 0 for rate in config.rates)


def families(vit: ViT) -> list[list[LoopConfig]]:
    """Plans from gentle to rough, a line for each way and each choice of blocks."""
    base = vit.hybrid if isinstance(vit, Hybrid) else vit.config
    depth, patches = vit.config.depth, vit.config.grid[0] * vit.config.grid[1]
    counts = range(1, min(3, depth - 1) + 1)
    chosen = {usual_places(depth, count) for count in counts}
    chosen |= {tuple(sorted({max(1, place // 2) for place in places})) for places in chosen}
    found: list[list[LoopConfig]] = [
        [PrunedConfig(vit=base, keep=keep, places=places, by="attention") for keep in KEEPS]
        for places in sorted(chosen)
        if places
    ]
    most = max(patches // depth, 1)
    step = max(1, most // 24)
    for schedule in (constant, decreasing):
        plans = [MergedConfig(vit=base, rates=schedule(depth, r)) for r in range(step, most + 1, step)]
        differing = {rates(plan): plan for plan in reversed(plans)}
        line: list[LoopConfig] = [*reversed(differing.values())]
        if line not in found:  # both are the same in a model of one block
            found.append(line)
    return found


def made(vit: ViT, config: LoopConfig) -> Looped:
    """A model by plan."""
    if isinstance(config, PrunedConfig):
        return prune(vit, config.keep, config.places, config.by, config.seed)
    assert isinstance(config, MergedConfig)
    return merge(vit, config.rates)


def search(
    vit: ViT,
    preprocess: Preprocess,
    images: Images,
    wanted: Callable[[float], float],
    batch: int,
    say: Say,
    again: int = 2,
) -> Chosen | None:
    """The plan that answers best of those that reach a speed; None if the dense model reaches it.

    Args:
        wanted: from the seconds of the dense model to how many times faster it has to become.
        again: how often to begin anew if the machine has become faster or slower meanwhile.
    """
    vit.eval()
    size = vit.config.image
    usual = median(race([vit], size, batch, SECONDS)[0])
    aim = wanted(usual)
    say(f"the dense model takes {1e3 * usual:.1f} ms for {_pictures(batch)} here")
    if aim <= 1:
        return None
    clock, lines = Clock(vit, batch, usual), families(vit)
    for line in {line[0].kind: line for line in reversed(lines)}.values():
        middle = line[len(line) // 2]
        rows = race([vit, made(vit, middle)], size, batch, SECONDS)
        clock.learn(middle, usual / speed(batch, *rows).ratio)
    seen: list[Tried] = []
    for harder in HARDER:
        measured = [
            each for line in lines for each in _reaching(vit, line, clock, usual, harder * aim, batch)
        ]
        tried = [each for each in measured if saves(each.config)]  # the rest is faster by chance only
        known = [each.config for each in seen]
        good = [each for each in tried if each.ratio >= aim > 1 and each.config not in known]
        seen += [each for each in tried if each not in good]
        for each in _ranked(vit, preprocess, images, good, say) if good else []:
            found = speed(batch, *race([vit, made(vit, each.config)], size, batch))
            if found.ratio > 1 and found.ratio >= aim * (1 - NOISE):
                if again and abs(wanted(found.dense) / aim - 1) > DRIFT:
                    say(f"the dense model takes {1e3 * found.dense:.1f} ms by now: searching once more")
                    return search(vit, preprocess, images, wanted, batch, say, again - 1)
                now = found.dense / usual
                return Chosen(replace(each, predicted=now * each.predicted), aim, found)
            say(f"{told(each.config)}: {found.ratio:.2f} x as fast when measured again, and not taken")
            seen.append(replace(each, taken=usual / found.ratio, ratio=found.ratio))
        if not good:
            break
    raise _unmet([each for each in seen if each.ratio < aim], usual, aim, batch)


def _ranked(vit: ViT, preprocess: Preprocess, images: Images, good: Sequence[Tried], say: Say) -> list[Tried]:
    """Plans that are fast enough, the one that answers best first."""
    sample = images.take(spread(len(images), ENOUGH))
    count, right, _ = right_of([made(vit, each.config) for each in good], preprocess, sample)
    scored = [replace(each, right=hits / count) for each, hits in zip(good, right, strict=True)]
    ranked = sorted(scored, key=lambda each: (each.right, each.ratio))
    for each in ranked:
        say(
            f"{told(each.config)}: {each.ratio:.2f} x as fast ({1e3 * each.taken:.1f} ms, predicted "
            f"{1e3 * each.predicted:.1f}), right {each.right:.1%} of {count}"
        )
    return ranked[::-1]


def _pictures(batch: int) -> str:
    return "a picture" if batch == 1 else f"{batch} pictures"


def _reaching(
    vit: ViT, line: Sequence[LoopConfig], clock: Clock, usual: float, aim: float, batch: int
) -> Iterator[Tried]:
    """What was measured of a family: rougher and rougher, until it is fast enough."""
    expected = [clock.predict(config) for config in line]
    first = next((i for i, time in enumerate(expected) if time * SLACK <= usual / aim), len(line) - 1)
    last = -1
    for attempt in range(TRIES):
        at = min(first + attempt, len(line) - 1)
        if at == last:
            return
        last = at
        module = made(vit, line[at])
        ratio = speed(batch, *race([vit, module], vit.config.image, batch, SECONDS)).ratio
        yield Tried(line[at], expected[at], usual / ratio, ratio)
        if ratio >= aim:
            return


def _unmet(tried: Sequence[Tried], usual: float, aim: float, batch: int) -> UsageError:
    best = max(tried, key=lambda each: each.ratio, default=None)
    took = f"{1e3 * usual:.1f} ms for {_pictures(batch)}"
    if best is None or best.ratio <= 1:
        return UsageError(
            f"the dense model takes {took} and no plan was faster here; expected a model with more patches, "
            f"or a larger --batch"
        )
    return UsageError(
        f"{1e3 * usual / aim:.1f} ms were asked for, {aim:.2f} times as fast as the dense one ({took}), and "
        f"no plan reaches it; the fastest that was measured takes {1e3 * best.taken:.1f} ms "
        f"({told(best.config)}): ask for that or more"
    )
