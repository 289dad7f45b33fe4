"""Damaged and malicious models through the commands: exit code 4, one sentence naming the file, nothing run.

What is not refused, because it is harmless: a kept answer or labels of the wrong kind (doctor names the
first, the second are left aside), and numbers in a config that nothing here reads (num_labels).
"""

import json
import resource
import shutil
import subprocess
import sys
from time import perf_counter

import pytest
from malice import json_files, model_files
from terminal import forget_digest, run, small

from saccade.nn.block import BlockStyle

QUICK = [
    "system2.pkl",
    "system.pt",
    "deep.pkl",
    "million.npz",
    "bomb.npz",
    "million.safetensors",
    "200mb.safetensors",
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("malice")
    return folder / "canary", {malice.name: malice for malice in model_files(folder, folder / "canary")}


def refused(done, path):
    """One sentence, and what it says."""
    assert done.code == 4, done
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert done.err[:-1].isprintable()
    assert str(path)[:150] in done.err
    return done.err


# Refused by `locate`, or as what the folder holds, and so in other words than the corpus has.
OTHERWISE = {"missing.safetensors", "dangling.safetensors", "loop.safetensors", "folder-pickle"}


def test_every_file_of_the_corpus_is_refused_by_predict(corpus, tmp_path):
    canary, files = corpus
    assert len(files) > 150
    for malice in files.values():
        told = refused(run("predict", malice.path, tmp_path / "photo.png"), malice.path)
        assert malice.predict in told or malice.name in OTHERWISE, malice.name
    assert not canary.exists()


@pytest.mark.slow
def test_every_file_of_the_corpus_is_refused_by_convert(corpus, tmp_path):
    canary, files = corpus
    for malice in files.values():
        told = refused(run("convert", malice.path, "--out", tmp_path / "out"), malice.path)
        assert malice.convert in told or malice.predict in told or malice.name in OTHERWISE, malice.name
        assert not (tmp_path / "out").exists()
    assert not canary.exists()


@pytest.mark.parametrize("name", QUICK)
def test_a_fresh_process_refuses_within_two_seconds_and_little_memory(corpus, name, tmp_path):
    canary, files = corpus
    for words in (
        ["predict", files[name].path, "x.png"],
        ["convert", files[name].path, "--out", tmp_path / "out"],
    ):
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
        command = [sys.executable, "-m", "saccade", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 4
        assert done.stderr.count("\n") == 1
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime <= 2
        assert perf_counter() - start <= 4  # two on a machine that does nothing else
    assert not canary.exists()


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """One good folder of each layout, and of DINOv2, to be spoilt in copies."""
    folder = tmp_path_factory.mktemp("good")
    small().save(folder / "saccade")
    small().save(folder / "timm", "timm")
    small().save(folder / "hf", "hf")
    dino = {"hidden": 128, "pool": "token+mean", "block": BlockStyle(layerscale=1.0)}
    small(**dino).save(folder / "dino", "hf")
    return folder


def spoilt(folder, file, place, value, to):
    """A copy of a folder in which one value of a JSON file is another."""
    copy = shutil.copytree(folder, to)
    content = json.loads((copy / file).read_text())
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (copy / file).write_text(json.dumps(content))
    return copy


CONFIG = [
    *(
        (key, value)
        for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "patch_size")
        for value in (-1, 10**9, 10**30, 1.5, "many", [], {}, True)
    ),
    ("patch_size", 0),
    ("hidden_size", 0),
    ("intermediate_size", 10**9),
    ("num_attention_heads", 5),
    ("image_size", 10**6),
    ("image_size", -32),
    ("image_size", 0),
    ("image_size", "large"),
    ("image_size", True),
    ("hidden_act", "quick_gelu"),
    ("hidden_act", None),
    ("hidden_act", {}),
    ("layer_norm_eps", -1),
    ("layer_norm_eps", 1e9),
    ("layer_norm_eps", "small"),
    ("layer_norm_eps", None),
    ("model_type", "bert"),
    ("model_type", "\x1b[31mvit"),
    ("model_type", ["vit"]),
    ("model_type", 3),
]


@pytest.mark.parametrize("layout", ["hf", "dino"])
@pytest.mark.parametrize(("key", "value"), CONFIG)
def test_a_config_that_lies_about_the_weights_is_refused(good, layout, key, value, photo, tmp_path):
    copy = spoilt(good / layout, "config.json", [key], value, tmp_path / "copy")
    refused(run("predict", copy, photo), copy)


PREPROCESSOR = [
    ("size", 0),
    ("size", -1),
    ("size", "large"),
    ("size", []),
    ("size", {"height": 32}),
    ("crop_size", 16384),
    ("crop_size", {"height": 16384, "width": 16384}),
    ("crop_size", {"height": 33, "width": 33}),
    ("crop_size", 0),
    ("image_mean", [0.5]),
    ("image_mean", "half"),
    ("image_mean", None),
    ("image_std", [0, 0, 0]),
    ("image_std", [1, 1, "1"]),
    ("image_std", [-1, -1, -1]),
]


@pytest.mark.parametrize(("key", "value"), PREPROCESSOR)
def test_a_preprocessing_that_cannot_be_is_refused(good, key, value, photo, tmp_path):
    copy = spoilt(good / "hf", "preprocessor_config.json", [key], value, tmp_path / "copy")
    refused(run("predict", copy, photo), copy)


TIMM = [
    (["model_args"], "x"),
    (["model_args"], 3),
    (["model_args", "num_heads"], 5),
    (["model_args", "num_heads"], True),
    (["model_args", "num_heads"], 10**9),
    (["model_args", "num_heads"], "4"),
    (["model_args", "img_size"], 10**6),
    (["model_args", "img_size"], -32),
    (["pretrained_cfg"], "x"),
    (["pretrained_cfg"], [1]),
    (["pretrained_cfg", "mean"], 1),
    (["pretrained_cfg", "std"], [0, 0, 0]),
    (["pretrained_cfg", "crop_pct"], 0),
    (["pretrained_cfg", "crop_pct"], "x"),
    (["pretrained_cfg", "interpolation"], "magic"),
    (["pretrained_cfg", "label_names"], ["one", "two"]),
    (["num_features"], 10**9),
    (["global_pool"], "max"),
    (["model_args", "global_pool"], "max"),
]


@pytest.mark.parametrize(("place", "value"), TIMM)
def test_a_config_of_timms_that_cannot_be_is_refused(good, place, value, photo, tmp_path):
    copy = spoilt(good / "timm", "config.json", place, value, tmp_path / "copy")
    refused(run("predict", copy, photo), copy)


OURS = [
    (["format"], 2),
    (["format"], "1"),
    (["format"], None),
    (["task"], "detect"),
    (["task"], None),
    (["model"], None),
    (["model"], []),
    (["model"], "vit"),
    (["model", "kind"], "gpt"),
    (["model", "kind"], []),
    (["model", "nonsense"], 1),
    (["model", "block", "nonsense"], 1),
    (["model", "heads"], 5),
    (["model", "width"], 10**9),
    (["model", "width"], 2**16),
    (["model", "depth"], 10**9),
    (["model", "depth"], 1024),
    (["model", "hidden"], 2**18),
    (["model", "classes"], 10**9),
    (["model", "classes"], 2**20),
    (["model", "registers"], 2**20),
    (["model", "patch"], 0),
    (["model", "image"], [10**6, 10**6]),
    (["model", "image"], [32]),
    (["model", "image"], [16384, 16384]),
    (["model", "image"], [33, 33]),
    (["model", "pool"], "magic"),
    (["model", "position"], ["learned"]),
    (["model", "position"], "rope2d"),
    (["model", "block"], None),
    (["model", "block", "eps"], -1),
    (["model", "block", "gelu"], "\x1b[31m"),
    (["model", "block", "layerscale"], 1.0),
    (["model", "width"], True),
    (["model", "width"], "32"),
]


@pytest.mark.parametrize(("place", "value"), OURS)
def test_a_description_of_ours_that_cannot_be_is_refused_without_taking_memory(
    good, place, value, photo, tmp_path
):
    copy = spoilt(good / "saccade", "model.json", place, value, tmp_path / "copy")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = perf_counter()
    refused(run("predict", copy, photo), copy)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB
    assert perf_counter() - start < 4


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("size", [16384, 16384]),
        ("size", [33, 33]),
        ("size", None),
        ("fit", "magic"),
        ("crop", 0),
        ("std", [0, 0, 0]),
        ("nonsense", 1),
        ("mean", "half"),
        ("interpolation", 3),
    ],
)
def test_a_preprocessing_of_our_own_that_cannot_be_is_refused(good, key, value, photo, tmp_path):
    copy = spoilt(good / "saccade", "preprocess.json", [key], value, tmp_path / "copy")
    refused(run("predict", copy, photo), copy)


