"""Translations and texts as numbers: BLEU in two forms, perplexity, how often each place is right."""

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
    """BLEU of one sentence in a form for teaching (Zhang et al., "Dive into Deep Learning", section 10.7).

    exp(min(0, 1 - |reference| / |answer|)) · ∏ p_n^(1 / 2^n) for n from 1 to k, where p_n is the share of
    the answer's n-grams that the reference has too, each at most as often as there. It is not the BLEU of
    Papineni et al. 2002, which `corpus_bleu` gives. An answer shorter than k is judged by the n-grams it
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
    """All that BLEU needs to know of some sentences; the counts of parts add up to those of the whole."""

    right: tuple[int, ...] = (0,) * ORDERS
    """n-grams that the reference has too, for n from 1."""
    total: tuple[int, ...] = (0,) * ORDERS
    length: int = 0
    reference: int = 0

    def __add__(self, other: "BleuCounts") -> "BleuCounts":
        return BleuCounts.of([a + b for a, b in zip(self.numbers(), other.numbers(), strict=True)])

    def numbers(self) -> list[int]:
        """In one row, to be summed over processes."""
        return [*self.right, *self.total, self.length, self.reference]

    @classmethod
    def of(cls, numbers: Sequence[int | float]) -> "BleuCounts":
        """What `numbers` gave."""
        row = [int(number) for number in numbers]
        return cls(tuple(row[:ORDERS]), tuple(row[ORDERS : 2 * ORDERS]), *row[2 * ORDERS :])

    def score(self) -> float:
        """From 0 to 100, smoothed as sacrebleu does by default (exp)."""
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
    """BLEU of many sentences, one reference each, of texts as people write them, not split into words.

    Args:
        lowercase: Whether capital letters are forgiven (case:lc in the signature).
        tokenize: How sacrebleu parts words: 13a, intl, zh, char, none.
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
    """exp of the mean negative log-probability of a word in nats: as unsure as among so many words."""
    return math.exp(loss) if loss < 700 else math.inf


@dataclass(frozen=True, slots=True, eq=False)
class ByPlace:
    """How often the word at each place is right."""

    right: Float64[np.ndarray, "n"]
    """Counts, as the count below."""
    count: Float64[np.ndarray, "n"]

    def __add__(self, other: "ByPlace") -> "ByPlace":
        most = max(len(self.count), len(other.count))
        wide = [np.pad(a, (0, most - len(a))) for a in (self.right, self.count, other.right, other.count)]
        return ByPlace(wide[0] + wide[2], wide[1] + wide[3])

    @property
    def accuracy(self) -> Float64[np.ndarray, "n"]:
        """By place; not a number where no sentence is as long."""
        with np.errstate(invalid="ignore"):
            return self.right / np.where(self.count > 0, self.count, np.nan)

    @property
    def mean(self) -> float:
        """Over all words."""
        return float(self.right.sum() / max(self.count.sum(), 1))


NOWHERE = ByPlace(np.empty(0), np.empty(0))


class Exposure(NamedTuple):
    """How often each place is right, given the true words before it, and given the model's own.

    The gap is the exposure bias: trained on true words only, a model has never met its own mistakes.
    """

    forced: ByPlace
    free: ByPlace


def by_place(
    answer: Integer[np.ndarray, "b n"], wanted: Integer[np.ndarray, "b n"], mask: Bool[np.ndarray, "b n"]
) -> ByPlace:
    """Compare sentences word by word at the places where `mask` has a wanted word."""
    right = ((answer == wanted) & mask).sum(0)
    return ByPlace(right.astype(np.float64), mask.sum(0).astype(np.float64))


@cache
def signature(lowercase: bool = False, tokenize: str = "13a") -> str:
    """What to cite with a score of `BleuCounts`."""
    return corpus_bleu([], [], lowercase=lowercase, tokenize=tokenize).signature
