"""The Makefile: which Python it takes, and what it says where there is none."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NONE = "no Python from 3.11 to 3.14 is installed; install one, or name it: make PYTHON=/path/to/python"

FAKE = """#!/bin/sh
# A Python of a version, for which pip finds the builds of torch given.
case "$*" in
  *ensurepip*) exit {unsupported} ;;
  *version_info*) echo {version} ;;
  "-m pip index versions torch") echo "Available versions: {builds}" ;;
  "-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
esac
"""


@pytest.fixture
def pythons(tmp_path, monkeypatch):
    """A folder with nothing but the tools that the script needs, and fake Pythons on request."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "sed", "grep", "mkdir", "cp", "rm"):
        (tools / tool).symlink_to(shutil.which(tool))
    shutil.copy(ROOT / "constraints.txt", tmp_path)
    environment = {"PATH": str(tools), "HOME": str(tmp_path)}

    def add(version: str, builds: str, supported: bool = True) -> None:
        file = tools / f"python{version}"
        file.write_text(FAKE.format(version=version, builds=builds, unsupported=int(not supported)))
        file.chmod(0o755)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["/bin/sh", str(ROOT / ".ci" / "venv"), *words]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    return add, run


def test_the_first_python_with_a_cpu_build_of_torch_is_taken(pythons):
    add, run = pythons
    add("3.12", "2.14.0+cpu, 2.13.0")
    add("3.13", "2.13.0+cpu, 2.13.0")
    add("3.14", "2.13.0+cpu, 2.13.0")
    assert run().stdout.startswith(".venv uses Python 3.13 (python3.13)")


def test_without_a_cpu_build_the_first_python_is_taken(pythons):
    add, run = pythons
    add("3.12", "2.13.0")
    add("3.14", "2.13.0")
    assert run().stdout.startswith(".venv uses Python 3.12")


def test_an_environment_is_kept_unless_another_python_is_named(pythons):
    add, run = pythons
    add("3.12", "2.13.0")
    add("3.13", "2.13.0+cpu")
    assert run("python3.12").stdout.startswith(".venv uses Python 3.12")
    assert run().stdout == run("python3.12").stdout == ""
    assert run("python3.13").stdout.startswith(".venv uses Python 3.13")


def test_a_python_that_is_missing_or_too_old_is_refused_in_one_line(pythons):
    add, run = pythons
    assert (run().returncode, run().stderr) == (2, f"{NONE}\n")
    add("3.10", "2.13.0+cpu", supported=False)
    assert (run().returncode, run().stderr) == (2, f"{NONE}\n")
    for word in ("python3.10", "nothing"):
        done = run(word)
        assert done.stderr == f"PYTHON={word} is not a Python from 3.11 to 3.14; give the path of one\n"
        assert done.returncode == 2


def test_the_metadata_lists_the_versions_that_the_script_takes():
    listed = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert listed == ["3.11", "3.12", "3.13", "3.14"]
    assert "(3, 11) <= sys.version_info < (3, 15)" in (ROOT / ".ci" / "venv").read_text()


def test_a_room_without_tests_is_refused_with_the_rooms_there_are():
    recipe = re.search(r"^quick:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    done = subprocess.run(
        ["make", "--no-print-directory", "-o", ".venv/installed", "quick", "ROOM=attic"],
        cwd=ROOT,
        env={**os.environ, "PYTHON": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout.startswith("ROOM=attic has no tests; choose one of: ")
    assert " explain " in done.stdout
