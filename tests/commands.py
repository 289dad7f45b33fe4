"""What the commands of the documents need to run: small data, models and a hub; and a way to run them."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from hub import Hub
from oracle import random_google
from PIL import Image

import saccade
from saccade.models.build import build
from saccade.models.vit import ViTConfig
from saccade.weights.formats.tensors import read_tensors

CODES = {"doctor": {0, 1}, "check": {0, 1}}
"""1 is a finding: untrained models on random pictures may well give one."""


def tiny(classes: int = 3) -> saccade.Model:
    config = ViTConfig(image=(32, 32), patch=8, width=24, depth=2, heads=3, hidden=48, classes=classes)
    return saccade.Model(build(config), saccade.Preprocess(size=(32, 32)))


def prepare(folder: Path) -> Path:
    """Fill a folder with everything that the commands of the README and of the help speak of."""
    torch.manual_seed(0)
    config = ViTConfig(
        image=(8, 8), patch=2, width=64, depth=4, heads=4, hidden=128, classes=10, position="sincos2d"
    )
    demo = saccade.Preprocess(size=(8, 8), fit="squash", crop=1.0)
    saccade.Model(build(config), demo, [f"digit {i}" for i in range(10)]).save(folder / "runs" / "demo")
    draw = np.random.default_rng(0)
    for name in ("runs/demo/pictures/unseen-0-is-7.png", "photos/a.png", "photos/b.jpg", "cat.jpg"):
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
    return {**kept, "HF_HOME": str(home), "OMP_NUM_THREADS": "1"}  # the models are tiny


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


SHORT = """
from dataclasses import replace
from saccade.tasks.classify import recipe, task
usual = recipe.default_recipe
def short(*given):
    made, why = usual(*given)
    return replace(made, budget=replace(made.budget, epochs=1), workers=0), why
recipe.default_recipe = short
"""
"""Training by default takes an epoch, so that a test can run the commands that users start with."""


def run(
    lines: list[str], folder: Path, hub: Hub, before: str = "", seconds: int = 400
) -> list[tuple[str, int]]:
    """Run the commands in a folder, after some code; each with its exit code."""
    done = subprocess.run(
        [sys.executable, "-c", before + DRIVER],
        input=json.dumps([shlex.split(line) for line in lines]),
        cwd=folder,
        env={**environment(folder / "home"), "HF_ENDPOINT": hub.address},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout, done.stderr)  # shown if the test fails
    told = [json.loads(line) for line in done.stderr.splitlines() if line.startswith('[["saccade"')]
    return [(shlex.join(words), code) for words, code in told]
