"""Counter-based random numbers: every draw is a function of (seed, epoch, sample, operation, number).

Nothing is remembered between draws, so workers, their count and a restart change nothing. The numbers are
splitmix64's (Steele et al. 2014), which absorbs one field after the other.
"""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from statistics import NormalDist

import numpy as np

from saccade.shapes import Float64, Int64, UInt8, UInt64

_MASK = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_NORMAL = NormalDist()


def _absorb(state: int, value: int) -> int:
    """Return 64 bits that depend on every bit of both."""
    z = (state + value + _STEP) & _MASK
    z = ((z ^ (z >> 30)) * _FIRST) & _MASK
    z = ((z ^ (z >> 27)) * _SECOND) & _MASK
    return z ^ (z >> 31)


def _absorb_each(state: int, count: int) -> UInt64[np.ndarray, "count"]:
    """Return `_absorb(state, i)` for every i below count."""
    z = np.arange(count, dtype=np.uint64) + np.uint64(
        (state + _STEP) & _MASK
    )  # arrays wrap around on overflow
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_SECOND)
    return z ^ (z >> np.uint64(31))


@cache
def _number(operation: str) -> int:
    """Return a number for a name that is the same in every process, which Python's own hash is not."""
    return int.from_bytes(hashlib.blake2b(operation.encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True)
class Draws:
    """The draws of one sample in one epoch; those of different operations or numbers are independent."""

    seed: int
    epoch: int
    sample: int
    _key: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        key = _absorb(_absorb(_absorb(0, self.seed), self.epoch), self.sample)
        object.__setattr__(self, "_key", key)

    def uniform(self, operation: str, number: int = 0) -> float:
        """Return a number in [0, 1), one of 2**53."""
        return (self._bits(operation, number) >> 11) * 2**-53

    def between(self, operation: str, low: float, high: float, number: int = 0) -> float:
        """Return a number from low to high, uniformly."""
        return low + (high - low) * self.uniform(operation, number)

    def integer(self, operation: str, n: int, number: int = 0) -> int:
        """Return one of 0, ..., n - 1."""
        assert n > 0
        return self._bits(operation, number) * n >> 64

    def flip(self, operation: str, p: float, number: int = 0) -> bool:
        """Return True with probability p: never for 0, always for 1."""
        return self.uniform(operation, number) < p

    def normal(self, operation: str, number: int = 0) -> float:
        """Return a draw from the standard normal distribution, by its quantile function."""
        return _inner_normal(self._bits(operation, number))

    def beta(self, operation: str, a: float, b: float, number: int = 0) -> float:
        """Return a draw from Beta(a, b), as the share of one gamma in the sum of two."""
        assert a > 0
        assert b > 0
        state = self._bits(operation, number)
        gap = _log_gamma_draw(b, _absorb(state, 1)) - _log_gamma_draw(a, _absorb(state, 0))
        return 1 / (1 + math.exp(min(gap, 700.0)))  # exp(710) would overflow

    def order(self, operation: str, n: int) -> Int64[np.ndarray, "n"]:
        """Return 0, ..., n - 1 in a random order."""
        return np.argsort(_absorb_each(self._bits(operation, 0), n), kind="stable")

    def noise(self, operation: str, n: int) -> UInt8[np.ndarray, "n"]:
        """Return n random bytes."""
        words = _absorb_each(self._bits(operation, 0), -(-n // 8))
        return words.astype("<u8").view(np.uint8)[:n]

    def _bits(self, operation: str, number: int) -> int:
        return _absorb(_absorb(self._key, _number(operation)), number)


def permutation(seed: int, epoch: int, n: int) -> Int64[np.ndarray, "n"]:
    """Return the order in which an epoch visits its n samples."""
    return Draws(seed, epoch, 0).order("order of samples", n)


def uniform(
    operation: str, seed: int, epoch: int, samples: Iterable[int], n: int
) -> Float64[np.ndarray, "samples n"]:
    """Return n numbers in [0, 1) for each sample, whatever batch, order or process the sample comes in."""
    rows = [Draws(seed, epoch, sample).noise(operation, 8 * n).view("<u8") for sample in samples]
    return (np.stack(rows) >> np.uint64(11)) * 2.0**-53


def uniform_by_key(keys: UInt64[np.ndarray, "n"], seed: int) -> Float64[np.ndarray, "n"]:
    """Return a number in [0, 1) for each key, which decides its side of a split once and for all."""
    z = keys ^ np.uint64(seed * _STEP & _MASK)
    for shift, factor in ((30, _FIRST), (27, _SECOND), (31, 1)) * 2:
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return (z >> np.uint64(11)) * 2.0**-53


def uniforms(
    operation: str, seed: int, epoch: int, samples: Iterable[int], n: int
) -> Float64[np.ndarray, "b n"]:
    """Return n numbers in [0, 1) for each sample, whatever batch or process it is in."""
    rows = [Draws(seed, epoch, sample).noise(operation, 8 * n).view("<u8") for sample in samples]
    return (np.stack(rows) >> np.uint64(11)) * 2.0**-53


def _inner_uniform(bits: int) -> float:
    """Return a number in (0, 1), whose logarithm and quantile are finite."""
    return ((bits >> 12) + 0.5) * 2**-52


def _inner_normal(bits: int) -> float:
    return _NORMAL.inv_cdf(_inner_uniform(bits))


def _log_gamma_draw(shape: float, state: int) -> float:
    """Return the logarithm of a draw from Gamma(shape) (Marsaglia and Tsang 2000).

    A small shape makes draws like 1e-500, which only their logarithm can hold.
    """
    boost = 0.0
    if shape < 1:
        boost, shape = math.log(_inner_uniform(_absorb(state, 0))) / shape, shape + 1
    d = shape - 1 / 3
    c = 1 / math.sqrt(9 * d)
    attempt = 1
    while True:
        x = _inner_normal(_absorb(state, attempt))
        u = _inner_uniform(_absorb(state, attempt + 1))
        v = (1 + c * x) ** 3
        if v > 0 and math.log(u) < 0.5 * x * x + d - d * v + d * math.log(v):
            return boost + math.log(d * v)
        attempt += 2
