"""Begin a run, or go on with one: read the data, choose the recipe, make the folder."""

import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saccade import __version__, values
from saccade.data.collection import Collection
from saccade.data.images import Images
from saccade.data.open import open_images
from saccade.data.split import few, hold_out
from saccade.errors import DataError, ModelError, UsageError
from saccade.metrics.classify import Scores
from saccade.metrics.interval import wilson
from saccade.train import folds, sinks
from saccade.train.distributed import Team, current, launch, restarted
from saccade.train.evaluate import answers, judge, samples, write_json
from saccade.train.folds import Fold, take
from saccade.train.material import Material
from saccade.train.model import freeze, is_name, prepare, prepare_teacher, small_name, typical_side
from saccade.train.recipe import Recipe, choose, override
from saccade.train.report import report
from saccade.train.run import Run
from saccade.train.state import latest
from saccade.weights.atomic import new_folder, sweep
from saccade.weights.files import read_json, write_text
from saccade.weights.load import load


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where the pictures of a run come from, and which of them it holds back."""

    data: str
    kind: str = "auto"
    fold: Fold | None = None
    """None: a share of the pictures, or the data's own val split."""
    fraction: float = 1.0
    """How much of each class is learnt from; what is held back is the same for every fraction."""
    blind: bool = False
    """Keep the last epoch, not the one that scores best, so that val plays no part in training."""

    @classmethod
    def of(cls, described: dict[str, Any]) -> "Source":
        """Read it from data.json."""
        fold = described.get("fold")
        try:
            if not all(isinstance(described[name], str) for name in ("source", "kind")):
                raise ValueError("the source and its kind are no words")
            place = None if fold is None else values.from_json(Fold, fold)
            return cls(
                data=described["source"],
                kind=described["kind"],
                fold=place,
                fraction=float(described.get("fraction", 1)),
                blind=described.get("blind") is True,
            )
        except (KeyError, ValueError) as error:
            raise ModelError(f"data.json of the run cannot be used ({error}); start anew") from error

    def open(self, recipe: Recipe) -> Collection:
        """The pictures, parted as the run needs them."""
        return self.part(open_images(self.data, self.kind), recipe)

    def part(self, found: Collection, recipe: Recipe) -> Collection:
        """Part pictures that are opened already."""
        if self.fold is not None:
            return take(found, self.fold, recipe.seed)
        parted = hold_out(found, recipe.val, recipe.seed)
        return parted if self.fraction == 1 else few(parted, self.fraction, recipe.seed)


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
    source, found = Source(data=data, kind=kind), open_images(data, kind)
    recipe, why = settle(found.train, model, changes)
    found = source.part(found, recipe)
    material, told = gather(recipe, found, source)
    assert material.val is not None
    wanted, team = place(data, out), material.team
    folder = wanted if made else team.told(new_folder(wanted) if team.leads else wanted)
    run = begin(folder, material, found, source, quiet)
    for words in (
        found.told,
        f"{len(material.train):,} pictures to learn from, {len(material.val):,} to be scored on",
        told,
        why,
    ):
        run.log.say(words)
    for words in found.warnings:
        run.log.say(f"note: {words}")
    return run


def place(data: str, out: Path | None) -> Path:
    """Where a run goes if nothing is there yet."""
    return out or Path("runs") / (Path(data).resolve().name or "run")


def interrupted(data: str, out: Path | None, team: Team) -> Path | None:
    """The run that torchrun has begun and, as a process failed, begins again."""
    if not restarted():
        return None
    wanted, mine = place(data, out), launch()
    found = [
        path.parent
        for path in sorted(wanted.parent.glob("*/launch.txt"))
        if path.parent.name.startswith(wanted.name)
        and path.read_text(encoding="utf-8") == mine
        and latest(path.parent / "checkpoints")[0] is not None
    ]
    return team.told(found[-1] if found else None)


def settle(images: Images, model: str, changes: Sequence[str]) -> tuple[Recipe, str]:
    """The recipe for these pictures as the person changed it, and the reason in a sentence."""
    side = typical_side(images)
    named = [text.partition("=")[2].strip() for text in changes if text.partition("=")[0].strip() == "model"]
    model = model or (named[-1] if named else small_name(side))
    recipe, why = choose(len(images), not is_name(model), side)
    return override(recipe, [*changes, f"model={model}"]), why


def begin(
    folder: Path,
    material: Material,
    found: Collection,
    source: Source,
    quiet: bool = False,
    brief: bool = False,
    command: str = "",
) -> Run:
    """A run of pictures that are parted already, in a folder that is made already."""
    run = Run(folder, material, quiet, brief)
    if material.team.leads:
        describe(folder, material.recipe, found, source, command)
        if started := launch():
            write_text(folder / "launch.txt", started)
    run.log.event("start", 0, parameters=sum(p.numel() for p in material.module.parameters()))
    run.save()
    return run


