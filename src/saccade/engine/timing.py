"""Time contestants that take turns, and measure the peak memory of a module.

No machine is quiet for long. Contestants that take turns share its slow moments, so their ratio stays true.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter, sleep
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

LEAST, MOST = 9, 101
"""Rounds of a race."""
SECONDS = 6.0
"""A race ends after this long, once it has run `LEAST` rounds."""
Stopwatch = Callable[[], float]
"""Does the work once and returns the seconds that it took."""


@dataclass(frozen=True, slots=True)
class Timing:
    """A summary of rounds: the seconds of one contestant, or the ratios of two."""

    median: float
    low: float
    """Lower quartile."""
    high: float
    """Upper quartile."""
    p95: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Timing":
        """Summarise the values of all rounds."""
        row, count = sorted(values), len(values)
        return cls(median(row), row[count // 4], row[-1 - count // 4], row[int(0.95 * count)], count)

    @classmethod
    def ratio(cls, first: Sequence[float], second: Sequence[float]) -> "Timing":
        """Summarise how many times as long the first took as the second, round by round."""
        return cls.of([a / b for a, b in zip(first, second, strict=True)])


def stopwatch(work: Callable[[], object], pause: float = 0.0) -> Stopwatch:
    """Return a clock for some work; it waits for `pause` seconds before each start."""

    def clock() -> float:
        if pause:
            sleep(pause)
        start = perf_counter()
        work()
        return perf_counter() - start

    return clock


def race(
    clocks: Sequence[Stopwatch], seconds: float, least: int = LEAST, most: int = MOST, warmup: int = 2
) -> list[list[float]]:
    """Return the seconds of each contestant, round by round; every other round runs in reverse order.

    Args:
        seconds: For the whole race; it ends after this long, once `least` rounds are done.
        warmup: Rounds that are not counted: caches fill, and libraries set themselves up.
    """
    rows: list[list[float]] = [[] for _ in clocks]
    start = perf_counter()
    for number in range(-warmup, most):
        if number == 0:
            start = perf_counter()
        if number >= least and perf_counter() - start > seconds:
            break
        for i in range(len(clocks))[:: 1 if number % 2 else -1]:
            rows[i].append(clocks[i]())
    return [row[warmup:] for row in rows]


def forward_times(
    modules: "Sequence[nn.Module]", image: tuple[int, int], batch: int, seconds: float = 0.0
) -> list[list[float]]:
    """Return the seconds of each module's forward passes, taking turns; 0 stands for `SECONDS`."""
    import torch

    pixels = torch.randn(batch, 3, *image, generator=torch.Generator().manual_seed(0))
    clocks = [stopwatch(partial(module.eval(), pixels)) for module in modules]
    with torch.inference_mode():
        return race(clocks, seconds or SECONDS)


def peak_memory(work: Callable[[], object]) -> int:
    """Return the most bytes held at once of what `work` allocates; earlier allocations do not count."""
    from torch.profiler import ProfilerActivity, profile

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler prints a greeting to stderr
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = work()
    del kept
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    moves = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    held = most = 0
    for _, size in moves:
        held += size
        most = max(most, held)
    return most


def forward_memory(module: "nn.Module", image: tuple[int, int], batch: int) -> int:
    """Return the peak bytes of a forward pass, without the weights and the images."""
    import torch

    pixels = torch.zeros(batch, 3, *image)
    module.eval()

    def work() -> object:
        with torch.inference_mode():
            return module(pixels)

    work()
    return peak_memory(work)


def step_memory(module: "nn.Module", image: tuple[int, int], batch: int) -> int:
    """Return the peak bytes of a first training step: activations, gradients and AdamW's two moments.

    The step changes the module's weights, so pass one that is no longer needed.
    """
    import torch

    pixels = torch.zeros(batch, 3, *image)
    module.train()

    def work() -> object:
        optimizer = torch.optim.AdamW(module.parameters())
        module(pixels).square().sum().backward()
        optimizer.step()
        return optimizer

    found = peak_memory(work)
    module.zero_grad(set_to_none=True)
    return found
