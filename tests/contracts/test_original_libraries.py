"""Every combination in every layout: the layout's own library gives the same logits, or it is not written."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
import transformers
from oracle import google_logits
from oracle_timm import timm_logits
from torch.testing import assert_close

from saccade.data.image.preprocess import Preprocess
from saccade.errors import UsageError
from saccade.models.build import build, config_of
from saccade.models.vit import ViTConfig
from saccade.nn import pool, position_kinds
from saccade.nn.block import BlockStyle
from saccade.weights.formats.tensors import read_tensors
from saccade.weights.load import load
from saccade.weights.save import save_folder

LAYOUTS = ("saccade", "hf", "timm", "google")
SMALL = ViTConfig(image=(32, 32), patch=8, width=32, depth=2, heads=4, hidden=64, classes=5)
OWN = {  # what each layout means where it says nothing
    "saccade": SMALL,
    "hf": replace(SMALL, resample="bicubic", block=BlockStyle(eps=1e-12)),
    "timm": SMALL,
    "google": replace(SMALL, resample="bilinear", block=BlockStyle(gelu="tanh", eps=1e-6)),
}
TOKENS = [  # pool, registers, layer scale, classes, pre-logits
    {"pool": how, "registers": registers, "layerscale": scale, "classes": classes, "prelogits": prelogits}
    for how, registers, scale, classes, prelogits in product(
        pool.KINDS, (0, 1, 4), (0.0, 0.5), (0, 5), (0, 32, 20)
    )
]
STYLES = [
    *({"position": kind} for kind in position_kinds.KINDS),
    *({"norm": kind} for kind in ("rms", "power")),
    {"placement": "post"}, {"gelu": "tanh"}, {"gelu": "erf"}, {"eps": 1e-3}, {"eps": 1e-6}, {"eps": 1e-12},
    {"hidden": 50}, {"hidden": 50, "layerscale": 0.5, "pool": "token+mean"}, {"heads": 1}, {"patch": 16},
    {"convs": (8, 8, 8)}, {"registers": 4, "layerscale": 0.5, "pool": "token+mean", "gelu": "tanh"},
    *({"image": size} for size in ((32, 56), (16, 64))),
    *({"image": (16, 64), "layerscale": 0.5, "pool": how} for how in ("token", "token+mean")),
    {"image": (32, 56), "pool": "pair"}, {"image": (32, 56), "pool": "mean"},
]  # fmt: skip


def changed(config, changes):
    style = {name: value for name, value in changes.items() if hasattr(config.block, name)}
    others = {name: value for name, value in changes.items() if name not in style}
    return replace(config, **others, block=replace(config.block, **style))


def drawn(config):
    module = build(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return module


def images(size):
    return torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(1)) * 2 - 1


@torch.inference_mode()
def by_transformers(folder, image):
    """The answer of the class that config.json names, every tensor of the file in its place."""
    described = json.loads((folder / "config.json").read_text())
    cls = getattr(transformers, described["architectures"][0])
    model, found = cls.from_pretrained(folder, output_loading_info=True)
    missing = {name for name in found["missing_keys"] if not name.startswith("pooler.")}
    assert not missing
    assert not found["unexpected_keys"]
    assert not found["mismatched_keys"]
    answer = model.eval()(image)
    if "logits" in answer:
        return answer.logits
    return answer.last_hidden_state[:, 0] if found["missing_keys"] else answer.pooler_output


def by_timm(folder, image):
    described = json.loads((folder / "config.json").read_text())
    return timm_logits(read_tensors(folder / "model.safetensors"), described, image)


def by_google(folder, image):
    arrays = dict(np.load(folder / "model.npz"))
    return torch.from_numpy(google_logits(arrays, image.permute(0, 2, 3, 1).numpy())).float()


ORIGINALS = {"hf": by_transformers, "timm": by_timm, "google": by_google}


def check(layout, config, folder):
    """Whether it is written, and if so, right."""
    module, image = drawn(config), images(config.image)
    try:
        save_folder(folder, module, Preprocess(size=config.image, fit="squash"), [], layout)
    except UsageError as error:
        assert not folder.exists()
        words, _, rest = str(error).rpartition("; write it as ")
        assert words
        assert rest.endswith("saccade")
        for other in rest.split(" or ")[:-1]:
            save_folder(folder / other, module, Preprocess(size=config.image, fit="squash"), [], other)
        return False
    back = load(folder)
    with torch.inference_mode():
        expected = module(image)
        assert_close(back.module(image), expected, atol=1e-6, rtol=0)
        if layout in ORIGINALS:
            assert expected.std() > 0.05
            found = ORIGINALS[layout](folder, image)
            assert_close(found, expected, atol=1e-5 * float(expected.abs().max().clamp_min(1)), rtol=0)
    if layout == "saccade":
        assert config_of(back.module) == config
    return True


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", pool.KINDS)
def test_tokens_pools_and_heads_are_computed_alike_or_refused(layout, how, tmp_path):
    chosen = [changes for changes in TOKENS if changes["pool"] == how]
    written = [
        changes
        for i, changes in enumerate(chosen)
        if check(layout, changed(OWN[layout], changes), tmp_path / str(i))
    ]
    expected = HELD.get((layout, how), len(chosen) if layout == "saccade" else 0)
    assert len(written) == expected, written


HELD = {
    ("hf", "token"): 11, ("hf", "pair"): 1, ("hf", "token+mean"): 3,
    ("timm", "token"): 12, ("timm", "pair"): 4, ("timm", "mean"): 12, ("timm", "mean_norm"): 12,
    ("google", "token"): 6, ("google", "mean"): 6, ("google", "map"): 6,
}  # fmt: skip
"""How many of the 36 combinations of each pool a layout holds."""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("changes", STYLES, ids=str)
def test_styles_sizes_and_positions_are_computed_alike_or_refused(layout, changes, tmp_path):
    assert check(layout, changed(OWN[layout], changes), tmp_path / "a") or layout != "saccade"
