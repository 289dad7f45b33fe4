"""Merging patches: nothing changes at r = 0, means are weighted, twins merge first, gradients pass."""

import json
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
from saccade.nn import pool, position_kinds
from saccade.tokens.light import lighten
from saccade.tokens.merge import MergedConfig, constant, decreasing, match, merge, merged
from saccade.tokens.walk import run
from saccade.weights.load import load
from saccade.weights.save import save_folder


@pytest.mark.parametrize("config", [SMALL, replace(SMALL, position="relative"), HYBRID])
@torch.no_grad()
def test_merging_nothing_is_the_dense_model_bit_for_bit(config):
    vit, image = made(config), pictures()
    assert torch.equal(merge(vit, 0)(image), vit(image))
    assert torch.equal(merge(vit, 0).encode(image), vit.encode(image))


@pytest.mark.parametrize("position", position_kinds.KINDS)
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


def published(vit, image, rate):
    """Section 3 of the paper, one image and one token at a time, written from its text and its figure 1.

    Tokens take turns between A and B. Each of A draws an edge to the token of B with the most similar key
    (cosine of the means over the heads); tokens in front of the patches have no edges. The ends of the
    `rate` most similar edges become their mean, weighted by size; the rest of A and then B go on. Keys count
    as often as their token has patches: softmax(q k / sqrt(d) + log s).
    """
    front, heads = vit.config.front, vit.config.heads
    answers = []
    for start in vit.embed(image):
        tokens = [(token, 1.0) for token in start]
        for block in vit.blocks:
            z = torch.stack([token for token, _ in tokens])
            sizes = torch.tensor([size for _, size in tokens])
            x = block.norm1(z)
            q, k, v = (
                layer(x).unflatten(-1, (heads, -1)).transpose(0, 1)
                for layer in (block.attention.q, block.attention.k, block.attention.v)
            )
            p = (q @ k.mT / q.shape[-1] ** 0.5 + sizes.log()).softmax(-1)
            z = z + block.attention.out((p @ v).transpose(0, 1).flatten(1))
            tokens = list(zip(z, sizes.tolist(), strict=True))
            keys, numbers = k.mean(0), range(len(tokens))
            edges = []
            for i in numbers[::2]:
                near = [
                    (torch.cosine_similarity(keys[i], keys[j], dim=0).item(), j)
                    for j in numbers[1::2]
                    if j >= front
                ]
                edges += [(*max(near), i)] if i >= front and near else []
            for _, j, i in sorted(edges, reverse=True)[: min(rate, (len(tokens) - front) // 2)]:
                (a, m), (b, n) = tokens[i], tokens[j]
                tokens[j], tokens[i] = ((m * a + n * b) / (m + n), m + n), None
            order = [
                *numbers[:front],
                *(i for i in numbers[::2] if i >= front),
                *(j for j in numbers[1::2] if j >= front),
            ]
            tokens = [tokens[i] for i in order if tokens[i] is not None]
            tokens = [(token + block.mlp(block.norm2(token)), size) for token, size in tokens]
        z, sizes = (
            torch.stack([token for token, _ in tokens])[None],
            torch.tensor([[size for _, size in tokens]]),
        )
        answers.append(vit.head(vit.prelogits(vit.pool(z, vit.norm, front, sizes)))[0])
    return torch.stack(answers)


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"pool": "pair"}, {"pool": "mean"}, {"registers": 2}, {"registers": 1},
        {"pool": "token+mean", "registers": 4}, {"pool": "mean_norm"}, {"pool": "map"},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("rate", [3, 7, 100])
@torch.no_grad()
def test_the_papers_matching_gives_the_papers_answer(changes, rate):
    vit = made(replace(SMALL, **changes))
    image = pictures(2, 32, 20)
    small = merge(vit, rate, "paper")
    assert_close(small(image), published(vit, image, rate), atol=1e-4, rtol=0)
    assert_close(small(image), small.read(small.encode(image)), atol=1e-5, rtol=0)
    assert (small(image) - merge(vit, rate)(image)).abs().max() > 1e-4


@pytest.mark.parametrize("front", [0, 1, 2, 3])
def test_the_papers_matching_takes_turns_from_the_class_token_on(front):
    order, target = match(torch.randn(2, 3, front + 9, 4), front, 2, "paper")
    places = range(front + 9)
    merged_away = set(order[:, -2:].flatten().tolist())
    assert merged_away <= {i for i in places[::2] if i >= front}
    kept = order[:, :-2]
    assert kept[:, :front].tolist() == [list(range(front))] * 2
    assert set(kept.gather(1, target).flatten().tolist()) <= {j for j in places[1::2] if j >= front}


def test_a_folder_from_before_the_choice_matches_as_it_did(tmp_path):
    save_folder(tmp_path / "a", merge(made(), 3), Preprocess(size=(32, 32)), [])
    path = tmp_path / "a" / "model.json"
    described = json.loads(path.read_text())
    assert described["model"].pop("matching") == "own"
    path.write_text(json.dumps(described))
    assert config_of(load(tmp_path / "a").module).matching == "own"


def test_the_papers_matching_is_kept_in_a_folder(tmp_path):
    small, image = merge(made(), 3, "paper"), pictures()
    save_folder(tmp_path / "a", small, Preprocess(size=(32, 32)), [])
    back = load(tmp_path / "a").module
    assert config_of(back) == small.plan
    with torch.no_grad():
        assert torch.equal(back(image), small(image))


def test_a_matching_that_is_not_known_is_refused_in_words():
    with pytest.raises(UsageError, match="matching is 'papr', which is not known; did you mean 'paper'"):
        merge(made(), 3, "papr")


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
    save_folder(tmp_path / "a", small, Preprocess(size=(32, 32)), [])
    back = load(tmp_path / "a").module
    assert config_of(back) == small.plan
    with torch.no_grad():
        assert torch.equal(back(image), small(image))
    with pytest.raises(UsageError, match="would run a merged model as a plain one"):
        save_folder(tmp_path / "b", small, Preprocess(size=(32, 32)), [], "timm")


@pytest.mark.parametrize("attention", ["windowed", "chunked"])
@torch.no_grad()
def test_light_attention_is_the_dense_model_where_it_should_be(attention, tmp_path):
    vit, image = made(replace(SMALL, position="rope2d", registers=1)), pictures()
    light = lighten(vit, attention, 16)
    assert_close(light(image), vit(image), atol=1e-5, rtol=0)
    save_folder(tmp_path / "a", light, Preprocess(size=(32, 32)), [])
    assert torch.equal(load(tmp_path / "a").module(image), light(image))
    narrow = lighten(vit, "windowed", 3)(image)
    assert (narrow - vit(image)).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("rates", "words"),
    [((1, 2), "rates has 2 numbers for 4 blocks; give one per block"), ((1, 2, -1, 0), "rates is -1")],
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
merges, published = lambda vit: merge(vit, 3), lambda vit: merge(vit, 3, "paper")
cases = (  # each way, each kind of position
    (small, (drops, looks, merges, published)),
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
