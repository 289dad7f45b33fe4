"""Search for the most accurate plan of dropping or merging patches that reaches a given speed, measured here.

A family of plans (a method, and the blocks where it acts) runs from gentle to aggressive. In each family the
gentlest plan predicted to reach the speed is tried first: its time is predicted from that of one block with
fewer and fewer tokens, then measured, and a more aggressive one follows if it was too slow. Those fast enough
are compared on labelled images, and the best one that is still fast enough in a longer measurement is taken.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import numpy as np
import torch
from torch import nn

from saccade.data.image.preprocess import Preprocess
from saccade.data.pictures import Pictures
from saccade.data.splits import evenly
from saccade.engine.timing import forward_times, race, stopwatch
from saccade.errors import UsageError
from saccade.models.hybrid import Hybrid
from saccade.models.looped import LoopConfig, Looped, vit_of
from saccade.models.vit import ViT
from saccade.tokens.merge import MergedConfig, constant, decreasing, merge
from saccade.tokens.plan import describe_plan, rates, saves
from saccade.tokens.prune import PrunedConfig, prune, usual_places
from saccade.vision.pruned import Speed, right_of, speed

KEEPS = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1)
STEPS = 8
"""Token counts at which a block is timed."""
SLACK = 1.03
"""How much faster than wanted a plan has to be predicted before it is tried."""
TRIES = 4
"""Plans of a family to measure before giving up on it."""
SECONDS = 1.5
"""Time to measure one plan against the dense model."""
NOISE = 0.05
"""How far below the wanted speed a plan may fall when it is measured again."""
DRIFT = 0.1
"""How far the wanted speed-up may drift as the machine becomes faster or slower."""
HARDER = (1.0, 1.1)
"""Multiples of the wanted speed to plan for; the next only if no plan was fast enough when repeated."""
ENOUGH = 512
"""Images on which plans are compared; the chosen one is evaluated on others."""

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
    """Accuracy, as a share."""


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
        """Seconds for dropping or merging once."""

    def blocks(self, tokens: Sequence[int]) -> float:
        """Predict the seconds of blocks with these token counts, and of what precedes and follows them."""
        return self.rest + float(np.interp(tokens, self.at, self.taken).sum())

    def predict(self, config: LoopConfig) -> float:
        """Predict the seconds of a plan."""
        return self.blocks(tokens(config)) + acts(config) * self.extra[config.kind]

    def learn(self, config: LoopConfig, seconds: float) -> None:
        """Estimate the cost of dropping or merging from a measured plan."""
        self.extra[config.kind] = max(0.0, (seconds - self.blocks(tokens(config))) / max(acts(config), 1))


def _timed(block: nn.Module, inputs: list[torch.Tensor], rounds: int = 9) -> list[float]:
    clocks = [stopwatch(partial(block, z)) for z in inputs]
    with torch.inference_mode():
        return [median(row) for row in race(clocks, 0.0, rounds, rounds, warmup=1)]


def tokens(config: LoopConfig) -> list[int]:
    """Compute what `saccade.tokens.cost.lengths` finds by running the model: there are many plans."""
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
    """Count how often patches are dropped or merged."""
    if isinstance(config, PrunedConfig):
        return len(config.places)
    assert isinstance(config, MergedConfig)
    return sum(rate > 0 for rate in config.rates)


def families(vit: ViT) -> list[list[LoopConfig]]:
    """Return plans from gentle to aggressive, one list for each method and choice of blocks."""
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
    """Apply a plan to a model."""
    if isinstance(config, PrunedConfig):
        return prune(vit, config.keep, config.places, config.by, config.seed)
    assert isinstance(config, MergedConfig)
    return merge(vit, config.rates, config.matching)


def search(
    vit: ViT,
    preprocess: Preprocess,
    images: Pictures,
    wanted: Callable[[float], float],
    batch: int,
    say: Say,
    again: int = 2,
) -> Chosen | None:
    """Return the most accurate plan of those that reach a speed; None if the dense model reaches it.

    Args:
        wanted: maps the dense model's seconds to the speed-up that is needed.
        again: how often to start over if the machine has become faster or slower meanwhile.
    """
    vit.eval()
    size = vit.config.image
    usual = median(forward_times([vit], size, batch, SECONDS)[0])
    aim = wanted(usual)
    say(f"the dense model takes {1e3 * usual:.1f} ms for {_pictures(batch)} here")
    if aim <= 1:
        return None
    # Hundreds of plans cannot all be run. Time one block at several token counts, predict every plan from
    # that, and measure only the few of each family that are predicted to be just fast enough.
    clock, lines = Clock(vit, batch, usual), families(vit)
    for line in {line[0].kind: line for line in reversed(lines)}.values():
        middle = line[len(line) // 2]
        rows = forward_times([vit, made(vit, middle)], size, batch, SECONDS)
        clock.learn(middle, usual / speed(batch, *rows).ratio)
    seen: list[Tried] = []
    for harder in HARDER:
        measured = [
            each for line in lines for each in _reaching(vit, line, clock, usual, harder * aim, batch)
        ]
        tried = [each for each in measured if saves(each.config)]  # the rest are faster only by chance
        known = [each.config for each in seen]
        good = [each for each in tried if each.ratio >= aim > 1 and each.config not in known]
        seen += [each for each in tried if each not in good]
        # the most accurate first, measured again for longer: the best of many short measurements is lucky
        for each in _ranked(vit, preprocess, images, good, say) if good else []:
            found = speed(batch, *forward_times([vit, made(vit, each.config)], size, batch))
            if found.ratio > 1 and found.ratio >= aim * (1 - NOISE):
                if again and abs(wanted(found.dense) / aim - 1) > DRIFT:
                    say(f"the dense model takes {1e3 * found.dense:.1f} ms now; searching again")
                    return search(vit, preprocess, images, wanted, batch, say, again - 1)
                now = found.dense / usual
                return Chosen(replace(each, predicted=now * each.predicted), aim, found)
            say(f"{describe_plan(each.config)}: {found.ratio:.2f} x as fast when measured again; not taken")
            seen.append(replace(each, taken=usual / found.ratio, ratio=found.ratio))
        if not good:
            break
    raise _unmet([each for each in seen if each.ratio < aim], usual, aim, batch)


def _ranked(
    vit: ViT, preprocess: Preprocess, images: Pictures, good: Sequence[Tried], say: Say
) -> list[Tried]:
    """Return the plans that are fast enough, the most accurate first."""
    sample = images.take(evenly(len(images), ENOUGH))
    count, right, _ = right_of([made(vit, each.config) for each in good], preprocess, sample)
    scored = [replace(each, right=hits / count) for each, hits in zip(good, right, strict=True)]
    ranked = sorted(scored, key=lambda each: (each.right, each.ratio))
    for each in ranked:
        say(
            f"{describe_plan(each.config)}: {each.ratio:.2f} x as fast ({1e3 * each.taken:.1f} ms, predicted "
            f"{1e3 * each.predicted:.1f}), accuracy {each.right:.1%} on {count} images"
        )
    return ranked[::-1]


def _pictures(batch: int) -> str:
    return "an image" if batch == 1 else f"{batch} images"


def _reaching(
    vit: ViT, line: Sequence[LoopConfig], clock: Clock, usual: float, aim: float, batch: int
) -> Iterator[Tried]:
    """Yield the measured plans of a family, more and more aggressive, until one is fast enough."""
    expected = [clock.predict(config) for config in line]
    # plans are ordered from gentle to aggressive, so the first that is fast enough is the most accurate
    first = next((i for i, time in enumerate(expected) if time * SLACK <= usual / aim), len(line) - 1)
    last = -1
    for attempt in range(TRIES):
        at = min(first + attempt, len(line) - 1)
        if at == last:
            return
        last = at
        module = made(vit, line[at])
        ratio = speed(batch, *forward_times([vit, module], vit.config.image, batch, SECONDS)).ratio
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
        f"no plan reaches {1e3 * usual / aim:.1f} ms, {aim:.2f} times as fast as the dense model ({took}); "
        f"the fastest takes {1e3 * best.taken:.1f} ms ({describe_plan(best.config)}); ask for that or longer"
    )
