"""Seq2Seq: a recurrent encoder reads a sentence, a recurrent decoder writes another.

What the decoder is told of the source (`context`): `start`, only its first state (Sutskever et al. 2014);
`every`, the last state of the encoder at every word (Cho et al. 2014); `additive`, what it looks for before
each word, by a small network (Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473); `dot` and `general`,
what it looks for after each word, by a product (Luong et al. 2015, https://arxiv.org/abs/1508.04025, Eq. 8).

Shapes: b sentences, n words of the target, m of the source, w width of a word, h of a state, e of a memory,
a of a key, g gates times h, v vocabulary.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.errors import UsageError, check_number, check_word
from saccade.nn.text.alignment import Look, Memory
from saccade.nn.text.recurrent import CELLS, Recurrent, State
from saccade.nn.text.words import Numbers, SourceMask

CONTEXTS = ("start", "every", "additive", "dot", "general")


@dataclass(frozen=True, kw_only=True, slots=True)
class Seq2SeqConfig:
    """Sizes as in the usual Multi30k models."""

    source: int = 8000
    """Words of the source's vocabulary."""
    vocabulary: int = 8000
    """Words of the target's vocabulary."""
    cell: str = "gru"
    """rnn, lstm or gru."""
    width: int = 256
    """Of a word's vector."""
    hidden: int = 512
    """Of a state."""
    layers: int = 1
    encoder: str = "forward"
    """Which way the encoder reads: forward, backward (so that the words that are needed first were read last,
    Sutskever et al. 2014, section 3.3, https://arxiv.org/abs/1409.3215) or both."""
    decoder: str = "forward"
    """Which way the decoder writes: forward; nothing else can work."""
    context: str = "every"
    feed: bool = False
    """Input feeding: the decoder also hears what it made of its last word and look (Luong et al. 3.3)."""
    dropout: float = 0.5

    def __post_init__(self) -> None:
        check_word("cell", self.cell, CELLS)
        check_word("context", self.context, CONTEXTS)
        check_word("encoder", self.encoder, ("forward", "backward", "both"))
        if self.decoder == "both":
            raise UsageError(
                "a decoder cannot read both ways: the words to its right are those it has yet to write, so "
                "it would copy them in training and have none in use; only the encoder may be 'both'"
            )
        check_word("decoder", self.decoder, ("forward",))
        for name in ("source", "vocabulary"):
            check_number(name, getattr(self, name), 1, 2**24)
        for name, most in {"width": 2**16, "hidden": 2**16, "layers": 64}.items():
            check_number(name, getattr(self, name), 1, most)
        check_number("dropout", self.dropout, 0, 0.99)
        if self.context == "dot" and self.encoder == "both":
            raise UsageError(
                "context is 'dot', but an encoder that reads both ways has states twice as wide as the "
                "decoder's; use 'general', which has a matrix between them"
            )
        if self.feed and not self.looks:
            raise UsageError(f"feed is on, but context is {self.context!r}; feeding needs an attention")

    @property
    def looks(self) -> bool:
        """Whether there is an attention."""
        return self.context in ("additive", "dot", "general")

    @property
    def memory(self) -> int:
        """Width of what the decoder is told: a state of the encoder's at a word, or its own first one."""
        return self.hidden * (2 if self.looks and self.encoder == "both" else 1)


