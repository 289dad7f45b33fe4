"""Cells equal torch's; padding is not read; and what their equations are known for."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close

from saccade.errors import UsageError
from saccade.nn.text.recurrent import CELLS, Recurrent

THEIRS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
STEPS = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}
B, N, D, H = 4, 7, 5, 6
LENGTHS = torch.tensor([3, 7, 1, 5])


def pair(cell, layers=2, both=True):
    """Ours and torch's on the same weights, which carry the same names."""
    ours = Recurrent(cell, D, H, layers, both)
    theirs = THEIRS[cell](D, H, layers, bidirectional=both, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def near(found, expected, error=1e-6):
    assert_close(found, expected, atol=error, rtol=0)


@pytest.mark.parametrize("cell", CELLS)
def test_one_step_of_a_cell_equals_torchs(cell):
    ours, theirs = Recurrent(cell, D, H), STEPS[cell](D, H)
    w, x = ours.weights(0), torch.randn(B, D)
    state = tuple(torch.randn(B, H) for _ in range(CELLS[cell].states))
    theirs.load_state_dict(w._asdict())
    expected = theirs(x, state if cell == "lstm" else state[0])
    found = CELLS[cell].step(w.hear(x), state, w)
    near(found, expected if cell == "lstm" else (expected,))


@pytest.mark.parametrize("run", ["forward", "read"])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_layers_equal_torchs_on_its_own_weights(cell, layers, both, run):
    ours, theirs = pair(cell, layers, both)
    x = torch.randn(B, N, D)
    y, state = getattr(ours, run)(x)
    expected, last = theirs(x)
    near(y, expected)
    near(state, last if cell == "lstm" else (last,))


@pytest.mark.parametrize("run", ["forward", "read"])
@pytest.mark.parametrize("cell", CELLS)
def test_sentences_of_unequal_length_equal_torchs_packed_ones(cell, run):
    ours, theirs = pair(cell)
    x, first = torch.randn(B, N, D), tuple(torch.randn(4, B, H) for _ in range(CELLS[cell].states))
    y, state = getattr(ours, run)(x, LENGTHS, first)
    packed = pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    expected, last = theirs(packed, first if cell == "lstm" else first[0])
    near(y, pad_packed_sequence(expected, batch_first=True)[0])
    near(state, last if cell == "lstm" else (last,))


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_of_the_readable_cells_equal_those_of_torchs_kernel(cell):
    ours, _ = pair(cell)
    x = torch.randn(B, N, D, requires_grad=True)
    wanted = [x, *ours.parameters()]
    slopes = [
        torch.autograd.grad(run(x, LENGTHS)[0].square().sum(), wanted) for run in (ours.forward, ours.read)
    ]
    near(slopes[0], slopes[1], 1e-5)


@pytest.mark.parametrize("run", ["forward", "read"])
@pytest.mark.parametrize("cell", CELLS)
def test_padding_is_never_read(cell, run):
    ours, _ = pair(cell)
    x = torch.randn(B, N, D)
    other = x.clone()
    other[torch.arange(N) >= LENGTHS[:, None]] = 1e6
    whole, noisy = (getattr(ours, run)(t, LENGTHS) for t in (x, other))
    assert torch.equal(whole[0], noisy[0])
    assert all(torch.equal(a, b) for a, b in zip(whole[1], noisy[1], strict=True))
    for i, length in enumerate(LENGTHS.tolist()):
        y, state = getattr(ours, run)(x[i : i + 1, :length])
        near(whole[0][i : i + 1, :length], y)
        near(tuple(s[:, i : i + 1] for s in whole[1]), state)


def test_dropout_falls_between_layers_and_only_in_training():
    ours = Recurrent("gru", D, H, layers=2, dropout=0.5)
    x = torch.randn(B, N, D)
    for run in (ours.forward, ours.read):
        assert not torch.equal(run(x)[0], run(x)[0])
    ours.eval()
    near(ours(x)[0], ours.read(x)[0])


def test_an_empty_sentence_is_refused_with_its_number():
    with pytest.raises(UsageError, match="sentence 1 of the batch has no words; leave empty sentences out"):
        Recurrent("gru", D, H)(torch.randn(2, N, D), torch.tensor([3, 0]))


def test_an_unknown_cell_is_refused_in_words():
    with pytest.raises(UsageError, match="cell is 'lsmt', which is not known; did you mean 'lstm'"):
        Recurrent("lsmt", D, H)


@pytest.mark.parametrize(("radius", "low", "high"), [(0.5, 0, 1e-4), (1.0, 0.05, 1.5), (1.5, 10, 1e9)])
def test_gradients_vanish_or_explode_with_the_spectral_radius(radius, low, high):
    """Bengio et al. 1994: through 20 words a gradient is multiplied by about radius^20."""
    layer = Recurrent("rnn", 1, 16)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.weight_hh_l0.copy_(radius * torch.linalg.qr(torch.randn(16, 16))[0])
    first = (torch.randn(1, 1, 16) * 1e-6).requires_grad_()  # near 0, where tanh is straight
    _, (last,) = layer.read(torch.zeros(1, 20, 1), None, (first,))
    (slope,) = torch.autograd.grad(last.norm() / first.detach().norm(), first)
    size = slope.norm().item() * first.detach().norm().item()
    assert low <= size <= high


def test_an_lstm_begins_by_forgetting_little():
    for i in range(2):
        bias = Recurrent("lstm", D, H, bidirectional=True).weights(i).bias_hh.chunk(4)
        assert bool((bias[1] == 1).all())
        assert max(bias[gate].abs().max().item() for gate in (0, 2, 3)) <= H**-0.5
