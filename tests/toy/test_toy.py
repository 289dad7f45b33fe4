"""A new task is one file and one line in the table; every ordinary command works with it."""

import hashlib
import json
import re
import shutil
import signal
import time
from pathlib import Path

import forked
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


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A finished run, and what its command printed."""
    folder = tmp_path_factory.mktemp("toy")
    done = ask("train", data, "--out", folder / "whole", *QUICK, folder=folder)
    assert done.returncode == 0, done.stderr
    return folder / "whole", done


def test_the_file_is_short():
    assert len((Path(__file__).parent / "dots.py").read_text().splitlines()) < 120


def test_it_trains_and_reports_with_its_own_metric_on_a_curve(whole):
    run, done = whole
    assert "mean error" in done.stderr
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


def ask(*words, folder):
    """Run a command in a process of its own, without the shape checker, and return what it prints."""
    return forked.run(Path(__file__).parent, *words, code=PROGRAM, cwd=folder)


def counted(done):
    return {Path(row["picture"]).name: row.get("dots") for row in json.loads(done.stdout)}


def test_it_predicts_past_an_unreadable_file_in_every_form(data, whole, tmp_path):
    run, _ = whole
    (tmp_path / "torn.png").write_bytes((data / "01.png").read_bytes()[:40])
    words = ["predict", str(run), str(data / "00.png"), str(tmp_path / "torn.png"), str(data / "02.png")]
    done = command(*words, "--json")
    assert done.code == 1
    assert [("dots" in row, "error" in row) for row in json.loads(done.out)] == [
        (True, False),
        (False, True),
        (True, False),
    ]
    assert "1 of 3 images could not be read" in done.err
    lines = command(*words, "--csv").out.splitlines()
    assert lines[0] == "picture,rank,dots"
    assert [line.count(",") for line in lines] == [2, 2, 2, 2]
    table = command(*words).out.splitlines()
    assert table[0].split() == ["picture", "dots"]
    assert table[2].endswith("(not read)")


def test_its_graph_answers_like_its_weights_and_names_its_output(data, whole, tmp_path):
    run, _ = whole
    done = ask("export", run, tmp_path / "graph", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    described = json.loads((tmp_path / "graph" / "model.json").read_text())
    assert (described["task"], described["export"]["outputs"]) == ("dots", ["dots"])
    here, there = (counted(ask("predict", each, data, "--json", folder=tmp_path)) for each in (run, "graph"))
    assert len(here) == 40
    assert there == pytest.approx(here, abs=1e-4)


def test_it_is_benchmarked_with_its_own_metric(data, whole, tmp_path):
    run, _ = whole
    words = ("--data", data, "--engine", "eager,onnx", "--batch", "2", "--seconds", "0.1", "--json")
    done = ask("bench", run, *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    cells = json.loads(done.stdout)["cells"]
    assert [cell["engine"] for cell in cells] == ["eager", "onnx"]
    copy = shutil.copytree(data, tmp_path / "copy")  # the run's own data would be split as in training
    scores = json.loads(ask("evaluate", run, copy, "--json", folder=tmp_path).stdout)["scores"]
    assert [cell["right"] for cell in cells] == pytest.approx([scores["error"]] * 2, abs=1e-4)


def test_it_is_explained_by_every_kind_of_method_and_measured(data, whole, tmp_path):
    run, _ = whole
    for method in ("relevance", "gradcam", "occlusion"):
        done = ask("explain", run, data / "03.png", "--method", method, "--json", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        (found,) = json.loads(done.stdout)
        assert found["label"] == "dots"
        assert np.shape(found["grid"]) == (4, 4)
        assert found["truth"] is not None
        said = counted(ask("predict", run, data / "03.png", "--json", folder=tmp_path))
        assert found["value"] == pytest.approx(said["03.png"], abs=1e-4)


def test_what_the_task_cannot_do_is_refused_in_words(data, whole):
    run, _ = whole
    for words in (["prune", str(run), str(data), "--keep", "0.5"], ["embed", str(run), str(data)]):
        done = command(*words)
        assert done.code == 2, done
        assert f"saccade {words[0]} does not work with models for the task dots" in done.err


def test_a_task_that_this_version_does_not_know_is_refused_in_words(whole, monkeypatch):
    run, _ = whole
    monkeypatch.setattr(tasks, "TASKS", {k: v for k, v in tasks.TASKS.items() if k != "dots"})
    for words in (["predict", "x.png"], ["explain", "x.png"], ["export"]):
        done = command(words[0], str(run), *words[1:])
        assert done.code == 4, done
        assert "is for the task 'dots'; this version knows" in done.err


def test_killed_in_the_middle_it_resumes_to_the_same_bytes(data, whole, tmp_path):
    run, _ = whole
    words = [Path(__file__).parent, "train", data, "--out", tmp_path / "killed", *QUICK]
    child = forked.Forked(words, code=PROGRAM)
    while child.poll() is None and not list((tmp_path / "killed").glob("checkpoints/step-00000000[4-9]")):
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    resumed = ask("train", "--resume", tmp_path / "killed", folder=tmp_path)
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
    for words in ([], [str(data)]):
        done = command("evaluate", str(run), *words, "--json")
        assert done.code == 0, done.err
        assert json.loads(done.out)["scores"]["count"] == 9  # what the run held out


def test_a_job_is_all_that_a_run_knows(data):
    task = find_task("dots")
    splits = task.open(str(data), task.recipe())
    recipe, why = task.plan(splits, "")
    assert isinstance(task.start(recipe, splits), Job)
    assert "40 images" in why
