"""The learning rate by the share done: warm-up, then half a cosine (Loshchilov and Hutter 2017)."""

import math


def cosine(done: float, warmup: float, step: float) -> float:
    """The share of the full learning rate: rises to 1 while `done` is below `warmup`, then falls to 0.

    Args:
        done: The share of the training that lies behind, from 0 to 1.
        step: What one more step adds to it; the first step is not lost to a rate of 0.
    """
    if done < warmup:
        return min((done + step) / warmup, 1.0)
    return 0.5 * (1 + math.cos(math.pi * min((done - warmup) / max(1 - warmup, 1e-9), 1.0)))
