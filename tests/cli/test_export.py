"""`saccade export`, and what it writes as a model folder: without torch, with one sentence for a slip."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from graphs import make
from PIL import Image
from terminal import run
from trees import tree

from saccade.api.export import default_folder
from saccade.data.image.preprocess import Preprocess
from saccade.data.readers.open import open_images
from saccade.errors import DataError
from saccade.weights.known_answer import picture
from saccade.weights.save import save_folder

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
    save_folder(place / "run", make("vit"), Preprocess(size=(32, 32)), LABELS)
    for label in LABELS:
        for i in range(3):
            (place / "data" / label).mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture(40 + 3 * i, 50 + ord(label) % 7)).save(
                place / "data" / label / f"{i}.png"
            )
    done = forked.run("export", place / "run", place / "graph", "--data", place / "data")
    assert done.returncode == 0, done.stderr
    assert "checked on         15 images, and on 5 sizes" in done.stdout
    assert "top-1 agreement    100.0%" in done.stdout
    assert re.search(r"accuracy           (\d+\.\d%) \(the model: \1\)", done.stdout)
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
    done = forked.run(*words)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "small" / "model.json").read_text())["export"]
    assert told["precision"] == "int8"
    assert "15 images that it was calibrated on, as there are no others, and on 5 sizes" in done.stdout
    assert "top-1 agreement    100.0%" in done.stdout
    done = torchless("predict", tmp_path / "small", place / "data" / "a" / "0.png", "--engine", "onnx")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_int8_on_openvino_answers_without_torch(place, tmp_path):
    words = (
        "export",
        place / "run",
        tmp_path / "small",
        "--to",
        "openvino",
        "--int8",
        "--data",
        place / "data",
    )
    done = forked.run(*words)
    assert done.returncode == 0, done.stderr
    assert "top-1 agreement    100.0%" in done.stdout
    done = torchless("evaluate", tmp_path / "small", place / "data", "--json")
    assert done.returncode == 0, done.stderr
    known = json.loads(run("evaluate", place / "run", place / "data", "--json").out)["scores"]
    assert json.loads(done.stdout)["scores"]["accuracy"] == known["accuracy"]


@pytest.mark.slow
def test_torchs_own_format_lies_in_a_model_folder(place, tmp_path):
    words = ("export", place / "run", tmp_path / "program", "--to", "torch", "--data", place / "data")
    done = forked.run(*words)
    assert done.returncode == 0, done.stderr
    assert "top-1 agreement    100.0%" in done.stdout
    assert (tmp_path / "program" / "model.pt2").is_file()
    picture = place / "data" / "a" / "0.png"
    answers = [
        run("predict", folder, picture, "--json").out for folder in (place / "run", tmp_path / "program")
    ]
    found, known = (json.loads(answer)[0]["predictions"] for answer in answers)
    assert found == known


def test_int8_is_checked_on_pictures_that_it_was_not_calibrated_on(tmp_path):
    from saccade.api.export import choose_images

    def names(images):
        return {images.name(i) for i in range(len(images))}

    tree(tmp_path / "one", {"cat": 20, "dog": 20})
    for most, calibrated, checked in ((128, 30, 10), (8, 8, 8)):
        learnt, held = choose_images(open_images(tmp_path / "one"), most, True)
        assert (len(learnt), len(held)) == (calibrated, checked)
        assert not names(learnt) & names(held)
        assert set(learnt.labels) == set(held.labels) == {0, 1}
    tree(tmp_path / "three", {"train/cat": 5, "train/dog": 5, "val/cat": 3, "val/dog": 3, "test/cat": 2})
    learnt, held = choose_images(open_images(tmp_path / "three", least=1), 128, True)
    assert (len(learnt), len(held)) == (10, 2)
    tree(tmp_path / "few", {"cat": 3, "dog": 3})
    learnt, held = choose_images(open_images(tmp_path / "few"), 128, True)
    assert learnt is held
    assert len(held) == 6


def test_a_picture_that_cannot_be_read_is_left_out(tmp_path, capsys):
    from saccade.api.export import choose_images, make_samples

    tree(tmp_path / "data", {"cat": 3, "dog": 3})
    (bad,) = (tmp_path / "data" / "cat").glob("*1*")
    bad.write_bytes(bad.read_bytes()[:100])
    _, held = choose_images(open_images(tmp_path / "data"), 128, False)
    assert len(held) == 5
    samples = make_samples(held, ["dog", "cat"])
    assert samples.labels == [1, 1, 0, 0, 0]
    assert len(samples.sources) == 5
    told = capsys.readouterr().err
    assert told.startswith("note: 1 of 6 images cannot be read and are left out: ")
    assert bad.name in told
    for path in (tmp_path / "data").rglob("*.*"):
        path.write_bytes(b"\x89PNG nothing")
    with pytest.raises(DataError, match="none of the 6 images can be read; expected one or more"):
        choose_images(open_images(tmp_path / "data"), 128, True)


def test_a_graph_without_a_place_lies_beside_its_model_or_here(tmp_path, monkeypatch):
    (tmp_path / "run" / "deep").mkdir(parents=True)
    (tmp_path / "S_16.npz").touch()
    monkeypatch.chdir(tmp_path / "run")
    for word in (".", "deep/..", str(tmp_path / "run"), "../run"):
        assert default_folder(word, Path(word), "-onnx").resolve() == tmp_path / "run-onnx"
    assert default_folder("../S_16.npz", Path("../S_16.npz"), "-onnx") == Path("../S_16-onnx")
    cached = tmp_path / "models--google--vit" / "snapshots" / "abc"
    for word in ("google/vit-base-patch16", "hf:google/vit-base-patch16@main"):
        assert default_folder(word, cached, "-onnx") == Path("vit-base-patch16-onnx")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--to", "onx"), 2, "--to is 'onx', which is not known; did you mean 'onnx'?"),
        (("--pixels", "jpeg"), 2, "--pixels is 'jpeg', which is not known"),
        (("--int8",), 2, "--int8 needs images to calibrate on; give some with --data DATA"),
        (("--to", "torch", "--pixels", "bytes"), 2, "--to torch supports only floats and float32"),
        (("--pictures", "0"), 2, "--pictures is 0; expected a number from 1 to 100000"),
    ],
)
def test_a_slip_is_one_sentence(place, tmp_path, words, code, told):
    done = run("export", place / "run", tmp_path / "out", *words)
    assert done.code == code
    assert told in done.err
    assert done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_no_folder_can_be_made_is_one_sentence(place, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    done = run("export", place / "run", tmp_path / "file" / "out")
    assert done.code == 2
    assert "file/out cannot be created (" in done.err
    assert "choose another folder" in done.err


def test_a_folder_that_is_there_is_left_alone(place):
    done = run("export", place / "run", place / "data")
    assert (done.code, done.out) == (2, "")
    assert "exists and is not empty; nothing was written" in done.err


def test_a_graph_is_not_exported_again_nor_explained(place, tmp_path):
    done = run("export", place / "graph", tmp_path / "out")
    assert done.code == 4
    assert "is already an exported graph" in done.err
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


def test_a_size_that_the_model_cannot_take_is_refused(place, tmp_path):
    shutil.copytree(place / "graph", tmp_path / "graph")
    path = tmp_path / "graph" / "preprocess.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "size": [30, 32]}))
    done = run("predict", tmp_path / "graph", place / "data" / "a" / "0.png")
    assert (done.code, done.out) == (4, "")
    assert "asks for 30 x 32 pixels; expected whole patches of 8 x 8; correct preprocess.json" in done.err


def test_a_damaged_folder_is_refused(place, tmp_path):
    shutil.copytree(place / "graph", tmp_path / "graph")
    (tmp_path / "graph" / "model.onnx").unlink()
    done = run("predict", tmp_path / "graph", place / "data" / "a" / "0.png")
    assert done.code == 4
    assert "has no model.onnx; export it again" in done.err
    (tmp_path / "graph" / "model.onnx").write_bytes(b"nothing of the kind")
    for words in (
        ("predict", tmp_path / "graph", place / "data" / "a" / "0.png"),
        ("bench", tmp_path / "graph"),
    ):
        done = run(*words, "--engine", "auto")
        assert (done.code, done.out) == (4, "")
        assert "is not the file that was exported" in done.err.splitlines()[-1]
        assert "install" not in done.err
