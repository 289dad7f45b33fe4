"""What the evaluations of all text models share: finite scores, samples, accuracy by position."""

import math
from collections.abc import Mapping
from typing import Any

from saccade.data.splits import evenly
from saccade.errors import not_finite
from saccade.metrics.text import Exposure

SHOWN = 12
"""Samples in a report."""
ENOUGH = 512
"""Sentences or windows on which positions are compared."""
PLACES = 60
"""Positions that a plot shows; few sentences are longer."""
LEAST = 20
"""Words at a position; the accuracy of fewer would be noise."""


def check_finite(scores: Mapping[str, float]) -> None:
    """Refuse scores that are not finite."""
    if not all(map(math.isfinite, scores.values())):
        raise not_finite()


def some_of(count: int, most: int = SHOWN) -> list[int]:
    """Return evenly spaced indices below `count`."""
    return evenly(count, most).tolist()


def exposure_facts(found: Exposure, first: int) -> dict[str, Any]:
    """Return the accuracies by position, where there are enough words."""
    enough = min(LEAST, found.forced.count.max())
    kept = [i for i, n in enumerate(found.forced.count[:PLACES].tolist()) if n >= enough]
    rows = {"forced": found.forced.accuracy, "free": found.free.accuracy, "words": found.forced.count}
    return {
        "places": [first + i for i in kept],
        **{name: [float(column[i]) for i in kept] for name, column in rows.items()},
    }