@pytest.mark.parametrize("file", ["model.json", "preprocess.json", "labels.txt", "model.safetensors"])
def test_a_folder_of_ours_that_lacks_a_file_is_refused_or_answers_with_numbers(good, file, photo, tmp_path):
    copy = shutil.copytree(good / "saccade", tmp_path / "copy")
    (copy / file).unlink()
    done = run("predict", copy, photo)
    if file == "labels.txt":
        assert done.code == 0
        assert "class 3" in done.out
    else:
        refused(done, copy)


@pytest.mark.parametrize(
    "labels", ["one\ntwo\n", "a\n" * 6, b"caf\xe9\nb\nc\nd\ne\n"], ids=["too few", "too many", "latin"]
)
def test_labels_that_do_not_fit_are_refused(good, labels, photo, tmp_path):
    copy = shutil.copytree(good / "saccade", tmp_path / "copy")
    (copy / "labels.txt").write_bytes(labels if isinstance(labels, bytes) else labels.encode())
    refused(run("predict", copy, photo), copy)


def test_json_that_costs_too_much_or_means_two_things_is_refused_beside_any_model(good, photo, tmp_path):
    (tmp_path / "json").mkdir()
    for layout, file in (
        ("hf", "config.json"),
        ("hf", "preprocessor_config.json"),
        ("saccade", "model.json"),
        ("saccade", "preprocess.json"),
    ):
        copy = shutil.copytree(good / layout, tmp_path / f"{layout}-{file}")
        for bad in json_files(tmp_path / "json"):
            (copy / file).unlink()
            (copy / file).symlink_to(bad.path)
            start = perf_counter()
            told = refused(run("predict", copy, photo), copy)
            assert bad.predict in told
            assert perf_counter() - start < 2


