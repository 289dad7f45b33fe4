"""What rounding to whole numbers costs a product of matrices, and how it is made to cost less.

Shapes: t tokens, k channels that a product reads, n channels that it gives.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

LEVELS = 63
"""The largest whole number of a weight: 7 bits with a sign."""
SKIPPED = 2
"""Of so many tokens one is asked what rounding costs it; the range is that of all."""
DAMP, BLOCK = 0.01, 32
"""Of the compensation for rounding: what keeps its inverse small, and the inputs that are rounded at once."""
Weights = Float[np.ndarray, "k n"]
Scale = Float[np.ndarray, "n"]
Rounded = tuple[np.ndarray, np.ndarray]
"""Whole numbers, and a factor for each output channel."""


def even(reach: Float[np.ndarray, "k"], weight: Weights, alpha: float) -> Float[np.ndarray, "k"]:
    """SmoothQuant's factors (Xiao et al. 2023, Eq. 4), 1 on average."""
    factor = np.maximum(reach, 1e-5) ** alpha / np.maximum(np.abs(weight).max(1), 1e-5) ** (1 - alpha)
    return (factor / np.exp(np.log(factor).mean())).astype(np.float32)


def round_weights(weight: Weights) -> tuple[np.ndarray, Scale]:
    """Whole numbers of 7 bits and the factor of each output channel."""
    scale = np.maximum(np.abs(weight).max(0), 1e-12) / LEVELS
    return np.rint(weight / scale).clip(-LEVELS, LEVELS).astype(np.int8), scale.astype(np.float32)


def losses(x: Float[np.ndarray, "t k"], weight: Weights, factors: Sequence[np.ndarray]) -> list[float]:
    """The error of a rounded product, as an engine will compute it, with each of several factors."""
    reach = np.stack([x.min(0), x.max(0)])
    x = np.ascontiguousarray(x[::SKIPPED])
    exact = x @ weight
    # token by token: a few tokens with huge activations (Sun et al. 2024) would hide what all others lose
    lengths = np.maximum(np.linalg.norm(exact, axis=1), 1e-12)
    found = []
    for factor in factors:
        low, high = min(float((reach / factor).min()), 0.0), max(float((reach / factor).max()), 0.0)
        step = max((high - low) / 255, 1e-12)
        seen = x / (factor * np.float32(step))
        np.rint(seen, out=seen)
        seen = seen.clip(round(low / step), round(low / step) + 255, out=seen)
        whole, scale = round_weights(weight * factor[:, None])
        made = (seen @ whole.astype(np.float32)) * (scale * np.float32(step))
        found.append(float(np.mean(np.linalg.norm(made - exact, axis=1) / lengths)))
    return found


def inverse(upper: Float[np.ndarray, "k k"]) -> Float[np.ndarray, "k k"]:
    """Of a triangular matrix, by halves: a few large products instead of many small steps."""
    half = len(upper) // 2
    if half < BLOCK:
        return np.linalg.inv(upper)
    made = np.zeros_like(upper)
    made[:half, :half], made[half:, half:] = inverse(upper[:half, :half]), inverse(upper[half:, half:])
    made[:half, half:] = -(made[:half, :half] @ (upper[:half, half:] @ made[half:, half:]))
    return made


def compensated(weight: Weights, pairs: Float[np.ndarray, "k k"]) -> tuple[np.ndarray, Scale]:
    """As `round_weights`; what the rounding of an input changes, the inputs after it make up for.

    Frantar et al. 2023 (GPTQ), Eq. 2 with the Cholesky factor of their section 3.3, in blocks. That factor,
    of an inverse, is the inverse of the factor of the matrix itself, if its channels are taken backwards.
    """
    _, scale = round_weights(weight)
    left, count = weight.astype(np.float32), len(weight)
    damp = DAMP * np.trace(pairs) / count + 1e-12
    whole_pairs = pairs.astype(np.float64) + damp * np.eye(count)
    upper = inverse(np.linalg.cholesky(whole_pairs[::-1, ::-1])[::-1, ::-1]).astype(np.float32)
    whole = np.zeros(weight.shape, dtype=np.int8)
    for start in range(0, count, BLOCK):
        end = min(start + BLOCK, count)
        errors = np.zeros((end - start, weight.shape[1]), dtype=np.float32)
        for i in range(start, end):
            whole[i] = np.rint(left[i] / scale).clip(-LEVELS, LEVELS)
            errors[i - start] = (left[i] - whole[i] * scale) / upper[i, i]
            left[i + 1 : end] -= np.outer(upper[i, i + 1 : end], errors[i - start])
        left[end:] -= upper[start:end, end:].T @ errors
    return whole, scale
