"""Ours to another layout and back: bit-equal tensors, and the same config."""

from dataclasses import replace

import pytest
import torch

from saccade.data.image.preprocess import Preprocess
from saccade.errors import UsageError
from saccade.models.build import build, config_of, from_json, to_json
from saccade.models.hybrid import HybridConfig
from saccade.models.names import EXAMPLES
from saccade.models.names import config as named
from saccade.models.resnet import ResNetConfig
from saccade.models.vit import ViTConfig
from saccade.nn.block import BlockStyle
from saccade.weights.load import load, write

SMALL = ViTConfig(image=(32, 32), patch=8, width=32, depth=2, heads=4, hidden=48, classes=5)
WIDE = replace(SMALL, image=(32, 56))
TANH = BlockStyle(gelu="tanh", eps=1e-6)
GOOGLE = {"resample": "bilinear", "block": TANH}
HF = {"resample": "bicubic", "block": BlockStyle(eps=1e-12)}
SCALED = BlockStyle(layerscale=1e-5)
HYBRID = HybridConfig(layers=(1, 1), vit=replace(SMALL, image=(32, 64), patch=8))
CASES = [
    ("google", replace(SMALL, **GOOGLE)),
    ("google", replace(SMALL, **GOOGLE, pool="mean")),
    ("google", replace(SMALL, **GOOGLE, pool="map")),
    ("google", replace(SMALL, **GOOGLE, prelogits=20)),
    ("google", replace(SMALL, **GOOGLE, classes=0)),
    ("google", replace(HYBRID, vit=replace(HYBRID.vit, image=(32, 32), **GOOGLE))),
    ("timm", SMALL),
    ("timm", WIDE),
    ("timm", replace(SMALL, pool="pair")),
    ("timm", replace(SMALL, pool="mean_norm")),
    ("timm", replace(SMALL, pool="mean")),
    ("timm", replace(SMALL, registers=4, block=SCALED)),
    ("timm", replace(HYBRID, eps=1e-5)),
    ("timm", replace(HYBRID, eps=1e-5, layers=())),
    ("hf", replace(SMALL, **HF)),
    ("hf", replace(WIDE, **HF)),
    ("hf", replace(SMALL, **HF, pool="pair")),
    ("hf", replace(SMALL, **HF, prelogits=32, classes=0)),
    (
        "hf",
        replace(SMALL, pool="token+mean", hidden=128, resample="bicubic", block=BlockStyle(layerscale=1.0)),
    ),
    ("hf", replace(SMALL, pool="token+mean", hidden=128, registers=4, block=BlockStyle(layerscale=1.0))),
    ("saccade", replace(SMALL, position="relative", block=BlockStyle(norm="power"))),
    ("saccade", replace(SMALL, position="learned2d", block=BlockStyle(norm="rms", placement="post"))),
    ("saccade", replace(WIDE, position="rope2d", pool="map", registers=2)),
    ("saccade", HYBRID),
    ("saccade", ResNetConfig(layers=(1, 1), bottleneck=True, classes=5, image=(32, 32), small=True)),
]


@pytest.mark.parametrize(
    ("layout", "config"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_model_survives_the_trip_bit_for_bit(layout, config, tmp_path):
    module = build(config)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter))
    size = module.config.image
    write(
        tmp_path / "there",
        module,
        Preprocess(size=size),
        [f"name {i}" for i in range(5)] * (config_classes(module) > 0),
        layout,
    )
    back = load(tmp_path / "there")
    assert config_of(back.module) == config
    before, after = module.state_dict(), back.module.state_dict()
    assert before.keys() == after.keys()
    for name in before:
        assert torch.equal(before[name], after[name]), name
    if layout != "google" and config_classes(module):
        assert back.labels[3] == "name 3"


def config_classes(module):
    return module.config.classes


def test_the_same_model_is_written_as_the_same_bytes(tmp_path):
    module = build(SMALL)
    for name in ("a", "b"):
        write(tmp_path / name, module, Preprocess(size=(32, 32)), [], "saccade")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_named_config_survives_json(name):
    assert from_json(to_json(named(name))) == named(name)


@pytest.mark.parametrize(
    ("layout", "config", "words"),
    [
        (
            "timm",
            replace(SMALL, position="sincos2d"),
            r"no place for a model like this one \(it differs in position",
        ),
        ("hf", replace(SMALL, position="rope2d", **HF), "no place for a model like this one"),
        ("timm", replace(SMALL, pool="token+mean"), "do not pool by 'token.mean'"),
        ("hf", replace(SMALL, pool="mean", **HF), "have a class token; pool 'mean' has none"),
        ("hf", HYBRID, "no layout for a hybrid"),
        ("timm", ResNetConfig(layers=(1,), bottleneck=False, image=(32, 32)), "a ResNet has no place"),
        ("timmm", SMALL, "layout is 'timmm', which is not known; did you mean 'timm'"),
    ],
)
def test_what_a_layout_cannot_hold_is_refused_in_words_and_nothing_is_written(
    layout, config, words, tmp_path
):
    module = build(config)
    with pytest.raises(UsageError, match=words):
        write(tmp_path / "no", module, Preprocess(size=module.config.image), [], layout)
    assert not (tmp_path / "no").exists()
