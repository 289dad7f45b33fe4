"""What each head does: distances and entropies a few rows at a time, and what is lost without it."""

import json
import math

import pytest
import torch

import saccade
from saccade import values
from saccade.errors import UsageError
from saccade.explain.inside import head_plots
from saccade.explain.inside.heads import (
    NO_LOGIT,
    NO_PATH,
    HeadStatistics,
    ablation,
    direct,
    distance_and_entropy,
    finisher,
    logit_drop,
    mean_parts,
    measure,
)
from saccade.explain.replay import grid_of, moments
from saccade.models.receptive_field import apart, attention_distances
from saccade.models.vit import ViT
from saccade.nn import pool, position_kinds
from saccade.nn.block import BlockStyle
from saccade.report.plots import LIGHT, render


def made(**changes: object) -> tuple[ViT, torch.Tensor]:
    torch.manual_seed(0)
    vit = saccade.create("vit_xs8_32", classes=5, **changes).eval()
    assert isinstance(vit, ViT)
    for parameter in vit.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return vit, torch.randn(2, 3, 32, 24)


@pytest.mark.parametrize("rows", [1, 5, 100])
@pytest.mark.parametrize("changes", [{}, {"registers": 3}, {"pool": "mean", "position": "relative"}])
@torch.no_grad()
def test_distance_a_few_rows_at_a_time_is_that_of_the_whole_matrix(changes: dict, rows: int) -> None:
    vit, image = made(**changes)
    between = apart(grid_of(vit, image), 8, image)
    found = [distance_and_entropy(moment, between, rows) for moment in moments(vit, image)]
    wanted = torch.tensor(attention_distances(vit, image))
    assert (torch.stack([far.mean(0) for far, _ in found]) - wanted).abs().max() <= 1e-5
    for (_, entropy), moment in zip(found, moments(vit, image), strict=True):
        p = moment.attention.double()
        assert (entropy + (p * p.log()).sum(-1).mean(-1)).abs().max() <= 1e-5


@torch.no_grad()
def test_attention_that_is_the_same_everywhere_has_the_uniform_distance_and_the_widest_entropy() -> None:
    vit, image = made()
    for block in vit.blocks:
        block.attention.q.weight.zero_()
        block.attention.q.bias.zero_()
    found = measure(vit, image, torch.zeros(2, dtype=torch.long), effects=0)
    assert found.tokens == 13
    assert all(value == pytest.approx(found.uniform) for row in found.distance for value in row)
    assert all(value == pytest.approx(math.log(13), abs=1e-6) for row in found.entropy for value in row)


@pytest.mark.parametrize("style", [BlockStyle(), BlockStyle(layerscale=0.5, norm="rms")])
@torch.no_grad()
def test_embedding_heads_biases_and_mlps_sum_to_the_last_stream(style: BlockStyle) -> None:
    vit, image = made(block=style)
    total = vit.embed(image)
    for moment in moments(vit, image):
        heads = moment.parts().sum(1) + moment.block.attention.out.bias
        mlp = moment.block.mlp(moment.block.norm2(moment.middle))
        for add, branch in ((moment.block.add1, heads), (moment.block.add2, mlp)):
            total = total + (branch if add.scale is None else branch * add.scale)
    assert (total - vit.encode(image)).abs().max() <= 1e-5


@pytest.mark.parametrize("style", [BlockStyle(), BlockStyle(layerscale=0.5)])
@torch.no_grad()
def test_the_direct_path_to_a_linear_reading_is_the_head_read_by_itself(style: BlockStyle) -> None:
    vit, image = made(block=style)
    weight, target = torch.randn(64, 5), torch.tensor([3, 1])
    last = vit.encode(image)
    for moment in moments(vit, image):
        without = direct(moment, last, lambda z: z[:, 0] @ weight)
        found = logit_drop(last[:, 0] @ weight, without, target)
        scale = moment.block.add1.scale
        part = moment.parts()[:, :, 0] * (1 if scale is None else scale)
        wanted = torch.einsum("b h d, d b -> b h", part, weight[:, target])
        assert (found - wanted).abs().max() <= 1e-4


@pytest.mark.parametrize("position", position_kinds.KINDS)
@torch.no_grad()
def test_a_silenced_head_is_a_model_whose_head_is_cut_out(position: str) -> None:
    vit, image = made(position=position, registers=1)
    finish = finisher(vit, image)
    for moment in moments(vit, image):
        found = ablation(moment, finish)
        for head in range(4):
            out = moment.block.attention.out.weight
            before = out.clone()
            out[:, 16 * head : 16 * (head + 1)] = 0
            assert (found[:, head] - vit(image)).abs().max() <= 1e-5
            out.copy_(before)


