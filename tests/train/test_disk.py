"""A disk that is full, broken, slow or gone: the checkpoint before stays whole; no log ever stops a run."""

import errno
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import torch
from nursery import ask
from place import placed, proof
from trees import tree

from saccade.api.train import resume_run, start_run
from saccade.errors import ResourceError
from saccade.files import atomic
from saccade.train import start
from saccade.train.checkpoint import latest, read, save

SENTENCE = r"cannot be written to .* \(.*\); [\d,]+ bytes are needed and [\d,]+ are free; free some"


@pytest.fixture(scope="module")
def place():
    with placed(epochs=2) as made:
        yield made


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch):
    monkeypatch.setattr(atomic, "PAUSES", (0.0, 0.0, 0.0))


class Faults:
    """Calls that write, counted; from the nth on as many as asked for fail."""

    def __init__(self, monkeypatch, nth, error, times=10**9):
        self.nth, self.number, self.times, self.calls = nth, getattr(errno, error), times, 0
        for name in ("open", "mkdir", "fsync", "replace"):
            self.put(monkeypatch, os, name)
        fdopen = os.fdopen
        monkeypatch.setattr(os, "fdopen", lambda *words: _File(fdopen(*words), self))

    def put(self, monkeypatch, owner, name):
        ordinary = getattr(owner, name)

        def patched(*words, **named):
            if name != "open" or words[1] & os.O_CREAT:
                self.strike()
            return ordinary(*words, **named)

        monkeypatch.setattr(owner, name, patched)

    def strike(self):
        self.calls += 1
        if self.nth <= self.calls < self.nth + self.times:
            raise OSError(self.number, os.strerror(self.number))


class _File:
    def __init__(self, file, faults):
        self.file, self.faults = file, faults

    def write(self, data):
        self.faults.strike()
        return self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *words):
        return self.file.__exit__(*words)


def groups(value):
    return {"module": {"a": torch.full((3, 4), value), "b": torch.full((5,), value)}, "optimizer": {}}


def strike_each_call(folder, error, times=10**9):
    """Save step 2 over and over, with the fault at the first call, the second, ...; yield what was raised."""
    save(folder, 1, groups(1.0), {"step": 1})
    for nth in range(1, 1000):
        with pytest.MonkeyPatch.context() as monkeypatch:
            faults = Faults(monkeypatch, nth, error, times)
            try:
                save(folder, 2, groups(2.0), {"step": 2})
                raised = None
            except ResourceError as caught:
                raised = caught
        if faults.calls < nth:
            return
        yield raised
        shutil.rmtree(folder / "step-000000002", ignore_errors=True)


@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT", "EIO", "EROFS", "EAGAIN", "ESTALE"])
def test_a_disk_that_fails_at_any_call_of_a_save_leaves_the_checkpoint_before(tmp_path, error):
    folder = tmp_path / "checkpoints"
    struck = 0
    for struck, raised in enumerate(strike_each_call(folder, error), 1):  # noqa: B007
        found, told = latest(folder)
        assert told == []
        value = read(found)[0]["module"]["a"][0, 0]
        if raised is None:  # the folder's own sync failed, after the checkpoint had its name
            assert value == 2
        else:
            assert raised.exit_code == 5
            assert raised.args[0].count("bytes are needed and") == 1
            assert os.strerror(getattr(errno, error)) in str(raised)
            assert value == (2 if found.name.endswith("2") else 1)
            assert [path.name for path in folder.iterdir() if path != found] in ([], ["step-000000001"])
    assert struck > 15


@pytest.mark.parametrize("error", ["EIO", "EAGAIN", "EROFS"])
def test_a_disk_that_fails_for_a_moment_is_asked_again(tmp_path, error):
    raised = list(strike_each_call(tmp_path / "checkpoints", error, times=1))
    assert raised == [None] * len(raised)
    assert len(raised) > 15


