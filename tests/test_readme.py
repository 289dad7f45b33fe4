"""Both READMEs: the same commands, and every one of them works."""

import re
import shlex
from pathlib import Path
from textwrap import indent

import pytest
from commands import CODES, prepare, run
from hub import Hub

from saccade.weights.pretrained import PRETRAINED, SMALL

ROOT = Path(__file__).parents[1]
READMES = ("README.md", "README.zh-CN.md")


def blocks(name: str, language: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands(name: str) -> list[str]:
    lines = "".join(blocks(name, "sh")).splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def quoted(block: str) -> bool:
    """A piece of the source shown to be read, not run."""
    return block.startswith("def ")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return prepare(tmp_path_factory.mktemp("readme"))


def test_both_readmes_have_the_same_commands_in_the_same_order():
    first, second = (commands(name) for name in READMES)
    assert first == second
    assert {shlex.split(line)[0] for line in first} == {"make", "saccade"}


def test_both_readmes_have_the_same_code():
    def code(name: str) -> list[str]:
        return [re.sub(r" *#.*", "", block) for block in blocks(name, "python")]

    assert code(READMES[0]) == code(READMES[1])


def test_every_make_target_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wanted = [line.split()[1:] for line in commands("README.md") if line.startswith("make ")]
    assert wanted
    assert {target for targets in wanted for target in targets} <= targets


def test_every_command_works(place):
    lines = [line for line in commands("README.md") if line.startswith("saccade ")]
    theirs = {path.name: path.read_bytes() for path in (place / "theirs").iterdir()}
    with Hub({PRETRAINED[SMALL].hub: theirs}) as hub:
        done = run(lines, place, hub)
    assert [shlex.split(line) for line, _ in done] == [shlex.split(line) for line in lines]
    assert not [(line, code) for line, code in done if code not in CODES.get(line.split()[1], {0})]
    assert (place / "why.html").is_file()


def test_every_piece_of_python_works(place, tmp_path, monkeypatch):
    for name in ("pets", "cat.jpg"):
        (tmp_path / name).symlink_to(place / name)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in (*blocks("README.md", "python"), *blocks("docs/models.md", "python")):
        if not quoted(block):
            exec(block, names)
    assert (tmp_path / "runs" / "mine" / "model.json").is_file()


@pytest.mark.parametrize("name", READMES)
def test_the_forward_pass_is_quoted_from_the_code(name):
    source = (ROOT / "src/saccade/models/vit.py").read_text()
    parts = [
        part for block in blocks(name, "python") if quoted(block) for part in block.strip().split("\n\n")
    ]
    assert len(parts) == 4
    for part in parts:
        assert indent(part, "    ") in source


@pytest.mark.parametrize("name", READMES)
def test_the_reading_path_is_as_long_as_told(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    path = re.findall(r"\]\((src/saccade/(?:models/vit|nn/block|nn/attention|nn/position)\.py)\)", text)
    assert len(path) == 4
    told = re.search(r"(\d+) (?:lines in|行)", text)
    assert told
    assert sum(len((ROOT / part).read_text().splitlines()) for part in path) == int(told[1])


@pytest.mark.parametrize("name", READMES)
def test_the_limits_told_are_those_of_the_code(name):
    from saccade.data.image import decode
    from saccade.data.image import formats as source

    text = (ROOT / name).read_text(encoding="utf-8").replace("5000 万", "50 million")
    assert f"{source.BYTES // 10**6} MB" in text
    assert f"{decode.PIXELS // 10**6} million" in text
    assert f"{decode.SIDE:,}" in text
