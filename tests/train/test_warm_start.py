"""Fine-tuning starts from a linear probe, which it never falls behind, and ends within its minutes."""

import csv
import hashlib
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from trees import tree

import saccade
from saccade.api.models import Model
from saccade.api.train import resume_run, start_run
from saccade.data.image.preprocess import Preprocess
from saccade.errors import StoppedError
from saccade.models.build import build
from saccade.models.vit import ViTConfig
from saccade.tasks import find_task
from saccade.tasks.classify.recipe import EACH, MINUTES, default_recipe
from saccade.train import start
from saccade.train.start import default_recipe as recipe_for
from saccade.vision import features
from saccade.vision.features import Extract

RECIPE = ["budget.epochs=2", "budget.batch=8", "workers=0"]
TINY = ViTConfig(image=(12, 12), patch=4, width=24, depth=2, heads=3, hidden=48, classes=0)
PAIR = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def weights(folder, labels=(), **changes):
    """Weights that nobody trained, but far enough from zero to tell images apart."""
    torch.manual_seed(0)
    module = build(replace(TINY, classes=len(labels), **changes))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return Model(module, Preprocess(size=(12, 12), fit="squash"), labels).save(folder)


@pytest.fixture
def place(tmp_path):
    tree(tmp_path / "images", {"cat": 24, "dog": 24, "eel": 16})
    weights(tmp_path / "small")
    return tmp_path


def begin(place, name="run", *changes, model="small"):
    return start_run(str(place / "images"), str(place / model), place / name, [*RECIPE, *changes], quiet=True)