@pytest.mark.parametrize("how", pool.KINDS)
@torch.no_grad()
def test_in_the_last_block_without_its_mlp_both_ways_to_take_a_head_out_are_one(how: str) -> None:
    vit, image = made(pool=how, prelogits=8 if how in ("token", "mean") else 0)
    *_, last = moments(vit, image)
    for parameter in last.block.mlp.parameters():
        parameter.zero_()
    *_, last = moments(vit, image)
    found = direct(last, last.out, vit.read)
    assert (found - ablation(last, finisher(vit, image))).abs().max() <= 1e-5
    assert (found - vit(image)[:, None]).abs().max() > 1e-3


@torch.no_grad()
def test_pictures_do_not_influence_one_another_and_few_at_a_time_is_all_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vit, image = made()
    finish = finisher(vit, image)
    whole = [ablation(moment, finish) for moment in moments(vit, image)]
    monkeypatch.setattr("saccade.explain.inside.heads.AT_ONCE", 3)
    for i, one in enumerate(image.split(1)):
        for moment, wanted in zip(moments(vit, one), whole, strict=True):
            assert (ablation(moment, finish) - wanted[i : i + 1]).abs().max() <= 1e-5


@torch.no_grad()
def test_a_head_replaced_by_what_it_says_anyway_changes_nothing() -> None:
    vit, image = made()
    finish, logits = finisher(vit, image), vit(image)
    for moment in moments(vit, image):
        for without in (
            ablation(moment, finish, moment.parts()),
            direct(moment, vit.encode(image), vit.read, moment.parts()),
        ):
            assert (without - logits[:, None]).abs().max() <= 1e-5


def test_the_mean_over_equal_pictures_is_each_of_them_and_over_one_is_refused() -> None:
    vit, image = made()
    target = torch.tensor([1, 1])
    same = measure(vit, image[:1].repeat(2, 1, 1, 1), target, instead="mean")
    assert max(abs(value) for row in same.ablation for value in row) <= 1e-5
    assert max(abs(value) for row in measure(vit, image, target).ablation for value in row) > 1e-2
    with pytest.raises(UsageError, match="'mean' over 1 image"):
        measure(vit, image[:1], target[:1], instead="mean")
    with pytest.raises(UsageError, match="instead is 'median'"):
        measure(vit, image, target, instead="median")
    with torch.no_grad():
        parts = [moment.parts().mean(0, keepdim=True) for moment in moments(vit, image)]
        means = mean_parts(vit, image)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(parts, means, strict=True))


def test_what_cannot_be_measured_is_left_out_with_a_sentence() -> None:
    target = torch.tensor([1, 1])
    vit, image = made(block=BlockStyle(placement="post"))
    found = measure(vit, image, target)
    assert (found.direct, found.why, len(found.ablation)) == ((), NO_PATH, 4)
    headless = saccade.create("vit_xs8_32", classes=0).eval()
    found = measure(headless, image, target)
    assert (found.direct, found.ablation, found.why, found.effects) == ((), (), NO_LOGIT, 0)
    assert head_plots.plots(found)[-1] == NO_LOGIT


def test_numbers_come_back_from_json_and_the_plots_tell_them() -> None:
    vit, image = made()
    found = measure(vit, image, torch.tensor([1, 2]), effects=1)
    assert (found.pictures, found.effects) == (2, 1)
    assert values.from_json(HeadStatistics, json.loads(json.dumps(values.to_json(found)))) == found
    plots = head_plots.plots(found)
    assert [plot.name for plot in plots] == [
        "attention-distance",
        "attention-entropy",
        "head-contribution",
        "head-ablation",
    ]
    for plot, table in zip(plots, (found.distance, found.entropy, found.direct, found.ablation), strict=True):
        assert [row[2] for row in plot.rows] == [value for row in table for value in row]
        assert render(plot, LIGHT).startswith(b"\x89PNG")
    most = max(plots[3].rows, key=lambda row: row[2])
    assert f"head {most[1]} of block {most[0]} costs the answer most ({most[2]:.3g}" in plots[3].message


def test_the_matrices_of_a_thousand_tokens_are_never_formed_whole() -> None:
    vit = saccade.create("vit_xs8_256", classes=0).eval()
    largest = 0
    real = torch.Tensor.softmax

    def watched(self: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        nonlocal largest
        largest = max(largest, self.shape[-2]) if self.ndim == 4 else largest
        return real(self, *args, **kwargs)

    torch.Tensor.softmax = watched
    try:
        found = measure(vit, torch.randn(1, 3, 256, 256), torch.zeros(1, dtype=torch.long))
    finally:
        torch.Tensor.softmax = real
    assert found.tokens == 1025
    assert 0 < largest <= 256
