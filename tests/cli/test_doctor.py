"""`saccade doctor` on folders: what it prints and how it ends; tests/weights/test_doctor.py has the rest."""

import json
import shutil
import zipfile

import pytest
import torch
from terminal import picture, run, small

from saccade.weights.formats.tensors import read_tensors, write_safetensors


def edited(folder, file, place, value):
    content = json.loads((folder / file).read_text())
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (folder / file).write_text(json.dumps(content))
    return folder


def rows(*words):
    """The code and the verdicts by test."""
    done = run("doctor", *words, "--json")
    return done.code, {row["test"]: (row["verdict"], row["words"]) for row in json.loads(done.out)}


def test_the_machine_is_described():
    code, found = rows()
    assert code == 0
    assert {"saccade", "torch", "memory", "disk", "huggingface_hub"} <= set(found)
    assert found["torch"][1].startswith(torch.__version__)


def test_a_folder_as_it_was_saved_is_in_order(model):
    code, found = rows(model)
    assert code == 0
    assert found["kept answer"][0] == "ok"
    assert found["labels"] == ("ok", "5 of 5")
    assert "wrong" not in {verdict for verdict, _ in found.values()}
    shown = run("doctor", model)
    assert shown.code == 0
    assert len(shown.out.splitlines()) == len(found)
    assert "\x1b" not in shown.out


CHANGES = {
    "gelu": ("model.json", ["model", "block", "gelu"], "tanh"),
    "eps": ("model.json", ["model", "block", "eps"], 1e-3),
    "heads": ("model.json", ["model", "heads"], 2),
    "mean": ("preprocess.json", ["mean"], [0.485, 0.456, 0.406]),
    "std": ("preprocess.json", ["std"], [0.25, 0.25, 0.25]),
    "interpolation": ("preprocess.json", ["interpolation"], "nearest"),
    "kept answer": ("model.json", ["probe", "logits", 3], 5.0),
    "no answer": ("model.json", ["probe"], {"features": "x"}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_setting_is_named_by_the_kept_answer(model, name, tmp_path):
    code, found = rows(edited(shutil.copytree(model, tmp_path / "copy"), *CHANGES[name]))
    assert code == 1
    assert found["kept answer"][0] == "wrong"


def test_one_changed_weight_is_named_by_the_kept_answer(model, tmp_path):
    copy = shutil.copytree(model, tmp_path / "copy")
    weights = {name: tensor.clone() for name, tensor in read_tensors(copy).items()}
    weights["head.weight"][4, 4] += 0.1
    write_safetensors(copy / "model.safetensors", weights)
    code, found = rows(copy)
    assert (code, found["kept answer"][0]) == (1, "wrong")


def test_a_model_of_others_keeps_no_answer_and_untrained_weights_are_unknown(tmp_path):
    code, found = rows(small().save(tmp_path / "timm", "timm"))
    assert code == 0
    assert found["kept answer"] == ("unknown", "only folders written by saccade keep one")
    assert found["layout"][1].startswith("timm, ")
    assert found["normalisation"][0] == "unknown"


def test_pictures_that_cannot_be_read_are_left_out(model, tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "bad.png").write_bytes(b"no picture")
    assert run("doctor", model, "--pictures", folder).code == 3
    for i in range(9):
        picture(folder / f"{i}.png", i)
    code, found = rows(model, "--pictures", folder)
    assert code == 0
    assert "from 9 images" in found["normalisation"][1]


def test_a_model_without_a_head_is_examined(tmp_path):
    code, found = rows(small(classes=0).save(tmp_path / "headless"))
    assert (code, found["kept answer"][0], found["labels"]) == (0, "ok", ("ok", "0 of 0"))


def test_a_damaged_model_is_refused_as_everywhere(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"\x08")
    assert run("doctor", tmp_path / "x.safetensors").code == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "deit"])
def test_a_published_file_with_the_wrong_normalisation_is_named_on_real_pictures(data, name, tmp_path):
    with zipfile.ZipFile(data / "imagenet_val_1000_224.zip") as archive:
        names = sorted(n for n in archive.namelist() if n.endswith(".jpg"))
        for n in names[::31][:32]:
            archive.extract(n, tmp_path / "pictures")
    source = data / f"{name}_tiny_patch16_224.fp16.safetensors"
    for normalise, verdict in (("half", "ok"), ("imagenet", "wrong")):
        folder = tmp_path / normalise
        assert run("convert", source, "--out", folder, "--normalise", normalise).code == 0
        code, found = rows(folder, "--pictures", tmp_path / "pictures")
        expected = verdict if name == "vit" else {"ok": "wrong", "wrong": "ok"}[verdict]
        assert found["normalisation"][0] == expected
        assert code == (expected == "wrong")
        assert found["queries and keys"][0] == found["order of queries, keys, values"][0] == "ok"
