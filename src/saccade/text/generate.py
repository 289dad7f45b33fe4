"""Generate text in batches: translations, captions, completions, filled-in words; with probabilities.

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

from saccade.errors import UsageError, check_number, not_finite
from saccade.models.modules import device_of, evaluating
from saccade.models.text.bert import BERTConfig
from saccade.models.text.decoding import Marks, NextToken, Sentence, beam, greedy, sample
from saccade.models.text.gpt import GPTConfig
from saccade.models.text.transformer import TransformerConfig
from saccade.text.vocabulary import HOLE, Vocabulary, pad
from saccade.values import validate, within
from saccade.wording import printable

LONGEST = 2048
"""Longest text to translate, in tokens: twice as many take four times the memory in attention."""
BATCH = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoding:
    """How a text is generated: greedily, by beam search, or by sampling."""

    beams: int = within(1, 1024, default=1)
    """Width of beam search; 1 takes the likeliest word each time."""
    alpha: float = within(0, 10, default=0.6)
    """Length penalty of beam search (Wu et al. 2016, Eq. 14); 0 means none, which favours short texts."""
    temperature: float = within(0, 100, default=0.0)
    """0 takes the likeliest word; else words are drawn, below 1 more certain, above 1 more random."""
    top_k: int = within(0, 2**24, default=0)
    """Draw among this many likeliest words; 0 means all."""
    top_p: float = within(1e-6, 1, default=1.0)
    """Draw among the likeliest words up to this total probability."""
    seed: int = within(0, 2**63 - 1, default=0)
    most: int = within(0, 10**6, default=0)
    """Maximum number of tokens; 0: twice the source's for a translation, 100 for other texts."""

    def __post_init__(self) -> None:
        validate(self)
        if self.temperature and self.beams > 1:
            raise UsageError(
                f"beams is {self.beams} and temperature {self.temperature:g}, but beam search draws nothing; "
                "set only one of them"
            )


class Generated(NamedTuple):
    """A text and its probability."""

    text: str
    log_p: float
    """Sum of the log-probabilities of its tokens."""
    tokens: int
    ended: bool
    """Whether it ended before the length limit."""


class Filling(NamedTuple):
    """A word for a [MASK], and its probability."""

    word: str
    p: float


def _check(texts: Sequence[str]) -> None:
    for i, text in enumerate(texts, 1):
        if not text.strip():
            which = f"text {i} of {len(texts)}" if len(texts) > 1 else "the text"
            raise UsageError(f"{which} is empty; expected at least one word")


def check_length(text: str, found: int, most: int) -> None:
    """Refuse a text that is too long for the model."""
    if found > most:
        raise UsageError(
            f"the text {printable(text, 40)!r} has {found:,} tokens, but the model takes {most:,}; split it"
        )


def _longest(module: nn.Module, most: int = LONGEST) -> int:
    """Return how many tokens the model can read at once; `most` if it has no limit."""
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
    how: Decoding,
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
    """Yield batches of indices, the longest texts first, so that a batch holds similar lengths."""
    order = sorted(range(len(numbers)), key=lambda i: -len(numbers[i]))
    for first in range(0, len(order), size):
        yield order[first : first + size]


def _padded(
    numbers: Sequence[Sequence[int]], chosen: Sequence[int], device: torch.device
) -> tuple[Tensor, Tensor]:
    words, mask = pad([np.array(numbers[i]) for i in chosen])
    return torch.from_numpy(words).to(device), torch.from_numpy(mask).to(device)


def _again(texts: Sequence[str]) -> list[int]:
    """Return how often each text occurred before, so that equal texts get different draws."""
    seen = Counter[str]()
    found = []
    for text in texts:
        found.append(seen[text])
        seen[text] += 1
    return found


def _generated(sentence: Sentence, decode: Callable[[Sequence[int]], str]) -> Generated:
    return Generated(decode(sentence.tokens), sentence.log_p, len(sentence.tokens), sentence.ended)


def translations(
    module: nn.Module,
    source: Vocabulary,
    target: Vocabulary,
    texts: Sequence[str],
    how: Decoding | None = None,
    batch: int = BATCH,
    longest: int = LONGEST,
) -> list[list[Generated]]:
    """Translate each text; return one translation, or as many as beams, the best first.

    Args:
        longest: Refuse texts with more tokens.
    """
    how = how or Decoding()
    _check(texts)
    numbers = [[*row, source.eos] for row in source.encode_all([text.strip() for text in texts])]
    longest = _longest(module, longest)
    for text, row in zip(texts, numbers, strict=True):
        check_length(text, len(row), longest)
    found: list[list[Generated]] = [[] for _ in texts]
    again = _again(texts)
    marks = Marks(bos=target.bos, eos=target.eos, pad=target.pad)
    device = device_of(module)
    with evaluating(module):
        for chosen in _batches(numbers, batch):
            words, mask = _padded(numbers, chosen, device)
            most = min(how.most or 2 * words.shape[1] + 10, longest)
            written = _write(module, words, mask, marks, most, how, [again[i] for i in chosen])
            for i, sentences in zip(chosen, written, strict=True):
                found[i] = [_generated(sentence, target.decode) for sentence in sentences]
    return found


