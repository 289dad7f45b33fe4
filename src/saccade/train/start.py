"""Begin a run, or go on with one: read the data, choose the recipe, make the folder."""

import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from statistics import median

import torch
from PIL import Image

from saccade import __version__, values
from saccade.data.collection import Collection
from saccade.data.images import Images
from saccade.data.open import open_images
from saccade.data.split import hold_out
from saccade.errors import DataError, ModelError, UsageError
from saccade.metrics.interval import wilson
from saccade.train.evaluate import evaluate, samples, write_json
from saccade.train.model import freeze_body, is_name, prepare, prepare_teacher
from saccade.train.recipe import Recipe, choose, override
from saccade.train.report import report
from saccade.train.run import Material, Run
from saccade.train.state import latest
from saccade.weights.atomic import new_folder
from saccade.weights.files import read_json, write_text
from saccade.weights.load import load


def start(
    data: str,
    model: str = "",
    out: Path | None = None,
    changes: Sequence[str] = (),
    kind: str = "auto",
    quiet: bool = False,
    made: bool = False,
) -> Run:
    """A run about to begin: all is read and checked, and its folder holds what is needed to repeat it.

    Args:
        made: `out` is there already, and empty but for the pictures.
    """
    found = open_images(data, kind)
    side = typical_side(found.train)
    model = model or small_name(side)
    recipe, why = choose(len(found.train), not is_name(model), side)
    recipe = override(replace(recipe, model=model), changes)
    found = hold_out(found, recipe.val, recipe.seed)
    train, val = found.train, found.val
    assert val is not None
    material, told = _material(recipe, train, val)
    wanted = out or Path("runs") / (Path(data).resolve().name or "run")
    folder = wanted if made else new_folder(wanted)
    run = Run(folder, material, quiet)
    for words in (
        found.told,
        f"{len(train):,} pictures to learn from, {len(val):,} to be scored on",
        told,
        why,
    ):
        run.log.say(words)
    for words in found.warnings:
        run.log.say(f"note: {words}")
    _describe(folder, data, kind, recipe, found, train, val)
    run.log.event("start", 0, parameters=sum(p.numel() for p in material.module.parameters()))
    run.save()
    return run


def resume(folder: Path, quiet: bool = False) -> Run:
    """A run as its newest whole checkpoint has it; refused if the pictures are not those it began with."""
    if not (folder / "recipe.json").is_file():
        raise UsageError(
            f"{folder} is no run folder (it has no recipe.json); give the folder that training made"
        )
    try:
        recipe = values.from_json(Recipe, read_json(folder / "recipe.json"))
    except ValueError as error:
        raise ModelError(f"{folder / 'recipe.json'} cannot be used: {error}") from error
    described = read_json(folder / "data.json")
    found = open_images(described["source"], described["kind"])
    found = hold_out(found, recipe.val, recipe.seed)
    train, val = found.train, found.val
    assert val is not None
    if train.fingerprint() != described["train"]["fingerprint"]:
        raise DataError(
            f"the pictures in {described['source']} are not those that {folder} began with; start anew"
        )
    place, damaged = latest(folder / "checkpoints")
    if place is None:
        raise ModelError(f"{folder} has no whole checkpoint to go on from; start anew")
    run = Run(folder, _material(recipe, train, val)[0], quiet)
    for words in damaged:
        run.log.say(f"note: {words}")
    run.restore(place)
    run.log.say(f"going on from step {run.state.step} of {run.plan.steps}")
    run.log.event("resume", run.state.step)
    return run


def _material(recipe: Recipe, train: Images, val: Images) -> tuple[Material, str]:
    """What the run works with, and a sentence on the model it begins from."""
    labels = list(train.classes)
    module, preprocess, told = prepare(recipe, labels)
    if recipe.freeze == "body":
        freeze_body(module)
    teacher = prepare_teacher(recipe, labels, preprocess)
    return Material(recipe, train, val, module, preprocess, teacher), told


def typical_side(images: Images, most: int = 32) -> int:
    """The median of the shorter sides of some pictures, from their headers; 224 if none can be read."""
    sides = []
    for i in range(0, len(images), max(1, len(images) // most)):
        try:
            with Image.open(BytesIO(images.read(i))) as picture:
                sides.append(min(picture.size))
        except (OSError, ValueError, DataError, Image.DecompressionBombError):
            continue
    return round(median(sides)) if sides else 224


def small_name(side: int) -> str:
    """The model to begin with where none was named: ViT-Ti, with smaller patches for smaller pictures."""
    for size, patch in ((12, 2), (48, 4), (96, 8)):
        if side <= size:
            image = max(patch * 4, round(side / patch) * patch)
            return f"vit_ti{patch}_{image}"
    return "vit_ti16"


def _describe(
    folder: Path, data: str, kind: str, recipe: Recipe, found: Collection, train: Images, val: Images
) -> None:
    """Write what is needed to repeat the run."""
    source = str(Path(data).resolve()) if Path(data).exists() else data
    parts = {"train": train, "val": val} | ({"test": found.test} if found.test is not None else {})
    described = {
        "source": source,
        "kind": kind,
        "told": found.told,
        "warnings": list(found.warnings),
        "classes": list(train.classes),
        **{name: {"pictures": len(part), "fingerprint": part.fingerprint()} for name, part in parts.items()},
    }
    env = {"python": platform.python_version(), "torch": torch.__version__, "platform": platform.platform()}
    env |= {"threads": str(torch.get_num_threads()), "saccade": __version__}
    write_text(folder / "recipe.json", json.dumps(values.to_json(recipe), indent=2) + "\n")
    write_text(folder / "data.json", json.dumps(described, indent=2, ensure_ascii=False) + "\n")
    write_text(folder / "env.json", json.dumps(env, indent=2) + "\n")
    write_text(folder / "command.txt", " ".join(sys.argv) + "\n")


def finish(run: Run) -> Path:
    """Score the best model on the pictures held back, and write the report."""
    best = load(run.folder)
    material = run.material
    scores, told = evaluate(best.module, best.preprocess, material.val)
    write_json(run.folder / "evaluation.json", told)
    shown = samples(material.train, material.preprocess, material.recipe.augment, material.recipe.seed)
    write_json(run.folder / "samples.json", shown)
    page = report(run.folder)
    low, high = wilson(scores.correct, scores.count)
    run.log.say(
        f"right {scores.accuracy:.1%} of {scores.count} unseen pictures (95 % sure: {low:.1%} to {high:.1%})"
    )
    run.log.say(f"report: {page}")
    return page