def test_it_is_asked_three_times_more_with_growing_pauses(tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(atomic, "PAUSES", (0.25, 1.0, 4.0))
    monkeypatch.setattr(time, "sleep", waits.append)
    Faults(monkeypatch, 1, "EAGAIN")
    with pytest.raises(ResourceError, match=SENTENCE):
        save(tmp_path, 2, groups(2.0), {"step": 2})
    assert waits == [0.25, 1.0, 4.0]


@pytest.mark.parametrize(("point", "error"), [("write", "ENOSPC"), ("fsync", "EIO"), ("rename", "EROFS")])
def test_a_run_ends_with_code_5_and_one_sentence_and_goes_on_when_there_is_room(place, point, error):
    run, told = place.copy(point), place.folder / f"{point}.told"
    nth = place.calls[point] // 2
    plan = {"point": point, "nth": nth, "error": error, "always": True, "told": told}
    assert ask("cli", "train", "--resume", run, **plan)["code"] == 5
    lines = [line for line in told.read_text().splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert "bytes are needed and" in lines[0]
    assert lines[0].endswith(f"with: saccade train --resume {run}")
    assert "Traceback" not in told.read_text()
    assert ask("resume", run)["code"] == 0
    assert proof(run) == place.proof


def test_a_log_that_cannot_be_written_never_stops_a_run(place):
    run = place.copy("log")
    assert ask("resume", run, point="log", error="ENOSPC", always=True)["code"] == 0
    assert proof(run) == place.proof


@pytest.fixture
def disk(tmp_path):
    """A real disk of 20 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", folder]
    if shutil.which("mount") is None or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("a disk of 20 MB cannot be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_real_disk_that_fills_up(place, disk, tmp_path):
    run, told = disk / "run", tmp_path / "told"
    shutil.copytree(place.folder / "begun", run)
    size = sum(path.stat().st_size for path in (place.folder / "whole" / "checkpoints").rglob("*")) // 2
    with (disk / "filler").open("wb") as filler:
        filler.write(b"x" * (shutil.disk_usage(disk).free - 2 * size))
    assert ask("cli", "train", "--resume", run, told=told)["code"] == 5
    assert "No space left on device" in told.read_text().splitlines()[-1]
    assert latest(run / "checkpoints")[1] == []
    assert not list(run.rglob("*.tmp"))
    (disk / "filler").unlink()
    assert ask("resume", run)["code"] == 0
    assert proof(run) == place.proof


QUICK = ["budget.epochs=2", "budget.batch=4", "budget.save=0", "workers=0"]


def begin(tmp_path, *changes):
    tree(tmp_path / "pictures", {"cat": 6, "dog": 6})
    return start_run(
        str(tmp_path / "pictures"), "vit_xs2_8", tmp_path / "run", [*QUICK, *changes], quiet=True
    )


def at_step(run, number, act):
    """Act once, after a step was logged and before it is saved."""
    ordinary = run.log.event

    def event(kind, step, **numbers):
        ordinary(kind, step, **numbers)
        if kind == "step" and step == number:
            run.log.event = ordinary
            act()

    run.log.event = event


@pytest.mark.parametrize("step", [1, 2])  # 2: an epoch's end, where the model is written first
def test_a_run_folder_that_vanishes_ends_the_run_and_is_not_made_anew(tmp_path, step):
    run, moved = begin(tmp_path), tmp_path / "moved"
    at_step(run, step, lambda: run.folder.rename(moved))
    with pytest.raises(ResourceError, match=r"\(No such file or directory\); [\d,]+ bytes are needed"):
        run.go()
    assert not run.folder.exists()
    resume_run(moved, quiet=True).go()


def test_a_run_folder_that_comes_back_in_time_is_gone_on_with(tmp_path, monkeypatch):
    run, moved = begin(tmp_path), tmp_path / "moved"
    monkeypatch.setattr(time, "sleep", lambda _: moved.exists() and moved.rename(run.folder))
    at_step(run, 1, lambda: run.folder.rename(moved))
    run.go()
    assert latest(run.folder / "checkpoints")[0].name == "step-000000004"


def test_logs_whose_places_are_taken_never_stop_a_run(tmp_path):
    run = begin(tmp_path)
    (run.folder / "events.jsonl").unlink()
    for name in ("events.jsonl", "results.csv"):
        (run.folder / name).mkdir()
    run.go()
    start.finish(run)
    assert (run.folder / "report.html").is_file()


def test_a_row_that_found_no_room_is_there_with_the_next(tmp_path):
    run = begin(tmp_path)
    (run.folder / "results.csv").mkdir()
    at_step(run, 3, lambda: (run.folder / "results.csv").rmdir())
    run.go()
    assert len((run.folder / "results.csv").read_text().splitlines()) == 3


def test_a_line_cut_off_by_a_full_disk_spoils_no_other(tmp_path):
    run = begin(tmp_path)
    with (run.folder / "events.jsonl").open("a") as file:
        file.write('{"kind": "st')
    run.log.event("step", 7)
    assert '"step": 7}' in (run.folder / "events.jsonl").read_text().splitlines()[-1]
    (run.folder / "results.csv").write_text("epoch,step,train_loss,val_loss,val_accuracy,lr\n1,2,0.5,0.")
    again = resume_run(run.folder, quiet=True)
    assert (run.folder / "results.csv").read_text() == "epoch,step,train_loss,val_loss,val_accuracy,lr\n"
    again.log.close()


def test_a_closed_terminal_never_stops_a_run(tmp_path, monkeypatch):
    run = begin(tmp_path)
    run.log.quiet = False
    with open(os.devnull) as closed:  # which cannot be written to
        monkeypatch.setattr("sys.stderr", closed)
        run.go()


def test_a_clock_that_jumps_back_harms_nothing(tmp_path, monkeypatch):
    run = begin(tmp_path)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 1e6 * run.state.step)
    run.go()
    page = start.finish(run)
    assert "Summary" in Path(page).read_text(encoding="utf-8")
    assert latest(run.folder / "checkpoints")[0].name == "step-000000004"
