"""Recurrent cells as their equations, and a layer that runs them over sentences of unequal length.

RNN: Elman 1990. LSTM: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000. GRU: Cho et
al. 2014 (https://arxiv.org/abs/1406.1078, section 2.3), with the reset gate after the product, as torch has
it. Both directions: Schuster and Paliwal 1997.

Shapes: b batch, n words, d width of a word, h width of a state, g gates times h, l layers times directions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from saccade.errors import UsageError, check_word

State = tuple[Float[Tensor, "*l b h"], ...]
"""What a cell remembers: (h,), and for an LSTM (h, c). A layer stacks its cells in front."""
Words = Float[Tensor, "b n d"]


class Weights(NamedTuple):
    """Of one cell; the gates lie one below the other, in torch's order."""

    weight_ih: Float[Tensor, "g d"]
    weight_hh: Float[Tensor, "g h"]
    bias_ih: Float[Tensor, "g"]
    bias_hh: Float[Tensor, "g"]

    def hear(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n g"]:
        """W x + b: what the gates hear of the words; no word waits for another, so all at once."""
        return F.linear(x, self.weight_ih, self.bias_ih)

    def recall(self, h: Float[Tensor, "b h"]) -> Float[Tensor, "b g"]:
        """U h + b': what the gates hear of the last state."""
        return F.linear(h, self.weight_hh, self.bias_hh)


def rnn(x: Float[Tensor, "b g"], state: State, w: Weights) -> State:
    """h = tanh(W x + U h); `x` is what `hear` gave for one word, here and below."""
    (h,) = state
    return ((x + w.recall(h)).tanh(),)


def lstm(x: Float[Tensor, "b g"], state: State, w: Weights) -> State:
    """Forget a part f of the memory c, write a part i of the candidate g, show a part o of it."""
    h, c = state
    i, f, g, o = (x + w.recall(h)).chunk(4, dim=-1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru(x: Float[Tensor, "b g"], state: State, w: Weights) -> State:
    """Keep a part z of the state; the rest is the candidate, which sees a part r of the old state."""
    (h,) = state
    gates, seen = 2 * h.shape[-1], w.recall(h)
    r, z = (x[:, :gates] + seen[:, :gates]).sigmoid().chunk(2, dim=-1)
    candidate = (x[:, gates:] + r * seen[:, gates:]).tanh()
    return (candidate + z * (h - candidate),)


class Cell(NamedTuple):
    """How many gates and states, one step of ours, and torch's kernel for a whole sentence."""

    gates: int
    states: int
    step: Callable[[Tensor, State, Weights], State]
    kernel: Callable[..., Any]


CELLS = {
    "rnn": Cell(1, 1, rnn, torch.rnn_tanh),
    "lstm": Cell(4, 2, lstm, torch.lstm),
    "gru": Cell(3, 1, gru, torch.gru),
}


class Recurrent(nn.Module):
    """Layers of cells over a batch of sentences, padded on the right; named as torch.nn.LSTM names them.

    `forward` runs torch's kernel, `read` the cells above: the same numbers from the same parameters.
    """

    def __init__(
        self,
        cell: str,
        width: int,
        hidden: int,
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_word("cell", cell, CELLS)
        self.cell, self.hidden, self.layers = CELLS[cell], hidden, layers
        self.directions, self.dropout = 1 + bidirectional, dropout
        self.suffixes = [f"_l{i}{way}" for i in range(layers) for way in ("", "_reverse")[: self.directions]]
        for i, suffix in enumerate(self.suffixes):
            inner = width if i < self.directions else hidden * self.directions
            gates = self.cell.gates * hidden
            sizes = {"weight_ih": (gates, inner), "weight_hh": (gates, hidden)}
            for name, size in (sizes | {"bias_ih": (gates,), "bias_hh": (gates,)}).items():
                fresh = torch.empty(size).uniform_(-(hidden**-0.5), hidden**-0.5)
                if (
                    cell == "lstm" and name == "bias_hh"
                ):  # at first it forgets little (Jozefowicz et al. 2015)
                    fresh[hidden : 2 * hidden] = 1.0
                self.register_parameter(name + suffix, nn.Parameter(fresh))

    def weights(self, index: int) -> Weights:
        """Of one cell: layer by layer, forwards before backwards."""
        return Weights(*(getattr(self, name + self.suffixes[index]) for name in Weights._fields))

    def zero(self, like: Float[Tensor, "b *n d"]) -> State:
        """The state before the first word."""
        shape = len(self.suffixes), like.shape[0], self.hidden
        return tuple(like.new_zeros(shape) for _ in range(self.cell.states))

    def forward(
        self, x: Words, lengths: Int[Tensor, "b"] | None = None, state: State | None = None
    ) -> tuple[Float[Tensor, "b n e"], State]:
        """The last layer's state at every word (0 at padding), and every cell's after its last word."""
        state = self.zero(x) if state is None else state
        weights = [tensor for i in range(len(self.suffixes)) for tensor in self.weights(i)]
        settings = (True, self.layers, self.dropout, self.training, self.directions == 2)
        if lengths is None:
            y, *last = self.cell.kernel(x, self._given(state), weights, *settings, True)
            return y, tuple(last)
        _check(lengths)
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        order, back = cast(Tensor, packed.sorted_indices), cast(Tensor, packed.unsorted_indices)
        given = self._given(tuple(s.index_select(1, order) for s in state))
        y, *last = self.cell.kernel(packed.data, packed.batch_sizes, given, weights, *settings)
        padded = PackedSequence(y, packed.batch_sizes, order, back)
        y, _ = pad_packed_sequence(padded, batch_first=True, total_length=x.shape[1])
        return y, tuple(s.index_select(1, back) for s in last)

    def _given(self, state: State) -> Any:
        return state if self.cell.states > 1 else state[0]

    def read(
        self, x: Words, lengths: Int[Tensor, "b"] | None = None, state: State | None = None
    ) -> tuple[Float[Tensor, "b n e"], State]:
        """What `forward` gives, cell by cell and word by word."""
        state = self.zero(x) if state is None else state
        places = torch.arange(x.shape[1], device=x.device)
        word = places < (x.shape[1] if lengths is None else lengths[:, None])
        word = word.expand(x.shape[0], -1)
        ends: list[State] = []
        for layer in range(self.layers):
            x = F.dropout(x, self.dropout, self.training and layer > 0)
            ways = []
            for index in range(layer * self.directions, (layer + 1) * self.directions):
                way, end = self._walk(index, x, word, tuple(s[index] for s in state))
                ways.append(way)
                ends.append(end)
            x = torch.cat(ways, dim=-1)
        return x, tuple(torch.stack(parts) for parts in zip(*ends, strict=True))

    def _walk(
        self, index: int, x: Words, word: Bool[Tensor, "b n"], state: State
    ) -> tuple[Float[Tensor, "b n h"], State]:
        """One cell along the sentence, or back from its end; at padding nothing happens."""
        w = self.weights(index)
        heard, shown = w.hear(x).unbind(1), {}
        steps = range(x.shape[1])
        for t in steps if index % self.directions == 0 else reversed(steps):
            here, after = word[:, t, None], self.cell.step(heard[t], state, w)
            state = tuple(torch.where(here, new, old) for new, old in zip(after, state, strict=True))
            shown[t] = state[0] * here
        return torch.stack([shown[t] for t in steps], dim=1), state


def _check(lengths: Int[Tensor, "b"]) -> None:
    if bool((lengths < 1).any()):
        row = int((lengths < 1).nonzero()[0])
        raise UsageError(f"sentence {row} of the batch has no word; leave empty sentences out")
