"""Both READMEs: the same commands, and every one of them works."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import numpy as np
import pytest
import torch
from hub import Hub
from oracle import random_google
from PIL import Image

import saccade
from saccade.models.build import build
from saccade.models.vit import ViTConfig
from saccade.weights.formats.tensors import read_tensors

ROOT = Path(__file__).parents[1]
READMES = ("README.md", "README.zh-CN.md")
HUB_ID = "facebook/deit-tiny-patch16-224"
CODES = {"doctor": {0, 1}}
"""1 is a finding: untrained models on random pictures may well give one."""


def blocks(name: str, language: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands(name: str) -> list[str]:
    lines = "".join(blocks(name, "sh")).splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def quoted(block: str) -> bool:
    """A piece of the source shown to be read, not run."""
    return block.startswith("def ")


def tiny(classes: int = 3) -> saccade.Model:
    config = ViTConfig(image=(32, 32), patch=8, width=24, depth=2, heads=3, hidden=48, classes=classes)
    return saccade.Model(build(config), saccade.Preprocess(size=(32, 32)))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with everything that the commands of the README speak of."""
    folder = tmp_path_factory.mktemp("readme")
    torch.manual_seed(0)
    config = ViTConfig(
        image=(8, 8), patch=2, width=64, depth=4, heads=4, hidden=128, classes=10, position="sincos2d"
    )
    demo = saccade.Preprocess(size=(8, 8), fit="squash", crop=1.0)
    saccade.Model(build(config), demo, [f"digit {i}" for i in range(10)]).save(folder / "runs" / "demo")
    draw = np.random.default_rng(0)
    for name in ("runs/demo/pictures/unseen-0-is-7.png", "photos/a.png", "photos/b.jpg"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(path)
    for i, label in enumerate(("cat", "dog", "fish") * 6):
        (folder / "pets" / label).mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 256, (32, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "pets" / label / f"{i}.png")
    np.savez(folder / "vit.npz", **random_google(classes=3))
    pairs = (("ein hund", "a dog"), ("zwei katzen", "two cats"), ("ein mann geht", "a man walks"))
    (folder / "pairs.tsv").write_text("".join(f"{a} {i}\t{b} {i}\n" for i in range(30) for a, b in pairs))
    lines = (f"the cat sat on the mat, and the dog lay on rug {i}\n" for i in range(200))
    (folder / "book.txt").write_text("".join(lines))
    (folder / "names.txt").write_text("cat\ndog\nfish\n")
    tiny().save(folder / "theirs", layout="timm")
    torch.save({"model": read_tensors(folder / "theirs")}, folder / "checkpoint.pth")
    (folder / "config.json").write_bytes((folder / "theirs" / "config.json").read_bytes())
    tiny().save(folder / "repository", layout="hf")
    return folder


def environment(home: Path) -> dict[str, str]:
    """Nothing of the user's own settings for the hub."""
    names = ("HF_", "HUGGINGFACE", "HUGGING_FACE", "TRANSFORMERS_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(names) and "proxy" not in k.lower()}
    return {**kept, "HF_HOME": str(home)}


# One process for all commands, as importing torch takes seconds; a fresh one, as users have no shape checker.
DRIVER = """
import json, sys
from saccade.cli.app import main
for line in json.load(sys.stdin):
    sys.argv = line
    try:
        main()
    except SystemExit as left:
        print(json.dumps([line, left.code or 0]), file=sys.stderr)
"""


def run(lines: list[str], folder: Path, hub: Hub) -> list[tuple[str, int]]:
    """Run the commands in a folder; each with its exit code."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps([shlex.split(line) for line in lines]),
        cwd=folder,
        env={**environment(folder / "home"), "HF_ENDPOINT": hub.address},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout, done.stderr)  # shown if the test fails
    told = [json.loads(line) for line in done.stderr.splitlines() if line.startswith('[["saccade"')]
    return [(shlex.join(words), code) for words, code in told]


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
    files = {path.name: path.read_bytes() for path in (place / "repository").iterdir()}
    with Hub({HUB_ID: files}) as hub:
        done = run(lines, place, hub)
    assert [shlex.split(line) for line, _ in done] == [shlex.split(line) for line in lines]
    assert not [(line, code) for line, code in done if code not in CODES.get(line.split()[1], {0})]
    assert (place / "vit-hf" / "config.json").is_file()


def test_every_piece_of_python_works(place, tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "demo").symlink_to(place / "runs" / "demo")
    (tmp_path / "pets").symlink_to(place / "pets")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks("README.md", "python"):  # the other one has the same code
        if not quoted(block):
            exec(block, names)
    assert (tmp_path / "runs" / "copy" / "model.json").is_file()


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
