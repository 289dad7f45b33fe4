"""Merging patches: nothing changes at r = 0, means are weighted, twins merge first, gradients pass."""

import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
import torch
from small import HYBRID, SMALL, made, pictures
from torch.testing import assert_close

from saccade.data.image.preprocess import Preprocess
from saccade.errors import UsageError
from saccade.models.build import config_of
from saccade.nn import pool
from saccade.nn import position_kinds as place
from saccade.tokens.light import lighten
from saccade.tokens.merge import MergedConfig, constant, decreasing, match, merge, merged
from saccade.tokens.walk import run
from saccade.weights.load import load, write


@pytest.mark.parametrize("config", [SMALL, replace(SMALL, position="relative"), HYBRID])
@torch.no_grad()
def test_merging_nothing_is_the_dense_model_bit_for_bit(config):
    vit, image = made(config), pictures()
    assert torch.equal(merge(vit, 0)(image), vit(image))
    assert torch.equal(merge(vit, 0).encode(image), vit.encode(image))


@pytest.mark.parametrize("position", place.KINDS)
@pytest.mark.parametrize("how", pool.KINDS)
@torch.no_grad()
def test_sizes_weigh_the_answer_as_if_each_patch_had_its_token(how, position):
    vit, image = made(replace(SMALL, pool=how, position=position, registers=1)), pictures()
    small = merge(vit, (5, 0, 8, 3))
    z = small.encode(image)
    assert z.shape == vit.encode(image).shape
    assert_close(small(image), small.read(z), atol=1e-5, rtol=0)
    assert (small(image) - vit(image)).abs().max() > 1e-4


def merge_by_hand(z, k, size, front, rate):
    """One picture, one token at a time: (tokens as sets of places, their means, their sizes)."""
    patches = list(range(front, z.shape[0]))
    firsts, seconds = patches[::2], patches[1::2]
    keys = torch.nn.functional.normalize(k.transpose(0, 1).flatten(1), dim=-1)
    edges = []
    for i in firsts:
        near = [float(keys[i] @ keys[j]) for j in seconds]
        edges.append((max(near), i, seconds[near.index(max(near))]))
    joined = {j: [j] for j in seconds}
    gone = set()
    for _, i, j in sorted(edges, reverse=True)[:rate]:
        joined[j].append(i)
        gone.add(i)
    groups = [[f] for f in range(front)] + [[i] for i in firsts if i not in gone] + list(joined.values())
    means = {frozenset(g): sum(z[t] * size[t] for t in g) / sum(size[t] for t in g) for g in groups}
    return means, {frozenset(g): sum(size[t] for t in g) for g in groups}


@torch.no_grad()
def test_one_step_equals_the_paper_done_by_hand():
    vit = made(replace(SMALL, registers=1))
    for cols in (24, 20):
        image = pictures(2, 12, cols)
        small = merge(vit, 5)
        walk, z, block = small.walk(image), small.embed(image), small.blocks[0]
        q, k, _ = block.attention.split(block.norm1(z))
        size = torch.randint(1, 4, z.shape[:2]).float()
        walk.size = size
        after = walk.between(0, z, q, k)
        order, target = walk.matches[0]
        left = after.shape[1]
        assert left == z.shape[1] - 5
        for b in range(2):
            means, sizes = merge_by_hand(z[b], k[b], size[b], 2, 5)
            groups = [[int(t)] for t in order[b, :left]]
            for source, to in zip(order[b, left:].tolist(), target[b].tolist(), strict=True):
                groups[to].append(source)
            assert {frozenset(g) for g in groups} == means.keys()
            for place_, group in enumerate(groups):
                assert_close(after[b, place_], means[frozenset(group)], atol=1e-5, rtol=0)
                assert walk.size[b, place_] == sizes[frozenset(group)]
            assert groups[:2] == [[0], [1]]


@torch.no_grad()
def test_twins_merge_without_a_trace_in_the_answer():
    """Patches that are the same in all things can stand for one another: proportional attention is exact."""
    vit = made(replace(SMALL, position="none", pool="mean"))
    tile = torch.randn(1, 3, 4, 4)
    other = torch.randn(1, 3, 4, 4)
    image = torch.cat([tile.repeat(1, 1, 4, 8), other.repeat(1, 1, 4, 8)], 2)
    small = merge(vit, (24, 4, 0, 0))
    assert_close(small(image), vit(image), atol=1e-5, rtol=0)


@torch.no_grad()
def test_no_more_than_half_of_the_patches_can_merge_and_the_class_token_never_does():
    small, image = merge(made(), 1000), pictures(2, 32, 32)
    walk = small.walk(image)
    z = run(small, walk, small.embed(image))
    assert z.shape[1] == 1 + 64 // 2**4
    assert walk.size[:, 0].tolist() == [1, 1]
    assert walk.size.sum(1).tolist() == [65, 65]
    assert merge(made(), 1000)(pictures(1, 4, 4)).shape == (1, 5)