class Encoder(nn.Module):
    """Its state at every word, and the decoder's first state: its last one, through a layer if wider."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        both, self.backward = config.encoder == "both", config.encoder == "backward"
        self.words, self.dropout = nn.Embedding(config.source, config.width), nn.Dropout(config.dropout)
        inner = config.dropout if config.layers > 1 else 0.0
        sizes = config.width, config.hidden, config.layers
        self.recurrent = Recurrent(config.cell, *sizes, both, inner)
        states = CELLS[config.cell].states if both else 0
        self.bridges = nn.ModuleList(nn.Linear(2 * config.hidden, config.hidden) for _ in range(states))

    def forward(
        self, source: Int[Tensor, "b m"], mask: SourceMask | None = None
    ) -> tuple[Float[Tensor, "b m e"], State]:
        lengths = None if mask is None or bool(mask.all()) else mask.sum(1)
        words = self.dropout(self.words(source))
        memory, state = self.recurrent(_turned(words, lengths) if self.backward else words, lengths)
        memory = _turned(memory, lengths) if self.backward else memory
        if self.bridges:
            pairs = (rearrange(s, "(l two) b h -> l b (two h)", two=2) for s in state)
            state = tuple(f(s) for f, s in zip(self.bridges, pairs, strict=True))
            state = (state[0].tanh(), *state[1:])
        return memory, state


def _turned(x: Float[Tensor, "b m d"], lengths: Int[Tensor, "b"] | None) -> Float[Tensor, "b m d"]:
    """Each sentence from its last word to its first; padding stays where it is."""
    if lengths is None:
        return x.flip(1)
    place = torch.arange(x.shape[1], device=x.device)
    mirrored = lengths[:, None] - 1 - place
    return x.gather(1, torch.where(mirrored < 0, place, mirrored)[..., None].expand_as(x))


@dataclass(frozen=True, slots=True)
class Spoken:
    """What a decoder knows after some words."""

    memory: Memory
    state: State
    made: Float[Tensor, "b w"]
    """What it made of its last word, for input feeding."""

    def reorder(self, index: Int[Tensor, "r"]) -> "Spoken":
        state = tuple(s[:, index] for s in self.state)
        return Spoken(self.memory.reorder(index), state, self.made[index])


class Decoder(nn.Module):
    """Writes one word at a time; all that does not wait for a state is computed outside of the loop."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        self.words, self.dropout = nn.Embedding(config.vocabulary, config.width), nn.Dropout(config.dropout)
        told = config.memory if config.context in ("every", "additive") else 0
        heard = config.width + told + config.feed * config.width
        inner = config.dropout if config.layers > 1 else 0.0
        self.recurrent = Recurrent(config.cell, heard, config.hidden, config.layers, dropout=inner)
        self.look = Look(config.context, config.memory, config.hidden) if config.looks else None
        shown = config.hidden if config.context == "start" else config.hidden + config.memory + config.width
        self.readout, self.unembed = (
            nn.Linear(shown, config.width),
            nn.Linear(config.width, config.vocabulary),
        )

    def remember(self, values: Float[Tensor, "b m e"], state: State, mask: SourceMask | None) -> Memory:
        """Prepare a source; without attention its only value is the decoder's first state."""
        config = self.config
        if not config.looks:
            values, mask = state[0][-1, :, None], None
        hidden = values.new_zeros(values.shape[:2])
        if mask is not None:
            hidden = hidden.masked_fill(~mask, -torch.inf)
        told = self.recurrent.weights(0).weight_ih[:, config.width : config.width + config.memory]
        heard = F.linear(values, told) if config.context in ("every", "additive") else values[..., :0]
        return Memory(values, values if self.look is None else self.look.key(values), heard, hidden)

    def make(
        self, h: Float[Tensor, "b n h"], told: Float[Tensor, "b n e"], words: Float[Tensor, "b n w"]
    ) -> Float[Tensor, "b n w"]:
        """What state, look and last word say of the next one (Bahdanau et al. A.2.2, Luong et al. Eq. 5)."""
        shown = h if self.config.context == "start" else torch.cat([h, told, words], dim=-1)
        return self.readout(shown).tanh()

    def read(self, made: Float[Tensor, "*n w"]) -> Float[Tensor, "*n v"]:
        """Logits of the next word."""
        return self.unembed(self.dropout(made))

    def advance(
        self, heard: Float[Tensor, "b g"], state: State, memory: Memory, made: Float[Tensor, "b w"]
    ) -> tuple[State, Float[Tensor, "b 1 m"]]:
        """One word: the new state, and where it looked (everywhere alike without attention)."""
        config, cell = self.config, self.recurrent.cell
        if self.look is not None and config.context == "additive":
            p = self.look(state[0][-1, :, None], memory)
        else:
            p = memory.hidden[:, None].softmax(-1)
        if config.context in ("every", "additive"):
            heard = heard + (p @ memory.heard)[:, 0]
        if config.feed:
            heard = heard + F.linear(made, self.recurrent.weights(0).weight_ih[:, -config.width :])
        after: list[State] = []
        for i in range(config.layers):
            w = self.recurrent.weights(i)
            heard = w.hear(F.dropout(after[-1][0], self.recurrent.dropout, self.training)) if i else heard
            after.append(cell.step(heard, tuple(s[i] for s in state), w))
        stacked = torch.stack if config.layers > 1 else lambda parts: parts[0][None]
        state = tuple(stacked(parts) for parts in zip(*after, strict=True))
        if self.look is not None and config.context != "additive":
            p = self.look(state[0][-1, :, None], memory)
        return state, p

    def hear(self, words: Float[Tensor, "*n w"]) -> Float[Tensor, "*n g"]:
        """What the first cell's gates hear of the words alone."""
        w = self.recurrent.weights(0)
        return F.linear(words, w.weight_ih[:, : self.config.width], w.bias_ih)

    def forward(
        self, memory: Memory, state: State, target_in: Numbers
    ) -> tuple[Float[Tensor, "b n v"], Float[Tensor, "b n m"]]:
        """Logits at every word of a given text, and where the decoder looked."""
        words = self.dropout(self.words(target_in))
        run = self._loop if self.config.feed or self.config.context == "additive" else self._whole
        made, p = run(memory, state, words)
        return self.read(made), p

    def _whole(
        self, memory: Memory, state: State, words: Float[Tensor, "b n w"]
    ) -> tuple[Float[Tensor, "b n w"], Float[Tensor, "b n m"]]:
        """No state waits for a look: the whole text in torch's kernel, and all looks at once."""
        n, x = words.shape[1], words
        if self.config.context == "every":
            x = torch.cat([words, repeat(memory.values, "b 1 e -> b n e", n=n)], dim=-1)
        h, _ = self.recurrent(x, None, state)
        p = repeat(memory.hidden.softmax(-1), "b m -> b n m", n=n)
        p = p if self.look is None else self.look(h, memory)
        return self.make(h, p @ memory.values, words), p

    def _loop(
        self, memory: Memory, state: State, words: Float[Tensor, "b n w"]
    ) -> tuple[Float[Tensor, "b n w"], Float[Tensor, "b n m"]]:
        """Word by word; what was made of each is fed on, or else computed for all words at the end."""
        states, looks, makes = [], [], [words.new_zeros(words[:, 0].shape)]
        for t, heard in enumerate(self.hear(words).unbind(1)):
            state, p = self.advance(heard, state, memory, makes[-1])
            states.append(state[0][-1])
            looks.append(p)
            if self.config.feed:
                here = self.make(state[0][-1, :, None], p @ memory.values, words[:, t : t + 1])
                makes.append(here[:, 0])
        p = torch.cat(looks, dim=1)
        if self.config.feed:
            return torch.stack(makes[1:], dim=1), p
        return self.make(torch.stack(states, dim=1), p @ memory.values, words), p


