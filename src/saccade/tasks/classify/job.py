"""Pictures to learn from: which a run takes and holds back, how they become batches, how it is judged."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import nn

from saccade import values
from saccade.data.image.preprocess import Preprocess
from saccade.data.loader import Order, scoring, steps_in, training
from saccade.data.pictures import Images
from saccade.data.readers.listing import Collection
from saccade.data.readers.open import open_images
from saccade.data.splits import few, hold_out
from saccade.errors import ModelError
from saccade.metrics.classify import Scores
from saccade.metrics.interval import wilson
from saccade.models.build import Vision, build, config_of
from saccade.models.looped import Looped
from saccade.models.modules import bare
from saccade.models.vit import ViT
from saccade.processes import Team, current
from saccade.recipe import Recipe, Training, choose, override
from saccade.report.run_page import report
from saccade.tasks.classify.evaluate import answers, judge, samples, write_json
from saccade.tasks.classify.loss import Classify
from saccade.tasks.classify.prune_loss import pruning
from saccade.tasks.task import Batch, Task
from saccade.train import folds, sinks
from saccade.train.folds import Fold, take
from saccade.train.material import Say
from saccade.train.run import Run
from saccade.train.subject import Asked, Opened, Subject, check_same
from saccade.vision import pruned as slim
from saccade.vision import slim_told, unread
from saccade.vision.backbone import (
    as_known,
    freeze,
    is_name,
    prepare,
    prepare_teacher,
    small_name,
    typical_side,
)
from saccade.weights.formats.tensors import read_json
from saccade.weights.identify import locate
from saccade.weights.load import load, write

NOUN = "pictures"


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

    def open(self, recipe: Training) -> Collection:
        """The pictures, parted as the run needs them."""
        return self.part(open_images(self.data, self.kind), recipe)

    def part(self, found: Collection, recipe: Training) -> Collection:
        """Part pictures that are opened already."""
        if self.fold is not None:
            return take(found, self.fold, recipe.seed)
        parted = hold_out(found, recipe.val, recipe.seed)
        return parted if self.fraction == 1 else few(parted, self.fraction, recipe.seed)

    def described(self, found: Collection) -> dict[str, Any]:
        """What data.json holds."""
        data = str(Path(self.data).resolve()) if Path(self.data).exists() else self.data
        return {
            "source": data,
            "kind": self.kind,
            **({} if self.fold is None else {"fold": values.to_json(self.fold)}),
            **({} if self.fraction == 1 else {"fraction": self.fraction}),
            **({"blind": True} if self.blind else {}),
            "told": found.told,
            "warnings": list(found.warnings),
            "classes": list(found.train.classes),
            **{
                name: {"pictures": len(part), "fingerprint": part.fingerprint()}
                for name, part in found.splits.items()
            },
        }


@dataclass(frozen=True, slots=True)
class Pictures:
    """What a run on pictures works with; see `saccade.train.material.Material`."""

    recipe: Recipe
    train: Images
    val: Images | None
    """None: nothing is held back, so nothing is scored."""
    module: Vision
    preprocess: Preprocess
    teacher: nn.Module | None = None
    team: Team = field(default_factory=current)
    choose: bool = True
    nouns: tuple[str, str] = (NOUN, "images")
    scored: tuple[str, ...] = ("loss", "accuracy")

    @property
    def per_epoch(self) -> int:
        return steps_in(len(self.train), self.recipe.budget.batch, self.recipe.budget.accumulate)

    def task(self, module: nn.Module, done: Callable[[], float]) -> Task:
        device = next(module.parameters()).device
        teacher = None if self.teacher is None else self.teacher.to(device)
        return pruning(Classify(module, teacher), bare(module), teacher)

    def batches(self, first: int, last: int) -> Iterator[Batch]:
        r = self.recipe
        per_epoch = self.per_epoch * r.budget.accumulate
        order = Order(len(self.train), r.budget.batch, per_epoch, r.seed, first, last, self.team.part)
        return training(self.train, self.preprocess, r.augment, r.mix, r.seed, order, r.workers)

    def amount(self, batch: Batch) -> float:
        return self.recipe.budget.batch / self.team.size

    def note(self, failed: set[int], batch: Batch, say: Say) -> None:
        unread.count(failed, batch.pop("failed").tolist(), self.train, self.recipe.bad, say)

    def name(self, number: int) -> str:
        return self.train.name(number)

    def score(self, task: Task, module: nn.Module, failed: set[int], say: Say) -> dict[str, float]:
        if self.val is None:
            return {}
        part = (0, 1) if self.team.sharded else self.team.part  # slices of one model answer all together
        unseen, seen = (
            scoring(self.val, self.preprocess, max(self.recipe.budget.batch, 32), 0, part),
            set[int](),
        )
        found, names = task.score(module, unread.noted(unseen, seen)), ("accuracy", "loss")
        gone = sorted(set(range(part[0], len(self.val), part[1])) - seen)
        unread.count(failed, gone, self.val, self.recipe.bad, say)
        count, *sums = found["count"], *(found[name] * found["count"] for name in names)
        if not self.team.sharded:
            count, *sums = self.team.sum([count, *sums])
        return {name: value / max(count, 1) for name, value in zip(names, sums, strict=True)}

    def merit(self, scores: dict[str, float]) -> float:
        return scores["accuracy"]

    def tell(self, scores: dict[str, float]) -> str:
        return f"right {scores['accuracy']:.1%}"

    def blank(self) -> nn.Module:
        return build(config_of(self.module))

    def keep(self, folder: Path, module: nn.Module) -> None:
        write(folder, cast(Vision, module), self.preprocess, list(self.train.classes))


def settle(images: Images, model: str, changes: Sequence[str]) -> tuple[Recipe, str]:
    """The recipe for these pictures as the person changed it, and the reason in a sentence."""
    side = typical_side(images)
    named = [text.partition("=")[2].strip() for text in changes if text.partition("=")[0].strip() == "model"]
    model = model or (named[-1] if named else small_name(side))
    recipe, why = choose(len(images), not is_name(model), side)
    return override(recipe, [*changes, f"model={model}"]), why


def gather(recipe: Recipe, found: Collection, source: Source) -> Opened:
    """What a run works with, of pictures that are parted already."""
    found = found if recipe.keep == 1 else as_known(found, recipe.model)
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
    made = Pictures(recipe, train, val, module, preprocess, teacher, team, chooses)
    return Opened(made, source.described(found), told)


def begin(asked: Asked) -> Opened:
    """Open pictures, choose the recipe, make the model."""
    source, found = Source(data=asked.data, kind=asked.kind), open_images(asked.data, asked.kind)
    recipe, why = settle(found.train, asked.model, asked.changes)
    found = source.part(found, recipe)
    assert found.val is not None
    opened = gather(recipe, found, source)
    told = f"{len(found.train):,} pictures to learn from, {len(found.val):,} to be scored on"
    notes = (f"note: {words}" for words in found.warnings)
    return replace(opened, told=(found.told, told, opened.model, why, *notes))


def again(folder: Path, recipe: Training, described: dict[str, Any]) -> Opened:
    """The pictures of a run folder, if they are still the same."""
    assert isinstance(recipe, Recipe)
    source = Source.of(described)
    found = source.open(recipe)
    check_same(folder, described, source.described(found), NOUN)
    return gather(recipe, found, source)


def judged(run: Run) -> tuple[Scores | None, Path]:
    """Score the model that was kept on the pictures held back, if any were, and write the report.

    A fold's answers to each of them come last: where they are, the fold is done.
    """
    material, folder = run.material, run.folder
    assert isinstance(material, Pictures)
    fold = Source.of(read_json(folder / "data.json")).fold
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
    if material.recipe.keep < 1:
        slim_told.write(folder, beside(folder, material.recipe))
    page = report(folder)
    if fold is not None:
        rows = folds.answered(material.val, p, numbers, fold.number)
        folds.write(folder / folds.PREDICTIONS, rows)
    return scores, page


def beside(folder: Path, recipe: Recipe) -> slim.Beside:
    """The model that was kept and the dense one that it came from, on pictures that neither has seen."""
    source = Source.of(read_json(folder / "data.json"))
    found = as_known(source.open(recipe), recipe.model)
    dense, kept = load(locate(recipe.model)), load(folder)
    assert isinstance(dense.module, ViT)
    assert isinstance(kept.module, Looped)
    split, images = slim.unseen(found)
    return slim.compare(dense.module, kept.module, kept.preprocess, images, split, recipe.model)


def conclude(run: Run) -> tuple[str, Path]:
    """Judge, and say in a line what came out."""
    scores, page = judged(run)
    if scores is None:
        return "", page
    low, high = wilson(scores.correct, scores.count)
    told = f"right {scores.accuracy:.1%} of {scores.count} unseen pictures"
    return f"{told} (95 % sure: {low:.1%} to {high:.1%})", page


CLASSIFY = Subject(Recipe, begin, again, conclude)
