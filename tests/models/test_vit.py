"""What holds for every ViT, whatever its options."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from saccade.models.build import build
from saccade.models.cost import parameters
from saccade.models.names import config as named
from saccade.models.vit import ViT, ViTConfig
from saccade.nn import pool, position_kinds
from saccade.nn.attention import attend
from saccade.nn.block import BlockStyle

SMALL = ViTConfig(image=(32, 48), patch=8, width=24, depth=2, heads=3, hidden=48, classes=5)
POSITIONS = [replace(SMALL, position=kind) for kind in position_kinds.KINDS]
POOLS = [replace(SMALL, pool=kind) for kind in pool.KINDS]
NORMS = [
    replace(SMALL, block=BlockStyle(norm=kind, placement=where))
    for kind, where in itertools.product(("layer", "rms", "power"), ("pre", "post"))
]
OTHERS = [
    replace(SMALL, registers=3),
    replace(SMALL, prelogits=16),
    replace(SMALL, block=BlockStyle(layerscale=0.1, gelu="tanh")),
]
ALL = [*POSITIONS, *POOLS, *NORMS, *OTHERS]


def name(config):
    style = config.block
    words = (config.position, config.pool, style.placement, style.norm, config.registers, config.prelogits)
    return "-".join(map(str, words))


def make(config):
    """A model whose head answers: a fresh head is zero."""
    vit = ViT(config)
    with torch.no_grad():
        for parameter in vit.head.parameters():
            parameter.normal_()
        if config.position == "relative":
            vit.position.bias.normal_()
        vit.front.normal_()
    return vit.eval()


every = pytest.mark.parametrize("config", ALL, ids=name)


@every
def test_any_grid_runs(config):
    vit = make(config)
    for height, width in ((32, 48), (48, 32), (8, 8), (16, 80)):
        answer = vit(torch.randn(2, 3, height, width))
        assert answer.shape == (2, 5)
        assert answer.isfinite().all()


@every
def test_the_order_of_a_batch_does_not_matter(config):
    vit, image = make(config), torch.randn(4, 3, 32, 48)
    order = torch.tensor([2, 0, 3, 1])
    assert_close(vit(image)[order], vit(image[order]), atol=1e-5, rtol=1e-5)


@every
def test_an_answer_in_evaluation_is_deterministic(config):
    vit, image = (
        make(replace(config, block=replace(config.block, dropout=0.5, droppath=0.5))),
        torch.randn(1, 3, 32, 48),
    )
    assert torch.equal(vit(image), vit(image))


@every
def test_the_first_loss_is_the_logarithm_of_the_number_of_classes(config):
    logits = ViT(config)(torch.randn(3, 3, 32, 48))
    assert F.cross_entropy(logits, torch.tensor([0, 1, 4])).item() == pytest.approx(math.log(5), abs=1e-7)


@every
def test_two_batches_can_be_learnt_by_heart(config):
    torch.manual_seed(1)
    vit = ViT(config).train()
    image, label = torch.randn(8, 3, 32, 48), torch.arange(8) % 5
    optimizer = torch.optim.AdamW(vit.parameters(), lr=3e-3)
    for step in range(120):
        part = slice(0, 4) if step % 2 else slice(4, 8)
        loss = F.cross_entropy(vit(image[part]), label[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.2


@every
def test_every_parameter_is_part_of_the_answer(config):
    vit = make(config).train()
    vit(torch.randn(2, 3, 32, 48)).square().sum().backward()
    idle = [
        n for n, p in vit.named_parameters() if p.numel() and (p.grad is None or not p.grad.abs().sum() > 0)
    ]
    allowed = {f"blocks.{i}.attention.k.bias" for i in range(2)} | {"pool.attention.k.bias"}
    assert set(idle) <= allowed  # softmax ignores what all keys share, so a key's bias may have no gradient


@every
def test_a_loop_of_ones_own_over_the_seams_equals_forward(config):
    vit, image = make(config), torch.randn(2, 3, 32, 48)
    z = vit.embed(image)
    weight, turn = vit.relate(image)
    for block in vit.blocks:
        q, k, v = block.attention.split(block.norm1(z), turn=turn)
        z = block.add1(z, block.attention.join(attend(q, k, v, weight)))
        z = block.add2(z, block.mlp(block.norm2(z)))
    assert_close(vit.read(z), vit(image), atol=1e-6, rtol=1e-6)


def test_blocks_start_different():
    vit = ViT(SMALL)
    for a, b in zip(vit.blocks[0].parameters(), vit.blocks[1].parameters(), strict=True):
        if a.ndim == 2:
            assert not torch.equal(a, b)


def test_evaluation_gives_the_same_numbers_with_and_without_a_gradient():
    vit, image = make(SMALL), torch.randn(2, 3, 32, 48)
    with torch.inference_mode():
        fast = vit(image)
    assert torch.equal(fast, vit(image).detach())


def test_without_positions_patches_are_a_set():
    vit = make(replace(SMALL, position="none"))
    image = torch.randn(1, 3, 32, 48)
    patches = image.unfold(2, 8, 8).unfold(3, 8, 8)  # b ch r c p q
    shuffled = patches.flatten(2, 3)[:, :, torch.randperm(24)].unflatten(2, (4, 6))
    again = shuffled.permute(0, 1, 2, 4, 3, 5).reshape(1, 3, 32, 48)
    assert_close(vit(again), vit(image), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in position_kinds.KINDS if kind != "none"])
def test_with_positions_the_order_of_the_patches_matters(kind):
    vit = make(replace(SMALL, position=kind))
    image = torch.randn(1, 3, 32, 48)
    assert (vit(image.flip(-1).unflatten(-1, (6, 8)).flip(-1).flatten(-2)) - vit(image)).abs().max() > 1e-4


COUNTS = {  # published, 1000 classes
    "vit_ti16": 5_717_416,
    "vit_s16": 22_050_664,
    "vit_b16": 86_567_656,
    "vit_b32": 88_224_232,
    "vit_l16": 304_326_632,
    "vit_l32": 306_535_400,
    "vit_h14": 632_045_800,
}


@pytest.mark.parametrize("size", COUNTS)
def test_parameter_counts_are_the_published_ones_less_the_class_tokens_position(size):
    config = named(size)
    with torch.device("meta"):
        assert parameters(build(config)) == COUNTS[size] - config.width


def test_the_imagenet_21k_model_counts_its_pre_logits():
    with torch.device("meta"):
        vit = build(replace(named("vit_b16", classes=21843), prelogits=768))
    assert parameters(vit) == 103_186_515 - 768


def test_shapes_on_the_way_are_those_of_the_notes():
    vit = build(replace(named("vit_b16"), depth=1))
    image = torch.zeros(1, 3, 224, 224)
    assert vit.patches(image).shape == (1, 14, 14, 768)
    assert vit.embed(image).shape == (1, 197, 768)
    assert isinstance(vit.dropout, torch.nn.Dropout)  # before the encoder
    assert isinstance(vit.norm, torch.nn.LayerNorm)  # after it


def test_a_size_that_is_no_multiple_of_the_patch_is_refused_in_words():
    words = "an image of 33x50 pixels is not a whole number of 8-pixel patches; .* for example to 40x56"
    with pytest.raises(ValueError, match=words):
        make(SMALL)(torch.randn(1, 3, 33, 50))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image": (32, 50)}, "32x50 pixels is not a whole number of 8-pixel patches"),
        ({"heads": 5}, "width 24 does not split into 5 heads; use a multiple of 5"),
        ({"pool": "tokn"}, "pool is 'tokn', which is not known; did you mean 'token'?"),
        ({"position": "learnt"}, "position is 'learnt', which is not known; did you mean 'learned'?"),
        ({"resample": "cubic"}, r"resample is 'cubic', which is not known; did you mean 'bicubic'\?"),
        ({"depth": 0}, "depth is 0; expected a number from 1 to 1024"),
        ({"width": 10**9}, "width is 1000000000; expected a number from 1 to 65536"),
        ({"classes": -1}, "classes is -1; expected a number from 0"),
        (
            {"position": "rope2d", "width": 18, "heads": 3},
            "a head of 6 channels does not split into rows and columns",
        ),
    ],
)
def test_what_cannot_work_is_refused_in_words(change, words):
    with pytest.raises(ValueError, match=words):
        ViT(replace(SMALL, **change))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"norm": "batch"}, "norm is 'batch', which is not known"),
        ({"placement": "middle"}, "placement is 'middle', which is not known"),
        ({"gelu": "exact"}, "gelu is 'exact', which is not known"),
        ({"dropout": 1.0}, "dropout is 1.0; expected a number from 0 to 0.99"),
    ],
)
def test_a_style_that_cannot_work_is_refused_in_words(change, words):
    with pytest.raises(ValueError, match=words):
        BlockStyle(**change)


def test_dropping_branches_keeps_the_mean_and_drops_whole_pictures():
    from saccade.nn.block import Add

    add = Add(4, BlockStyle(droppath=0.25)).train()
    sums = add(torch.zeros(4000, 3, 4), torch.ones(4000, 3, 4))
    assert sums.unique().tolist() == pytest.approx([0, 4 / 3])
    assert (sums == sums[:, :1, :1]).all()
    assert sums.mean().item() == pytest.approx(1, abs=0.05)
