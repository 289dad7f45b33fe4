"""`saccade train` and `saccade evaluate` as a newcomer types them."""

import json

import pytest
from terminal import run
from trees import tree

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
    assert done.out.strip() == "runs/pictures"
    assert (place / "runs/pictures/report.html").is_file()
    assert "with a new head for 2 classes" in done.err
    assert "validation images" in done.err
    scored = run("evaluate", "runs/pictures", "pictures")
    assert (scored.code, scored.out.split()[0]) == (0, "accuracy")
    exact = json.loads(run("evaluate", "runs/pictures", "pictures", "--json").out)
    assert exact["scores"]["count"] == 24
    again = run("train", "pictures", "--model", "small", *QUICK)
    assert again.out.strip() == "runs/pictures-2"


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
