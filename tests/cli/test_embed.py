"""`saccade embed`: a folder of vectors, names and a map; nearest pictures; words for what cannot be."""

import csv
import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from terminal import picture, run, small
from trees import picture as noise
from trees import state, tree

from saccade.api.load import load
from saccade.api.train import train

FILES = {"features.safetensors", "map.html", "map.json", "map.png", "pictures.csv", "report.json"}


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tree(tmp_path / "data", {"cat": 8, "dog": 8})


def test_a_folder_is_written_with_vectors_names_and_a_map(model, data, tmp_path):
    before = state(data)
    done = run("embed", model, data, "--map", "pca")
    assert done.code == 0
    made = tmp_path / "runs" / "embed-data"
    assert {path.name for path in made.iterdir()} == FILES
    assert "k nearest neighbours" in done.out
    assert "map: PCA of 16 images" in done.out
    assert done.err.splitlines()[-1] == "map: runs/embed-data/map.html"
    rows = list(csv.DictReader((made / "pictures.csv").read_text().splitlines()))
    held = load_file(made / "features.safetensors")
    assert [row["row"] for row in rows] == [str(i) for i in range(16)]
    assert {row["label"] for row in rows} == {"cat", "dog"}
    assert np.allclose(
        held["features"], load(model).embed([data / row["picture"] for row in rows]), atol=1e-5
    )
    assert held["neighbours"].shape == held["distances"].shape == (16, 10)
    assert state(data) == before


def test_nothing_is_overwritten_and_json_is_the_report(model, data, tmp_path):
    words = ("embed", model, data, "--map", "pca", "--json")
    first, second = (json.loads(run(*words).out) for _ in range(2))
    assert [first.pop("folder"), second.pop("folder")] == ["runs/embed-data", "runs/embed-data-2"]
    assert first == second == json.loads((tmp_path / "runs" / "embed-data" / "report.json").read_text())
    assert first["pictures"] == 16
    named = json.loads(run(*words, "--out", tmp_path / "here" / "mine").out)
    assert named["folder"] == str(tmp_path / "here" / "mine")


def test_the_same_seed_draws_the_same_tsne(model, data, tmp_path):
    for _ in range(2):
        done = run("embed", model, data)
        assert done.code == 0
        assert "note: a perplexity of 30 needs more than 90 vectors; with 16 it was lowered to 5" in done.out
    first, second = (tmp_path / "runs" / name / "map.json" for name in ("embed-data", "embed-data-2"))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_unlabelled_pictures_however_few(model, tmp_path, monkeypatch, count):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holiday").mkdir()
    for i in range(count):
        picture(tmp_path / "holiday" / f"{i}.png", i)
    done = run("embed", model, "holiday", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["pictures"], told["classes"], told["suspects"]) == (count, [], [])
    assert set(told["scores"].values()) == {None}
    assert load_file("runs/embed-holiday/features.safetensors")["neighbours"].shape == (count, count - 1)
    assert run("embed", model, "holiday").code == 0


def test_equal_pictures_are_told_to_be_copies_on_one_place(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "same").mkdir()
    for i in range(6):
        picture(tmp_path / "same" / f"{i}.png", 0)
    done = run("embed", model, "same", "--json")
    told = json.loads(done.out)
    assert done.code == 0
    assert len(told["copies"]) == 15
    assert "all 6 vectors are equal, so they share one point" in told["notes"]


def test_a_query_lists_the_nearest_and_writes_no_folder(model, data, tmp_path):
    asked = tmp_path / "asked.png"
    asked.write_bytes((data / "dog" / "3.png").read_bytes())
    done = run("embed", model, data, "--query", asked, "--top", "3", "--json")
    [told] = json.loads(done.out)
    assert told["query"] == str(asked)
    assert told["nearest"][0]["picture"] == "dog/3.png"
    assert told["nearest"][0]["distance"] == pytest.approx(0, abs=1e-6)
    assert len(told["nearest"]) == 3
    assert not (tmp_path / "runs" / "embed-data").exists()
    table = run("embed", model, data, "--query", asked, "--query", "cat/0.png").out.splitlines()
    assert table[0].split() == ["query", "distance", "image"]
    assert len(table) == 11
    assert "dog/3.png" in table[1]


