"""The bar and its lines: what they name, how steady the time left is, and what a time budget counts."""

import math
import time

import pytest
from trees import tree

from saccade import progress
from saccade.api.train import start_run
from saccade.progress import Pace, Progress, estimate, time_left, track, tracking
from saccade.tasks.classify import job
from saccade.train import start

RECIPE = ["budget.batch=8", "workers=0", "optim.ema=0", "mix.mixup=0", "mix.cutmix=0"]


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test moves."""

    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def test_a_slow_moment_does_not_move_the_time_left(clock):
    pace = Pace()
    assert math.isnan(pace.each)
    for seconds in [1.0] * 20 + [60.0] + [1.0] * 5:
        clock.now += seconds
        pace.count()
    assert pace.each == 1.0


def test_answers_that_arrive_in_batches_have_the_pace_of_their_batches(clock):
    pace = Pace()
    for _ in range(10):
        clock.now += 2.0
        for _ in range(8):
            pace.count()
    assert pace.each == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 s left"),
        (59, "59 s left"),
        (200, "3 min 20 s left"),
        (1500, "25 min left"),
        (3900, "1 h 5 min left"),
        (math.nan, ""),
    ],
)
def test_the_time_left_in_words(seconds, words):
    assert time_left(seconds) == words


def test_without_a_terminal_a_line_every_30_seconds_has_the_same_time_left(clock, capsys):
    with Progress("step", 100) as bar:
        bar.after = lambda: 20.0
        for step in range(1, 41):
            clock.now += 1.0
            bar.move(step, "train loss 0.500")
            if step == 40:
                assert bar.left == pytest.approx(80)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "step 31/100  train loss 0.500  1 min 29 s left"


def test_what_interrupts_the_steps_is_named_and_counted_apart(clock):
    with Progress("step", 10) as bar:
        for step in range(1, 6):
            clock.now += 1.0
            bar.move(step)
        for _ in track(range(4), 4, "validating"):
            clock.now += 10.0
            assert bar.line().startswith("validating")
        assert bar.main.pace.each == 1.0
        with tracking("writing the report"):
            assert bar.line() == "writing the report  5 s left"
        assert bar.line().startswith("step 5/10")


def test_a_library_that_is_imported_shows_nothing(capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", -1.0)
    assert list(track("abc", 3, "evaluating")) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""


def test_a_quiet_bar_swallows_what_is_tracked_inside(capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", -1.0)
    with Progress("step", 3, quiet=True):
        assert list(track("abc", 3, "evaluating")) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""
    assert not progress._open


def test_a_long_work_is_estimated_from_its_first_items(clock):
    seen = []

    def work():
        for item in track(range(100), 100, "validating"):
            clock.now += 5.0 if item == 0 else 2.0
            seen.append(item)

    assert estimate(work) == pytest.approx(200)
    assert seen == [0, 1, 2]


def test_a_short_work_is_measured_whole(clock):
    def work():
        for _ in track(range(2), 2, "validating"):
            clock.now += 3.0

    assert estimate(work) == pytest.approx(6)


def test_an_error_in_what_is_estimated_is_not_hidden():
    def work():
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        estimate(work)
    assert not progress._open


def test_a_terminal_gets_one_bar(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress, "OFTEN", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Progress("step", 10) as bar:
        assert bar.drawn
        bar.move(3, "train loss 0.512  train accuracy 67%")
        with tracking("writing the report"):
            pass
        bar.say("epoch 1/2")
    told = capsys.readouterr().err
    assert "30%" in told
    assert "train loss 0.512  train accuracy 67%" in told
    assert "writing the report" in told
    assert "epoch 1/2" in told


@pytest.fixture
def slow(monkeypatch):
    """Validation that takes 0.4 seconds a batch, as on a busy machine."""
    ordinary = job.answers

    def answers(module, batches):
        for answer in ordinary(module, batches):
            time.sleep(0.4)
            yield answer

    monkeypatch.setattr(job, "answers", answers)


def test_a_time_budget_counts_a_validation_that_it_has_not_seen_yet(tmp_path, slow):
    data = {"train/cat": 40, "train/dog": 40, "val/cat": 96, "val/dog": 96}
    tree(tmp_path / "pictures", data)
    began = time.monotonic()
    changes = [*RECIPE, "budget.minutes=0.15", "budget.score=100000"]  # 9 seconds: one validation, at the end
    run = start_run(str(tmp_path / "pictures"), "vit_xs4_12", tmp_path / "run", changes, quiet=True)
    run.go()
    took = time.monotonic() - began
    scored = run.time_budget.scoring
    assert scored >= 6 * 0.4
    assert took < 9 + scored  # more if the first validation came as a surprise
    assert run.state.step == run.state.steps


def test_training_and_validation_have_labels_of_their_own(tmp_path, capsys, monkeypatch):
    tree(tmp_path / "pictures", {"cat": 12, "dog": 12})
    monkeypatch.setattr(progress, "EVERY", -1.0)
    monkeypatch.setattr(progress, "OFTEN", 0.0)
    run = start_run(str(tmp_path / "pictures"), "vit_xs4_12", tmp_path / "run", [*RECIPE, "budget.epochs=2"])
    run.go()
    start.finish(run)
    told = capsys.readouterr().err
    assert "step 1/4  train loss 0." in told
    assert "  train accuracy " in told
    assert "validating " in told
    assert "evaluating " in told
    (line,) = [line for line in told.splitlines() if line.startswith("epoch 1/2")]
    assert line.split("  ")[1].startswith("train loss ")
    assert line.split("  ")[2].startswith("val loss ")
    assert line.split("  ")[3].startswith("val accuracy ")
    assert line.endswith("(best so far)")


def test_with_a_time_budget_the_clock_says_what_is_left(tmp_path, capsys, monkeypatch):
    tree(tmp_path / "pictures", {"cat": 12, "dog": 12})
    monkeypatch.setattr(progress, "EVERY", -1.0)
    monkeypatch.setattr(progress, "OFTEN", 0.0)
    changes = [*RECIPE, "budget.minutes=0.05"]
    run = start_run(str(tmp_path / "pictures"), "vit_xs4_12", tmp_path / "run", changes)
    run.go()
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step 1/")]
    seconds = int(lines[0].rsplit("  ", 1)[1].removesuffix(" s left"))
    assert 4 <= seconds <= 8  # of 3, and 5 for the report


def test_the_time_of_a_run_is_said_when_it_is_measured(tmp_path, capsys, monkeypatch):
    tree(tmp_path / "pictures", {"cat": 12, "dog": 12})
    monkeypatch.setattr(progress, "LEAST", 0.0)
    run = start_run(str(tmp_path / "pictures"), "vit_xs4_12", tmp_path / "run", [*RECIPE, "budget.epochs=5"])
    run.go()
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("time")]
    assert line.startswith("time     10 steps: about ")
    assert " on this machine (" in line
