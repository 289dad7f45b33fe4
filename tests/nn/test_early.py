"""Convolutions before the tokens: the same grid as one linear map makes, and neighbours are seen."""

import json

import pytest
import torch

from saccade.api.load import create
from saccade.data.image.preprocess import Preprocess
from saccade.errors import UsageError
from saccade.models import names
from saccade.models.build import build, from_json, to_json
from saccade.models.vit import ViT
from saccade.nn.conv_stem import Convolutions, patches, usual
from saccade.nn.patch import Patches
from saccade.weights.load import load
from saccade.weights.resize import resize
from saccade.weights.save import save_folder


def test_without_convolutions_it_is_the_patch_projection():
    assert type(patches(8, 4)) is Patches


@pytest.mark.parametrize(
    ("patch", "convs"), [(4, (8, 16)), (4, (8, 8, 16)), (2, (8,)), (8, (8, 8, 8, 8)), (1, (8,))]
)
def test_there_is_a_token_for_each_patch(patch, convs):
    stem = patches(24, patch, convs)
    assert stem(torch.randn(2, 3, 16, 32)).shape == (2, 16 // patch, 32 // patch, 24)


def test_a_token_sees_its_neighbours_pixels_and_no_others():
    stem = Convolutions(4, 4, (8, 8)).eval()
    image = torch.randn(1, 3, 32, 32, requires_grad=True)
    stem(image)[0, 4, 4].sum().backward()
    rows = image.grad[0].abs().sum((0, 2)).nonzero().flatten().tolist()
    assert rows[0] == 16 - 3  # two convolutions of stride 2: 1 + 2 pixels before the patch
    assert rows[-1] < 20


@pytest.mark.parametrize(("patch", "convs"), [(6, (8, 8, 8)), (8, (8, 8)), (4, (0, 8))])
def test_convolutions_that_cannot_make_the_patches_are_refused(patch, convs):
    with pytest.raises(UsageError, match="convs"):
        create("vit_xs4", image=patch * 4, patch=patch, convs=convs)


def test_the_usual_widths_double():
    assert usual(128, 4) == (32, 64, 128)
    assert usual(128, 8) == (32, 64, 128, 256)
    assert usual(128, 16) == (16, 32, 64, 128)
    assert usual(64, 8) == (32, 64, 128, 128)


def test_a_name_makes_one_and_json_keeps_it():
    config = names.config("conv_vit_mini4_32", 10)
    assert config.convs == (32, 64, 128)
    assert config.pool == "mean"
    assert from_json(json.loads(json.dumps(to_json(config)))) == config


def test_it_is_saved_loaded_and_resized_to_another_picture(tmp_path):
    pictures = torch.randn(2, 3, 48, 48)
    vit = build(names.config("conv_vit_xs4_32", 3)).eval()
    torch.nn.init.normal_(vit.head.weight)
    save_folder(tmp_path / "model", vit, Preprocess(size=(32, 32)), ["a", "b", "c"])
    again = load(tmp_path / "model").module
    assert torch.equal(again(pictures), vit(pictures))
    larger = resize(vit, (48, 48)).eval()
    assert isinstance(larger, ViT)
    torch.testing.assert_close(larger(pictures), vit(pictures))
    with pytest.raises(UsageError, match="cannot change its patch size"):
        resize(vit, patch=8)


@pytest.mark.parametrize("layout", ["google", "timm", "hf"])
def test_no_other_layout_has_a_place_for_them(tmp_path, layout):
    vit = build(names.config("conv_vit_xs4_32", 3))
    with pytest.raises(UsageError, match=r"no convolutions before the tokens|has a class token"):
        save_folder(tmp_path / "model", vit, Preprocess(size=(32, 32)), ["a", "b", "c"], layout)