def captions(
    module: nn.Module, target: Vocabulary, pictures: Tensor, how: Decoding | None = None
) -> list[list[Generated]]:
    """Return captions for each image of a batch, the best first."""
    how = how or Decoding()
    marks = Marks(bos=target.bos, eos=target.eos, pad=target.pad)
    device = device_of(module)
    with evaluating(module):
        written = _write(module, pictures.to(device), None, marks, how.most or 100, how)
    return [[_generated(sentence, target.decode) for sentence in sentences] for sentences in written]


def completions(
    module: nn.Module,
    vocabulary: Vocabulary,
    texts: Sequence[str],
    how: Decoding | None = None,
    batch: int = BATCH,
) -> list[list[Generated]]:
    """Continue each text and return the new words; only the end of a text beyond the context is read."""
    how = how or Decoding()
    _check(texts)
    # With byte pairs, words begin with a space, so a space at the end belongs to the next word.
    prompts = [text.rstrip(" ") if vocabulary.kind == "pairs" else text for text in texts]
    numbers = vocabulary.encode_all(prompts)
    found: list[list[Generated]] = [[] for _ in texts]
    again = _again(texts)
    marks = Marks(bos=vocabulary.bos, eos=vocabulary.eos, pad=vocabulary.pad)
    device = device_of(module)
    with evaluating(module):
        for chosen in _batches(numbers, batch):
            words, mask = _padded(numbers, chosen, device)
            written = _write(module, words, mask, marks, how.most or 100, how, [again[i] for i in chosen])
            for i, sentences in zip(chosen, written, strict=True):
                row, spaced = numbers[i], len(prompts[i]) < len(texts[i])
                new = [_generated(s, partial(_after, vocabulary, row)) for s in sentences]
                found[i] = [w._replace(text=w.text.removeprefix(" ")) if spaced else w for w in new]
    return found


def _after(vocabulary: Vocabulary, before: Sequence[int], tokens: Sequence[int]) -> str:
    """Return new tokens as text; the first may complete a character of those before."""
    return vocabulary.decode([*before, *tokens])[len(vocabulary.decode(before)) :]


def fillings(
    module: nn.Module, vocabulary: Vocabulary, texts: Sequence[str], top: int = 5, batch: int = BATCH
) -> list[list[list[Filling]]]:
    """Return the likeliest words for each [MASK] of each text; the other [MASK]s stay masked."""
    check_number("top", top, 1, 2**24)
    _check(texts)
    numbers = [around(vocabulary, text) for text in texts]
    for text, row in zip(texts, numbers, strict=True):
        check_length(text, len(row), _longest(module))
    found: list[list[list[Filling]]] = [[] for _ in texts]
    device = device_of(module)
    with evaluating(module):
        for chosen in _batches(numbers, batch):
            words, mask = _padded(numbers, chosen, device)
            holes = (words == vocabulary.mask) & mask
            logits = module(words, mask)[holes][:, : len(vocabulary)]
            if not logits.isfinite().all():
                raise not_finite()
            logits = logits.index_fill(1, torch.tensor(vocabulary.marks, device=device), -torch.inf)
            p, best = logits.softmax(-1).topk(min(top, len(vocabulary) - len(vocabulary.marks)), dim=-1)
            for row, answers, chances in zip(
                holes.nonzero()[:, 0].tolist(), best.tolist(), p.tolist(), strict=True
            ):
                pairs = zip(answers, chances, strict=True)
                found[chosen[row]].append([Filling(_bare(vocabulary.word(word)), c) for word, c in pairs])
    return found


def _bare(word: str) -> str:
    """Strip spaces, unless the word is one."""
    return word.strip() or word


def around(vocabulary: Vocabulary, text: str) -> list[int]:
    """Return the ids of a text with [MASK]s, framed; a space before a [MASK] belongs to its word."""
    first, *parts = text.strip().split(HOLE)
    if not parts:
        raise UsageError(
            f"the text {printable(text, 40)!r} has no {HOLE}; write {HOLE} for each word to fill in"
        )
    if vocabulary.mask < 0:
        raise UsageError(
            "the model's vocabulary has no mark for a hidden word, so it cannot fill any in; use a BERT"
        )
    spaced = vocabulary.kind != "characters"
    before, after = vocabulary.frame
    found = [*before, *(vocabulary.encode(first.rstrip(" ") if spaced else first) if first.strip() else [])]
    for part in parts:
        found.append(vocabulary.mask)
        words = part.rstrip(" ") if spaced else part
        found += vocabulary.go_on(words) if words else []
    return [*found, *after]
