"""Names are read by a grammar; nothing registers itself."""

import subprocess
import sys

import pytest
import torch

from saccade.errors import UsageError
from saccade.models.build import build, from_json, to_json
from saccade.models.hybrid import HybridConfig
from saccade.models.names import EXAMPLES, config
from saccade.models.resnet import ResNetConfig
from saccade.models.vit import ViTConfig


def test_a_name_tells_size_patch_and_picture():
    assert (config("vit_b16").width, config("vit_b16").image) == (768, (224, 224))
    assert config("vit_s32_384").image == (384, 384)
    assert config("vit_ti16_224x448").image == (224, 448)
    assert config("vit_G14").width == 1664
    assert config("vit_g14").width == 1408


def test_the_table_of_the_paper_is_the_correct_one():
    rows = {size: config(f"vit_{size}16") for size in "blh"} | {"h": config("vit_h14")}
    assert [rows[s].depth for s in "blh"] == [12, 24, 32]
    assert [rows[s].width for s in "blh"] == [768, 1024, 1280]
    assert [rows[s].hidden for s in "blh"] == [3072, 4096, 5120]
    assert [rows[s].heads for s in "blh"] == [12, 16, 16]


def test_families_differ_where_their_papers_do():
    assert config("deit_s16_distilled").pool == "pair"
    assert config("dinov2_s14_reg").registers == 4
    assert config("dinov2_b14").block.layerscale > 0
    assert config("dinov2_b14").image == (518, 518)


def test_hybrids_have_the_stems_of_their_papers():
    assert config("r50_vit_b16").layers == (3, 4, 9)
    assert config("r50_vit_l32").layers == (3, 4, 6, 3)
    assert config("r26_vit_s32").layers == (2, 2, 2, 2)
    bare = config("r_vit_ti16")
    assert isinstance(bare, HybridConfig)
    assert (bare.layers, bare.patch, bare.vit.grid) == ((), 8, (7, 7))  # 49 tokens, as published


def test_residual_networks_have_names_too():
    small = config("resnet18_small_32", classes=10)
    assert isinstance(small, ResNetConfig)
    assert (small.small, small.image, small.classes) == (True, (32, 32), 10)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_builds(name):
    with torch.device("meta"):
        assert build(config(name))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vit_b_16", "no model is named 'vit_b_16'; did you mean 'vit_b16'"),
        ("resnet-18", "did you mean 'resnet18'"),
        ("vit_b16_distilled", "no model is named 'vit_b16_distilled'"),
        ("dinov2_s14_distilled", "did you mean 'deit_s16_distilled'"),
        ("r50_deit_b16", "no model is named 'r50_deit_b16'"),
        ("r26_vit_s16", "no model is named 'r26_vit_s16'; did you mean 'r26_vit_s32'"),
        ("", r"no model is named '' \(names look like vit_b16 or vit_b16_384; see `saccade models`\)"),
        ("vit_b15", "224x224 pixels is not a whole number of 15-pixel patches"),
    ],
)
def test_a_wrong_name_gets_the_nearest_right_ones(name, words):
    with pytest.raises(UsageError, match=words):
        config(name)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"kind": "vti"}, "the model's kind is 'vti'; expected one of vit, hybrid, resnet"),
        ({"widht": 3}, "ViTConfig has no field 'widht'"),
        ({"width": "768"}, "width is '768'; expected int"),
        ({"width": True}, "width is True; expected int"),
        ({"image": [224]}, r"image is \[224\]; expected"),
        ({"block": {"norm": 3}}, "norm is 3; expected str"),
        ({"block": 3}, "found 3; expected the fields of BlockStyle"),
        ({"depth": 10**9}, "depth is 1000000000; expected a number from 1 to 1024"),
    ],
)
def test_json_that_is_no_config_is_refused_in_words(damage, words):
    with pytest.raises(Exception, match=words):
        from_json(to_json(ViTConfig()) | damage)


def test_vision_models_load_no_code_of_text_models():
    code = (
        "import sys; from saccade.models import build, cost, names; from saccade.tokens import kinds, plan; "
        "build.blank(build.from_json(build.to_json(names.config('vit_s16')))); cost.describe('vit_b16'); "
        "sys.exit(any(name.startswith(('saccade.models.text', 'saccade.nn.text')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
