"""What a model costs on this machine: seconds and bytes, measured while it works."""

import os
import time
from collections.abc import Callable, Sequence
from itertools import chain
from statistics import median

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

LEAST, MOST = 5, 200
"""Repetitions that are timed."""
SECONDS = 1.5
"""After this long, and `LEAST` repetitions a turn, enough is known."""
ROUNDS = 3


def times(module: nn.Module, image: tuple[int, int], batch: int, seconds: float) -> list[float]:
    """Seconds of each of some forward passes; the first two, which set things up, are not counted."""
    pictures = torch.randn(batch, 3, *image, generator=torch.Generator().manual_seed(0))
    module.eval()
    taken: list[float] = []
    with torch.inference_mode():
        for _ in range(2):
            module(pictures)
        began = time.perf_counter()
        while len(taken) < LEAST or (len(taken) < MOST and time.perf_counter() - began < seconds):
            before = time.perf_counter()
            module(pictures)
            taken.append(time.perf_counter() - before)
    return taken


def latencies(
    modules: Sequence[nn.Module], image: tuple[int, int], batch: int, seconds: float = 0.0
) -> list[float]:
    """Median seconds of a forward pass of each; they take turns, so that a busy moment hits none alone."""
    each = (seconds or SECONDS) / ROUNDS
    rounds = [[times(m, image, batch, each) for m in modules] for _ in range(ROUNDS)]
    return [median(chain.from_iterable(found)) for found in zip(*rounds, strict=True)]


def peak(work: Callable[[], object]) -> int:
    """Most bytes that were held at once by what `work` allocates; what was there before is not in it."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler greets on stderr
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


def forward_memory(module: nn.Module, image: tuple[int, int], batch: int) -> int:
    """Peak bytes of a forward pass, the weights and the pictures aside."""
    pictures = torch.zeros(batch, 3, *image)
    module.eval()

    def work() -> object:
        with torch.inference_mode():
            return module(pictures)

    work()
    return peak(work)


def step_memory(module: nn.Module, image: tuple[int, int], batch: int) -> int:
    """Peak bytes of a first training step: activations, gradients and AdamW's two moments; no weights.

    The module learns from it: give one that is not needed any more.
    """
    pictures = torch.zeros(batch, 3, *image)
    module.train()

    def work() -> object:
        optimizer = torch.optim.AdamW(module.parameters())
        module(pictures).square().sum().backward()
        optimizer.step()
        return optimizer

    found = peak(work)
    module.zero_grad(set_to_none=True)
    return found
