"""Generate text from any model that scores the next word: greedy, sampling or beam search; in batches.

A text ends at `eos` or after `most` words; `bos` and padding are never written. Sentences that have ended
leave the batch, so a long one does not cost the others' time. Masks are True at words and False at padding,
which is on the right.
Shapes: b sentences, r of them not ended yet, n words of the target, m of the source, w beams, v vocabulary.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.errors import check_number, not_finite
from saccade.models.modules import evaluating

Choose = Callable[[Float[Tensor, "r v"], Int[Tensor, "r"]], Int[Tensor, "r"]]


@runtime_checkable
class Translator(Protocol):
    """Seq2Seq, Transformer and captioner: logits of each next word, given a source and the words before.

    The source is a batch of sentences (b m), or of images (b 3 height width) without a mask; `target_in`
    starts with `bos`.
    """

    def forward(
        self, source: Tensor, mask: Bool[Tensor, "b m"] | None, target_in: Int[Tensor, "b n"]
    ) -> Float[Tensor, "b n v"]: ...


@runtime_checkable
class Writer(Protocol):
    """GPT: the logits at a word predict the next one."""

    def forward(
        self, tokens: Int[Tensor, "b n"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b n v"]: ...


@runtime_checkable
class Filler(Protocol):
    """BERT: the logits at a word predict the word itself, which was hidden; `segments` number the parts."""

    def forward(
        self,
        tokens: Int[Tensor, "b n"],
        mask: Bool[Tensor, "b n"] | None = None,
        segments: Int[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b n v"]: ...


@runtime_checkable
class DecodingState(Protocol):
    """What a model keeps after some words; immutable, a step returns a new one."""

    def reorder(self, index: Int[Tensor, "r"]) -> "DecodingState":
        """Return the state of these rows, in this order; rows may be left out or repeated."""
        ...


@runtime_checkable
class NextToken(Protocol):
    """What a model needs to generate text."""

    def start(
        self, source: Tensor, mask: Bool[Tensor, "b m"] | None, bos: int
    ) -> tuple[Any, Int[Tensor, "b"]]:
        """Return the state before the first new word, and the word to step from.

        An encoder-decoder steps from `bos`; a GPT's source is the prompt, and it steps from its last word
        (from `bos` if the prompt is empty).
        """
        ...

    def step(self, state: Any, token: Int[Tensor, "b"]) -> tuple[Float[Tensor, "b v"], Any]:
        """Return log-probabilities of the word after `token`, and the state after `token`."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks:
    """Ids of the special tokens; -1 if there is none."""

    bos: int = -1
    eos: int = -1
    pad: int = -1

    @property
    def unwritten(self) -> list[int]:
        """Ids that are never written; GPT-2 has one mark for both ends, which may end a text."""
        return sorted({self.bos, self.pad} - {self.eos, -1})


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words without special tokens."""

    tokens: tuple[int, ...]
    log_p: float
    """Sum of the log-probabilities of its words and, if it ended, of `eos`."""
    ended: bool
    """Whether it reached `eos` before the length limit."""

    def score(self, alpha: float) -> float:
        """log P / ((5 + length) / 6)^alpha, counting `eos` (Wu et al. 2016, arXiv 1609.08144, Eq. 14)."""
        return self.log_p / ((5 + len(self.tokens) + self.ended) / 6) ** alpha


def greedy(
    model: NextToken, source: Tensor, mask: Bool[Tensor, "b m"] | None, marks: Marks, most: int = 100
) -> list[Sentence]:
    """Take the likeliest word each time."""
    return _follow(model, source, mask, marks, most, lambda log_p, _: log_p.argmax(-1))


def sample(
    model: NextToken,
    source: Tensor,
    mask: Bool[Tensor, "b m"] | None,
    marks: Marks,
    most: int = 100,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    numbers: Sequence[int] | None = None,
) -> list[Sentence]:
    """Draw words by their probability; a text depends on its seed and number alone, not on its batch.

    Args:
        temperature: Divides the logits; below 1 is more certain, above 1 more random.
        top_k: Draw only among this many likeliest words (Fan et al. 2018); 0 means all.
        top_p: Draw only among the likeliest words up to this total probability (Holtzman et al. 2020).
        numbers: One per text; texts of one source with different numbers differ. Default: 0, 1, 2, ...
    """
    check_number("temperature", temperature, 1e-3, 1e3)
    check_number("top_k", top_k, 0, 2**24)
    check_number("top_p", top_p, 1e-6, 1)
    known = range(source.shape[0]) if numbers is None else numbers
    chances = [np.random.default_rng([seed, number]) for number in known]

    def choose(log_p: Float[Tensor, "r v"], rows: Int[Tensor, "r"]) -> Int[Tensor, "r"]:
        p, words = (log_p.double() / temperature).softmax(-1).sort(dim=-1, descending=True, stable=True)
        before = p.cumsum(-1) - p
        kept = before < top_p
        if top_k:
            kept[:, top_k:] = False
        ladder = (p * kept).cumsum(-1)
        chance = p.new_tensor([[chances[row].random()] for row in rows.tolist()])
        index = torch.searchsorted(ladder, chance * ladder[:, -1:], right=True)
        return words.gather(1, index.minimum((kept & (p > 0)).sum(-1, keepdim=True) - 1))[:, 0]

    return _follow(model, source, mask, marks, most, choose)


def _evaluating(model: NextToken) -> AbstractContextManager[None]:
    return evaluating(model) if isinstance(model, nn.Module) else torch.inference_mode()


def _step(model: NextToken, state: Any, token: Tensor, marks: Marks) -> tuple[Tensor, Any]:
    log_p, state = model.step(state, token)
    if log_p.isnan().any():
        raise not_finite()
    for number in marks.unwritten:
        log_p[:, number] = -torch.inf
    return log_p, state


def _follow(
    model: NextToken,
    source: Tensor,
    mask: Bool[Tensor, "b m"] | None,
    marks: Marks,
    most: int,
    choose: Choose,
) -> list[Sentence]:
    """Write word by word, one text per source."""
    with _evaluating(model):
        state, token = model.start(source, mask, marks.bos)
        rows = torch.arange(token.shape[0], device=token.device)
        texts: list[list[int]] = [[] for _ in rows]
        log_ps, ended = (
            torch.zeros(len(texts), dtype=torch.float64, device=token.device),
            [False for _ in rows],
        )
        alive, score = rows.tolist(), log_ps
        for _ in range(most):
            log_p, state = _step(model, state, token, marks)
            token = choose(log_p, rows)
            score = score + log_p.gather(1, token[:, None])[:, 0]
            words = token.tolist()
            left = [i for i, word in enumerate(words) if word != marks.eos]
            for i in left:
                texts[alive[i]].append(words[i])
            if len(left) < len(alive):
                log_ps[rows] = score
                for row, word in zip(alive, words, strict=True):
                    ended[row] = word == marks.eos
                alive = [alive[i] for i in left]
                if not alive:
                    break
                places = torch.tensor(left, device=token.device)
                rows, token, score = rows[places], token[places], score[places]
                state = state.reorder(places)
        log_ps[rows] = score
    return [Sentence(tuple(t), p, e) for t, p, e in zip(texts, log_ps.tolist(), ended, strict=True)]


class _Beams(NamedTuple):
    """Beginnings of texts; unused beams have log-probability minus infinity."""

    texts: Int[Tensor, "r w t"]
    log_ps: Float[Tensor, "r w"]
    parents: Int[Tensor, "r w"]
    """The beam that each grew from."""

    def rows(self, index: Int[Tensor, "s"]) -> "_Beams":
        return _Beams(*(tensor[index] for tensor in self))


def _grow(beams: _Beams, log_p: Float[Tensor, "rw v"], eos: int) -> tuple[_Beams, list[tuple[int, Sentence]]]:
    """Return the likeliest beginnings with one word more, and the texts that ended, each with its row."""
    width, words = beams.log_ps.shape[1], log_p.shape[1]
    paths = rearrange(beams.log_ps[..., None] + log_p.view(-1, width, words), "r w v -> r (w v)")
    best, index = paths.topk(min(2 * width, paths.shape[1]), dim=-1)
    parents, word = index // words, index % words
    ends = (word == eos) & best.isfinite()
    ended = []
    for i, j in ends[:, :width].nonzero().tolist():
        text = beams.texts[i, int(parents[i, j])].tolist()
        ended.append((i, Sentence(tuple(text), float(best[i, j]), True)))
    log_ps, chosen = best.masked_fill(word == eos, -torch.inf).topk(width, dim=-1)
    parents, word = parents.gather(1, chosen), word.gather(1, chosen)
    texts = beams.texts.gather(1, repeat(parents, "r w -> r w t", t=beams.texts.shape[2]))
    return _Beams(torch.cat([texts, word[..., None]], dim=-1), log_ps, parents), ended


def beam(
    model: NextToken,
    source: Tensor,
    mask: Bool[Tensor, "b m"] | None,
    marks: Marks,
    most: int = 100,
    *,
    width: int = 5,
    alpha: float = 0.6,
) -> list[list[Sentence]]:
    """Return the likeliest texts found, best `Sentence.score(alpha)` first, at most `width` per source.

    Each step extends the `width` likeliest beginnings and sets aside those that end; a source is done when it
    has `width` of these. Width 1 is `greedy`. With alpha 0 long texts lose, as each word costs probability;
    Wu et al. found 0.6 to 0.7 best.
    """
    check_number("width", width, 1, 2**16)
    check_number("alpha", alpha, 0, 10)
    with _evaluating(model):
        state, token = model.start(source, mask, marks.bos)
        index = torch.arange(token.shape[0], device=token.device)
        rows, done = index.tolist(), [list[Sentence]() for _ in index]
        log_ps = torch.full((len(rows), width), -torch.inf, dtype=torch.float64, device=token.device)
        log_ps[:, 0] = 0  # one beginning, no rivals yet
        beams = _Beams(token.new_zeros(len(rows), width, 0), log_ps, token.new_zeros(len(rows), width))
        index = index.repeat_interleave(width)
        token = token[index]
        for _ in range(most):
            log_p, state = _step(model, state.reorder(index), token, marks)
            beams, ended = _grow(beams, log_p, marks.eos)
            for i, sentence in ended:
                done[rows[i]].append(sentence)
            alive = beams.log_ps[:, 0].isfinite().tolist()
            left = [i for i, row in enumerate(rows) if len(done[row]) < width and alive[i]]
            rows, places = [rows[i] for i in left], torch.tensor(left, dtype=torch.long, device=token.device)
            beams = beams.rows(places)
            if not rows:
                break
            index, token = (places[:, None] * width + beams.parents).flatten(), beams.texts[..., -1].flatten()
    for row, texts, found in zip(rows, beams.texts.tolist(), beams.log_ps.tolist(), strict=True):
        done[row] += [Sentence(tuple(t), p, False) for t, p in zip(texts, found, strict=True) if isfinite(p)]
    return [sorted(found, key=lambda s: -s.score(alpha))[:width] for found in done]
