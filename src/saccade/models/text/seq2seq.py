"""Seq2Seq: a recurrent encoder reads a sentence, a recurrent decoder writes another.

What the decoder gets of the source (`context`): `start`, only its initial state (Sutskever et al. 2014);
`every`, the encoder's last state at every word (Cho et al. 2014); `additive`, attention before each word, by
a small network (Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473); `dot` and `general`, attention after
each word, by a product (Luong et al. 2015, https://arxiv.org/abs/1508.04025, Eq. 8).

Shapes: b sentences, n words of the target, m of the source, w width of a word, h of a state, e of a memory,
a of a key, g gates times h, v vocabulary.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.errors import UsageError, check_word
from saccade.nn.text.alignment import Alignment, Memory
from saccade.nn.text.recurrent import CELLS, CellState, Recurrent
from saccade.nn.text.words import Numbers, SourceMask
from saccade.values import one_of, validate, within

CONTEXTS = ("start", "every", "additive", "dot", "general")


@dataclass(frozen=True, kw_only=True, slots=True)
class Seq2SeqConfig:
    """Sizes as in the usual Multi30k models."""

    source: int = within(1, 2**24, default=8000)
    """Size of the source's vocabulary."""
    vocabulary: int = within(1, 2**24, default=8000)
    """Size of the target's vocabulary."""
    cell: str = one_of(*CELLS, default="gru")
    """rnn, lstm or gru."""
    width: int = within(1, 2**16, default=256)
    """Of a word's vector."""
    hidden: int = within(1, 2**16, default=512)
    """Of a state."""
    layers: int = within(1, 64, default=1)
    encoder: str = one_of("forward", "backward", "both", default="forward")
    """Direction of the encoder: forward, backward (so that the words needed first are read last, Sutskever et
    al. 2014, section 3.3, https://arxiv.org/abs/1409.3215) or both."""
    decoder: str = "forward"
    """Direction of the decoder: only forward can work."""
    context: str = one_of(*CONTEXTS, default="every")
    feed: bool = False
    """Input feeding: the decoder also gets its last attentional vector (Luong et al. 3.3)."""
    dropout: float = within(0, 0.99, default=0.5)

    def __post_init__(self) -> None:
        validate(self)
        if self.decoder == "both":
            raise UsageError(
                "a decoder cannot read both ways: it would copy the words to its right in training and have "
                "none when it writes; only the encoder may be 'both'"
            )
        check_word("decoder", self.decoder, ("forward",))
        if self.context == "dot" and self.encoder == "both":
            raise UsageError(
                "context is 'dot', but an encoder that reads both ways has states twice as wide as the "
                "decoder's; use 'general', which has a matrix between them"
            )
        if self.feed and not self.looks:
            raise UsageError(f"feed is on, but context is {self.context!r}; input feeding needs attention")

    @property
    def looks(self) -> bool:
        """Whether the decoder has attention."""
        return self.context in ("additive", "dot", "general")

    @property
    def memory(self) -> int:
        """Width of what the decoder gets: an encoder state at a word, or its own initial state."""
        return self.hidden * (2 if self.looks and self.encoder == "both" else 1)


class RecurrentEncoder(nn.Module):
    """Returns its state at every word, and the decoder's initial state (through a layer if wider)."""

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
    ) -> tuple[Float[Tensor, "b m e"], CellState]:
        lengths = None if mask is None or bool(mask.all()) else mask.sum(1)
        words = self.dropout(self.words(source))
        memory, state = self.recurrent(_reversed(words, lengths) if self.backward else words, lengths)
        memory = _reversed(memory, lengths) if self.backward else memory
        if self.bridges:
            pairs = (rearrange(s, "(l two) b h -> l b (two h)", two=2) for s in state)
            state = tuple(f(s) for f, s in zip(self.bridges, pairs, strict=True))
            state = (state[0].tanh(), *state[1:])
        return memory, state


def _reversed(x: Float[Tensor, "b m d"], lengths: Int[Tensor, "b"] | None) -> Float[Tensor, "b m d"]:
    """Reverse each sentence; padding stays where it is."""
    if lengths is None:
        return x.flip(1)
    column = torch.arange(x.shape[1], device=x.device)
    mirrored = lengths[:, None] - 1 - column
    return x.gather(1, torch.where(mirrored < 0, column, mirrored)[..., None].expand_as(x))


@dataclass(frozen=True, slots=True)
class DecoderState:
    """What a recurrent decoder keeps after some words."""

    memory: Memory
    state: CellState
    made: Float[Tensor, "b w"]
    """The last attentional vector, for input feeding."""

    def reorder(self, index: Int[Tensor, "r"]) -> "DecoderState":
        state = tuple(s[:, index] for s in self.state)
        return DecoderState(self.memory.reorder(index), state, self.made[index])


