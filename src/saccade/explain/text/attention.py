"""Where a model of text looked, word by word: through the same blocks and the same replay as pictures.

A Seq2Seq tells its alignment itself (Bahdanau et al. 2015, figure 3); a Transformer has three kinds of
attention, GPT and BERT one.
Shapes: b texts (one), n words that look, m words looked at, l layers, h heads, d width, v vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from saccade.errors import ModelError, UsageError
from saccade.explain.replay import follow
from saccade.models.modules import resting
from saccade.models.text.bert import BERT
from saccade.models.text.captioner import Captioner
from saccade.models.text.decoding import Marks, greedy
from saccade.models.text.gpt import GPT
from saccade.models.text.seq2seq import Seq2Seq
from saccade.models.text.transformer import Decoder, Transformer
from saccade.nn.attention import Weight, attend, causal, probabilities
from saccade.nn.text.words import past
from saccade.text.generate import Filling, around, check_length
from saccade.text.vocabulary import HOLE, Vocabulary
from saccade.tokens.unfold import Stage
from saccade.weights.load_text import Spoken

MOST = 256
"""Tokens of a text: a matrix of more could not be read, and all of them would not fit into a page."""
TOP = 5
Matrices = Float32[np.ndarray, "l h n m"]


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """One kind of attention of a model, in all of its layers and heads."""

    name: str
    title: str
    rows: tuple[str, ...]
    """The words that look."""
    columns: tuple[str, ...]
    """The words looked at."""
    p: Matrices

    @property
    def layer(self) -> int:
        """The layer shown first: before the last one, which aligns best (Garg et al. 2019, section 3.1)."""
        return max(0, self.p.shape[0] - 2)

    def mean(self) -> Float32[np.ndarray, "n m"]:
        """The mean of the heads of that layer."""
        return self.p[self.layer].mean(0)

    def to_json(self) -> dict[str, Any]:
        """Plain lists and words."""
        told = {"name": self.name, "rows": list(self.rows), "columns": list(self.columns)}
        return {**told, "layer": self.layer + 1, "attention": np.round(self.p, 6).tolist()}


class Guess(NamedTuple):
    """A place whose word the model was asked for, and its likeliest answers."""

    place: int
    words: list[Filling]


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """A text, what the model made of it, and where it looked meanwhile."""

    text: str
    answer: str
    """The translation; nothing for a GPT or BERT, which have guesses."""
    kind: str
    looks: tuple[Look, ...]
    guesses: tuple[Guess, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain lists, words and numbers."""
        guesses = [
            {"place": each.place, "words": [{"word": word, "p": round(p, 6)} for word, p in each.words]}
            for each in self.guesses
        ]
        looks = [look.to_json() for look in self.looks]
        told = {"text": self.text, "model": self.kind, "answer": self.answer}
        return {**told, "guesses": guesses, "looks": looks}


def read(spoken: Spoken, text: str, target: str | None = None) -> Reading:
    """Ask a model about a text and keep where it looked.

    Args:
        target: a translation to be aligned with the text; the model's own if none is given.
    """
    if not text.strip():
        raise UsageError("the text is empty; expected at least a word")
    module = spoken.module
    if target is not None and spoken.task != "translate":
        raise UsageError(
            f"a translation was given to align, but a {type(module).__name__} does not translate"
        )
    with resting(module) as device:
        if isinstance(module, Seq2Seq | Transformer):
            return _translated(spoken, text.strip(), target, device)
        if isinstance(module, GPT):
            return _continued(module, spoken.vocabulary, text, device)
        if isinstance(module, BERT):
            return _filled(module, spoken.vocabulary, text, device)
    assert isinstance(module, Captioner)
    raise ModelError("a captioner reads pictures, and no text; ask a model of text what it looked at")


def labels(vocabulary: Vocabulary, numbers: Sequence[int]) -> tuple[str, ...]:
    """Words as a picture shows them; a piece that goes on a word begins with a hyphen."""
    found = []
    for i, word in enumerate(vocabulary.words(numbers)):
        goes_on = vocabulary.kind == "pairs" and i > 0 and word[:1].isalnum()
        found.append(("-" if goes_on else "") + (word.strip() or "\N{OPEN BOX}"))
    return tuple(found)


def _stack(matrices: Sequence[Float[Tensor, "1 h n m"]]) -> Matrices:
    return torch.cat(list(matrices)).float().cpu().numpy()


