"""Confidence intervals of a proportion that was counted on few examples."""

from math import sqrt

Z95 = 1.959963984540054
"""The two-sided 95% point of the normal distribution."""


def wilson(hits: int, count: int, z: float = Z95) -> tuple[float, float]:
    """Return the score interval of a share (Wilson 1927); unlike +/- z sigma it stays inside 0 to 1.

    >>> low, high = wilson(9, 10)
    >>> print(f"{low:.3f} {high:.3f}")
    0.596 0.982
    """
    if not 0 <= hits <= count or not count:
        raise ValueError(f"{hits} of {count} has no interval; expected 0 <= hits <= count and count > 0")
    share, weight = hits / count, z * z / count
    middle = (share + weight / 2) / (1 + weight)
    half = sqrt(share * (1 - share) * weight + weight * weight / 4) / (1 + weight)
    return (0.0 if hits == 0 else middle - half), (1.0 if hits == count else middle + half)


def interval_words(correct: int, count: int) -> str:
    """Return the 95% confidence interval of an accuracy as text.

    >>> interval_words(48, 50)
    '95% CI 86.5% to 98.9%'
    """
    low, high = wilson(correct, count)
    return f"95% CI {low:.1%} to {high:.1%}"
