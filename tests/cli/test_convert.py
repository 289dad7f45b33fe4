import argparse
import hashlib
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from terminal import NAMES, run, small
from torch.testing import assert_close

from saccade.api.load import load
from saccade.models.vit import ViTConfig
from saccade.nn.block import BlockStyle
from saccade.weights.formats.tensors import read_tensors

TANH = BlockStyle(gelu="tanh", eps=1e-6)


def pixels(height=32, width=32):
    return torch.from_numpy(np.random.default_rng(0).normal(size=(2, 3, height, width))).float()


def logits(folder, image=None):
    with torch.inference_mode():
        return load(folder).module(pixels() if image is None else image)


@pytest.fixture(scope="module")
def timm(tmp_path_factory):
    return small().save(tmp_path_factory.mktemp("timm") / "model", "timm")


# Google's layout means the tanh GELU; timm's and the others the erf one: they never take each other's models.
@pytest.mark.parametrize("last", ["saccade", "timm", "hf"])
@pytest.mark.parametrize("first", ["saccade", "timm", "hf"])
def test_every_layout_becomes_every_other_and_answers_the_same(first, last, tmp_path):
    model = small()
    model.save(tmp_path / "first", first)
    done = run("convert", tmp_path / "first", "--out", tmp_path / "last", "--to", last)
    assert done.code == 0, done.err
    assert done.out == f"{tmp_path / 'last'}\n"
    assert f"from {first}'s layout, written as {last}" in done.err
    with torch.inference_mode():
        assert torch.equal(logits(tmp_path / "last"), model.module(pixels()))
    assert load(tmp_path / "last").labels == NAMES
    assert load(tmp_path / "last").preprocess == replace(
        model.preprocess, crop=load(tmp_path / "last").preprocess.crop
    )


@pytest.mark.parametrize("other", ["saccade", "hf"])
def test_googles_layout_goes_there_and_back(other, tmp_path):
    model = small(block=TANH, resample="bilinear")
    model.save(tmp_path / "first", "google")
    assert run("convert", tmp_path / "first", "--out", tmp_path / "other", "--to", other).code == 0
    with torch.inference_mode():
        assert torch.equal(logits(tmp_path / "other"), model.module(pixels()))
    done = run("convert", tmp_path / "other", "--out", tmp_path / "back", "--to", "google")
    assert done.code == 0, done.err
    assert torch.equal(logits(tmp_path / "back"), logits(tmp_path / "other"))


@pytest.mark.parametrize(("style", "to"), [(BlockStyle(), "google"), (TANH, "timm")])
def test_a_layout_whose_readers_would_compute_otherwise_is_refused_and_leaves_nothing(style, to, tmp_path):
    small(block=style).save(tmp_path / "first")
    done = run("convert", tmp_path / "first", "--out", tmp_path / "deep" / "last", "--to", to)
    assert done.code == 2
    assert "would give wrong answers there; write it as " in done.err
    assert not (tmp_path / "deep" / "last").exists()