def test_gradients_reach_everything():
    small, image = merge(made(), 6).train(), pictures().requires_grad_()
    small(image).square().sum().backward()
    assert all(p.grad.abs().sum() > 0 and p.grad.isfinite().all() for p in small.parameters())
    assert image.grad.abs().sum() > 0


def test_the_gradient_of_a_merge_is_that_of_the_mean():
    x = torch.randn(2, 7, 3, dtype=torch.float64, requires_grad=True)
    found = match(torch.randn(2, 1, 7, 4), 1, 2)
    share = torch.rand(2, 2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: merged(x, found, share), x)


@torch.no_grad()
def test_the_order_of_a_batch_does_not_matter():
    small, image = merge(made(replace(SMALL, position="rope2d")), 7), pictures(4)
    assert_close(small(image.flip(0)), small(image).flip(0))
    assert_close(small(image[:1]), small(image)[:1])


def test_schedules():
    assert constant(3, 7) == (7, 7, 7)
    assert decreasing(12, 8)[0] == 16
    assert decreasing(12, 8)[-1] == 0
    for depth in (1, 2, 5, 12, 24):
        for rate in (0, 1, 8, 13):
            assert sum(decreasing(depth, rate)) == depth * rate
            assert min(decreasing(depth, rate)) >= 0


@pytest.mark.parametrize("config", [SMALL, HYBRID])
def test_a_merged_model_is_a_folder_that_answers(config, tmp_path):
    small, image = merge(made(config), (3, 2, 1, 0)), pictures()
    write(tmp_path / "a", small, Preprocess(size=(32, 32)), [])
    back = load(tmp_path / "a").module
    assert config_of(back) == small.plan
    with torch.no_grad():
        assert torch.equal(back(image), small(image))
    with pytest.raises(UsageError, match="would run a merged model as a plain one"):
        write(tmp_path / "b", small, Preprocess(size=(32, 32)), [], "timm")


@pytest.mark.parametrize("attention", ["windowed", "chunked"])
@torch.no_grad()
def test_light_attention_is_the_dense_model_where_it_should_be(attention, tmp_path):
    vit, image = made(replace(SMALL, position="rope2d", registers=1)), pictures()
    light = lighten(vit, attention, 16)
    assert_close(light(image), vit(image), atol=1e-5, rtol=0)
    write(tmp_path / "a", light, Preprocess(size=(32, 32)), [])
    assert torch.equal(load(tmp_path / "a").module(image), light(image))
    narrow = lighten(vit, "windowed", 3)(image)
    assert (narrow - vit(image)).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("rates", "words"),
    [((1, 2), "rates has 2 numbers for 4 blocks; give one for each"), ((1, 2, -1, 0), "rates is -1")],
)
def test_what_cannot_work_is_refused_in_words(rates, words):
    with pytest.raises(UsageError, match=words):
        MergedConfig(vit=SMALL, rates=rates)


EXPORT = """
import torch
from dataclasses import replace
from saccade.models.vit import ViTConfig
from saccade.models.build import build
from saccade.tokens.merge import merge
from saccade.tokens.prune import prune
torch.set_num_threads(1)
torch.manual_seed(0)
small = ViTConfig(image=(32, 32), patch=8, width=24, depth=3, heads=3, hidden=48, classes=5)
b, r, c = (torch.export.Dim(n, min=2, max=64) for n in "brc")
drops, looks = lambda vit: prune(vit, 0.5, (1, 2)), lambda vit: prune(vit, 0.5, (1,), "attention")
merges = lambda vit: merge(vit, 3)
cases = (  # each way, each kind of position
    (small, (drops, looks, merges)),
    (replace(small, pool="mean", position="relative"), (drops,)),
    (replace(small, position="rope2d"), (merges,)),
)
for config, ways in cases:
    vit = build(config).eval()
    with torch.no_grad():
        for p in vit.parameters():
            p.normal_(std=0.2)
        for way in ways:
            module = way(vit)
            sizes = {"image": {0: b, 2: 8 * r, 3: 8 * c}}
            graph = torch.export.export(module, (torch.randn(2, 3, 48, 40),), dynamic_shapes=sizes).module()
            for shape in ((3, 3, 32, 32), (2, 3, 16, 80), (5, 3, 72, 24)):
                image = torch.randn(shape)
                far = (graph(image) - module(image)).abs().max().item()
                assert far < 1e-5, (config.position, type(module), shape, far)
"""


@pytest.mark.slow
def test_exported_with_free_sizes_pruned_and_merged_models_give_the_same_numbers():
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(EXPORT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
