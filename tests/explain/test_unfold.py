"""Models that drop or merge patches are looked into as the dense ones that they equal."""

from collections.abc import Callable
from operator import attrgetter

import pytest
import torch
from torch import Tensor

import saccade
from saccade.errors import UsageError
from saccade.explain.inside.heads import measure
from saccade.explain.inside.lens import read_depths
from saccade.explain.methods.relevance import levels, relevance_sums
from saccade.explain.methods.table import METHODS, fitting_methods
from saccade.explain.replay import moments, replay
from saccade.models.vit import ViT
from saccade.nn import pool, position_kinds
from saccade.tokens.light import lighten
from saccade.tokens.merge import merge
from saccade.tokens.prune import prune
from saccade.tokens.unfold import unfold

LOOPS: dict[str, Callable[[ViT], ViT]] = {
    "predictor": lambda vit: prune(vit, 0.6, (1, 3)),
    "attention": lambda vit: prune(vit, 0.5, (1, 2), by="attention"),
    "merged": lambda vit: merge(vit, (9, 0, 9, 5)),
    "merged as published": lambda vit: merge(vit, (9, 0, 9, 5), "paper"),
    "windowed": lambda vit: lighten(vit, "windowed", 3),
    "chunked": lambda vit: lighten(vit, "chunked", 5),
}
TARGET = torch.tensor([3, 1])
WAYS = [*((how, "learned") for how in pool.KINDS), *(("mean", position) for position in position_kinds.KINDS)]
CASES = [(loop, *way) for loop in LOOPS for way in WAYS if (loop, way[1]) != ("windowed", "relative")]
"""Relative positions have no windows: refused in words."""


def made(loop: str, **changes: object) -> tuple[ViT, Tensor]:
    torch.manual_seed(0)
    vit = saccade.create("vit_xs4_32", classes=5, **changes).eval()
    assert isinstance(vit, ViT)
    for parameter in vit.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    return LOOPS[loop](vit).eval(), torch.randn(2, 3, 32, 24)


@pytest.mark.parametrize(("loop", "how", "position"), CASES)
@torch.no_grad()
def test_the_replay_is_the_models_own_pass(loop: str, how: str, position: str) -> None:
    vit, image = made(loop, pool=how, position=position, registers=1)
    logits, shapes = replay(vit, image, lambda moment: tuple(moment.attention.shape))
    assert (logits - vit(image)).abs().max() <= 1e-5
    tokens = vit.config.front + 48
    assert shapes == [(2, 4, tokens, tokens)] * 4, "a row and a column for every patch"
    assert (read_depths(vit, moments(vit, image))[1][-1] - logits.softmax(-1)).abs().max() <= 1e-5


@torch.no_grad()
def test_dropped_patches_are_seen_by_nobody_and_merged_ones_alike() -> None:
    vit, image = made("predictor")
    for moment in moments(vit, image):
        dropped = {0: 0, 1: 20, 2: 20, 3: 31}[moment.index]
        unseen = moment.attention.sum((1, 2))[:, 1:] == 0
        assert unseen.sum(1).tolist() == [dropped, dropped]
    vit, image = made("merged")
    first, second, *_ = moments(vit, image)
    assert len({tuple(token) for token in first.out[0].tolist()}) == 49 - 9
    assert len({tuple(column) for column in second.attention[0].mean(0).mT.tolist()}) == 49 - 9


@pytest.mark.parametrize("how", ["token", "pair", "mean", "token+mean", "mean_norm", "map"])
@pytest.mark.parametrize("loop", ["predictor", "merged", "windowed"])
def test_relevance_is_kept_through_every_block(loop: str, how: str) -> None:
    vit, image = made(loop, pool=how)
    assert (relevance_sums(vit, image, TARGET, exact=True) - 1).abs().max() <= 1e-3
    assert (relevance_sums(vit, image, TARGET) - 1).abs().max() <= 1e-3


@pytest.mark.parametrize("how", ["token", "mean", "mean_norm", "map"])
@pytest.mark.parametrize("loop", ["predictor", "merged", "windowed"])
def test_the_gradient_on_its_way_down_is_the_models_own(loop: str, how: str) -> None:
    vit, image = made(loop, pool=how)
    vit, image = vit.double(), image.double()
    found = levels(vit, image, TARGET, attrgetter("signal"), exact=True, bottom=True)[-1]
    assert isinstance(found.gradient, Tensor)
    z = vit.embed(image).detach().requires_grad_()
    stages = unfold(vit, image)
    before = vit.embed
    vit.embed = lambda _: z  # type: ignore[method-assign, assignment]
    logits = vit(image)
    vit.embed = before  # type: ignore[method-assign]
    (expected,) = torch.autograd.grad(logits[[0, 1], TARGET].sum(), z)
    assert len(stages) == 4
    assert (found.gradient - expected).abs().max() <= 1e-9 * expected.abs().max()


@pytest.mark.parametrize("loop", LOOPS)
def test_every_method_draws_a_map_of_all_patches(loop: str) -> None:
    vit, image = made(loop)
    for name in set(fitting_methods(vit)) - {"integrated", "occlusion"}:  # slow, and they only ask the model
        found = METHODS[name].function(vit, image, TARGET)
        assert found.shape == (2, 8, 6), name
        assert bool(found.isfinite().all()), name
        if loop == "predictor" and name == "attention":  # in the last block the dropped ones are dark
            assert (found.flatten(1) == 0).sum(1).tolist() == [31, 31]


def test_heads_are_silenced_in_the_models_own_loop() -> None:
    for loop, why in (("predictor", False), ("merged", True)):
        vit, image = made(loop)
        found = measure(vit, image, TARGET)
        assert len(found.ablation) == 4
        assert bool(found.why) is why
        assert len(found.direct) == (0 if why else 4)


def test_a_model_at_rest_needs_no_unfolding() -> None:
    vit, image = made("chunked", position="relative")
    assert all(stage.means is None and stage.counted is None for stage in unfold(vit, image))


def test_relative_positions_in_windows_are_refused() -> None:
    with pytest.raises(UsageError, match="does not support relative positions"):
        made("windowed", position="relative")
