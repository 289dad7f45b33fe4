"""The command line as a whole: its options, its speed at the start, its exit codes."""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from terminal import run

from saccade import __version__, errors
from saccade.cli import app

OPTIONS = Path(__file__).with_name("options.txt")
HEAVY = {
    "torch",
    "numpy",
    "PIL",
    "rich",
    "sklearn",
    "huggingface_hub",
    "safetensors",
    "einops",
    "saccade.api.models",
}
MAIN = "from saccade.cli.app import main\ntry: main()\nexcept SystemExit: pass"
COMMANDS = [
    "demo",
    "check",
    "train",
    "evaluate",
    "compare",
    "prune",
    "bench",
    "predict",
    "explain",
    "embed",
    "export",
    "translate",
    "complete",
    "fill",
    "models",
    "convert",
    "pull",
    "doctor",
]


def spent(*command):
    """Seconds of CPU that a fresh process takes; unlike the clock, other processes do not change it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def loaded(code):
    """Which of the heavy packages a piece of code imports in a fresh process."""
    told = f"{code}\nimport sys; print(sorted({HEAVY} & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    return done.stderr.strip()


def listed():
    """Every option and argument of every command, a line each."""
    import typer.main

    group = typer.main.get_command(app.build_app())
    lines = [f"saccade {' '.join(param.opts)}" for param in group.params]
    for name, command in group.commands.items():
        lines += [f"saccade {name} {' '.join(param.opts)}" for param in command.params]
    return lines


def test_the_options_are_those_of_the_golden_list():
    assert listed() == OPTIONS.read_text().splitlines(), "a new option is a decision: add it to options.txt"


def test_no_command_has_too_many_options():
    for name in COMMANDS:
        most = 19 if name == "train" else 13  # which has the recipe fields that everybody types
        assert sum(line.startswith(f"saccade {name} ") for line in listed()) <= most


def test_the_help_of_every_command_has_an_example_of_it():
    done = run("--help")
    assert (done.code, done.err) == (0, "")
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", done.out, re.MULTILINE)
        told = run(name, "--help")
        assert (told.code, told.err) == (0, "")
        assert len(re.findall(rf"^    saccade {name}\b", told.out.split("Examples:")[1], re.MULTILINE)) == 3
        assert run(name, "-h").out == told.out


def test_the_help_fits_80_columns_with_no_line_cut(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("--help").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if line.endswith("...") and not line.startswith("Usage:")]
    for name in COMMANDS:
        assert max(map(len, run(name, "--help").out.splitlines())) <= 80


def test_no_word_at_all_shows_the_help_as_an_error():
    done = run()
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Usage: saccade [OPTIONS] COMMAND")


def test_the_version_is_told():
    assert run("--version") == (0, f"saccade {__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["prdict"], "no such command 'prdict'; did you mean 'predict'? See `saccade --help`"),
        (["--nonsense"], "no such option: --nonsense; see `saccade --help`"),
        (["predict"], "missing argument 'MODEL'; see `saccade predict --help`"),
        (["predict", "model"], "missing argument 'PICTURE'; see `saccade predict --help`"),
        (["models", "--top", "3"], "no such option: --top"),
        (["demo", "--epochs", "0"], "epochs is 0; expected a number from 1 to 10000"),
        (["demo", "--epochs", "many"], "invalid value for '--epochs'"),
        (["doctor", "--pictures", "x"], "--pictures was given without a model"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_two(words, told):
    done = run(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert told in done.err
    assert done.err.count("\n") == 1


def test_help_imports_nothing_heavy():
    code = f"import sys; sys.argv = ['saccade', '--help']\n{MAIN}"
    assert loaded(code) == "[]"
    assert loaded(code.replace("'--help'", "'predict', '--help'")) == "[]"


def test_a_refusal_imports_no_torch(tmp_path):
    (tmp_path / "empty.safetensors").touch()
    words = ["saccade", "predict", str(tmp_path / "empty.safetensors"), "x"]
    code = f"import sys; sys.argv = {words}\n{MAIN}"
    assert "torch" not in loaded(code).splitlines()[-1]


def test_importing_the_package_imports_nothing_heavy():
    assert loaded("import saccade; dir(saccade)") == "[]"


def test_help_is_quick():
    script = Path(sys.executable).with_name("saccade")
    assert min(spent(script, "--help") for _ in range(5)) <= 0.35


def test_importing_the_package_is_quick():
    assert min(spent(sys.executable, "-c", "import saccade") for _ in range(5)) <= 0.1


ENDS = [
    (errors.SaccadeError("words"), 2, "words"),
    (errors.UsageError("words"), 2, "words"),
    (errors.DataError("words"), 3, "words"),
    (errors.ModelError("words\nmore \x1b[31m"), 4, "words more \\x1b[31m"),
    (errors.ResourceError("words"), 5, "words"),
    (MemoryError(), 5, "the machine is out of memory"),
    (
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
        5,
        "the machine is out of memory",
    ),
    (OSError(28, "No space left on device"), 5, "no space is left"),
    (KeyError("x"), 70, "this is a bug in saccade (KeyError: 'x')"),
    (ZeroDivisionError(), 70, "this is a bug in saccade (ZeroDivisionError: ZeroDivisionError)"),
]


@pytest.mark.parametrize(("error", "code", "told"), ENDS, ids=[type(error).__name__ for error, _, _ in ENDS])
def test_each_error_is_one_line_and_its_own_exit_code(error, code, told, monkeypatch):
    def broken(name):
        raise error

    monkeypatch.setattr("saccade.models.names.config", broken)
    done = run("models", "vit_b16")
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith(f"error: {told}")
    assert done.err.count("\n") == 1
    with pytest.raises(type(error)):
        run("--debug", "models", "vit_b16")


def test_an_interruption_ends_with_130(monkeypatch):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("saccade.models.names.config", interrupted)
    assert run("models", "vit_b16").code == 130


def test_debug_shows_the_traceback():
    command = [sys.executable, "-m", "saccade", "--debug", "predict", "/nowhere", "x.png"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback (most recent call last)" in done.stderr
    assert "ModelError: no model found at '/nowhere'" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("quiet", "start"), [({}, b"\x1b[31merror:\x1b[0m "), ({"NO_COLOR": "1"}, b"error: ")]
)
def test_the_error_is_red_only_on_a_terminal_that_allows_colour(quiet, start):
    words = "[sys.executable, '-m', 'saccade', 'predict', '/nowhere', 'x']"
    command = [sys.executable, "-c", f"import pty, sys; pty.spawn({words})"]
    env = {**os.environ, **quiet}
    done = subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL, env=env)
    assert done.stdout.lstrip(b"^D\x08").startswith(start + b"no model found")
