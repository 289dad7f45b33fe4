"""Trackers: all metrics arrive, and no tracker can stop the run."""

import json
import sys
from types import SimpleNamespace

import pytest
from trees import tree

from saccade.api.train import resume_run, start_run
from saccade.errors import StoppedError, UsageError
from saccade.recipe import Recipe, read_recipe, trackers
from saccade.train import log
from saccade.train.log import Trackers

RECIPE = ["budget.epochs=2", "budget.batch=4", "workers=0", "augment.policy=none"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return tree(tmp_path_factory.mktemp("trackers") / "pictures", {"cat": 10, "dog": 10})


def begin(pictures, out, track, made=False):
    return start_run(str(pictures), "vit_xs2_8", out, [*RECIPE, f"track={track}"], empty=made)


def events(folder):
    """{tag: {step: value}} of what a tracker should have been given."""
    found = {}
    for line in (folder / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["kind"] in ("step", "epoch"):
            for name, value in event.items():
                if name not in ("kind", "time", "step", "epoch"):
                    found.setdefault(f"{event['kind']}/{name}", {})[event["step"]] = value
    return found


def scalars(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return {tag: [(one.step, one.value) for one in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


class Diary:
    """A tracker that keeps what it is given, and raises when it is told to."""

    def __init__(self, folder, step, breaks=None, closes=True):
        self.found, self.breaks, self.closes, self.ended = [], breaks, closes, False

    def log(self, step, found):
        if self.breaks == step:
            raise RuntimeError("the service\nis gone")
        self.found.append((step, found))

    def close(self):
        self.ended = True
        if not self.closes:
            raise OSError("no answer")


def test_tensorboard_shows_the_numbers_of_the_events(pictures, tmp_path):
    pytest.importorskip("torch.utils.tensorboard", reason="the extra `track` is not installed")
    run = begin(pictures, tmp_path / "run", "tensorboard")
    run.go()
    expected, found = events(run.folder), scalars(run.folder)
    assert set(found) == set(expected)
    assert {"step/loss", "step/lr", "epoch/train_loss", "epoch/val_accuracy"} <= set(found)
    assert len(found["step/loss"]) == 8
    for tag, values in expected.items():
        assert [step for step, _ in found[tag]] == list(values)
        assert [value for _, value in found[tag]] == pytest.approx(list(values.values()), rel=1e-6)


def test_a_run_that_goes_on_shows_each_step_once(pictures, tmp_path):
    pytest.importorskip("torch.utils.tensorboard", reason="the extra `track` is not installed")
    run = begin(pictures, tmp_path / "run", "tensorboard")
    ordinary = run.step

    def step(state, logged):
        run.stopped = state.step == 5
        ordinary(state, logged)

    run.step = step
    with pytest.raises(StoppedError):
        run.go()
    log.TensorBoard(run.folder, 5).log(6, {"step/loss": 99.0})  # of a process that was killed after it
    resume_run(run.folder, quiet=True).go()
    found = scalars(run.folder)["step/loss"]
    assert [step for step, _ in found] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert 99.0 not in [value for _, value in found]


def test_a_folder_that_cannot_be_written_costs_a_note_and_nothing_else(pictures, tmp_path, capsys):
    pytest.importorskip("torch.utils.tensorboard", reason="the extra `track` is not installed")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/tensorboard").write_text("a file, so it can be no folder")
    run = begin(pictures, tmp_path / "run", "tensorboard", made=True)
    run.go()
    told = [line for line in capsys.readouterr().err.splitlines() if "tensorboard" in line]
    assert len(told) == 1
    assert told[0].startswith("note: tensorboard failed and is dropped for this run (FileExistsError: ")
    assert run.state.step == 8
    assert (run.folder / "model.safetensors").is_file()


def test_a_tracker_that_raises_is_dropped_and_the_others_stay(pictures, tmp_path, capsys, monkeypatch):
    made = {}

    def kind(word, **how):
        return lambda folder, step: made.setdefault(word, Diary(folder, step, **how))

    monkeypatch.setitem(log.TRACKER_KINDS, "wandb", kind("wandb", breaks=3))
    monkeypatch.setitem(log.TRACKER_KINDS, "mlflow", kind("mlflow", closes=False))
    monkeypatch.setattr(log, "TRACKER_MODULES", dict.fromkeys(log.TRACKER_MODULES, "json"))
    run = begin(pictures, tmp_path / "run", "wandb,mlflow")
    run.go()
    told = [line for line in capsys.readouterr().err.splitlines() if "is dropped for this run" in line]
    assert told == [
        "note: wandb failed and is dropped for this run (RuntimeError: the service is gone); "
        "events.jsonl has all metrics",
        "note: mlflow failed and is dropped for this run (OSError: no answer); events.jsonl has all metrics",
    ]
    assert [step for step, _ in made["wandb"].found] == [1, 2]
    assert not made["wandb"].ended
    assert [step for step, _ in made["mlflow"].found] == [1, 2, 3, 4, 4, 5, 6, 7, 8, 8]
    assert made["mlflow"].ended
    assert run.state.step == 8
    assert len(events(run.folder)["step/loss"]) == 8


def test_only_numbers_are_handed_on(tmp_path, monkeypatch):
    diary = Diary(tmp_path, 0)
    monkeypatch.setitem(log.TRACKER_KINDS, "wandb", lambda *_: diary)
    found = Trackers("wandb", tmp_path, 0, print)
    found.log("epoch", 4, {"epoch": 2, "val_loss": 0.5, "text": "a word", "list": [1], "count": 3})
    assert diary.found == [(4, {"epoch/val_loss": 0.5, "epoch/count": 3.0})]


@pytest.mark.parametrize(
    ("word", "command"),
    [("tensorboard", r"pip install 'saccade\[track\]'"), ("wandb", "pip install wandb")],
)
def test_a_missing_package_is_refused_before_a_folder_is_made(pictures, tmp_path, monkeypatch, word, command):
    monkeypatch.setitem(sys.modules, log.TRACKER_MODULES[word], None)
    with pytest.raises(UsageError, match=rf"track is '{word}', but .* not installed .*; run {command}, or"):
        begin(pictures, tmp_path / "run", word)
    assert not (tmp_path / "run").exists()


def test_words_are_read_from_a_line_or_a_list(tmp_path):
    assert trackers(" tensorboard, wandb,tensorboard") == ["tensorboard", "wandb"]
    assert trackers("") == []
    (tmp_path / "recipe.toml").write_text('track = ["tensorboard", "mlflow"]')
    assert read_recipe(tmp_path / "recipe.toml") == ["track=tensorboard,mlflow"]
    with pytest.raises(UsageError, match=r"track is 'tensorbord', .*did you mean 'tensorboard'\?"):
        Recipe(track="wandb,tensorbord")


def test_wandb_and_mlflow_are_called_by_their_own_names(tmp_path, monkeypatch):
    calls = []

    def note(name, given=None):
        return lambda *words, **named: (calls.append((name, words, named)), given)[1]

    run = SimpleNamespace(log=note("log"), finish=note("finish"))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=note("init", run)))
    names = ("start_run", "log_metrics", "end_run")
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(**{name: note(name) for name in names}))
    found = Trackers("wandb,mlflow", tmp_path / "run", 0, pytest.fail)
    found.log("step", 7, {"loss": 1.5})
    found.close()
    assert calls == [
        ("init", (), {"project": "saccade", "name": "run", "dir": str(tmp_path / "run")}),
        ("start_run", (), {"run_name": "run"}),
        ("log", ({"step/loss": 1.5},), {"step": 7}),
        ("log_metrics", ({"step/loss": 1.5},), {"step": 7}),
        ("finish", (), {}),
        ("end_run", (), {}),
    ]
