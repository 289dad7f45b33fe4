"""A run knows its data: what it held out, what it was trained on, and whether they are still the same."""

import json
import shutil
import subprocess
import sys

import pytest
from terminal import run
from trees import picture, tree

from saccade.api.models import Model
from saccade.data.image.preprocess import Preprocess
from saccade.models.vit import ViT, ViTConfig

QUICK = ["--set", "budget.epochs=1", "--set", "budget.batch=8", "--set", "workers=0"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run on images without a validation split of their own."""
    folder = tmp_path_factory.mktemp("own")
    tree(folder / "photos", {"cat": 20, "dog": 20})
    vit = ViT(ViTConfig(image=(12, 12), patch=4, width=24, depth=2, heads=3, hidden=48, classes=0))
    Model(vit, Preprocess(size=(12, 12), fit="squash"), []).save(folder / "small")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = run("train", "photos", "--model", "small", *QUICK)
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    """The same, to be changed; the current folder is another one."""
    shutil.copytree(made, tmp_path / "own")
    facts = tmp_path / "own/runs/photos-small/data.json"
    facts.write_text(facts.read_text().replace(str(made), str(tmp_path / "own")))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "own"


RUN = "../own/runs/photos-small"


def exported(*words):
    """Export in a process without the shape checker, which a tracer cannot pass."""
    return subprocess.run(
        [sys.executable, "-m", "saccade", "export", *words], capture_output=True, text=True, check=False
    )


def test_evaluate_uses_exactly_what_the_run_held_out(place):
    found = json.loads(run("evaluate", RUN, "--json").out)
    kept = json.loads((place / "runs/photos-small/evaluation.json").read_text())
    facts = json.loads((place / "runs/photos-small/data.json").read_text())
    assert found["split"] == "val"
    assert found["scores"]["count"] == facts["val"]["pictures"] == kept["scores"]["count"] < 20
    assert found["scores"]["confusion"] == kept["scores"]["confusion"]
    assert found["data"] == str(place / "photos")
    named = json.loads(run("evaluate", RUN, "../own/photos", "--json").out)
    assert named["scores"] == found["scores"]
    assert (
        json.loads(run("evaluate", RUN, "--split", "train", "--json").out)["scores"]["count"]
        == 40 - found["scores"]["count"]
    )


def test_evaluate_prints_the_classes_and_writes_a_page_into_the_run(place):
    done = run("evaluate", RUN)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("class"))
    assert lines[start].split() == [
        "class",
        "images",
        "correct",
        "recall",
        "precision",
        "F1",
        "mistaken",
        "for",
    ]
    assert {line.split()[0] for line in lines[start + 1 :]} == {"cat", "dog"}
    f1 = [float(line.split()[5].rstrip("%")) for line in lines[start + 1 :]]
    assert f1 == sorted(f1)
    assert f"data: {place / 'photos'}, as split by {RUN}" in done.err
    assert f"page: {RUN}/evaluation.html" in done.err
    page = (place / "runs/photos-small/evaluation.html").read_text()
    for words in (
        "Confusion matrix",
        "Precision and recall by class",
        "Reliability",
        "Worst mistakes",
        "val split",
    ):
        assert words in page
    assert "How to repeat it" not in page
    assert "<script" not in page


def test_a_page_is_never_put_into_a_folder_of_the_user(place):
    shutil.copytree(place / "runs/photos-small", place / "mine")
    (place / "mine/recipe.json").unlink()
    before = sorted(path.name for path in (place / "mine").iterdir())
    done = run("evaluate", "../own/mine", "../own/photos")
    assert done.code == 0, done.err
    assert "page:" not in done.err
    assert sorted(path.name for path in (place / "mine").iterdir()) == before
    assert run("evaluate", "../own/mine", "../own/photos", "--html", "e.html").code == 0
    assert "Worst mistakes" in (place.parent / "elsewhere/e.html").read_text()


def test_a_model_that_records_no_data_needs_some(place):
    shutil.copytree(place / "runs/photos-small", place / "mine")
    (place / "mine/data.json").unlink()
    for words in (["evaluate"], ["prune", "--keep", "0.7"], ["embed"], ["check", "--run"]):
        done = run(words[0], *words[1:], "../own/mine")
        assert done.code == 2, words
        assert (
            "../own/mine does not record the data that it was trained on, as run folders do; give DATA"
            in done.err
        )
    assert "no DATA was given; give images to check, or --run RUN" in run("check").err


def test_data_that_moved_are_missed_in_one_sentence(place):
    (place / "photos").rename(place / "pictures")
    for words in (
        ["evaluate"],
        ["prune", "--keep", "0.7"],
        ["embed"],
        ["export", "--int8"],
        ["check", "--run"],
    ):
        done = run(*words, RUN)
        assert done.code == 3, words
        expected = (
            f"error: the data of {RUN} are no longer at {place / 'photos'}; give their new place as DATA"
        )
        assert done.err.splitlines()[-1] == expected
    done = exported(RUN, "graph")
    assert done.returncode == 0, done.stderr
    assert "the graph is checked on synthetic images" in done.stderr


def test_data_that_changed_are_not_scored_by_mistake(place):
    (place / "photos/cat/100.png").write_bytes(picture(4321))
    for words in (["evaluate"], ["prune", "--keep", "0.7"], ["export", "--int8"]):
        done = run(*words, RUN)
        assert done.code == 3, words
        assert f"the images in {place / 'photos'} changed after {RUN} was trained on them" in done.err
        assert "give DATA to use them as they are" in done.err
    assert json.loads(run("evaluate", RUN, "../own/photos", "--json").out)["scores"]["count"] == 41


def test_embed_check_prune_and_export_use_the_data_of_the_run(place):
    done = run("embed", RUN, "--map", "pca", "--out", "map", "--json")
    assert done.code == 0, done.err
    assert "split into train and val as in the run" in done.err
    done = run("check", "--run", RUN, "--quick")
    assert "40 images of 2 classes" in done.err
    assert "all" in done.out
    done = run("prune", RUN, "--how", "merge", "--keep", "0.7", "--json", "--out", "thin")
    assert done.code == 0, done.err
    facts = json.loads((place / "runs/photos-small/data.json").read_text())
    assert json.loads(done.out)["pictures"] == facts["val"]["pictures"]
    done = exported(RUN, "int8", "--int8")
    assert done.returncode == 0, done.stderr
    assert f"checked on         {facts['val']['pictures']} images, and" in done.stdout


def test_a_run_resumes_from_any_folder_without_its_start_weights(place):
    whole = place / "runs/photos-small"
    recipe = json.loads((whole / "recipe.json").read_text())
    assert recipe["model"].endswith("/small")
    assert recipe["model"].startswith("/")
    first = sorted((whole / "checkpoints").iterdir())[0]
    again = shutil.copytree(whole, place / "runs/again")
    for name in ("report.html", "evaluation.json", "model.safetensors", "model.json"):
        (again / name).unlink()
    rows = (whole / "results.csv").read_text().splitlines(keepends=True)
    early = [row for row in rows[1:] if int(row.split(",")[1]) <= int(first.name[5:])]
    (again / "results.csv").write_text("".join([rows[0], *early]))
    (again / "events.jsonl").write_text("")
    for step in sorted((again / "checkpoints").iterdir())[1:]:
        shutil.rmtree(step)
    shutil.rmtree(place / "small")
    done = run("train", "--resume", "../own/runs/again")
    assert done.code == 0, done.err
    assert f"resuming from step {int(first.name[5:])} of " in done.err
    for name in ("model.safetensors", "results.csv"):
        assert (again / name).read_bytes() == (whole / name).read_bytes()


def test_a_teacher_that_moved_is_missed_in_one_sentence(place, monkeypatch):
    monkeypatch.chdir(place)
    words = ["--set", "teacher=runs/photos-small", "--out", "taught", *QUICK]
    assert run("train", "photos", "--model", "small", *words).code == 0
    (place / "taught/report.html").unlink()
    (place / "runs").rename(place / "gone")
    done = run("train", "--resume", "taught")
    assert done.code == 4
    assert f"the teacher {place / 'runs/photos-small'} is no longer there" in done.err
    assert "give its new path as `teacher` in the run's recipe.json" in done.err


def test_runs_are_listed_with_what_they_reached(place, monkeypatch):
    monkeypatch.chdir(place)
    assert (
        run("train", "photos", "--model", "small", "--probe", "--set", "workers=0").out.strip()
        == "runs/photos-probe"
    )
    shutil.copytree(place / "runs/photos-small", place / "runs/broken")
    (place / "runs/broken/report.html").unlink()
    (place / "runs/not-a-run").mkdir()
    done = run("runs")
    assert done.code == 0, done.err
    head, *lines = done.out.splitlines()
    assert head.split() == ["name", "task", "model", "data", "score", "date", "status"]
    by_name = {line.split()[0]: line for line in lines}
    assert set(by_name) == {"photos-small", "photos-probe", "broken"}
    assert by_name["photos-small"].endswith("finished")
    assert by_name["photos-probe"].endswith("probe, finished")
    assert by_name["broken"].endswith("interrupted")
    rows = {row["name"]: row for row in json.loads(run("runs", "--json").out)}
    kept = json.loads((place / "runs/photos-small/evaluation.json").read_text())["scores"]
    row = rows["photos-small"]
    assert (row["metric"], row["value"], row["examples"]) == ("accuracy", kept["accuracy"], kept["count"])
    assert row["score"] in by_name["photos-small"]
    assert (row["task"], row["model"], row["data"]) == ("classify", "small", "photos")
    assert run("runs", "nowhere").code == 2
    assert "there is no folder nowhere; expected a folder with runs" in run("runs", "nowhere").err
    (place / "none").mkdir()
    assert "no runs in none; `saccade train DATA` makes one" in run("runs", "none").err
