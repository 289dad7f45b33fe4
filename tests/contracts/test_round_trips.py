"""Ours to another layout and back: bit-equal tensors, and the same config."""

import subprocess
import sys
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
from saccade.weights.load import load
from saccade.weights.save import save_folder

SMALL = ViTConfig(image=(32, 32), patch=8, width=32, depth=2, heads=4, hidden=48, classes=5)
WIDE = replace(SMALL, image=(32, 56))
TANH = BlockStyle(gelu="tanh", eps=1e-6)
GOOGLE = {"resample": "bilinear", "block": TANH}
HF = {"resample": "bicubic", "block": BlockStyle(eps=1e-12)}
SCALED = BlockStyle(layerscale=1e-5)
HYBRID = HybridConfig(layers=(1, 1), vit=replace(SMALL, image=(32, 64), patch=8))
DINO = replace(SMALL, pool="token+mean", hidden=128, block=BlockStyle(layerscale=1.0))
CASES = [
    ("google", replace(SMALL, **GOOGLE)),
    ("google", replace(SMALL, **GOOGLE, pool="mean")),
    ("google", replace(SMALL, **GOOGLE, pool="map")),
    ("google", replace(SMALL, **GOOGLE, prelogits=20)),
    ("google", replace(SMALL, **GOOGLE, classes=0)),
    ("google", replace(HYBRID, vit=replace(HYBRID.vit, image=(32, 32), **GOOGLE))),
    ("google", replace(HYBRID, factor=0.5, vit=replace(HYBRID.vit, image=(32, 32), **GOOGLE))),
    ("timm", SMALL),
    ("timm", WIDE),
    ("timm", replace(SMALL, pool="pair")),
    ("timm", replace(SMALL, pool="mean_norm")),
    ("timm", replace(SMALL, pool="mean")),
    ("timm", replace(SMALL, registers=4, block=SCALED)),
    ("timm", replace(HYBRID, eps=1e-5, variance_eps=1e-8)),
    ("timm", replace(HYBRID, eps=1e-5, variance_eps=1e-8, layers=())),
    ("timm", replace(HYBRID, eps=1e-5, variance_eps=1e-8, factor=0.5)),
    ("hf", replace(SMALL, **HF)),
    ("hf", replace(WIDE, **HF)),
    ("hf", replace(SMALL, **HF, pool="pair")),
    ("hf", replace(SMALL, **HF, registers=1)),
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
    ("saccade", replace(HYBRID, factor=0.5)),
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
    save_folder(
        tmp_path / "there",
        module,
        Preprocess(size=size, fit="squash", crop=1.0),
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
        save_folder(tmp_path / name, module, Preprocess(size=(32, 32)), [], "saccade")
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
            "expects learnt positions; this model has 'sincos2d'; write it as saccade",
        ),
        ("hf", replace(SMALL, position="rope2d", **HF), "learn their positions; this model has 'rope2d'"),
        ("timm", replace(SMALL, pool="token+mean"), "pools by 'token.mean'; write it as saccade"),
        (
            "hf",
            replace(SMALL, pool="mean"),
            "ViT with 5 classes does not pool by 'mean'; write it as timm or",
        ),
        ("hf", replace(SMALL, registers=4), "ViT has no registers; this model has 4, and transformers would"),
        ("hf", replace(SMALL, pool="pair", registers=2), "DeiT has no registers; this model has 2"),
        ("hf", replace(SMALL, prelogits=32), "no layer between features and classes; this model has 32"),
        ("hf", replace(SMALL, pool="mean_norm", classes=0), "with no head does not pool by 'mean_norm'"),
        ("hf", replace(DINO, hidden=100), "hidden width that is a multiple of its width; .* has 100 and 32"),
        ("hf", replace(DINO, image=(16, 64)), "positions from a square grid; this model has 2x8 patches"),
        ("hf", replace(SMALL, convs=(8, 8, 8)), "no convolutions before the tokens; write it as saccade"),
        (
            "hf",
            replace(HYBRID, eps=1e-5, variance_eps=1e-8),
            "no longer has a layout for hybrids; write it as timm or saccade",
        ),
        ("timm", replace(SMALL, pool="pair", registers=1), "timm's distilled ViT has no registers"),
        (
            "timm",
            replace(SMALL, prelogits=20),
            "no longer have pre-logits; this model has 20; write it as saccade",
        ),
        ("timm", HYBRID, "GroupNorm of eps 1e-05; this model has 1e-06"),
        ("timm", replace(SMALL, **GOOGLE), "GELU erf; .* write it as hf or google or saccade"),
        (
            "google",
            replace(SMALL, **GOOGLE, registers=2),
            "no registers; this model has 2; write it as saccade",
        ),
        ("google", replace(SMALL, **GOOGLE, pool="mean_norm"), "pool by token, mean, map; .* 'mean_norm'"),
        (
            "google",
            replace(WIDE, **GOOGLE),
            "readers assume a square grid; this model has 4x7 patches; .* hf",
        ),
        ("timm", ResNetConfig(layers=(1,), bottleneck=False, image=(32, 32)), "cannot hold a ResNet"),
        ("timmm", SMALL, "layout is 'timmm', which is not known; did you mean 'timm'"),
    ],
)
def test_what_a_layout_cannot_hold_is_refused_in_words_and_nothing_is_written(
    layout, config, words, tmp_path
):
    module = build(config)
    with pytest.raises(UsageError, match=words):
        save_folder(tmp_path / "no", module, Preprocess(size=module.config.image, fit="squash"), [], layout)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("layout", "preprocess", "words"),
    [
        ("hf", Preprocess(size=(32, 32), fit="pad"), "does not pad; this model needs padded images"),
        ("timm", Preprocess(size=(32, 32), fit="pad"), r"do not pad images as this model does \(fit 'pad'\)"),
        ("hf", Preprocess(size=(48, 48)), "by 'antialias', Hugging Face's ViT by 'bicubic' .--image 48x48"),
        ("timm", Preprocess(size=(48, 48)), "one image size; this model takes images of 48x48"),
        ("google", Preprocess(size=(48, 48)), "one image size; this model takes images of 48x48"),
        ("google", Preprocess(size=(32, 32), mean=(0.4, 0.4, 0.4)), "pixels from -1 to 1; this model normal"),
    ],
)
def test_preprocessing_that_a_layout_cannot_say_is_refused_in_words(layout, preprocess, words, tmp_path):
    module = build(replace(SMALL, **GOOGLE) if layout == "google" else SMALL)
    with pytest.raises(UsageError, match=words):
        save_folder(tmp_path / "no", module, preprocess, [], layout)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("fit", ["crop", "squash", "squash+crop"])
