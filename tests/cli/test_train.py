"""`saccade train` and `saccade evaluate` as a newcomer types them."""

import json
import subprocess
import sys

import pytest
from terminal import run
from trees import state, tree

from saccade.api.models import Model
from saccade.data.image.preprocess import Preprocess
from saccade.models.vit import ViT, ViTConfig

QUICK = ["--set", "budget.epochs=1", "--set", "budget.batch=8", "--set", "workers=0"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    tree(folder / "pictures", {"cat": 12, "dog": 12})
    tree(
        folder / "parted",
        {"train/cat": 6, "train/dog": 6, "val/cat": 3, "val/dog": 3, "test/cat": 2, "test/dog": 2},
    )
    tree(folder / "others", {"ant": 4, "bee": 4})
    vit = ViT(ViTConfig(image=(12, 12), patch=4, width=24, depth=1, heads=3, hidden=48, classes=0))
    Model(vit, Preprocess(size=(12, 12), fit="squash"), []).save(folder / "small")
    return folder


def test_one_command_leads_from_a_folder_to_a_model_and_its_report(place, monkeypatch):
    monkeypatch.chdir(place)
    done = run("train", "pictures", "--model", "small", *QUICK)
    assert done.code == 0, done.err
    assert done.out.strip() == "runs/pictures-small"
    assert (place / "runs/pictures-small/report.html").is_file()
    assert "with a new head for 2 classes" in done.err
    assert "validation images" in done.err
    scored = run("evaluate", "runs/pictures-small", "pictures")
    assert (scored.code, scored.out.split()[0]) == (0, "accuracy")
    exact = json.loads(run("evaluate", "runs/pictures-small", "pictures", "--json").out)
    assert (exact["split"], exact["scores"]["count"]) == ("val", 5)  # not the images that it was trained on
    again = run("train", "pictures", "--model", "small", *QUICK)
    assert again.out.strip() == "runs/pictures-small-2"


def test_the_plan_comes_before_training_and_the_summary_with_commands_that_work_after(place, monkeypatch):
    monkeypatch.chdir(place)
    done = run("train", "pictures", "--model", "small", "--out", "said", *QUICK)
    lines = [line.split(maxsplit=1) for line in done.err.splitlines()]
    titles = [line[0] for line in lines]
    assert titles[:3] == ["data", "model", "recipe"]
    assert "24 images of 2 classes" in lines[0][1]
    assert "19 images to train on, 5 to validate on" in lines[0][1]
    assert "small with a new head for 2 classes" in lines[1][1]
    assert " parameters" in lines[1][1]
    start = titles.index("result")
    assert titles[start:][:5] == ["result", "warning", "time", "folder", "next"]
    assert "95% CI" in lines[start][1]
    assert "no clear" in lines[start + 1][1] or "not clearly above" in lines[start + 1][1]
    assert lines[start + 3][1] == "said, report: said/report.html"
    commands = [lines[start + 4][1], *(" ".join(line) for line in lines[start + 5 :])]
    assert [command.split()[1] for command in commands] == ["predict", "explain", "export"]
    for command in commands[:2]:
        assert run(*command.split()[1:]).code == 0, command
    words = [sys.executable, "-m", "saccade", *commands[2].split()[1:]]  # without the shape checker
    assert subprocess.run(words, check=False).returncode == 0


def test_minutes_are_part_of_the_plan(place, monkeypatch):
    monkeypatch.chdir(place)
    words = [*QUICK[:1], "budget.batch=8", *QUICK[4:]]
    done = run("train", "pictures", "--model", "small", "--out", "timed", "--minutes", "0.02", *words)
    assert "time     0.02 minutes as asked, then the report" in done.err


def test_a_folder_that_is_not_empty_is_refused_before_anything_is_read(place, monkeypatch):
    monkeypatch.chdir(place)
    (place / "full").mkdir()
    (place / "full" / "notes.txt").write_text("mine")
    (place / "empty").mkdir()
    for more in ([], ["--probe"], ["--folds", "2"]):
        done = run("train", "pictures", "--model", "small", "--out", "full", *more)
        assert (done.code, done.out) == (2, "")
        assert "error: full exists and is not empty; nothing was written; give another name" in done.err
    assert [path.name for path in (place / "full").iterdir()] == ["notes.txt"]
    assert run("train", "pictures", "--model", "small", "--out", "empty", *QUICK).out.strip() == "empty"
    done = run("train", "pictures", "--model", "small", "--out", "empty", *QUICK)
    assert done.code == 2
    assert "empty holds a run already; nothing was written; give another name, or resume it" in done.err
    assert "saccade train --resume empty" in done.err


def test_a_finished_run_says_so_and_changes_nothing_from_any_folder(place, monkeypatch):
    monkeypatch.chdir(place)
    folder = run("train", "pictures", "--model", "small", "--out", "over", *QUICK).out.strip()
    before = state(place / folder)
    monkeypatch.chdir(place / "pictures")
    done = run("train", "--resume", f"../{folder}")
    assert (done.code, done.out.strip()) == (0, f"../{folder}")
    assert f"../{folder} is already finished: accuracy" in done.err
    assert f"start a new run from it: saccade train DATA --model ../{folder}" in done.err
    assert state(place / folder) == before


def test_a_learning_rate_that_is_far_too_high_is_not_a_success(place, monkeypatch):
    monkeypatch.chdir(place)
    words = [
        "train",
        "pictures",
        "--model",
        "vit_xs4_12",
        "--set",
        "optim.lr=10",
        "--set",
        "budget.epochs=6",
    ]
    done = run(
        *words, "--out", "hot", "--set", "budget.batch=8", "--set", "workers=0", "--set", "optim.ema=0"
    )
    assert done.code == 1
    assert done.out == ""
    assert "warning  the training diverged: its loss was 0." in done.err
    assert "The learning rate of 10 is too high" in done.err
    assert "such as --set optim.lr=0.001" in done.err
    assert done.err.splitlines()[-1].endswith("the model and its report are in hot")
    assert "the training diverged" in (place / "hot" / "report.html").read_text()


def test_the_splits_of_the_data_are_used_and_named(place, monkeypatch):
    monkeypatch.chdir(place)
    done = run("train", "parted", "--model", "small", "--out", "parted-run", *QUICK)
    assert done.code == 0, done.err
    assert "12 images to train on, 6 to validate on" in done.err
    for split, count in (("test", 4), ("val", 6), ("train", 12)):
        told = json.loads(run("evaluate", "parted-run", "parted", "--split", split, "--json").out)
        assert (told["split"], told["scores"]["count"]) == (split, count)


REFUSALS = [
    (["train"], 2, "give either DATA to start a run or --resume RUN"),
    (["train", "pictures", "--resume", "x"], 2, "give either DATA to start a run or --resume RUN"),
    (["train", "--resume", "x", "--model", "vit_ti16"], 2, "leave out the other options"),
    (["train", "--resume", "pictures"], 2, "is not a run folder"),
    (["train", "nowhere"], 3, "nowhere"),
    (["train", "pictures", "--model", "vit_b_16"], 4, "no model found at"),
    (["train", "pictures", "--set", "lr=3"], 2, "ClassifyRecipe has no field 'lr'"),
    (["train", "pictures", "--set", "optim.lr=big"], 2, "cannot become 'big'"),
    (["train", "pictures", "--format", "folder"], 2, "folder"),
    (["train", "pictures", "--model", "small", "--out", "/proc/run"], 2, "cannot be created"),
    (["evaluate", "small", "pictures"], 4, "has no head"),
    (["evaluate", "parted-model", "pictures"], 4, "no model found at"),
]


@pytest.mark.parametrize(("words", "code", "told"), REFUSALS, ids=[" ".join(r[0]) for r in REFUSALS])
def test_what_cannot_work_is_told_in_one_sentence(place, monkeypatch, words, code, told):
    monkeypatch.chdir(place)
    done = run(*words)
    assert (done.code, done.out) == (code, "")
    assert told in done.err
    assert "Traceback" not in done.err
    assert done.err.strip().splitlines()[-1].startswith("error: ")