@pytest.mark.parametrize("key", ["auto_map", "trust_remote_code"])
@pytest.mark.parametrize("command", ["predict", "convert", "doctor"])
def test_code_that_a_config_wants_run_is_ignored_and_that_is_said(good, key, command, photo, tmp_path):
    canary = tmp_path / "canary"
    value = {"AutoModel": "evil.Evil"} if key == "auto_map" else True
    copy = spoilt(good / "hf", "config.json", [key], value, tmp_path / "copy")
    (copy / "evil.py").write_text(f"open({str(canary)!r}, 'w')")
    more = {"predict": [photo], "convert": ["--out", tmp_path / "out"], "doctor": []}[command]
    done = run(command, copy, *more)
    assert done.code == 0
    assert f"note: {copy} refers to code of its own ({key}); it is ignored and never run\n" in done.err
    assert not canary.exists()


def test_weights_that_are_not_numbers_are_refused(good, photo, tmp_path):
    import torch

    from saccade.weights.formats.tensors import read_tensors, write_safetensors

    copy = shutil.copytree(good / "saccade", tmp_path / "copy")
    weights = dict(read_tensors(copy))
    weights["norm.weight"] = torch.full_like(weights["norm.weight"], float("nan"))
    write_safetensors(copy / "model.safetensors", weights)
    forget_digest(copy)
    assert "1 tensors hold NaN or infinite numbers (norm.weight)" in refused(
        run("predict", copy, photo), copy
    )


@pytest.mark.parametrize(
    "change",
    [{"width": 48}, {"depth": 3}, {"classes": 4}, {"hidden": 48}],
    ids=lambda change: next(iter(change)),
)
def test_a_description_of_another_model_is_refused(good, change, photo, tmp_path):
    copy = shutil.copytree(good / "saccade", tmp_path / "copy")
    other = small(**change).save(tmp_path / "other")
    shutil.copy(other / "model.json", copy)
    told = refused(run("predict", copy, photo), copy)
    assert "does not hold the tensors of the model it describes" in told or "labels for" in told
