"""Scores of several parts added up to those of the whole, as if all had been scored at once."""

from collections.abc import Callable, Sequence

import numpy as np

from saccade.metrics.classify import Bin, Scores


def pool(parts: Sequence[Scores]) -> Scores:
    """Return the scores of all pictures together; each part counts by its number of pictures."""
    if not parts:
        raise ValueError("no scores were given to pool; expected those of one part or more")
    counts = [part.count for part in parts]

    def mean(value: Callable[[Scores], float]) -> float:
        total = sum(count * value(part) for count, part in zip(counts, parts, strict=True))
        return total / sum(counts)

    confusion = np.sum([part.confusion for part in parts], axis=0)
    confusion.setflags(write=False)
    return Scores(
        confusion=confusion,
        top5=mean(lambda part: part.top5),
        loss=mean(lambda part: part.loss),
        brier=mean(lambda part: part.brier),
        bins=tuple(_joined(bins) for bins in zip(*(part.bins for part in parts), strict=True)),
    )


def _joined(bins: Sequence[Bin]) -> Bin:
    """One bin of all parts; means of shares are shares, whatever the rounding says."""
    count = sum(b.count for b in bins)
    confidence, accuracy = (
        min(1.0, sum(b.count * getattr(b, name) for b in bins) / max(count, 1))
        for name in ("confidence", "accuracy")
    )
    return Bin(low=bins[0].low, high=bins[0].high, count=count, confidence=confidence, accuracy=accuracy)
