"""The answer by depth, and the norms of tokens: the last depth is the model's own, and outliers are found."""

import json

import pytest
import torch

import saccade
from saccade import values
from saccade.explain.inside import lens, norms
from saccade.explain.inside.lens import Lens, read_depths, read_tokens
from saccade.explain.inside.norms import Norms, outliers, summarise
from saccade.explain.replay import moments
from saccade.models.vit import ViT
from saccade.nn import pool
from saccade.nn.block import BlockStyle
from saccade.report.plots import DARK, LIGHT, render


def made(**changes: object) -> tuple[ViT, torch.Tensor]:
    torch.manual_seed(0)
    vit = saccade.create("vit_xs8_32", classes=5, **changes).eval()
    assert isinstance(vit, ViT)
    for parameter in vit.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return vit, torch.randn(2, 3, 32, 24)


@pytest.mark.parametrize("style", [BlockStyle(), BlockStyle(placement="post")])
@pytest.mark.parametrize("how", pool.KINDS)
@torch.no_grad()
def test_the_last_depth_is_the_answer_and_the_first_reads_the_embedding(how: str, style: BlockStyle) -> None:
    vit, image = made(pool=how, registers=1, block=style)
    _, found = read_depths(vit, moments(vit, image))
    assert found.shape == (5, 2, 5)
    assert (found[-1] - vit(image).softmax(-1)).abs().max() <= 1e-6
    assert (found[0] - vit.read(vit.embed(image)).softmax(-1)).abs().max() <= 1e-6


@pytest.mark.parametrize("how", pool.KINDS)
@torch.no_grad()
def test_a_token_alone_is_read_as_a_sequence_of_nothing_else(how: str) -> None:
    vit, _ = made(pool=how, registers=2)
    front = vit.config.front
    one = torch.randn(2, 1, 64)
    whole = vit.read(one.expand(2, front + 7, 64)).softmax(-1)
    found = read_tokens(torch.cat([one, torch.randn(2, 3, 64), one], 1), vit.read, front)
    assert found.shape == (2, 5, 5)
    for place in (0, 4):
        assert (found[:, place] - whole).abs().max() <= 1e-5
    assert (found[:, 1] - whole).abs().max() > 1e-3


def test_the_class_token_read_alone_gives_the_answer() -> None:
    vit, image = made()
    with torch.no_grad():
        z = vit.encode(image)
        assert (read_tokens(z, vit.read, 1)[:, 0] - vit(image).softmax(-1)).abs().max() <= 1e-6


def test_every_picture_is_read_by_itself_and_the_numbers_agree() -> None:
    vit, image = made()
    with torch.no_grad():
        target = vit(image).argmax(-1)
    found = lens.measure(vit, image, target, ["a.png", "b.png"], lambda i: f"class {i}")
    again = lens.measure(vit, image[1:], target[1:], ["b.png"], lambda i: f"class {i}")
    assert found[1].guesses[-1].target == pytest.approx(again[0].guesses[-1].target)
    for one in found:
        assert (one.grid, len(one.patches), len(one.patches[0])) == ((4, 3), 5, 12)
        last = one.guesses[-1]
        assert (last.index, last.label, last.block) == (one.target, one.label, 4)
        assert last.probability == last.target
        assert one.settled <= 4
        assert values.from_json(Lens, json.loads(json.dumps(values.to_json(one)))) == one
    plots = lens.plots(found)
    assert [plot.name for plot in plots] == ["lens", "lens-patches-1", "lens-patches-2"]
    assert len(plots[0].rows) == 10
    for plot in plots:
        json.dumps(plot.to_json(), allow_nan=False)
        assert render(plot, DARK).startswith(b"\x89PNG")


def test_an_answer_is_settled_from_the_block_where_it_stays() -> None:
    vit, image = made()
    (one,) = lens.measure(vit, image[:1], torch.tensor([0]), ["a"], str)

    def settled(*indices: int) -> int:
        pairs = zip(one.guesses, indices, strict=True)
        guesses = tuple(values.change(guess, "index", str(index)) for guess, index in pairs)
        return Lens(
            picture="a", target=2, label="2", grid=(4, 3), guesses=guesses, patches=one.patches
        ).settled

    assert settled(2, 2, 2, 2, 2) == 0
    assert settled(2, 0, 2, 2, 2) == 2
    assert settled(0, 1, 3, 4, 2) == 4
    assert settled(2, 2, 2, 2, 0) == 5


def test_planted_outliers_are_found_and_nothing_else() -> None:
    torch.manual_seed(0)
    found = 10 + torch.randn(3, 2, 197).double()
    assert not outliers(found).any()
    found[2, 1, 40] = 60.0
    found[2, 1, 0] = 900.0  # a class token is compared with nothing
    told = summarise(found, 1, (14, 14), ["a", "b"])
    (one,) = told.outliers
    assert (one.picture, one.block, one.row, one.column, one.norm) == (1, 2, 2, 11, 60.0)
    assert one.times == pytest.approx(6, rel=0.05)
    assert [depth.outliers for depth in told.depths] == [0, 0, 1]
    assert told.depths[2].high == 60.0
    assert told.depths[2].front > 400
    assert torch.equal(outliers(found[..., 1:]), outliers(1e-3 * found[..., 1:]))


def test_a_little_more_than_twice_a_wide_spread_is_no_outlier() -> None:
    wide = torch.linspace(1, 20, 100).double()
    assert not outliers(wide).any()
    tight = torch.cat([torch.full((99,), 10.0), torch.tensor([14.0])]).double()
    assert not outliers(tight).any()


def test_norms_are_those_of_the_stream_and_plots_ring_what_stands_out() -> None:
    vit, image = made(registers=1)
    found = norms.measure(vit, image, ["a.png", "b.png"])
    with torch.no_grad():
        last = vit.encode(image)[:, 2:].norm(dim=-1)
    assert torch.tensor(found.last).allclose(last, rtol=1e-5)
    assert [depth.block for depth in found.depths] == [0, 1, 2, 3, 4]
    assert values.from_json(Norms, json.loads(json.dumps(values.to_json(found)))) == found
    for plot in norms.plots(found):
        assert render(plot, LIGHT).startswith(b"\x89PNG")
    planted = summarise(torch.tensor([[[1.0, 1.1, 1.2, 50.0]]]).double(), 0, (2, 2), ["a"])
    curve, maps = norms.plots(planted)
    assert "1 outlier (25.0% of the patches) after block 0" in curve.message
    assert maps.rows[0][-1] == 1
    assert render(maps, DARK) != render(
        norms.plots(summarise(torch.ones(1, 1, 4).double(), 0, (2, 2), ["a"]))[1], DARK
    )
    assert render(curve, DARK).startswith(b"\x89PNG")


def test_the_real_weights_know_late_and_keep_scratch_paper_in_the_corners(data) -> None:
    model = saccade.load(data / "vit_tiny_patch16_224.fp16.safetensors")
    image = torch.from_numpy(model.preprocess.batch([data / "samples" / "el1.png"]))
    with torch.no_grad():
        target = model.module(image).argmax(-1)
    (one,) = lens.measure(model.module, image, target, ["el1.png"], str)
    assert one.guesses[6].target < 0.1 < one.guesses[-1].target
    told = norms.measure(model.module, image, ["el1.png"])
    corners = {(0, 0), (0, 13), (13, 0), (13, 13)}
    assert {(o.row, o.column) for o in told.outliers if o.block == 12} <= corners
    assert max(o.times for o in told.outliers) > 10