def rows(folder):
    with (folder / "results.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def proof(folder):
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    files = [*last.glob("*.safetensors"), last / "state.json", folder / "results.csv"]
    files += [folder / "model.safetensors", folder / "model.json"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_epoch_0_is_the_probe_and_the_kept_model_is_never_worse(place):
    run = begin(place)
    run.go()
    start.finish(run)
    first, *later = rows(run.folder)
    assert (first["epoch"], first["step"], first["train_loss"]) == ("0", "0", "")
    assert [row["epoch"] for row in later] == ["1", "2"]
    task = find_task()
    kept = task.evaluate(task.load(run.folder), run.job.splits.val, "val").metrics["accuracy"]
    assert kept == pytest.approx(max(float(row["val_accuracy"]) for row in rows(run.folder)))
    assert "NaN" not in (run.folder / "events.jsonl").read_text()


def test_the_head_is_what_a_probe_of_the_same_weights_fits(place):
    probed = saccade.load(
        find_task().probe(
            str(place / "images"), str(place / "small"), place / "probe",
            ["workers=0", "strengths=0.001,0.01,0.1,1.0", "folds=3"], "auto",
        )
    )  # fmt: skip
    run = begin(place, "run", "budget.steps=1", "optim.lr=1e-9")
    run.go()
    fitted = saccade.load(run.folder).module.head.weight
    torch.testing.assert_close(fitted, probed.module.head.weight, rtol=1e-4, atol=1e-4)
    assert len(list((place / features.FOLDER).iterdir())) == 2  # the probe's, of both splits; none of its own


def test_a_kill_before_during_and_after_the_probe_leads_to_the_same_bytes(place, monkeypatch):
    whole = begin(place, "whole")
    whole.go()
    ordinary = Extract.compute

    def killed(*_):
        raise KeyboardInterrupt

    during = begin(place, "during")
    monkeypatch.setattr(Extract, "compute", killed)
    monkeypatch.setattr(Extract, "key", lambda *_: "another")  # nothing is read from the cache
    with pytest.raises(KeyboardInterrupt):
        during.go()
    monkeypatch.undo()
    folder = during.folder
    del during
    resume_run(folder, quiet=True).go()
    assert proof(folder) == proof(whole.folder)
    assert Extract.compute is ordinary

    after = begin(place, "after")
    after.step = killed
    with pytest.raises(KeyboardInterrupt):
        after.go()
    folder = after.folder
    del after
    monkeypatch.setattr(Extract, "__call__", killed)  # the head is in the checkpoint
    resume_run(folder, quiet=True).go()
    assert proof(folder) == proof(whole.folder)


def test_a_signal_while_features_are_computed_ends_it_in_one_sentence(place):
    run = begin(place)
    ordinary = run.job.warm_start

    def warm_start(module, folder, log, team):
        run.stopped = True
        return ordinary(module, folder, log, team)

    run.job.warm_start = warm_start
    with pytest.raises(
        StoppedError, match=r"stopped before the first step; resume with: saccade train --resume"
    ):
        run.go()


@pytest.mark.parametrize(
    "labels", [["cat", "dog", "eel"], ["dog", "cat", "eel"]], ids=["same", "other order"]
)
def test_a_model_of_the_same_classes_keeps_its_head_and_is_scored_first(place, labels):
    weights(place / "known", labels)
    before = saccade.load(place / "known").module.head.weight.clone()
    run = begin(place, "run", "budget.steps=1", "optim.lr=1e-9", model="known")
    run.go()
    assert rows(run.folder)[0]["epoch"] == "0"
    same = torch.allclose(saccade.load(run.folder).module.head.weight, before, atol=1e-4)
    assert same == (labels == ["cat", "dog", "eel"])


def test_with_the_body_frozen_and_with_a_running_mean_it_starts_from_the_probe_too(place):
    one, two = begin(place, "one", "freeze=body", "optim.ema=0.9"), begin(place, "two")
    for run in (one, two):
        run.go()
    assert rows(one.folder)[0]["val_accuracy"] == rows(two.folder)[0]["val_accuracy"]


def test_it_can_be_left_out_and_from_scratch_there_is_none(place):
    run = begin(place, "run", "probe_first=false")
    run.go()
    assert [row["epoch"] for row in rows(run.folder)] == ["1", "2"]
    assert not (place / features.FOLDER).exists()
    data = str(place / "images")
    run = start_run(data, "vit_xs4_12", place / "new", RECIPE, quiet=True)
    run.go()
    assert rows(run.folder)[0]["epoch"] == "1"


def test_every_fold_starts_from_a_probe_of_its_own_training_images(place):
    words = ["train", place / "images", "--model", place / "small", "--folds", "2", "--out", place / "run"]
    done = saccade_command(*words)
    assert done.returncode == 0, done.stderr
    for number in (1, 2):
        assert rows(place / "run" / f"fold-{number}")[0]["epoch"] == "0"
    assert not list((place / "run").glob(features.FOLDER))
    assert (place / features.FOLDER).is_dir()


def saccade_command(*words, launcher=()):
    sets = [word for change in RECIPE for word in ("--set", change)]
    command = [sys.executable, *launcher, "-m", "saccade", *map(str, words), *sets]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


@pytest.mark.slow
def test_two_processes_start_from_the_same_head_as_one(place):
    for name, launcher in (("one", ()), ("two", PAIR)):
        words = ["train", place / "images", "--model", place / "small", "--out", place / name]
        done = saccade_command(*words, launcher=launcher)
        assert done.returncode == 0, done.stderr
    one, two = rows(place / "one"), rows(place / "two")
    assert [row["epoch"] for row in one] == [row["epoch"] for row in two] == ["0", "1", "2"]
    assert float(one[0]["val_loss"]) == pytest.approx(float(two[0]["val_loss"]), rel=1e-5)


def test_without_an_accelerator_it_has_minutes_that_grow_with_the_images():
    few, why = default_recipe(2400, True, 224)
    assert few.budget.limit == MINUTES
    assert "at most 6 minutes (--epochs or --minutes changes it)" in why
    assert default_recipe(10 * EACH, True, 224)[0].budget.limit == 10
    assert default_recipe(2400, True, 224, accelerator=True)[0].budget.limit == 0
    assert default_recipe(2400, False, 224)[0].budget.limit == 0


@pytest.mark.parametrize(
    "change", ["budget.epochs=3", "budget.steps=9", "budget.minutes=2", "budget.limit=0"]
)
def test_whoever_says_how_long_is_not_held_to_it(place, change):
    task = find_task()
    recipe, why = recipe_for(
        task, task.open(str(place / "images"), task.recipe()), str(place / "small"), [change]
    )
    assert recipe.budget.limit == 0
    assert "at most" not in why


def test_the_limit_ends_a_run_early_and_the_time_before_the_first_step_counts(place):
    run = begin(place, "run", "budget.epochs=1000", "budget.limit=0.1")
    ordinary = run.job.warm_start

    def warm_start(*given):
        time.sleep(1)
        return ordinary(*given)

    run.job.warm_start = warm_start
    run.go()
    assert 1 <= run.state.step < 1000 * run.per_epoch
    assert 1 < run.time_budget.spent < 0.1 * 60 * 2
    assert run.state.done == pytest.approx(1)


def test_a_limit_that_is_not_reached_changes_nothing(place):
    plain = begin(place, "plain")
    plain.go()
    timed = begin(place, "timed", "budget.limit=60")
    timed.go()
    names = ("model.safetensors", "results.csv")
    assert [proof(plain.folder)[name] for name in names] == [proof(timed.folder)[name] for name in names]