def saved(model, tmp_path, name, content, legacy):
    torch.save(content, tmp_path / name, _use_new_zipfile_serialization=not legacy)
    return tmp_path / name


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("ending", ["pt", "pth", "bin"])
def test_a_torch_checkpoint_is_read_in_the_restricted_process(timm, ending, legacy, tmp_path):
    weights = dict(read_tensors(timm))
    shutil.copy(timm / "config.json", tmp_path)
    path = saved(timm, tmp_path, f"model.{ending}", weights, legacy)
    done = run("convert", path, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert f"model.{ending}: took {len(weights)} tensors of ''" in done.err
    assert torch.equal(logits(tmp_path / "out"), logits(timm))


def test_the_weights_are_found_inside_of_a_training_checkpoint_and_the_rest_is_left_out(timm, tmp_path):
    content = {
        "model": dict(read_tensors(timm)),
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}},
        "epoch": 300,
        "args": argparse.Namespace(lr=1e-3, model="vit"),
    }
    shutil.copy(timm / "config.json", tmp_path)
    path = saved(timm, tmp_path, "checkpoint.pth", content, False)
    done = run("convert", path, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert "tensors of 'model', left out 3 other entries" in done.err
    assert torch.equal(logits(tmp_path / "out"), logits(timm))


def test_a_folder_with_one_pickle_is_converted_too(timm, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(timm / "config.json", folder)
    saved(timm, folder, "pytorch_model.bin", dict(read_tensors(timm)), False)
    refused = run("predict", folder, "x.png")
    assert refused.code == 4
    assert f"run `saccade convert {folder / 'pytorch_model.bin'}" in refused.err
    assert run("convert", folder, "--out", tmp_path / "out").code == 0
    assert torch.equal(logits(tmp_path / "out"), logits(timm))


def test_a_pickle_that_holds_no_vit_is_refused_under_its_own_name(tmp_path):
    path = saved(None, tmp_path, "words.pt", {"a": torch.zeros(3), "b": torch.zeros(2, 2)}, False)
    done = run("convert", path, "--out", tmp_path / "out")
    assert done.code == 4
    assert done.err.splitlines()[-1].startswith(f"error: {path} does not hold a known Vision Transformer")
    assert not (tmp_path / "out").exists()


def test_nothing_is_ever_overwritten(timm, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("more work")
    for name in ("folder", "file"):
        done = run("convert", timm, "--out", tmp_path / name)
        assert done.code == 2
        assert "exists and is not empty; nothing was written; give another name" in done.err
    assert (tmp_path / "folder" / "thesis.txt").read_text() == "years of work"
    assert sorted(p.name for p in (tmp_path / "folder").iterdir()) == ["thesis.txt"]


def test_an_empty_folder_may_be_filled(timm, tmp_path):
    (tmp_path / "empty").mkdir()
    assert run("convert", timm, "--out", tmp_path / "empty").code == 0


@pytest.mark.parametrize("where", ["file/below", "/proc/nowhere/x"])
def test_a_place_that_cannot_be_written_is_told_in_words(timm, where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    done = run("convert", timm, "--out", where)
    assert done.code == 2
    assert "cannot be written" in done.err


def test_the_checkpoint_and_its_folder_are_left_as_they_were(timm, tmp_path):
    folder = shutil.copytree(timm, tmp_path / "source")
    saved(timm, folder, "more.pth", dict(read_tensors(timm)), False)
    before = {p: (p.stat().st_mtime_ns, hashlib.sha256(p.read_bytes()).hexdigest()) for p in folder.iterdir()}
    for i, name in enumerate(("", "model.safetensors", "more.pth")):
        assert run("convert", folder / name, "--out", tmp_path / f"{i}", "--image", "64").code == 0
    assert before == {
        p: (p.stat().st_mtime_ns, hashlib.sha256(p.read_bytes()).hexdigest()) for p in folder.iterdir()
    }


@pytest.mark.parametrize(("text", "size"), [("64", (64, 64)), ("32x64", (32, 64)), ("40X24", (40, 24))])
def test_another_picture_size_resamples_the_positions(timm, text, size, tmp_path):
    done = run("convert", timm, "--out", tmp_path / "out", "--image", text)
    assert done.code == 0, done.err
    model = load(tmp_path / "out")
    assert model.module.config.image == model.preprocess.size == size
    assert model.module.position.table.shape == (size[0] // 8, size[1] // 8, 32)
    with torch.inference_mode():
        assert_close(model.module(pixels(*size)), load(timm).module(pixels(*size)), atol=1e-5, rtol=1e-5)


def test_another_patch_size_resamples_the_kernel_so_that_a_larger_picture_answers_alike(timm, tmp_path):
    done = run("convert", timm, "--out", tmp_path / "out", "--patch", "16", "--image", "64")
    assert done.code == 0, done.err
    model, old = load(tmp_path / "out"), load(timm)
    assert (model.module.config.patch, model.module.config.grid) == (16, old.module.config.grid)
    row, col = np.mgrid[0:64, 0:64] / 64
    waves = np.stack([np.sin(6 * row), np.cos(5 * col), np.sin(4 * (row + col))], -1)
    picture = Image.fromarray((127 + 100 * waves).astype(np.uint8))
    large, small_ = (
        p.softmax(-1)
        for p in (ask(model, picture), ask(old, picture.resize((32, 32), Image.Resampling.BICUBIC)))
    )
    assert_close(large, small_, atol=0.03, rtol=0)


def ask(model, picture):
    plain = replace(model.preprocess, crop=1.0)
    with torch.inference_mode():
        return model.module(torch.from_numpy(plain.batch([picture])))


@pytest.mark.parametrize(
    ("text", "mean", "std"),
    [
        ("half", (0.5,) * 3, (0.5,) * 3),
        ("imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("0.1,0.2,0.3,1,2,3", (0.1, 0.2, 0.3), (1, 2, 3)),
    ],
)
def test_the_normalisation_can_be_chosen(timm, text, mean, std, tmp_path):
    assert run("convert", timm, "--out", tmp_path / "out", "--normalise", text).code == 0
    found = load(tmp_path / "out").preprocess
    assert (found.mean, found.std) == (mean, std)


def test_labels_lose_their_wordnet_numbers_and_blank_lines(timm, tmp_path):
    names = tmp_path / "names.txt"
    lines = ["\ufeffn01440764 tench\r", "n01443537 goldfish\r", "\r", "n01484850 great white shark"]
    names.write_text("\n".join([*lines, "n01491361 tiger shark", "n01494475 x"]))
    assert run("convert", timm, "--out", tmp_path / "out", "--labels", names).code == 0
    assert load(tmp_path / "out").labels == ["tench", "goldfish", "great white shark", "tiger shark", "x"]
    names.write_text("n01440764 tench\nb\nc\nd\ne")
    assert run("convert", timm, "--out", tmp_path / "out2", "--labels", names).code == 0
    assert load(tmp_path / "out2").labels[0] == "n01440764 tench"


def test_an_unnamed_class_of_hugging_face_gets_its_number_and_survives_saving(tmp_path):
    folder = small().save(tmp_path / "hf", "hf")
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {"0": "cat", "1": "", "2": "a\nb\u2028c", "x": "y", "4": " fish "}
    (folder / "config.json").write_text(json.dumps(config))
    assert run("convert", folder, "--out", tmp_path / "out").code == 0
    assert load(tmp_path / "out").labels == ["cat", "class 1", "a b c", "class 3", "fish"]


WRONG = [
    (["--to", "onnx"], "layout is 'onnx', which is not known (known: saccade, timm, hf, google)"),
    (["--to", "tim"], "did you mean 'timm'?"),
    (["--image", "0"], "the image size is 0; expected a number from 1 to 16384"),
    (["--image", "big"], "the image size is 'big'; expected a side such as 384"),
    (["--image", "-5"], "the image size is '-5'"),
    (["--image", "1x2x3"], "the image size is '1x2x3'"),
    (["--image", "9" * 30], "the image size is '999"),
    (["--image", "\N{ARABIC-INDIC DIGIT THREE}2"], "the image size is"),
    (["--image", "33"], "an image of 33x33 pixels is not a whole number of 8-pixel patches"),
    (["--image", "4"], "image is 4; expected a number from 8 to 16384"),
    (["--patch", "0"], "patch is 0; expected a number from 1 to 1024"),
    (["--patch", "-8"], "patch is -8; expected a number from 1 to 1024"),
    (["--patch", "x"], "invalid value for '--patch'"),
    (["--patch", "5"], "an image of 32x32 pixels is not a whole number of 5-pixel patches"),
    (["--normalise", "none"], "normalise is 'none'; expected half, imagenet, or 3 means and 3 deviations"),
    (["--normalise", "1,2,3"], "normalise is '1,2,3'"),
    (["--normalise", "0,0,0,0,0,0"], "std is (0.0, 0.0, 0.0); expected 3 finite numbers"),
    (["--normalise", "nan,0,0,1,1,1"], "mean is (nan, 0.0, 0.0); expected 3 finite numbers"),
    (["--labels", "nowhere.txt"], "there is no file of labels at 'nowhere.txt'"),
    (["--labels", "three.txt"], "3 labels for 5 classes; give one for each"),
    (["--labels", "latin.txt"], "latin.txt is not UTF-8 text; expected one label per line"),
    (["--labels", "."], "there is no file of labels at '.'"),
    (["--out", ""], "the folder to write is '.'; expected a folder with a name"),
    (["--nonsense"], "no such option: --nonsense"),
]


@pytest.mark.parametrize(("words", "told"), WRONG, ids=[" ".join(words)[:20] for words, _ in WRONG])
def test_a_nonsense_value_is_refused_in_one_sentence(timm, words, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "three.txt").write_text("a\nb\nc\n")
    (tmp_path / "latin.txt").write_bytes("café\n".encode("latin-1"))
    done = run("convert", timm, *(() if "--out" in words else ("--out", "out")), *words)
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_out_is_required(timm):
    done = run("convert", timm)
    assert (done.code, done.err) == (2, "error: missing option '--out'; see `saccade convert --help`\n")


def test_a_hybrid_keeps_its_patch(tmp_path):
    from saccade.api.models import Model
    from saccade.data.image.preprocess import Preprocess
    from saccade.models.hybrid import Hybrid, HybridConfig

    vit = ViTConfig(image=(64, 64), patch=16, width=24, depth=1, heads=2, hidden=32, classes=3)
    Model(Hybrid(HybridConfig(layers=(1, 1, 1), vit=vit)), Preprocess(size=(64, 64))).save(
        tmp_path / "hybrid"
    )
    done = run("convert", tmp_path / "hybrid", "--out", tmp_path / "out", "--patch", "32")
    assert done.code == 2
    assert "it stays 16, and 32 was given" in done.err
    assert run("convert", tmp_path / "hybrid", "--out", tmp_path / "out", "--image", "96x64").code == 0
    assert load(tmp_path / "out").module.config.grid == (6, 4)