class RecurrentDecoder(nn.Module):
    """Writes one word at a time; whatever does not depend on a state is computed outside the loop."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        self.words, self.dropout = nn.Embedding(config.vocabulary, config.width), nn.Dropout(config.dropout)
        context = config.memory if config.context in ("every", "additive") else 0
        heard = config.width + context + config.feed * config.width
        inner = config.dropout if config.layers > 1 else 0.0
        self.recurrent = Recurrent(config.cell, heard, config.hidden, config.layers, dropout=inner)
        self.look = Alignment(config.context, config.memory, config.hidden) if config.looks else None
        shown = config.hidden if config.context == "start" else config.hidden + config.memory + config.width
        self.readout, self.unembed = (
            nn.Linear(shown, config.width),
            nn.Linear(config.width, config.vocabulary),
        )

    def remember(self, values: Float[Tensor, "b m e"], state: CellState, mask: SourceMask | None) -> Memory:
        """Prepare a source; without attention its only value is the decoder's initial state."""
        config = self.config
        if not config.looks:
            values, mask = state[0][-1, :, None], None
        hidden = values.new_zeros(values.shape[:2])
        if mask is not None:
            hidden = hidden.masked_fill(~mask, -torch.inf)
        weight = self.recurrent.weights(0).weight_ih[:, config.width : config.width + config.memory]
        heard = F.linear(values, weight) if config.context in ("every", "additive") else values[..., :0]
        return Memory(values, values if self.look is None else self.look.key(values), heard, hidden)

    def make(
        self, h: Float[Tensor, "b n h"], context: Float[Tensor, "b n e"], words: Float[Tensor, "b n w"]
    ) -> Float[Tensor, "b n w"]:
        """Combine state, context and last word (Bahdanau et al. A.2.2, Luong et al. Eq. 5)."""
        shown = h if self.config.context == "start" else torch.cat([h, context, words], dim=-1)
        return self.readout(shown).tanh()

    def read(self, made: Float[Tensor, "*n w"]) -> Float[Tensor, "*n v"]:
        """Return logits of the next word."""
        return self.unembed(self.dropout(made))

    def advance(
        self, heard: Float[Tensor, "b g"], state: CellState, memory: Memory, made: Float[Tensor, "b w"]
    ) -> tuple[CellState, Float[Tensor, "b 1 m"]]:
        """Return the state after one word, and its attention (uniform without attention)."""
        config, cell = self.config, self.recurrent.cell
        if self.look is not None and config.context == "additive":
            p = self.look(state[0][-1, :, None], memory)
        else:
            p = memory.hidden[:, None].softmax(-1)
        if config.context in ("every", "additive"):
            heard = heard + (p @ memory.heard)[:, 0]
        if config.feed:
            heard = heard + F.linear(made, self.recurrent.weights(0).weight_ih[:, -config.width :])
        after: list[CellState] = []
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
        """Return what the words alone feed into the first cell's gates."""
        w = self.recurrent.weights(0)
        return F.linear(words, w.weight_ih[:, : self.config.width], w.bias_ih)

    def forward(
        self, memory: Memory, state: CellState, target_in: Numbers
    ) -> tuple[Float[Tensor, "b n v"], Float[Tensor, "b n m"]]:
        """Return logits at every word of a given text, and the attention."""
        words = self.dropout(self.words(target_in))
        run = self._loop if self.config.feed or self.config.context == "additive" else self._whole
        made, p = run(memory, state, words)
        return self.read(made), p

    def _whole(
        self, memory: Memory, state: CellState, words: Float[Tensor, "b n w"]
    ) -> tuple[Float[Tensor, "b n w"], Float[Tensor, "b n m"]]:
        """Run the whole text in torch's kernel: no state depends on attention here."""
        n, x = words.shape[1], words
        if self.config.context == "every":
            x = torch.cat([words, repeat(memory.values, "b 1 e -> b n e", n=n)], dim=-1)
        h, _ = self.recurrent(x, None, state)
        p = repeat(memory.hidden.softmax(-1), "b m -> b n m", n=n)
        p = p if self.look is None else self.look(h, memory)
        return self.make(h, p @ memory.values, words), p

    def _loop(
        self, memory: Memory, state: CellState, words: Float[Tensor, "b n w"]
    ) -> tuple[Float[Tensor, "b n w"], Float[Tensor, "b n m"]]:
        """Run word by word, for states that depend on attention or on input feeding."""
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
        self.encoder, self.decoder = RecurrentEncoder(config), RecurrentDecoder(config)
        for table in (self.encoder.words, self.decoder.words):
            nn.init.normal_(table.weight, std=0.1)

    def encode(self, source: Int[Tensor, "b m"], mask: SourceMask | None = None) -> tuple[Memory, CellState]:
        """Return the source as the decoder attends to it, and the decoder's initial state."""
        values, state = self.encoder(source, mask)
        return self.decoder.remember(values, state, mask), state

    def align(
        self, source: Int[Tensor, "b m"], mask: SourceMask | None, target_in: Numbers
    ) -> tuple[Float[Tensor, "b n v"], Float[Tensor, "b n _"]]:
        """Return what `forward` does, and each word's attention to the source."""
        return self.decoder(*self.encode(source, mask), target_in)

    def forward(
        self, source: Int[Tensor, "b m"], mask: SourceMask | None, target_in: Numbers
    ) -> Float[Tensor, "b n v"]:
        return self.align(source, mask, target_in)[0]

    def start(
        self, source: Int[Tensor, "b m"], mask: SourceMask | None, bos: int
    ) -> tuple[DecoderState, Int[Tensor, "b"]]:
        """See `NextToken`."""
        memory, state = self.encode(source, mask)
        made = memory.values.new_zeros(source.shape[0], self.config.width)
        return DecoderState(memory, state, made), source.new_full((source.shape[0],), bos)

    def step(self, state: DecoderState, token: Int[Tensor, "b"]) -> tuple[Float[Tensor, "b v"], DecoderState]:
        words, memory = self.decoder.dropout(self.decoder.words(token)), state.memory
        after, p = self.decoder.advance(self.decoder.hear(words), state.state, memory, state.made)
        made = self.decoder.make(after[0][-1, :, None], p @ memory.values, words[:, None])[:, 0]
        log_p = self.decoder.read(made).log_softmax(-1)
        return log_p, replace(state, state=after, made=made)
