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

CellState = tuple[Float[Tensor, "*l b h"], ...]
"""What a cell remembers: (h,), or (h, c) for an LSTM. A layer stacks its cells in the first dimension."""
Inputs = Float[Tensor, "b n d"]


class Weights(NamedTuple):
    """The weights of one cell; the gates are stacked in torch's order."""

    weight_ih: Float[Tensor, "g d"]
    weight_hh: Float[Tensor, "g h"]
    bias_ih: Float[Tensor, "g"]
    bias_hh: Float[Tensor, "g"]

    def hear(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n g"]:
        """Return W x + b for all words at once: no word depends on another here."""
        return F.linear(x, self.weight_ih, self.bias_ih)

    def recall(self, h: Float[Tensor, "b h"]) -> Float[Tensor, "b g"]:
        """Return U h + b'."""
        return F.linear(h, self.weight_hh, self.bias_hh)


def rnn(x: Float[Tensor, "b g"], state: CellState, w: Weights) -> CellState:
    """h = tanh(W x + U h); `x` is what `hear` returned for one word, here and below."""
    (h,) = state
    return ((x + w.recall(h)).tanh(),)


def lstm(x: Float[Tensor, "b g"], state: CellState, w: Weights) -> CellState:
    """Scale the memory c by f, add the candidate g scaled by i, output it scaled by o."""
    h, c = state
    i, f, g, o = (x + w.recall(h)).chunk(4, dim=-1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru(x: Float[Tensor, "b g"], state: CellState, w: Weights) -> CellState:
    """Mix the old state (by z) with a candidate, which sees the old state scaled by r."""
    (h,) = state
    gates, seen = 2 * h.shape[-1], w.recall(h)
    r, z = (x[:, :gates] + seen[:, :gates]).sigmoid().chunk(2, dim=-1)
    candidate = (x[:, gates:] + r * seen[:, gates:]).tanh()
    return (candidate + z * (h - candidate),)


class RecurrentCell(NamedTuple):
    """Counts of gates and states, our single step, and torch's kernel for a whole sentence."""

    gates: int
    states: int
    step: Callable[[Tensor, CellState, Weights], CellState]
    kernel: Callable[..., Any]


CELLS = {
    "rnn": RecurrentCell(1, 1, rnn, torch.rnn_tanh),
    "lstm": RecurrentCell(4, 2, lstm, torch.lstm),
    "gru": RecurrentCell(3, 1, gru, torch.gru),
}


class Recurrent(nn.Module):
    """Layers of cells over sentences padded on the right; parameters are named as in torch.nn.LSTM.

    `forward` runs torch's kernel, `read` the cells above; both give the same numbers.
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
                if cell == "lstm" and name == "bias_hh":
                    fresh[hidden : 2 * hidden] = 1.0  # forget little at first (Jozefowicz et al. 2015)
                self.register_parameter(name + suffix, nn.Parameter(fresh))

    def weights(self, index: int) -> Weights:
        """Return those of one cell; cells are numbered by layer, forwards before backwards."""
        return Weights(*(getattr(self, name + self.suffixes[index]) for name in Weights._fields))

    def zero(self, like: Float[Tensor, "b *n d"]) -> CellState:
        """Return the state before the first word."""
        shape = len(self.suffixes), like.shape[0], self.hidden
        return tuple(like.new_zeros(shape) for _ in range(self.cell.states))

    def forward(
        self, x: Inputs, lengths: Int[Tensor, "b"] | None = None, state: CellState | None = None
    ) -> tuple[Float[Tensor, "b n e"], CellState]:
        """Return the last layer's state at every word (0 at padding), and every cell's final state."""
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

    def _given(self, state: CellState) -> Any:
        return state if self.cell.states > 1 else state[0]

    def read(
        self, x: Inputs, lengths: Int[Tensor, "b"] | None = None, state: CellState | None = None
    ) -> tuple[Float[Tensor, "b n e"], CellState]:
        """Return what `forward` does, cell by cell and word by word."""
        state = self.zero(x) if state is None else state
        places = torch.arange(x.shape[1], device=x.device)
        word = places < (x.shape[1] if lengths is None else lengths[:, None])
        word = word.expand(x.shape[0], -1)
        ends: list[CellState] = []
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
        self, index: int, x: Inputs, word: Bool[Tensor, "b n"], state: CellState
    ) -> tuple[Float[Tensor, "b n h"], CellState]:
        """Run one cell along the sentence, or back from its end; padding changes nothing."""
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
        raise UsageError(f"sentence {row} of the batch has no words; leave empty sentences out")
