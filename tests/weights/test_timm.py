"""timm's layout, and the real weights in it."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import saccade
from saccade.data.image.preprocess import IMAGENET, Preprocess
from saccade.errors import ModelError
from saccade.models.build import build
from saccade.models.vit import ViTConfig
from saccade.weights.formats.tensors import read_tensors, write_safetensors
from saccade.weights.load import load
from saccade.weights.save import save_folder

SMALL = ViTConfig(image=(32, 32), patch=8, width=64, depth=2, heads=1, hidden=96, classes=5)


def test_queries_keys_and_values_are_the_thirds_of_their_fused_matrix(tmp_path):
    module = build(SMALL)
    save_folder(tmp_path, module, Preprocess(size=(32, 32)), [], "timm")
    fused = read_tensors(tmp_path / "model.safetensors")["blocks.1.attn.qkv.weight"]
    for part, name in zip(fused.chunk(3), "qkv", strict=True):
        assert torch.equal(part, getattr(module.blocks[1].attention, name).weight)


def test_the_number_of_heads_comes_from_the_config_beside_the_file(tmp_path):
    save_folder(tmp_path, build(replace(SMALL, heads=4)), Preprocess(size=(32, 32)), [], "timm")
    assert load(tmp_path).module.config.heads == 4
    (tmp_path / "config.json").unlink()
    assert load(tmp_path).module.config.heads == 1  # width / 64


def test_a_class_token_without_a_place_in_the_table_loads(tmp_path):
    module = build(SMALL)
    save_folder(tmp_path / "a", module, Preprocess(size=(32, 32)), [], "timm")
    theirs = read_tensors(tmp_path / "a" / "model.safetensors")
    theirs["pos_embed"] = theirs["pos_embed"][:, 1:].contiguous()
    write_safetensors(tmp_path / "b.safetensors", theirs, None)
    image = torch.rand(1, 3, 32, 32)
    with torch.inference_mode():
        assert torch.equal(load(tmp_path / "b.safetensors").module(image), module.eval()(image))


def test_preprocessing_is_read_from_their_config(tmp_path):
    save_folder(tmp_path, build(SMALL), Preprocess(size=(32, 32)), [], "timm")
    told = json.loads((tmp_path / "config.json").read_text())
    told["pretrained_cfg"] |= {
        "mean": IMAGENET[0],
        "std": IMAGENET[1],
        "crop_pct": 0.875,
        "interpolation": "bilinear",
    }
    (tmp_path / "config.json").write_text(json.dumps(told))
    expected = Preprocess(
        size=(32, 32), crop=0.875, interpolation="bilinear", mean=IMAGENET[0], std=IMAGENET[1]
    )
    assert load(tmp_path).preprocess == expected


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda t: t.pop("blocks.1.mlp.fc2.bias"), r"1 missing \(blocks.1.mlp.fc2.bias\)"),
        (lambda t: t.update({"rope.freqs": torch.ones(3)}), r"1 unexpected \(rope.freqs\)"),
        (
            lambda t: t.update({"blocks.0.mlp.fc1.bias": torch.ones(7)}),
            r"1 of the wrong shape \(blocks.0.mlp.fc1.bias is 7 instead of 96\)",
        ),
        (
            lambda t: t["norm.weight"].fill_(float("nan")),
            r"1 tensors hold NaN or infinite numbers \(norm.weight\)",
        ),
        (lambda t: t.pop("blocks.0.norm1.weight"), r"have gaps in their numbers: \[0\] missing"),
        (lambda t: t.pop("patch_embed.proj.weight"), r"has no tensor 'patch_embed.proj.weight'"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(damage, words, tmp_path):
    save_folder(tmp_path, build(SMALL), Preprocess(size=(32, 32)), [], "timm")
    found = {name: tensor.clone() for name, tensor in read_tensors(tmp_path / "model.safetensors").items()}
    damage(found)
    write_safetensors(tmp_path / "damaged.safetensors", found, None)
    with pytest.raises(ModelError, match=words):
        load(tmp_path / "damaged.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "norm", "top1", "top5"), [("vit", None, 73.7, 92.3), ("deit", IMAGENET, 71.2, 90.5)]
)
def test_real_weights_reach_their_accuracy_on_the_thousand_pictures(data, name, norm, top1, top5):
    model = saccade.load(data / f"{name}_tiny_patch16_224.fp16.safetensors")
    model.preprocess = replace(model.preprocess, crop=1.0)  # the pictures were cropped when the set was made
    if norm is not None:
        model.preprocess = replace(model.preprocess, mean=norm[0], std=norm[1])
    first = fifth = 0
    torch.set_num_threads(2)
    with zipfile.ZipFile(data / "imagenet_val_1000_224.zip") as archive:
        names = [n for n in archive.namelist() if not n.endswith("/")]
        for predictions, path in zip(model.predict([archive.read(n) for n in names]), names, strict=True):
            found = [p.index for p in predictions]
            truth = int(Path(path).parent.name)
            first, fifth = first + (found[0] == truth), fifth + (truth in found)
    torch.set_num_threads(1)
    assert 100 * first / len(names) == pytest.approx(top1, abs=0.3)
    assert 100 * fifth / len(names) == pytest.approx(top5, abs=0.3)