def test_an_analogy_lists_what_is_left(model, data):
    done = run(
        "embed", model, data, "--analogy", "cat/0.png", "dog/0.png", "cat/1.png", "--json", "--top", "99"
    )
    [told] = json.loads(done.out)
    assert told["query"] == "cat/1.png + dog/0.png - cat/0.png"
    assert len(told["nearest"]) == 13


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--map", "tnse"], 2, "map is 'tnse', which is not known; did you mean 'tsne'?"),
        (["--index", "hnsw"], 2, "index is 'hnsw', which is not known"),
        (["--top", "0"], 2, "top is 0; expected a number from 1"),
        (["--split", "val"], 2, "the data has no split 'val'; it has train"),
        (["--query", "cat/00.png"], 2, "none of the 16 vectors is named cat/00.png; did you mean cat/0.png?"),
        (["--query", "x.png", "--out", "y"], 2, "write no folder; leave out --out"),
        (["--set", "perplexty=3"], 2, "did you mean 'perplexity'?"),
        (["--set", "perplexity=0"], 2, "perplexity is 0.0; expected a number from 1"),
        (["--format", "tar"], 2, "the format is 'tar'"),
    ],
)
def test_what_cannot_be_is_one_sentence(model, data, words, code, told):
    done = run("embed", model, data, *words)
    assert (done.code, done.out) == (code, "")
    assert told in done.err.splitlines()[-1]
    assert not (data.parent / "runs" / "embed-data").exists()


def test_places_that_hold_nothing_are_refused(model, data, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "is empty; expected a folder for each class" in run("embed", model, tmp_path / "empty").err
    assert run("embed", model, tmp_path / "empty").code == 3
    assert run("embed", model, tmp_path / "nowhere").code == 3
    assert run("embed", tmp_path / "nomodel", data).code == 4


def test_a_picture_that_cannot_be_read_is_named_and_the_rest_is_done(model, data):
    (data / "cat" / "cut.png").write_bytes((data / "cat" / "1.png").read_bytes()[:60])
    done = run("embed", model, data, "--map", "pca", "--json")
    assert done.code == 1
    assert json.loads(done.out)["unread"] == ["cat/cut.png"]
    assert done.err.splitlines()[-1] == "1 image could not be read: cat/cut.png"


def test_splits_are_scored_apart_and_one_can_be_chosen(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tree(tmp_path / "data", {"train/cat": 6, "train/dog": 6, "val/cat": 3, "val/dog": 3})
    told = json.loads(run("embed", model, "data", "--map", "pca", "--json").out)
    assert told["scored"] == "val and test images against train images"
    assert told["scores"]["chance"] == 0.5
    told = json.loads(run("embed", model, "data", "--map", "pca", "--json", "--split", "val").out)
    assert told["pictures"] == 6
    assert told["scored"] == "leave one out"


def test_a_model_without_a_head_has_vectors_too(data, tmp_path):
    assert run("embed", small(classes=0).save(tmp_path / "headless"), data, "--map", "pca").code == 0


def test_pictures_that_a_run_learnt_from_are_parted_as_the_run_did(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = tree(tmp_path / "data", {"cat": 12, "dog": 12})
    made = train(data, model="vit_xs4_8", out="runs/mine", quiet=True, budget__epochs=1, workers=0)
    done = run("embed", made.folder, data, "--map", "pca", "--json")
    assert "note: split into train and val as in the run" in done.err
    assert json.loads(done.out)["scored"] == "val and test images against train images"
    (data / "cat" / "new.png").write_bytes(noise(999))
    done = run("embed", made.folder, data, "--map", "pca", "--json")
    assert "split into" not in done.err
    assert json.loads(done.out)["scored"] == "leave one out"


def test_help_names_the_maps_without_torch():
    done = run("embed", "--help")
    assert "pca, tsne, or umap" in " ".join(done.out.split())
