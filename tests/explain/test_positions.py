"""How alike positions are: the numbers behind the grid of grids, and the sentence for models without any."""

import json

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch.nn.functional import cosine_similarity

import saccade
from saccade import values
from saccade.explain.inside import positions
from saccade.explain.inside.positions import (
    Positions,
    by_distance,
    by_offset,
    correlation,
    measure,
    similarity,
)
from saccade.report.plots import DARK, LIGHT, render

GRIDS = [(4, 4), (3, 5), (1, 7), (1, 1), (20, 3)]


def vectors(grid: tuple[int, int], width: int = 6) -> torch.Tensor:
    return torch.randn(grid[0] * grid[1], width)


@pytest.mark.parametrize("grid", GRIDS)
def test_a_position_is_exactly_one_with_itself(grid: tuple[int, int]) -> None:
    found = measure(vectors(grid), grid)
    assert all(line[place] == 1.0 for place, line in zip(found.places, found.similarity, strict=True))
    assert found.by_offset[0][0] == 1.0
    assert all(-1 <= value <= 1 for line in found.similarity for value in line)


def test_similarity_is_the_cosine() -> None:
    x = vectors((3, 4))
    wanted = cosine_similarity(x[:, None].double(), x[None].double(), dim=-1)
    assert (similarity(x, torch.arange(12)) - wanted).abs().max() <= 1e-12


def test_a_position_of_zeros_is_like_no_other() -> None:
    x = vectors((2, 2))
    x[1] = 0
    found = similarity(x, torch.arange(4))
    assert found[1].tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("grid", GRIDS)
def test_means_by_offset_are_those_of_all_pairs(
    grid: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = vectors(grid)
    cosine = similarity(x, torch.arange(len(x))).numpy()
    r, c = np.divmod(np.arange(len(x)), grid[1])
    wanted = np.array(
        [
            [cosine[(abs(r[:, None] - r) == a) & (abs(c[:, None] - c) == b)].mean() for b in range(grid[1])]
            for a in range(grid[0])
        ]
    )
    assert np.abs(by_offset(x, grid).numpy() - wanted).max() <= 1e-12
    monkeypatch.setattr(positions, "AT_ONCE", 5)
    assert np.abs(by_offset(x, grid).numpy() - wanted).max() <= 1e-12
    rows = by_distance(wanted)
    assert sum(pairs for _, pairs, _ in rows) == len(x) * (len(x) + 1) / 2
    far = np.hypot(r[:, None] - r, c[:, None] - c).round()
    for distance, _, mean in rows:
        assert mean == pytest.approx(cosine[far == distance].mean())


def test_rank_correlation_is_scipys_with_ties_too() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 5, 50).astype(float), rng.normal(size=50).round(1)
    assert correlation(x, y) == pytest.approx(spearmanr(x, y).statistic)
    assert np.isnan(correlation(x, np.ones(50)))


def test_sines_and_cosines_fall_with_distance_and_know_rows_and_columns() -> None:
    found = positions.positions(saccade.create("vit_xs4_32", position="sincos2d"))
    assert isinstance(found, Positions)
    assert found.spearman <= -0.9
    assert found.straight > found.diagonal


@pytest.mark.parametrize("kind", ["learned", "learned2d", "sincos1d", "sincos2d"])
def test_every_kind_of_vector_has_a_grid_of_grids(kind: str) -> None:
    module = saccade.create("vit_xs4_32x24", position=kind)
    found = positions.positions(module)
    assert isinstance(found, Positions)
    assert (found.kind, found.grid, len(found.places)) == (kind, (8, 6), 48)
    assert module.training
    assert values.from_json(Positions, json.loads(json.dumps(values.to_json(found)))) == found


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("vit_xs4_32", {"position": "none"}, "no positions"),
        ("vit_xs4_32", {"position": "relative"}, "a bias for each pair"),
        ("vit_xs4_32", {"position": "rope2d"}, "rotary"),
        ("resnet18_small_w4_32", {}, "A ResNet has no position embeddings"),
    ],
)
def test_a_model_without_vectors_gets_a_sentence(name: str, changes: dict[str, str], said: str) -> None:
    found = positions.positions(saccade.create(name, **changes))
    assert isinstance(found, str)
    assert said in found


def test_a_large_grid_shows_some_tiles_and_measures_all_pairs() -> None:
    x = vectors((20, 30))
    found = measure(x, (20, 30))
    assert len(found.places) == 14 * 14
    assert {0, 599} <= set(found.places)
    assert found.by_offset[19][29] == pytest.approx(
        (similarity(x, torch.tensor([0]))[0, 599] + similarity(x, torch.tensor([29]))[0, 570]).item() / 2
    )
    assert "196 positions of 600 have a tile" in positions.plots(found)[0].note


@pytest.mark.parametrize("grid", [(3, 5), (1, 7), (1, 1)])
def test_plots_draw_and_their_numbers_are_json(grid: tuple[int, int]) -> None:
    for plot in positions.plots(measure(vectors(grid), grid)):
        json.dumps(plot.to_json(), allow_nan=False)
        for ink in (LIGHT, DARK):
            assert render(plot, ink).startswith(b"\x89PNG")


def test_the_sentence_follows_the_numbers() -> None:
    flat = torch.ones(9, 4)
    assert "no more similar" in positions.plots(measure(flat, (3, 3)))[0].message
    grid = positions.positions(saccade.create("vit_xs4_32", position="sincos2d"))
    assert isinstance(grid, Positions)
    assert "are more similar" in positions.plots(grid)[0].message


def test_the_real_weights_have_learnt_the_grid(data) -> None:
    module = saccade.load(data / "vit_tiny_patch16_224.fp16.safetensors").module
    found = positions.positions(module)
    assert isinstance(found, Positions)
    assert found.spearman <= -0.6
    assert found.straight > found.diagonal
    mean = np.array(found.by_offset)  # 5 patches straight on, or 3 down and 4 across
    assert min(mean[0, 5], mean[5, 0]) > max(mean[3, 4], mean[4, 3])
