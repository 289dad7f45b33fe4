"""Positions: the formulas, any grid, and what attention is told."""

import math

import pytest
import torch
from torch.testing import assert_close

from saccade.nn.attention import attend, probabilities
from saccade.nn.position import Learned, SinCos1d, sincos
from saccade.nn.position_kinds import KINDS, Relative, SinCos2d, position
from saccade.nn.resample import WAYS, resample

LIKE = torch.zeros(1)


def test_sines_and_cosines_are_vaswanis_formula():
    table = SinCos1d(12)(2, 5, LIKE)
    for p in range(10):
        for i in range(6):
            angle = p / 10000 ** (2 * i / 12)
            assert table[p, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[p, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_a_shift_of_sines_and_cosines_is_a_linear_map():
    places = torch.arange(50.0)
    here, there = sincos(places, 16).double(), sincos(places + 7, 16).double()
    found = torch.linalg.lstsq(here, there).solution
    assert_close(here @ found, there, atol=1e-5, rtol=0)


def test_two_dimensional_sines_hold_the_row_then_the_column():
    table = SinCos2d(16)(3, 4, LIKE).unflatten(0, (3, 4))
    assert (table[1, :, :8] == table[1, :1, :8]).all()
    assert (table[:, 2, 8:] == table[:1, 2, 8:]).all()
    assert_close(table[2, 3, :8], sincos(torch.tensor([2.0]), 8)[0])


@pytest.mark.parametrize("how", WAYS)
def test_the_same_grid_gives_the_table_itself_and_so_does_resampling_onto_it(how):
    table = torch.randn(5, 7, 6)
    assert resample(table, 5, 7, how) is table
    options = WAYS[how]
    again = torch.nn.functional.interpolate(table.permute(2, 0, 1)[None], size=(5, 7), **options)[0].permute(
        1, 2, 0
    )
    assert_close(again, table, atol=1e-6, rtol=0)


@pytest.mark.parametrize("how", WAYS)
def test_up_and_down_again_loses_little_of_a_smooth_table(how):
    row, col = torch.meshgrid(torch.linspace(0, 3, 14), torch.linspace(0, 2, 10), indexing="ij")
    table = torch.stack([row.sin(), col.cos(), row * col / 6], dim=-1)
    back = resample(resample(table, 28, 30, how), 14, 10, how)
    assert (back - table).abs().max() < 0.05


@pytest.mark.parametrize("how", WAYS)
def test_a_constant_table_stays_constant_on_any_grid(how):
    assert_close(
        resample(torch.full((4, 9, 2), 3.0), 11, 2, how), torch.full((11, 2, 2), 3.0), atol=1e-5, rtol=0
    )


def test_corners_stay_corners_the_way_google_resamples():
    table = torch.randn(6, 6, 4)
    found = resample(table, 13, 9, "bilinear")
    assert_close(found[0, 0], table[0, 0])
    assert_close(found[-1, -1], table[-1, -1])


def test_half_precision_tables_are_resampled_in_single_precision():
    table = torch.randn(6, 6, 4).half()
    assert_close(resample(table, 9, 9), resample(table.float(), 9, 9).half(), atol=0, rtol=0)


def test_a_relative_bias_is_a_bias_on_the_logits_of_pairs():
    relative = Relative(3, 4, heads=2)
    torch.nn.init.normal_(relative.bias)
    weight, turn = relative.relate(3, 4, 1, LIKE)
    assert turn is None
    q, k, v = (torch.randn(1, 2, 13, 8) for _ in range(3))
    bias = torch.zeros(2, 13, 13)
    for i in range(12):
        for j in range(12):
            row, col = i // 4 - j // 4, i % 4 - j % 4
            bias[:, 1 + i, 1 + j] = relative.bias[row + 2, col + 3].detach()
    expected = (q @ k.mT / 8**0.5 + bias).softmax(-1)
    assert_close(probabilities(q, k, weight), expected, atol=1e-6, rtol=1e-5)
    assert_close(attend(q, k, v, weight), expected @ v, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_an_answer_for_every_grid(kind):
    made = position(kind, (4, 6), width=24, heads=3, how="antialias")
    for rows, cols in ((4, 6), (6, 4), (1, 1), (9, 2)):
        here = made(rows, cols, LIKE)
        assert here is None or here.shape == (rows * cols, 24)
        weight, turn = made.relate(rows, cols, 2, LIKE)
        assert weight is None or weight.shape == (1, 3, rows * cols + 2, rows * cols + 2)
        assert turn is None or turn.shape == (2, rows * cols + 2, 8)


def test_learnt_positions_start_small_and_different():
    table = Learned(14, 14, 64).table
    assert table.std().item() == pytest.approx(0.02, rel=0.05)
    assert not torch.equal(table[0, 0], table[0, 1])
