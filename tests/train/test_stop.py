"""SIGINT, SIGTERM and SIGHUP at any moment of `saccade train`: code 130, and a state to go on from."""

import random
import signal
import subprocess
import sys

import pytest
from nursery import ask
from place import placed, proof

from saccade.cli import app
from saccade.errors import DataError
from saccade.train.checkpoint import latest

ASKED = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(scope="module")
def place():
    with placed(epochs=3) as made:
        yield made


def trial(place, name, delay, *signals):
    """Send the signals to the command, and go on; what it said, and whether it was still there."""
    run, told = place.copy(name, save=60), place.folder / f"{name}.told"
    plan = {"delay": [delay + 0.01 * i for i in range(len(signals))], "signal": signals, "told": told}
    done = ask("cli", "train", "--resume", run, **plan)
    words = told.read_text()
    assert done["code"] in (130, 0), words
    assert "Traceback" not in words
    assert latest(run / "checkpoints")[1] == []
    assert ask("resume", run)["code"] == 0
    assert proof(run) == place.proof
    return words, done


def stopped(place, count, seed):
    """How many of so many signals, at random times, met the command at work."""
    source, met = random.Random(seed), 0
    for number in range(count):
        delay = source.uniform(0, 1) * place.seconds
        words, done = trial(place, f"{seed}-{number}", delay, ASKED[number % 3])
        if "Interrupted at step" in words:
            assert words.splitlines()[-1].startswith("Interrupted at step")
            assert "error" not in words
            assert done["code"] == 130
        met += done["code"] == 130
    return met


def test_a_signal_at_any_moment_leaves_a_state_to_go_on_from(place):
    assert stopped(place, 10, seed=0) >= 5


@pytest.mark.slow
def test_50_signals_at_any_moment_leave_a_state_to_go_on_from(place):
    assert stopped(place, 50, seed=1) >= 25


def test_the_state_is_that_of_the_step_that_was_over(place):
    run = place.copy("again", save=60)
    told = place.folder / "again.told"
    plan = {"point": "log", "nth": 5, "sent": signal.SIGINT, "told": told}
    assert ask("cli", "train", "--resume", run, **plan)["code"] == 130
    step = int(told.read_text().rsplit("Interrupted at step ")[1].split("/")[0])
    assert latest(run / "checkpoints")[0].name == f"step-{step:09}"


def test_the_second_one_leaves_at_once(place):
    trial(place, "twice", place.seconds / 2, signal.SIGINT, signal.SIGINT)


def test_an_interrupt_that_compiled_code_made_another_error_of_is_still_one(monkeypatch):
    def verb(words, **_):
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise ValueError("could not determine the shape of object") from None

    monkeypatch.setattr(app, "build_app", lambda _: verb)
    with pytest.raises(SystemExit) as end:
        app.main([])
    assert end.value.code == 130


def test_a_signal_while_an_error_is_reported_is_no_traceback(monkeypatch):
    def verb(words, **_):
        raise DataError("an error")

    monkeypatch.setattr(app, "build_app", lambda _: verb)
    monkeypatch.setattr(app, "_sentence", lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(SystemExit) as end:
        app.main([])
    assert end.value.code == 130


@pytest.mark.parametrize("number", ASKED)
def test_a_signal_while_the_process_ends_is_no_traceback(number):
    code = f"""
import atexit, signal, sys
from saccade.cli import app
atexit.register(signal.raise_signal, {int(number)})
sys.argv = ["saccade", "--version"]
app.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "")
    assert done.stdout.startswith("saccade ")
