"""A new task is one file and one line in the table: it trains, resumes, cross-validates and reports."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from terminal import run as command

from saccade import tasks
from saccade.task import Job
from saccade.tasks import find_task

LINE = {"dots": "dots:Dots"}
QUICK = ["--set", "budget.save=0", "--set", "optim.ema=0.9"]
PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from saccade import tasks; "
    f"tasks.TASKS = {LINE!r} | tasks.TASKS; from saccade.cli.app import main; main()"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """40 images of up to four dots, in a table with their numbers."""
    folder, rng = tmp_path_factory.mktemp("dots"), np.random.default_rng(0)
    rows = ["path,target"]
    for i in range(40):
        pixels, count = np.zeros((16, 16), np.uint8), int(rng.integers(0, 5))
        for place in rng.choice(16, count, replace=False).tolist():
            row, column = divmod(place, 4)
            pixels[4 * row + 1 : 4 * row + 3, 4 * column + 1 : 4 * column + 3] = 255
        Image.fromarray(pixels).save(folder / f"{i:02}.png")
        rows.append(f"{i:02}.png,{count}")
    (folder / "dots.csv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(autouse=True)
def table(monkeypatch):
    """The one line."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(tasks, "TASKS", LINE | tasks.TASKS)


def proof(run):
    last = sorted((run / "checkpoints").glob("step-*"))[-1]
    files = [*sorted(last.iterdir()), run / "results.csv", run / "model.safetensors"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def whole(data, tmp_path):
    done = command("train", str(data), "--out", str(tmp_path / "whole"), *QUICK)
    assert done.code == 0, done.err
    return tmp_path / "whole", done


def test_the_file_is_short():
    assert len((Path(__file__).parent / "dots.py").read_text().splitlines()) < 120


def test_it_trains_and_reports_with_its_own_metric_on_a_curve(whole):
    run, done = whole
    assert "mean error" in done.err
    rows = (run / "results.csv").read_text().splitlines()
    assert rows[0] == "epoch,step,train_loss,val_error,val_exact,lr"
    assert len(rows) == 4
    assert json.loads((run / "data.json").read_text())["task"] == "dots"
    assert json.loads((run / "model.json").read_text())["task"] == "dots"
    page = (run / "report.html").read_text()
    assert "Mean error" in page
    for name in ("error", "exact"):
        drawn = json.loads((run / f"plots/{name}.json").read_text())
        assert [row[1] for row in drawn["rows"]] == pytest.approx(
            [float(row.split(",")[3 if name == "error" else 4]) for row in rows[1:]]
        )


def test_a_model_of_another_task_is_refused_in_words(whole):
    run, _ = whole
    done = command("explain", str(run), "x.png")
    assert done.code in (2, 4)
    assert "Traceback" not in done.err


def test_killed_in_the_middle_it_resumes_to_the_same_bytes(data, whole, tmp_path):
    run, _ = whole
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), "train"]
    words = [*program, str(data), "--out", str(tmp_path / "killed"), *QUICK]
    child = subprocess.Popen(words, env=env, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while child.poll() is None and not list((tmp_path / "killed").glob("checkpoints/step-00000000[4-9]")):
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    resumed = subprocess.run(
        [*program, "--resume", str(tmp_path / "killed")], env=env, capture_output=True, text=True
    )
    assert resumed.returncode == 0, resumed.stderr
    assert proof(tmp_path / "killed") == proof(run)


def test_it_is_cross_validated(data, tmp_path):
    run = tmp_path / "folds"
    done = command("train", str(data), "--folds", "2", "--out", str(run), "--set", "budget.epochs=1")
    assert done.code == 0, done.err
    found = json.loads((run / "crossval.json").read_text())
    assert len(found["scores"]) == 2
    assert found["mean"] == pytest.approx(np.mean([fold["error"] for fold in found["scores"]]))
    assert len((run / "predictions.csv").read_text().splitlines()) == 41
    assert re.search(r"mean [\d.]+ ± [\d.]+ \(2 folds\)", done.err)
    assert "Mean error by fold" in (run / "report.html").read_text()


def test_it_is_evaluated_by_the_ordinary_command(data, whole):
    run, _ = whole
    done = command("evaluate", str(run), str(data), "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["scores"]["count"] == 40


def test_a_job_is_all_that_a_run_knows(data):
    task = find_task("dots")
    splits = task.open(str(data), task.recipe())
    recipe, why = task.plan(splits, "")
    assert isinstance(task.start(recipe, splits), Job)
    assert "40 images" in why
