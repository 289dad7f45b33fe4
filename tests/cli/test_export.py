"""`saccade export`, and what it writes as a model folder: without torch, with one sentence for a slip."""

import json
import shutil
import subprocess
import sys

import pytest
from graphs import make
from PIL import Image
from terminal import run

from saccade.data.transform import Preprocess
from saccade.weights.load import write as write_model
from saccade.weights.probe import picture

LABELS = list("abcde")
TORCHLESS = """
import sys
from saccade.cli.app import main
try:
    main(sys.argv[1:])
finally:
    assert "torch" not in sys.modules, "torch was imported"
"""


def torchless(*words):
    """A command in a process of its own that must not import torch."""
    return subprocess.run(
        [sys.executable, "-c", TORCHLESS, *map(str, words)], capture_output=True, text=True, timeout=120
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model, its graph, and pictures in folders named like its labels."""
    place = tmp_path_factory.mktemp("export")
    write_model(place / "run", make("vit"), Preprocess(size=(32, 32)), LABELS)
    for label in LABELS:
        for i in range(3):
            (place / "data" / label).mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture(40 + 3 * i, 50 + ord(label) % 7)).save(
                place / "data" / label / f"{i}.png"
            )
    done = subprocess.run(
        [sys.executable, "-m", "saccade", "export", place / "run", place / "graph", "--data", place / "data"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "first answer kept  100.0%" in done.stdout
    return place


def test_predict_runs_a_graph_without_torch_as_the_run_with_it(place):
    picture = place / "data" / "a" / "0.png"
    done = torchless("predict", place / "graph", picture, "--json", "--engine", "onnx")
    assert done.returncode == 0, done.stderr
    expected = run("predict", place / "run", picture, "--json")
    for found, known in zip(
        json.loads(done.stdout)[0]["predictions"], json.loads(expected.out)[0]["predictions"], strict=True
    ):
        assert found["label"] == known["label"]
        assert abs(found["score"] - known["score"]) < 1e-4


def test_evaluate_scores_a_graph_without_torch_as_the_run_with_it(place):
    done = torchless("evaluate", place / "graph", place / "data", "--json", "--engine", "onnx")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["scores"]
    known = json.loads(run("evaluate", place / "run", place / "data", "--json").out)["scores"]
    assert found["accuracy"] == known["accuracy"]
    assert abs(found["loss"] - known["loss"]) < 1e-4


@pytest.mark.slow
def test_int8_is_calibrated_on_the_users_pictures(place, tmp_path):
    words = ("export", place / "run", tmp_path / "small", "--int8", "--data", place / "data")
    done = subprocess.run([sys.executable, "-m", "saccade", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "small" / "model.json").read_text())["export"]
    assert told["precision"] == "int8"
    done = torchless("predict", tmp_path / "small", place / "data" / "a" / "0.png", "--engine", "onnx")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--to", "onx"), 2, "--to is 'onx', which is not known; did you mean 'onnx'?"),
        (("--pixels", "jpeg"), 2, "--pixels is 'jpeg', which is not known"),
        (("--int8",), 2, "--int8 rounds by what your pictures need; give some with --data DATA"),
        (("--to", "torch", "--pixels", "bytes"), 2, "--to torch keeps floats and float32"),
        (("--pictures", "0"), 2, "--pictures is 0; expected a number from 1 to 100000"),
    ],
)
def test_a_slip_is_one_sentence(place, tmp_path, words, code, told):
    done = run("export", place / "run", tmp_path / "out", *words)
    assert done.code == code
    assert told in done.err
    assert done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_left_alone(place):
    done = run("export", place / "run", place / "data")
    assert (done.code, done.out) == (2, "")
    assert "exists and is not empty; nothing was written" in done.err


def test_a_graph_is_not_exported_again_nor_explained(place, tmp_path):
    done = run("export", place / "graph", tmp_path / "out")
    assert done.code == 4
    assert "is an exported graph already" in done.err
    done = run("explain", place / "graph", place / "data" / "a" / "0.png")
    assert done.code == 4
    assert "is an exported graph" in done.err


def test_an_engine_that_is_not_installed_is_one_sentence(place, monkeypatch):
    from saccade.engine.engine import PACKAGES

    monkeypatch.setitem(PACKAGES, "openvino", "a_package_that_is_nowhere")
    done = run("predict", place / "graph", place / "data" / "a" / "0.png", "--engine", "openvino")
    assert done.code == 2
    assert (
        "the engine openvino needs the package a_package_that_is_nowhere, which is not installed" in done.err
    )
    done = run("export", place / "run", place / "new", "--to", "openvino")
    assert done.code == 2
    assert not (place / "new").exists()


def test_an_unknown_engine_is_one_sentence(place):
    done = run("predict", place / "graph", place / "data" / "a" / "0.png", "--engine", "tensorflow")
    assert done.code == 2
    assert "the engine is 'tensorflow', which is not known" in done.err


def test_a_damaged_folder_is_refused(place, tmp_path):
    shutil.copytree(place / "graph", tmp_path / "graph")
    (tmp_path / "graph" / "model.onnx").unlink()
    done = run("predict", tmp_path / "graph", place / "data" / "a" / "0.png")
    assert done.code == 4
    assert "has no model.onnx; it was damaged; export it again" in done.err