def resume(folder: Path, quiet: bool = False, brief: bool = False) -> Run:
    """A run as its newest whole checkpoint has it; refused if the pictures are not those it began with."""
    recipe, source = recorded(folder)
    found = source.open(recipe)
    check_same(folder, found)
    place, damaged = latest(folder / "checkpoints")
    if place is None and (damaged or (folder / "results.csv").exists()):
        raise ModelError(f"{folder} has no whole checkpoint to go on from; start anew")
    sweep(folder)
    run = Run(folder, gather(recipe, found, source)[0], quiet, brief)
    for words in damaged:
        run.log.say(f"note: {words}")
    if place is None:  # killed before its first step
        run.save()
    else:
        run.restore(place)
    if not brief:
        run.log.say(f"going on from step {run.state.step} of {run.plan.steps}")
    run.log.event("resume", run.state.step)
    return run


def recorded(folder: Path) -> tuple[Recipe, Source]:
    """The recipe and the source of the pictures that a run folder records."""
    if not (folder / "recipe.json").is_file():
        raise UsageError(
            f"{folder} is no run folder (it has no recipe.json); give the folder that training made"
        )
    described = read_json(folder / "recipe.json")
    if described.get("method") == "probe":
        raise UsageError(
            f"{folder} is a linear probe, which takes seconds and cannot be gone on with; run it again "
            "(the features that were computed are kept)"
        )
    try:
        recipe = values.from_json(Recipe, described)
    except ValueError as error:
        raise ModelError(f"{folder / 'recipe.json'} cannot be used: {error}") from error
    return recipe, Source.of(read_json(folder / "data.json"))


def check_same(folder: Path, found: Collection) -> None:
    """Refuse pictures that are not those the run began with."""
    described = read_json(folder / "data.json")
    for name in ("train", "val"):
        part = found.splits.get(name)
        if part is not None and part.fingerprint() != described.get(name, {}).get("fingerprint"):
            raise DataError(
                f"the pictures in {described['source']} are not those that {folder} began with; start anew"
            )


def gather(recipe: Recipe, found: Collection, source: Source) -> tuple[Material, str]:
    """What the run works with, and a sentence on the model it begins from."""
    labels = list(found.train.classes)
    module, preprocess, told = prepare(recipe, labels)
    if recipe.freeze != "none":
        freeze(module, recipe.freeze)
    teacher = prepare_teacher(recipe, labels, preprocess)
    chooses = source.fold is None and not source.blind
    train, val, team = found.train, found.val, current()
    team.device(recipe.device)  # one that is not there is refused before a folder is made
    sinks.check(recipe.track)
    team = replace(team, sharded=recipe.parallel == "fsdp" and team.size > 1)
    return Material(recipe, train, val, module, preprocess, teacher, team, chooses), told


def describe(folder: Path, recipe: object, found: Collection, source: Source, command: str = "") -> None:
    """Write what is needed to repeat the run; the command is this process's if none is given."""
    data = str(Path(source.data).resolve()) if Path(source.data).exists() else source.data
    described = {
        "source": data,
        "kind": source.kind,
        **({} if source.fold is None else {"fold": values.to_json(source.fold)}),
        **({} if source.fraction == 1 else {"fraction": source.fraction}),
        **({"blind": True} if source.blind else {}),
        "told": found.told,
        "warnings": list(found.warnings),
        "classes": list(found.train.classes),
        **{
            name: {"pictures": len(part), "fingerprint": part.fingerprint()}
            for name, part in found.splits.items()
        },
    }
    env = {"python": platform.python_version(), "torch": torch.__version__, "platform": platform.platform()}
    env |= {"threads": str(torch.get_num_threads()), "saccade": __version__}
    write_text(folder / "data.json", json.dumps(described, indent=2, ensure_ascii=False) + "\n")
    write_text(folder / "env.json", json.dumps(env, indent=2) + "\n")
    write_text(folder / "command.txt", command or " ".join(sys.argv) + "\n")
    # last, as a folder without it is no run
    write_text(folder / "recipe.json", json.dumps(values.to_json(recipe), indent=2) + "\n")


def conclude(run: Run) -> tuple[Scores | None, Path]:
    """Score the model that was kept on the pictures held back, if any were, and write the report.

    A fold's answers to each of them come last: where they are, the fold is done.
    """
    material, folder = run.material, run.folder
    fold = recorded(folder)[1].fold
    shown = samples(material.train, material.preprocess, material.recipe.augment, material.recipe.seed)
    write_json(folder / "samples.json", shown)
    if material.val is None:
        return None, report(folder)
    kept = load(folder)
    split = "val" if material.choose else "held-out"
    parts = list(answers(kept.module, kept.preprocess, material.val))
    p, labels, numbers = (np.concatenate(column) for column in zip(*parts, strict=True))
    scores, told = judge(material.val, p, labels, numbers, split=split)
    write_json(folder / "evaluation.json", told)
    page = report(folder)
    if fold is not None:
        rows = folds.answered(material.val, p, numbers, fold.number)
        folds.write(folder / folds.PREDICTIONS, rows)
    return scores, page


def finish(run: Run) -> Path:
    """Score the best model on the pictures held back, and write the report."""
    scores, page = conclude(run)
    if scores is not None:
        low, high = wilson(scores.correct, scores.count)
        run.log.say(
            f"right {scores.accuracy:.1%} of {scores.count} unseen pictures "
            f"(95 % sure: {low:.1%} to {high:.1%})"
        )
    run.log.say(f"report: {page}")
    return page
