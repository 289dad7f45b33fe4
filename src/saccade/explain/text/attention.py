"""The attention of text models, word by word, by the same replay of blocks as for images.

A Seq2Seq returns its alignment itself (Bahdanau et al. 2015, figure 3); a Transformer has three kinds of
attention, GPT and BERT one.
Shapes: b texts (one), n words that attend, m words attended to, l layers, h heads, d width, v vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from saccade.errors import ModelError, UsageError, not_finite
from saccade.explain.replay import follow
from saccade.models.modules import device_of, evaluating
from saccade.models.text.bert import BERT
from saccade.models.text.decoding import Marks, greedy
from saccade.models.text.gpt import GPT
from saccade.models.text.seq2seq import Seq2Seq
from saccade.models.text.transformer import Captioner, Decoder, Transformer
from saccade.nn.attention import Weight, attend, causal, probabilities
from saccade.nn.text.words import past
from saccade.text.generate import Filling, around, check_length
from saccade.text.model import TextFolder
from saccade.text.vocabulary import HOLE, Vocabulary
from saccade.tokens.unfold import Stage

MOST = 256
"""Most tokens of a text: a larger matrix would not be readable, and all of them would not fit into a page."""
TOP = 5
Matrices = Float32[np.ndarray, "l h n m"]


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMaps:
    """One kind of attention of a model, in all layers and heads."""

    name: str
    title: str
    rows: tuple[str, ...]
    """The words that attend."""
    columns: tuple[str, ...]
    """The words attended to."""
    p: Matrices

    @property
    def layer(self) -> int:
        """The layer shown first: the last but one, which aligns best (Garg et al. 2019, section 3.1)."""
        return max(0, self.p.shape[0] - 2)

    def mean(self) -> Float32[np.ndarray, "n m"]:
        """Return the mean of the heads of that layer."""
        return self.p[self.layer].mean(0)

    def to_json(self) -> dict[str, Any]:
        """Return plain lists and words."""
        words = {"name": self.name, "rows": list(self.rows), "columns": list(self.columns)}
        return {**words, "layer": self.layer + 1, "attention": np.round(self.p, 6).tolist()}


class WordGuess(NamedTuple):
    """A position whose word the model predicts, and its most likely words."""

    place: int
    words: list[Filling]


@dataclass(frozen=True, slots=True, eq=False)
class TextReading:
    """A text, the model's answer, and its attention."""

    text: str
    answer: str
    """The translation; empty for GPT and BERT, which have guesses."""
    kind: str
    maps: tuple[AttentionMaps, ...]
    guesses: tuple[WordGuess, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, words and numbers."""
        guesses = [
            {"place": each.place, "words": [{"word": word, "p": round(p, 6)} for word, p in each.words]}
            for each in self.guesses
        ]
        known = {"text": self.text, "model": self.kind, "answer": self.answer}
        return {**known, "guesses": guesses, "looks": [maps.to_json() for maps in self.maps]}


def read_text(spoken: TextFolder, text: str, target: str | None = None) -> TextReading:
    """Run a model on a text and return its answer and attention.

    Args:
        target: a translation to align with the text; by default the model's own.
    """
    if not text.strip():
        raise UsageError("the text is empty; expected at least one word")
    module = spoken.module
    if target is not None and not spoken.translates:
        raise UsageError(
            f"a translation was given to align, but a {type(module).__name__} does not translate"
        )
    if isinstance(module, Captioner):
        raise ModelError("a captioner reads images, not text; use a text model")
    device = device_of(module)
    with evaluating(module):
        if isinstance(module, GPT):
            found = _read_gpt(module, spoken.vocabulary, text, device)
        elif isinstance(module, BERT):
            found = _read_bert(module, spoken.vocabulary, text, device)
        else:
            assert isinstance(module, Seq2Seq | Transformer)
            found = _read_translation(spoken, text.strip(), target, device)
    chances = [np.array([word.p for word in guess.words]) for guess in found.guesses]
    if not all(np.isfinite(numbers).all() for numbers in (*chances, *(maps.p for maps in found.maps))):
        raise not_finite()
    return found


def word_labels(vocabulary: Vocabulary, numbers: Sequence[int]) -> tuple[str, ...]:
    """Return words as a plot shows them; a piece that continues a word starts with a hyphen."""
    found = []
    for i, word in enumerate(vocabulary.words(numbers)):
        continues = vocabulary.kind == "pairs" and i > 0 and word[:1].isalnum()
        found.append(("-" if continues else "") + (word.strip() or "\N{OPEN BOX}"))
    return tuple(found)


def _stack(matrices: Sequence[Float[Tensor, "1 h n m"]]) -> Matrices:
    return torch.cat(list(matrices)).float().cpu().numpy()


def _read_translation(spoken: TextFolder, text: str, target: str | None, device: torch.device) -> TextReading:
    module, words = spoken.module, spoken.vocabulary
    assert isinstance(module, Seq2Seq | Transformer)
    if isinstance(module, Seq2Seq) and not module.config.looks:
        raise ModelError(
            f"this Seq2Seq has no attention (context {module.config.context!r}): its decoder sees the "
            "sentence as one vector; train seq2seq_attention to see an alignment"
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
    before, after = word_labels(spoken.reads, numbers), word_labels(words, written or [words.eos])
    if isinstance(module, Seq2Seq):
        _, p = module.align(source, None, given)
        maps = [
            AttentionMaps(
                "alignment", "From each target word to the source", after, before, _stack([p[:, None]])
            )
        ]
    else:
        maps = _transformer(module, source, given, (before, after, word_labels(words, given[0].tolist())))
    return TextReading(text, words.decode(written), type(module).__name__, tuple(maps))


def _transformer(
    module: Transformer,
    source: Int[Tensor, "1 m"],
    given: Int[Tensor, "1 n"],
    words: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]],
) -> list[AttentionMaps]:
    before, after, said = words
    z, depth = module.encoder.dropout(module.embed(source)), len(module.encoder.blocks)
    among = []
    for moment in follow(module.encoder.blocks, z, [Stage(None, None)] * depth):
        among.append(moment.attention)
        z = moment.out
    own, cross, _ = decoder_attention(module.decoder, module.encoder.norm(z), None, given)
    return [
        AttentionMaps("alignment", "From each target word to the source", after, before, _stack(cross)),
        AttentionMaps("source", "Among the source words", before, before, _stack(among)),
        AttentionMaps("written", "From each target word to those before it", said, said, _stack(own)),
    ]


def decoder_attention(
    decoder: Decoder, memory: Float[Tensor, "1 m d"], weight: Weight | None, given: Int[Tensor, "1 n"]
) -> tuple[list[Tensor], list[Tensor], Float[Tensor, "1 n v"]]:
    """Run a decoder block by block; return its attention to itself and to the source, and its logits."""
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


def block_attention(
    module: GPT | BERT, tokens: Int[Tensor, "1 n"]
) -> tuple[list[Float[Tensor, "1 h n n"]], Float[Tensor, "1 n d"]]:
    """Return the matrices of each block, and the stream after the last."""
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


def _read_gpt(module: GPT, words: Vocabulary, text: str, device: torch.device) -> TextReading:
    numbers = words.encode(text.rstrip(" ") if words.kind == "pairs" else text)
    check_length(text, len(numbers), min(MOST, module.config.context))
    seen, z = block_attention(module, torch.tensor([numbers], device=device))
    said = word_labels(words, numbers)
    maps = AttentionMaps(
        "attention", "From each word to itself and those before it", said, said, _stack(seen)
    )
    guess = WordGuess(len(numbers), _likeliest(words, module.read(z[0, -1])))
    return TextReading(text, "", "GPT", (maps,), (guess,))


def _read_bert(module: BERT, words: Vocabulary, text: str, device: torch.device) -> TextReading:
    before, after = words.frame
    numbers = around(words, text) if HOLE in text else [*before, *words.encode(text.strip()), *after]
    check_length(text, len(numbers), min(MOST, module.config.context))
    seen, z = block_attention(module, torch.tensor([numbers], device=device))
    holes = [i for i, number in enumerate(numbers) if number == words.mask] if HOLE in text else []
    logits = [module.read(module.last(z[0, i])) for i in holes] if module.fill is not None else []
    guesses = [WordGuess(i, _likeliest(words, row)) for i, row in zip(holes, logits, strict=False)]
    said = word_labels(words, numbers)
    maps = AttentionMaps("attention", "From each word to all others", said, said, _stack(seen))
    return TextReading(text, "", "BERT", (maps,), tuple(guesses))
