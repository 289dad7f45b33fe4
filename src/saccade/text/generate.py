"""Texts written for people: translated, gone on with, filled in; in batches, with how sure the model is.

Shapes: b texts, n words, v vocabulary.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from saccade.errors import UsageError, check_number
from saccade.files.paths import shown
from saccade.models.modules import resting
from saccade.models.text.bert import BERTConfig
from saccade.models.text.decoding import Marks, Sentence, beam, greedy, sample
from saccade.models.text.gpt import GPTConfig
from saccade.models.text.sequence import NextToken
from saccade.models.text.transformer import TransformerConfig
from saccade.tasks.translate.batches import padded
from saccade.text.vocabulary import HOLE, Vocabulary

LONGEST = 2048
"""Tokens that a person may give to translate: attention to twice as many takes four times the memory."""
BATCH = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Manner:
    """How a text is written: the likeliest word each time, by beam search, or by chance."""

    beams: int = 1
    """Beginnings that are followed at a time; 1 takes the likeliest word each time."""
    alpha: float = 0.6
    """How far long texts are forgiven in beam search (Wu et al. 2016, Eq. 14); 0 is not at all."""
    temperature: float = 0.0
    """0 takes the likeliest; else words are drawn, below 1 bolder, above 1 wilder."""
    top_k: int = 0
    """Draw among so many likeliest words; 0 means all."""
    top_p: float = 1.0
    """Draw among the likeliest words that hold so much probability."""
    seed: int = 0
    most: int = 0
    """Tokens at most; 0: a translation twice as long as its source, of other texts 100."""

    def __post_init__(self) -> None:
        check_number("beams", self.beams, 1, 1024)
        check_number("alpha", self.alpha, 0, 10)
        check_number("temperature", self.temperature, 0, 100)
        check_number("top_k", self.top_k, 0, 2**24)
        check_number("top_p", self.top_p, 1e-6, 1)
        check_number("seed", self.seed, 0, 2**63 - 1)
        check_number("most", self.most, 0, 10**6)
        if self.temperature and self.beams > 1:
            raise UsageError(
                f"{self.beams} beams and a temperature of {self.temperature:g} were both asked for; beam "
                "search draws nothing; choose one"
            )


class Written(NamedTuple):
    """A text, and how likely the model holds it."""

    text: str
    log_p: float
    """Sum of the log-probabilities of its tokens."""
    tokens: int
    ended: bool
    """Whether it ended by itself, and not because it was long enough."""


class Filling(NamedTuple):
    """A word for a hole, and how sure the model is of it."""

    word: str
    p: float


def _check(texts: Sequence[str]) -> None:
    for i, text in enumerate(texts, 1):
        if not text.strip():
            which = f"text {i} of {len(texts)}" if len(texts) > 1 else "the text"
            raise UsageError(f"{which} is empty; expected at least a word")


def check_length(text: str, found: int, most: int) -> None:
    """Refuse a text that does not fit."""
    if found > most:
        raise UsageError(
            f"the text {shown(text, 40)!r} has {found:,} tokens, but the model takes {most:,}; "
            "give it in parts"
        )


def _longest(module: nn.Module, most: int = LONGEST) -> int:
    """Tokens that the model can read at once; `most` where it sets no limit."""
    config = getattr(module, "config", None)
    if isinstance(config, GPTConfig | BERTConfig | TransformerConfig):
        learnt = isinstance(config, BERTConfig) or config.position == "learned"
        return config.context if learnt else most
    return most


def _write(
    module: nn.Module,
    source: Tensor,
    mask: Tensor | None,
    marks: Marks,
    most: int,
    how: Manner,
    numbers: Sequence[int] | None = None,
) -> list[list[Sentence]]:
    writer = cast(NextToken, module)
    if how.beams > 1:
        return beam(writer, source, mask, marks, most, width=how.beams, alpha=how.alpha)
    if how.temperature:
        drawn = sample(writer, source, mask, marks, most, temperature=how.temperature, top_k=how.top_k,
                       top_p=how.top_p, seed=how.seed, numbers=numbers)  # fmt: skip
        return [[sentence] for sentence in drawn]
    return [[sentence] for sentence in greedy(writer, source, mask, marks, most)]


def _batches(numbers: Sequence[Sequence[int]], size: int) -> Iterator[list[int]]:
    """Places of texts, the longest first, so that a batch holds texts of like lengths."""
    order = sorted(range(len(numbers)), key=lambda i: -len(numbers[i]))
    for first in range(0, len(order), size):
        yield order[first : first + size]


def _again(texts: Sequence[str]) -> list[int]:
    """How often each text stood before: the number by which its draws differ from those of its equals."""
    seen = Counter[str]()
    found = []
    for text in texts:
        found.append(seen[text])
        seen[text] += 1
    return found


def _told(sentence: Sentence, decode: Callable[[Sequence[int]], str]) -> Written:
    return Written(decode(sentence.tokens), sentence.log_p, len(sentence.tokens), sentence.ended)


def translations(
    module: nn.Module,
    source: Vocabulary,
    target: Vocabulary,
    texts: Sequence[str],
    how: Manner | None = None,
    batch: int = BATCH,
    longest: int = LONGEST,
) -> list[list[Written]]:
    """The translations of each text, the best first: one, or as many as there are beams.

    Args:
        longest: A text of more tokens is refused.
    """
    how = how or Manner()
    _check(texts)
    numbers = [[*row, source.eos] for row in source.encode_all([text.strip() for text in texts])]
    longest = _longest(module, longest)
    for text, row in zip(texts, numbers, strict=True):
        check_length(text, len(row), longest)
    found: list[list[Written]] = [[] for _ in texts]
    again = _again(texts)
    marks = Marks(bos=target.bos, eos=target.eos, pad=target.pad)
    with resting(module) as device:
        for chosen in _batches(numbers, batch):
            words, mask = (made.to(device) for made in padded([np.array(numbers[i]) for i in chosen]))
            most = min(how.most or 2 * words.shape[1] + 10, longest)
            written = _write(module, words, mask, marks, most, how, [again[i] for i in chosen])
            for i, sentences in zip(chosen, written, strict=True):
                found[i] = [_told(sentence, target.decode) for sentence in sentences]
    return found


def captions(
    module: nn.Module, target: Vocabulary, pictures: Tensor, how: Manner | None = None
) -> list[list[Written]]:
    """The sentences for each of a batch of pictures, the best first."""
    how = how or Manner()
    marks = Marks(bos=target.bos, eos=target.eos, pad=target.pad)
    with resting(module) as device:
        written = _write(module, pictures.to(device), None, marks, how.most or 100, how)
    return [[_told(sentence, target.decode) for sentence in sentences] for sentences in written]


def completions(
    module: nn.Module,
    vocabulary: Vocabulary,
    texts: Sequence[str],
    how: Manner | None = None,
    batch: int = BATCH,
) -> list[list[Written]]:
    """How each text goes on, the new words only; of a text longer than the context the end is read."""
    how = how or Manner()
    _check(texts)
    # A space at the end belongs to the next word of a vocabulary that has its words with a space before them.
    begun = [text.rstrip(" ") if vocabulary.kind == "pairs" else text for text in texts]
    numbers = vocabulary.encode_all(begun)
    found: list[list[Written]] = [[] for _ in texts]
    again = _again(texts)
    marks = Marks(bos=vocabulary.bos, eos=vocabulary.eos, pad=vocabulary.pad)
    with resting(module) as device:
        for chosen in _batches(numbers, batch):
            words, mask = (made.to(device) for made in padded([np.array(numbers[i]) for i in chosen]))
            written = _write(module, words, mask, marks, how.most or 100, how, [again[i] for i in chosen])
            for i, sentences in zip(chosen, written, strict=True):
                row, spaced = numbers[i], len(begun[i]) < len(texts[i])
                new = [_told(s, partial(_after, vocabulary, row)) for s in sentences]
                found[i] = [w._replace(text=w.text.removeprefix(" ")) if spaced else w for w in new]
    return found


def _after(vocabulary: Vocabulary, before: Sequence[int], tokens: Sequence[int]) -> str:
    """New tokens as text, of which the first may be the end of a letter."""
    return vocabulary.decode([*before, *tokens])[len(vocabulary.decode(before)) :]


def fillings(
    module: nn.Module, vocabulary: Vocabulary, texts: Sequence[str], top: int = 5, batch: int = BATCH
) -> list[list[list[Filling]]]:
    """The likeliest words for each [MASK] of each text; each hole is filled as if the others stayed open."""
    check_number("top", top, 1, 2**24)
    _check(texts)
    numbers = [around(vocabulary, text) for text in texts]
    for text, row in zip(texts, numbers, strict=True):
        check_length(text, len(row), _longest(module))
    found: list[list[list[Filling]]] = [[] for _ in texts]
    with resting(module) as device:
        for chosen in _batches(numbers, batch):
            words, mask = (made.to(device) for made in padded([np.array(numbers[i]) for i in chosen]))
            holes = (words == vocabulary.mask) & mask
            logits = module(words, mask)[holes][:, : len(vocabulary)]
            logits = logits.index_fill(1, torch.tensor(vocabulary.marks, device=device), -torch.inf)
            p, best = logits.softmax(-1).topk(min(top, len(vocabulary) - len(vocabulary.marks)), dim=-1)
            for row, answers, chances in zip(
                holes.nonzero()[:, 0].tolist(), best.tolist(), p.tolist(), strict=True
            ):
                pairs = zip(answers, chances, strict=True)
                found[chosen[row]].append([Filling(_bare(vocabulary.word(word)), c) for word, c in pairs])
    return found


def _bare(word: str) -> str:
    """A word without the spaces around it, unless it is one."""
    return word.strip() or word


def around(vocabulary: Vocabulary, text: str) -> list[int]:
    """The numbers of a text with holes, framed; a space before a hole belongs to the word in it."""
    first, *parts = text.strip().split(HOLE)
    if not parts:
        raise UsageError(
            f"the text {shown(text, 40)!r} has no {HOLE}; write {HOLE} in the place of each word "
            "to be filled in"
        )
    if vocabulary.mask < 0:
        raise UsageError("the model's vocabulary has no mark for a hidden word, so it can fill in none")
    spaced = vocabulary.kind != "characters"
    before, after = vocabulary.frame
    found = [*before, *(vocabulary.encode(first.rstrip(" ") if spaced else first) if first.strip() else [])]
    for part in parts:
        found.append(vocabulary.mask)
        words = part.rstrip(" ") if spaced else part
        found += vocabulary.go_on(words) if words else []
    return [*found, *after]