def _translated(spoken: Spoken, text: str, target: str | None, device: torch.device) -> Reading:
    module, words = spoken.module, spoken.vocabulary
    assert isinstance(module, Seq2Seq | Transformer)
    if isinstance(module, Seq2Seq) and not module.config.looks:
        raise ModelError(
            f"this Seq2Seq has no attention (context {module.config.context!r}): its decoder is told one "
            "vector of the whole sentence; train seq2seq_attention to see where it looks"
        )
    numbers = [*spoken.reads.encode(text), spoken.reads.eos]
    check_length(text, len(numbers), MOST)
    source = torch.tensor([numbers], device=device)
    if target is None:
        marks = Marks(bos=words.bos, eos=words.eos, pad=words.pad)
        (sentence,) = greedy(module, source, None, marks, min(2 * len(numbers) + 10, MOST))
        written = [*sentence.tokens, *([words.eos] if sentence.ended else [])]
    else:
        written = [*words.encode(target.strip()), words.eos]
        check_length(target, len(written), MOST)
    given = torch.tensor([[words.bos, *written[:-1]]] if written else [[words.bos]], device=device)
    before, after = labels(spoken.reads, numbers), labels(words, written or [words.eos])
    if isinstance(module, Seq2Seq):
        _, p = module.align(source, None, given)
        looks = [
            Look("alignment", "From each word written to the source", after, before, _stack([p[:, None]]))
        ]
    else:
        looks = _transformer(module, source, given, (before, after, labels(words, given[0].tolist())))
    return Reading(text, words.decode(written), type(module).__name__, tuple(looks))


def _transformer(
    module: Transformer,
    source: Int[Tensor, "1 m"],
    given: Int[Tensor, "1 n"],
    words: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]],
) -> list[Look]:
    before, after, said = words
    z, depth = module.encoder.dropout(module.embed(source)), len(module.encoder.blocks)
    among = []
    for moment in follow(module.encoder.blocks, z, [Stage(None, None)] * depth):
        among.append(moment.attention)
        z = moment.out
    own, cross, _ = decoded(module.decoder, module.encoder.norm(z), None, given)
    return [
        Look("alignment", "From each word written to the source", after, before, _stack(cross)),
        Look("source", "Among the words of the source", before, before, _stack(among)),
        Look("written", "From each word to those written before it", said, said, _stack(own)),
    ]


def decoded(
    decoder: Decoder, memory: Float[Tensor, "1 m d"], weight: Weight | None, given: Int[Tensor, "1 n"]
) -> tuple[list[Tensor], list[Tensor], Float[Tensor, "1 n v"]]:
    """A decoder in slow motion: its matrices to its own words and to the source, and its logits."""
    z, before = decoder.dropout(decoder.words(given)), causal(given.shape[1], given.device)
    own, cross = [], []
    for block in decoder.blocks:
        q, k, v = block.attention.split(block.norm1(z))
        own.append(probabilities(q, k, before))
        z = block.add1(z, block.attention.join(attend(q, k, v, before)))
        q, k, v = block.cross.split(block.norm2(z), memory)
        cross.append(probabilities(q, k, weight))
        z = block.add2(z, block.cross.join(attend(q, k, v, weight)))
        z = block.add3(z, block.mlp(block.norm3(z)))
    return own, cross, decoder.read(z)


def blocks_seen(
    module: GPT | BERT, tokens: Int[Tensor, "1 n"]
) -> tuple[list[Float[Tensor, "1 h n n"]], Float[Tensor, "1 n d"]]:
    """The matrices of each block, and the stream after the last."""
    weight = past(tokens, None) if isinstance(module, GPT) else None
    z, seen = module.embed(tokens), []
    for moment in follow(module.blocks, z, [Stage(weight, None)] * len(module.blocks)):
        seen.append(moment.attention)
        z = moment.out
    return seen, z


def _likeliest(vocabulary: Vocabulary, logits: Float[Tensor, "v"]) -> list[Filling]:
    logits = logits[: len(vocabulary)].index_fill(
        0, torch.tensor(vocabulary.marks, device=logits.device), -torch.inf
    )
    p, best = logits.softmax(-1).topk(min(TOP, logits.shape[0]))
    return [
        Filling(vocabulary.word(word), chance) for word, chance in zip(best.tolist(), p.tolist(), strict=True)
    ]


def _continued(module: GPT, words: Vocabulary, text: str, device: torch.device) -> Reading:
    numbers = words.encode(text.rstrip(" ") if words.kind == "pairs" else text)
    check_length(text, len(numbers), min(MOST, module.config.context))
    seen, z = blocks_seen(module, torch.tensor([numbers], device=device))
    said = labels(words, numbers)
    look = Look("attention", "From each word to itself and those before it", said, said, _stack(seen))
    guess = Guess(len(numbers), _likeliest(words, module.read(z[0, -1])))
    return Reading(text, "", "GPT", (look,), (guess,))


def _filled(module: BERT, words: Vocabulary, text: str, device: torch.device) -> Reading:
    before, after = words.frame
    numbers = around(words, text) if HOLE in text else [*before, *words.encode(text.strip()), *after]
    check_length(text, len(numbers), min(MOST, module.config.context))
    seen, z = blocks_seen(module, torch.tensor([numbers], device=device))
    holes = [i for i, number in enumerate(numbers) if number == words.mask] if HOLE in text else []
    logits = [module.read(module.last(z[0, i])) for i in holes] if module.fill is not None else []
    guesses = [Guess(i, _likeliest(words, row)) for i, row in zip(holes, logits, strict=False)]
    said = labels(words, numbers)
    look = Look("attention", "From each word to all others", said, said, _stack(seen))
    return Reading(text, "", "BERT", (look,), tuple(guesses))
