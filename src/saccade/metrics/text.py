"""Metrics of translations and texts: BLEU in two forms, perplexity, accuracy by position."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Integer

from saccade.errors import UsageError, check_number

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

ORDERS = 4


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def simple_bleu(answer: Sequence[str], reference: Sequence[str], k: int = 2) -> float:
    """Return a sentence's BLEU in a form for teaching (Zhang et al., "Dive into Deep Learning", 10.7).

    exp(min(0, 1 - |reference| / |answer|)) · ∏ p_n^(1 / 2^n) for n from 1 to k, where p_n is the share of
    the answer's n-grams that the reference has too, each at most as often as there. It is not the BLEU of
    Papineni et al. 2002, which `corpus_bleu` returns. An answer shorter than k is scored by the n-grams it
    has; an empty one scores 0, but against an empty reference 1.
    """
    check_number("k", k, 1, 100)
    if not answer:
        return float(not reference)
    score = math.exp(min(0.0, 1 - len(reference) / len(answer)))
    for n in range(1, min(k, len(answer)) + 1):
        found, wanted = _ngrams(answer, n), _ngrams(reference, n)
        score *= ((found & wanted).total() / found.total()) ** 0.5**n
    return score


def _bleu(lowercase: bool, tokenize: str) -> "BLEU":
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError as error:
        raise UsageError(
            "BLEU needs the package sacrebleu, which is not installed; pip install 'saccade[text]'"
        ) from error
    return BLEU(lowercase=lowercase, tokenize=tokenize, force=True)


@dataclass(frozen=True, slots=True)
class BleuCounts:
    """What BLEU needs of some sentences; the counts of parts add up to those of the whole."""

    right: tuple[int, ...] = (0,) * ORDERS
    """n-grams that the reference has too, for n from 1."""
    total: tuple[int, ...] = (0,) * ORDERS
    length: int = 0
    reference: int = 0

    def __add__(self, other: "BleuCounts") -> "BleuCounts":
        return BleuCounts.of([a + b for a, b in zip(self.numbers(), other.numbers(), strict=True)])

    def numbers(self) -> list[int]:
        """Return all counts in one row, to be summed over processes."""
        return [*self.right, *self.total, self.length, self.reference]

    @classmethod
    def of(cls, numbers: Sequence[int | float]) -> "BleuCounts":
        """Read what `numbers` returned."""
        row = [int(number) for number in numbers]
        return cls(tuple(row[:ORDERS]), tuple(row[ORDERS : 2 * ORDERS]), *row[2 * ORDERS :])

    def score(self) -> float:
        """Return BLEU from 0 to 100, smoothed as by sacrebleu's default (exp)."""
        if not self.length:
            return 0.0
        from sacrebleu.metrics.bleu import BLEU

        right, total = list(self.right), list(self.total)
        return BLEU.compute_bleu(right, total, self.length, self.reference, smooth_method="exp").score


@dataclass(frozen=True, slots=True)
class Bleu:
    """Corpus BLEU (Papineni et al. 2002) as sacrebleu computes it (Post 2018), with the signature to cite."""

    score: float
    signature: str
    counts: BleuCounts

    def __str__(self) -> str:
        return f"BLEU {self.score:.2f} ({self.signature})"


def corpus_bleu(
    answers: Sequence[str], references: Sequence[str], *, lowercase: bool = False, tokenize: str = "13a"
) -> Bleu:
    """Return BLEU of many sentences with one reference each; texts are plain, not split into words.

    Args:
        lowercase: Ignore case (case:lc in the signature).
        tokenize: How sacrebleu splits words: 13a, intl, zh, char, none.
    """
    if len(answers) != len(references):
        raise UsageError(f"there are {len(answers):,} answers but {len(references):,} references")
    metric = _bleu(lowercase, tokenize)
    if not answers:
        metric.corpus_score([""], [[""]])  # the signature is known only after a score
        return Bleu(0.0, str(metric.get_signature()), BleuCounts())
    found: Any = metric.corpus_score(list(answers), [list(references)])
    counts = BleuCounts(tuple(found.counts), tuple(found.totals), found.sys_len, found.ref_len)
    return Bleu(float(found.score), str(metric.get_signature()), counts)


def perplexity(loss: float) -> float:
    """Return exp(loss), for a mean loss per word in nats: as uncertain as a choice among this many words."""
    return math.exp(loss) if loss < 700 else math.inf


@dataclass(frozen=True, slots=True, eq=False)
class ByPosition:
    """How often the word at each position is correct."""

    right: Float64[np.ndarray, "n"]
    """Number of correct words at each position."""
    count: Float64[np.ndarray, "n"]

    def __add__(self, other: "ByPosition") -> "ByPosition":
        most = max(len(self.count), len(other.count))
        wide = [np.pad(a, (0, most - len(a))) for a in (self.right, self.count, other.right, other.count)]
        return ByPosition(wide[0] + wide[2], wide[1] + wide[3])

    @property
    def accuracy(self) -> Float64[np.ndarray, "n"]:
        """By position; NaN where no sentence is that long."""
        with np.errstate(invalid="ignore"):
            return self.right / np.where(self.count > 0, self.count, np.nan)

    @property
    def mean(self) -> float:
        """Accuracy over all words."""
        return float(self.right.sum() / max(self.count.sum(), 1))


NOWHERE = ByPosition(np.empty(0), np.empty(0))


class Exposure(NamedTuple):
    """Accuracy by position, given the true words before it, and given the model's own.

    The gap is the exposure bias: trained on true words only, a model has never seen its own mistakes.
    """

    forced: ByPosition
    free: ByPosition


def by_position(
    answer: Integer[np.ndarray, "b n"], wanted: Integer[np.ndarray, "b n"], mask: Bool[np.ndarray, "b n"]
) -> ByPosition:
    """Compare sentences word by word where `mask` is True."""
    right = ((answer == wanted) & mask).sum(0)
    return ByPosition(right.astype(np.float64), mask.sum(0).astype(np.float64))


@cache
def signature(lowercase: bool = False, tokenize: str = "13a") -> str:
    """Return the signature to cite with a score of `BleuCounts`."""
    return corpus_bleu([], [], lowercase=lowercase, tokenize=tokenize).signature
