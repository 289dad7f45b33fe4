"""The learning rate by training progress: warm-up, then half a cosine (Loshchilov and Hutter 2017)."""

import math


def cosine(done: float, warmup: float, step: float) -> float:
    """Return the factor on the learning rate: it rises to 1 until `warmup`, then falls to 0.

    Args:
        done: The share of the training that is done, from 0 to 1.
        step: What one step adds to it, so that the first step has a rate above 0.
    """
    if done < warmup:
        return min((done + step) / warmup, 1.0)
    return 0.5 * (1 + math.cos(math.pi * min((done - warmup) / max(1 - warmup, 1e-9), 1.0)))
