"""The learning rate as a function of the step: warm-up, then half a cosine (Loshchilov, Hutter 2017)."""

import math


def cosine(step: int, steps: int, warmup: int) -> float:
    """The share of the full learning rate at `step` (from 0): rises to 1 over `warmup` steps, falls to 0."""
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(steps - warmup, 1)
    return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