@pytest.mark.parametrize("layout", ["saccade", "timm", "hf"])
def test_preprocessing_survives_the_trip(layout, fit, tmp_path):
    sent = Preprocess(size=(32, 32), fit=fit, crop=1.0 if fit == "squash" else 0.8, interpolation="bilinear")
    save_folder(tmp_path / "a", build(SMALL), sent, [], layout)
    assert load(tmp_path / "a").preprocess == sent


def test_a_crop_that_is_not_square_is_refused_in_words_for_hf(tmp_path):
    with pytest.raises(
        UsageError, match=r"shorter side; this model crops 32x56, which is not square; .* timm"
    ):
        save_folder(tmp_path / "no", build(WIDE), Preprocess(size=WIDE.image), [], "hf")


@pytest.mark.parametrize(
    ("layout", "config"), [("google", CASES[0][1]), ("timm", SMALL), ("hf", replace(SMALL, **HF))]
)
def test_a_layout_is_read_without_the_compiler_of_torch(layout, config, tmp_path):
    torch.manual_seed(0)
    save_folder(
        tmp_path, build(config), Preprocess(size=config.image, mean=(0.5,) * 3, std=(0.5,) * 3), [], layout
    )
    path = next(tmp_path.glob("*.npz"), tmp_path)
    code = (
        "import sys; from pathlib import Path; from saccade.weights.load import load; load(Path(sys.argv[1]))"
    )
    code += "; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == 0
