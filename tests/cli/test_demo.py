import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from terminal import run

from saccade.api.demo import INK, SIDE, write_digits
from saccade.api.load import load


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_digits(tmp_path_factory.mktemp("wild"), images=40, seed=1)


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path))


def test_a_mask_covers_the_ink_and_little_else(made):
    paths = sorted(made.masks.rglob("*.png"))
    assert len(paths) == 360
    for path in paths[::12]:
        image = pixels(made.images / "test" / path.relative_to(made.masks)).astype(int)
        mask = pixels(path)
        assert image.shape == (SIDE, SIDE, 3)
        ink = np.abs(image - np.array(INK)).max(-1) < 8
        assert (mask[ink] == 255).all()
        assert 0.01 < (mask == 255).mean() < 0.5


def test_the_same_seed_makes_the_same_images(made, tmp_path):
    again = write_digits(tmp_path, images=40, seed=1)
    first = {path.relative_to(made.folder): path.read_bytes() for path in made.folder.rglob("*.png")}
    assert first == {path.relative_to(tmp_path): path.read_bytes() for path in again.folder.rglob("*.png")}


def test_every_class_is_in_every_split_and_among_the_unseen(made):
    for folder in (*(made.images / split for split in ("val", "test")), made.unseen):
        assert sorted(path.name for path in folder.iterdir()) == list("0123456789")


def test_the_demo_runs_the_commands_that_it_prints(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "mine").write_text("of value")
    words = ["demo", "--epochs", "1", "--images", "200", "--out", str(tmp_path / "x")]
    # in a process without the shape checker, which a traced graph does not pass
    done = subprocess.run(
        [sys.executable, "-m", "saccade", *words], capture_output=True, text=True, check=False
    )
    folder = tmp_path / "x-2"
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(folder)
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["mine"]
    commands = [shlex.split(line)[1:] for line in done.stderr.splitlines() if line.startswith("   $ ")]
    assert [words[1] for words in commands] == [
        "check",
        "train",
        "evaluate",
        "explain",
        "explain",
        "prune",
        "export",
        "predict",
    ]
    assert load(folder / "model").labels == list("0123456789")
    assert (folder / "model" / "report.html").is_file()
    assert (folder / "why.html").stat().st_size < 5_000_000
    scored = run(*commands[2][1:])
    assert (
        " ".join(next(line for line in scored.out.splitlines() if "accuracy" in line).split()) in done.stderr
    )
    assert re.search(r"\d+ of 60 digits recognised", done.stderr)
    assert "saccade train photos" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_demo_learns_to_find_the_digits(seed, tmp_path):
    done = run("demo", "--out", tmp_path / "x", "--seed", seed)
    assert done.code == 0, done.err
    tested = done.err.split("--split test")[1]
    assert float(re.search(r"accuracy (\S+)%", tested)[1]) >= 97
    assert float(re.search(r"on the object in (\S+)%", done.err)[1]) >= 90
    assert "Better than random: relevance" in done.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--epochs", "0"], "epochs is 0; expected a number from 1 to 10000"),
        (["--images", "5"], "images is 5; expected a number from 100 to 100000"),
        (["--out", ""], "the folder to write is '.'; expected a folder with a name"),
        (["--out", "/"], "the folder to write is '/'; expected a folder with a name"),
        (["--out", "/dev/null/x"], "/dev/null/x cannot be created (Not a directory); choose another folder"),
    ],
)
def test_a_demo_that_cannot_be_saved_is_refused_before_it_trains(words, told):
    done = run("demo", *words)
    assert (done.code, done.out, done.err) == (2, "", f"error: {told}\n")
