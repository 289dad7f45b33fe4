"""A run folder written before tasks had a contract (tests/data/run_before) resumes and answers."""

import json
import shutil
from pathlib import Path

import forked
import numpy as np
import pytest
from terminal import run as command

import saccade
from saccade.api.train import resume_run
from saccade.train import start
from saccade.weights.formats.tensors import read_tensors

BEFORE = Path(__file__).parents[1] / "data" / "run_before"


@pytest.fixture
def before(tmp_path):
    """The folder as it was, with the paths of this machine."""
    root = Path(shutil.copytree(BEFORE, tmp_path / "before"))
    for name in ("recipe.json", "data.json"):
        path = root / "run" / name
        path.write_text(path.read_text().replace("HERE", str(root)))
    return root


def test_it_resumes_to_the_weights_that_the_old_version_reached(before):
    run = resume_run(before / "run", quiet=True)
    run.go()
    start.finish(run)
    assert (before / "run" / "results.csv").is_file()
    # not the bytes: every kind of processor sums in its own order
    ours, theirs = (read_tensors(before / name / "model.safetensors") for name in ("run", "end"))
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        np.testing.assert_allclose(np.asarray(ours[name]), np.asarray(tensor), atol=1e-5)


def test_changed_images_are_noticed_as_before(before):
    cat, dog = (sorted((before / "images" / name).iterdir())[0] for name in ("cat", "dog"))
    first, second = cat.read_bytes(), dog.read_bytes()
    cat.write_bytes(second)
    dog.write_bytes(first)
    with pytest.raises(saccade.SaccadeError, match="are not the ones that"):
        resume_run(before / "run", quiet=True)


def test_it_predicts_is_evaluated_explained_and_exported(before, monkeypatch):
    monkeypatch.chdir(before)
    picture = str(sorted((before / "images/cat").iterdir())[0])
    found = json.loads(command("predict", "run", picture, "--json").out)
    assert {each["label"] for each in found[0]["predictions"]} == {"cat", "dog"}
    assert command("evaluate", "run", "images").code == 0
    assert command("explain", "run", picture, "--out", "map").code == 0
    forked.run("export", "run", "graph", check=True)  # not under the shape checker
    again = json.loads(command("predict", "graph", picture, "--json").out)
    assert again[0]["predictions"][0]["label"] == found[0]["predictions"][0]["label"]