class Seq2Seq(nn.Module):
    """From sentences to sentences."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        for table in (self.encoder.words, self.decoder.words):
            nn.init.normal_(table.weight, std=0.1)

    def encode(self, source: Int[Tensor, "b m"], mask: SourceMask | None = None) -> tuple[Memory, State]:
        """The source as the decoder looks at it, and its first state."""
        values, state = self.encoder(source, mask)
        return self.decoder.remember(values, state, mask), state

    def align(
        self, source: Int[Tensor, "b m"], mask: SourceMask | None, target_in: Numbers
    ) -> tuple[Float[Tensor, "b n v"], Float[Tensor, "b n _"]]:
        """What `forward` gives, and the source's words that each word was written from."""
        return self.decoder(*self.encode(source, mask), target_in)

    def forward(
        self, source: Int[Tensor, "b m"], mask: SourceMask | None, target_in: Numbers
    ) -> Float[Tensor, "b n v"]:
        return self.align(source, mask, target_in)[0]

    def start(
        self, source: Int[Tensor, "b m"], mask: SourceMask | None, bos: int
    ) -> tuple[Spoken, Int[Tensor, "b"]]:
        """See `saccade.models.text.sequence.NextToken`."""
        memory, state = self.encode(source, mask)
        made = memory.values.new_zeros(source.shape[0], self.config.width)
        return Spoken(memory, state, made), source.new_full((source.shape[0],), bos)

    def step(self, state: Spoken, token: Int[Tensor, "b"]) -> tuple[Float[Tensor, "b v"], Spoken]:
        words, memory = self.decoder.dropout(self.decoder.words(token)), state.memory
        after, p = self.decoder.advance(self.decoder.hear(words), state.state, memory, state.made)
        made = self.decoder.make(after[0][-1, :, None], p @ memory.values, words[:, None])[:, 0]
        log_p = self.decoder.read(made).log_softmax(-1)
        return log_p, replace(state, state=after, made=made)
