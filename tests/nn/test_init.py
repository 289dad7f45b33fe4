import pytest
import torch
from torch import nn
from torch.testing import assert_close

from saccade.nn.block import Block
from saccade.nn.init import deit, google, lecun_normal, resnet
from saccade.nn.patch import Patches

WIDTH, HIDDEN, PATCH = 96, 192, 8


def tree() -> nn.ModuleDict:
    torch.manual_seed(0)
    blocks = nn.ModuleList(Block(WIDTH, 4, HIDDEN) for _ in range(2))
    parts = {"patches": Patches(WIDTH, PATCH), "blocks": blocks, "prelogits": nn.Linear(WIDTH, WIDTH)}
    return nn.ModuleDict(parts | {"head": nn.Linear(WIDTH, 10)})


def stage() -> nn.Sequential:
    conv = nn.Conv2d(16, 32, 3, stride=2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 1))


def assert_drawn(weight, std):
    """Mean 0 and the given deviation, within five standard errors of a normal sample."""
    error = 5 / weight.numel() ** 0.5
    assert weight.mean().abs() < std * error
    assert abs(weight.std() / std - 1) < error / 2**0.5


def test_google_draws_attention_and_mlps_from_xavier_over_the_whole_matrix():
    model = tree()
    google(model)
    for block in model["blocks"]:
        for layer in (block.attention.q, block.attention.k, block.attention.v, block.attention.out):
            assert_drawn(layer.weight, (2 / (WIDTH + WIDTH)) ** 0.5)
            assert layer.weight.abs().max() <= (6 / (WIDTH + WIDTH)) ** 0.5  # uniform: it has an edge
            assert layer.bias.eq(0).all()
        for layer in (block.mlp.up, block.mlp.down):
            assert_drawn(layer.weight, (2 / (WIDTH + HIDDEN)) ** 0.5)
            assert_drawn(layer.bias, 1e-6)


def test_google_draws_patches_and_pre_logits_from_lecun_and_starts_the_head_at_zero():
    model = tree()
    google(model)
    for layer, fan in ((model["patches"], 3 * PATCH**2), (model["prelogits"], WIDTH)):
        assert_drawn(layer.weight, fan**-0.5)
        assert layer.bias.eq(0).all()
    assert model["head"].weight.eq(0).all()
    assert model["head"].bias.eq(0).all()


def test_lecun_normal_is_cut_at_two_deviations_and_keeps_its_variance():
    weight = torch.empty(400, 250)
    lecun_normal(weight)
    assert_drawn(weight, 250**-0.5)
    assert weight.abs().max() < 2.3 * 250**-0.5


def test_deit_draws_linear_layers_with_deviation_one_fiftieth():
    model = tree()
    deit(model)
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    for layer in linear:
        assert_drawn(layer.weight, 0.02)
        assert layer.bias.eq(0).all()
    assert_drawn(model["patches"].weight, (3 * PATCH**2) ** -0.5)
    assert model["patches"].bias.eq(0).all()


def test_resnet_draws_convolutions_by_their_fan_out():
    model = stage()
    resnet(model)
    assert_drawn(model[0].weight, (2 / (32 * 9)) ** 0.5)
    assert_drawn(model[3].weight, (2 / 64) ** 0.5)
    assert model[3].bias.eq(0).all()


@pytest.mark.parametrize(("init", "make"), [(google, tree), (deit, tree), (resnet, stage)])
def test_norms_start_as_the_bare_normalisation(init, make):
    model = make()
    norms = [m for m in model.modules() if isinstance(m, (nn.LayerNorm, nn.BatchNorm2d))]
    for layer in norms:
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    init(model)
    assert norms
    for layer in norms:
        assert layer.weight.eq(1).all()
        assert layer.bias.eq(0).all()


@pytest.mark.parametrize("init", [google, deit])
def test_blocks_start_different_from_each_other(init):
    model = tree()
    init(model)
    first, second = (dict(block.named_parameters()) for block in model["blocks"])
    drawn = [name for name in first if name.endswith("weight") and "norm" not in name]
    assert drawn
    assert not any(torch.equal(first[name], second[name]) for name in drawn)
    q, k = model["blocks"][0].attention.q, model["blocks"][0].attention.k
    assert not torch.equal(q.weight, k.weight)


@pytest.mark.parametrize(("init", "make"), [(google, tree), (deit, tree), (resnet, stage)])
def test_the_same_seed_gives_the_same_weights(init, make):
    model, states = make(), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        init(model)
        states.append([p.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(states[0], states[1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(states[0], states[2], strict=True))


@pytest.mark.parametrize("init", [google, deit, resnet])
def test_a_lone_layer_is_a_tree_too(init):
    layer = nn.Conv2d(8, 8, 3)
    before = layer.weight.clone()
    init(layer)
    assert not torch.equal(layer.weight, before)
    assert layer.bias.eq(0).all()


def test_a_model_of_google_starts_with_the_same_logit_for_every_class():
    model = tree()
    google(model)
    z = model["patches"](torch.randn(2, 3, 16, 16)).flatten(1, 2)
    for block in model["blocks"]:
        z = block(z)
    assert z.isfinite().all()
    assert_close(model["head"](z), torch.zeros(2, 4, 10))
