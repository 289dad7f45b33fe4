"""How far models look: the published receptive fields, and distances of attention worked out by hand."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from saccade.models import names
from saccade.models.build import build
from saccade.models.receptive_field import (
    attention_distance,
    attention_distances,
    effective_field,
    gradient,
    layers,
    receptive_field,
)
from saccade.models.resnet import ResNet, ResNetConfig
from saccade.models.vit import ViT, ViTConfig

PUBLISHED = {"resnet18": 435, "resnet34": 899, "resnet50": 427}
"""By hand for the form v1.5, where the stride of a bottleneck is on its 3x3 convolution."""


def even(module):
    """The same positive weights everywhere, so that no path from a pixel to a unit is shut or cancelled."""
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Conv2d):
                part.weight.fill_(1 / part.weight[0].numel())
            if isinstance(part, nn.BatchNorm2d):
                part.weight.fill_(1)
    return module.double().eval()


def seen(module, side):
    """Sides of the box of pixels that the middle unit depends on."""
    picture = torch.rand(1, 3, side, side, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found, _ = gradient(module, picture + 1)
    rows, columns = found.nonzero().T
    return int(rows.max() - rows.min()) + 1, int(columns.max() - columns.min()) + 1


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_receptive_field_is_the_one_worked_out_by_hand(name):
    with torch.device("meta"):
        assert receptive_field(layers(build(names.config(name)))) == PUBLISHED[name]


@pytest.mark.parametrize(
    ("units", "bottleneck", "small", "side"),
    [((2, 2, 2, 2), False, False, 544), ((2, 2, 2), False, True, 96), ((1, 2, 1), True, False, 192)],
)
def test_the_pixels_with_a_gradient_are_the_receptive_field(units, bottleneck, small, side):
    config = ResNetConfig(layers=units, bottleneck=bottleneck, small=small, width=2, image=(side, side))
    module = even(ResNet(config))
    wanted = receptive_field(layers(module))
    assert seen(module, side) == (wanted, wanted)


def test_a_single_convolution_sees_its_kernel_evenly():
    module = even(ResNet(ResNetConfig(layers=(1,), bottleneck=False, small=True, width=1, image=(21, 21))))
    assert receptive_field(layers(module)) == 7
    found = effective_field(module, torch.ones(1, 3, 21, 21, dtype=torch.float64))
    assert 0 < found[0.5] < found[0.9545] <= math.hypot(3, 3)


def test_the_gradient_lies_around_the_unit_it_belongs_to():
    module = even(ResNet(ResNetConfig(layers=(1, 1), bottleneck=False, small=True, width=2, image=(64, 64))))
    found, (y, x) = gradient(module, torch.ones(1, 3, 64, 64, dtype=torch.float64))
    places = torch.arange(64.0, dtype=torch.float64)
    assert_close((found.sum(1) @ places / found.sum()).item(), y)
    assert_close((found.sum(0) @ places / found.sum()).item(), x)


def test_uniform_attention_on_a_grid_of_four_has_the_mean_distance():
    p = torch.full((3, 2, 4, 4), 1 / 4)
    assert_close(attention_distance(p, (2, 2), 16), torch.full((2,), 16 * (2 + math.sqrt(2)) / 4).double())


def test_attention_to_oneself_has_no_distance_and_a_token_without_a_place_has_none_either():
    own = torch.eye(5).expand(1, 1, 5, 5).clone()
    own[..., 0] += 3  # everyone looks at the class token too
    assert_close(attention_distance(own, (2, 2), 16), torch.zeros(1).double())


def test_attention_to_the_right_neighbour_is_one_patch_long():
    p = torch.zeros(1, 1, 6, 6)
    for row in range(2):
        for column in range(3):
            p[..., 3 * row + column, 3 * row + (column + 1 if column < 2 else 1)] = 1
    assert_close(attention_distance(p, (2, 3), 8), torch.tensor([8.0]).double())


def test_a_vit_whose_queries_are_zero_attends_uniformly_in_every_block():
    torch.manual_seed(0)
    vit = ViT(ViTConfig(image=(16, 16), patch=8, width=24, depth=2, heads=3, hidden=48, classes=5))
    with torch.no_grad():
        for block in vit.blocks:
            block.attention.q.weight.zero_()
            block.attention.q.bias.zero_()
    found = attention_distances(vit, torch.rand(2, 3, 16, 16))
    assert_close(torch.tensor(found), torch.full((2, 3), 8 * (2 + math.sqrt(2)) / 4))


def test_a_patch_of_a_vit_sees_beyond_its_square_by_attention_only():
    torch.manual_seed(0)
    vit = ViT(ViTConfig(image=(24, 24), patch=8, width=24, depth=1, heads=3, hidden=48, classes=5))
    picture = torch.rand(2, 3, 24, 24)
    found, (y, x) = gradient(vit, picture)
    assert (y, x) == (11.5, 11.5)
    assert (found > 0).all()
    with torch.no_grad():
        vit.blocks[0].attention.out.weight.zero_()
    found, _ = gradient(vit, picture)
    inside = torch.zeros(24, 24, dtype=torch.bool)
    inside[8:16, 8:16] = True
    assert torch.equal(found > 0, inside)
    assert effective_field(vit, picture)[0.9545] <= math.hypot(3.5, 3.5)
