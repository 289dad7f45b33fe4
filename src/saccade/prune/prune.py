"""Prune a trained model to fewer patches: learnt, by a fixed rule, or to reach a speed."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from saccade.data.pictures import Pictures
from saccade.data.readers.open import open_images
from saccade.data.splits import Splits
from saccade.errors import UsageError
from saccade.files.atomic import new_folder, write_text
from saccade.models.looped import Looped
from saccade.models.vit import ViT
from saccade.prune.learn import place, recipe_of
from saccade.prune.search import ENOUGH, made, search
from saccade.tasks import find_task
from saccade.tokens.plan import apply_plan, check_saving, prunable
from saccade.train.selection import Selection
from saccade.vision import pruned
from saccade.vision.backbone import as_known
from saccade.vision.pruned import PrunedComparison
from saccade.weights.identify import locate
from saccade.weights.load import Loaded, load
from saccade.weights.save import save_folder

Say = Callable[[str], None]


def check_place(folder: Path) -> None:
    """Refuse a path where no folder can be made, before anything is measured."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; expected a folder; choose another name")
    above = next(path for path in folder.absolute().parents if path.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        why = "is not writable" if above.is_dir() else "is a file"
        raise UsageError(f"{folder} cannot be created ({above} {why}); choose another path")


def untrained(model: str, data: str, how: str, keep: float, out: Path | None, kind: str = "auto") -> Path:
    """Prune by a rule that needs no training; measure, write and return the folder."""
    check_place(place(model, out))
    loaded, found = _opened(model, data, kind)
    slimmed = apply_plan(prunable(loaded.module), how, keep)
    check_saving(slimmed.loop)
    split, images = found.unseen()
    return _written(model, loaded, slimmed, _measured(model, loaded, slimmed, images, split), out)


def chosen(
    model: str,
    data: str,
    wanted: Callable[[float], float],
    batch: int,
    out: Path | None,
    say: Say,
    kind: str = "auto",
) -> Path | None:
    """Prune by the most accurate plan that reaches a speed; None if the dense model reaches it."""
    check_place(place(model, out))
    loaded, found = _opened(model, data, kind, chooses=True)
    vit = prunable(loaded.module)
    choosing, split, images = pruned.apart(found, ENOUGH)
    best = search(vit, loaded.preprocess, choosing, wanted, batch, say)
    if best is None:
        return None
    say(_parted(len(choosing), len(images), choosing is images))
    slimmed = made(vit, best.tried.config)
    measured = _measured(model, loaded, slimmed, images, split, ())
    found_best = replace(measured, speeds=(best.speed,), predicted=best.tried.predicted, wanted=best.aim)
    return _written(model, loaded, slimmed, found_best, out)


def _parted(some: int, others: int, same: bool) -> str:
    if same:
        return (
            f"note: {others} held-out images are too few to split; the plan is evaluated on the images "
            f"that it was chosen on, so its accuracy may be optimistic"
        )
    return f"the plan was chosen on {min(some, ENOUGH):,} images and is evaluated on {others:,} others"


def _opened(model: str, data: str, kind: str, chooses: bool = False) -> tuple[Loaded, Splits[Pictures]]:
    """Load the model and its images, with its held-out validation images if the test split is not enough.

    Args:
        chooses: whether images besides the test split are needed.
    """
    loaded, selection = load(locate(model)), Selection(data=data, format=kind)
    prunable(loaded.module)
    recipe = recipe_of(model)
    found = as_known(open_images(data, kind), model)
    if found.test is not None and (recipe is None or not chooses):
        return loaded, found
    return loaded, selection.apply(found, recipe or find_task().recipe())


def _measured(
    model: str,
    loaded: Loaded,
    slimmed: Looped,
    images: Pictures,
    split: str,
    batches: Sequence[int] = pruned.BATCHES,
) -> PrunedComparison:
    assert isinstance(loaded.module, ViT)
    return pruned.compare(loaded.module, slimmed, loaded.preprocess, images, split, model, batches)


def _written(
    model: str, loaded: Loaded, slimmed: Looped, measured: PrunedComparison, out: Path | None
) -> Path:
    """Write a model folder with the comparison in it."""
    folder = new_folder(place(model, out))
    from saccade.weights.lineage import descent

    lineage = () if loaded.origin is None else descent(loaded.origin)
    save_folder(folder, slimmed, loaded.preprocess, loaded.labels, task=find_task().name, lineage=lineage)
    pruned.write_comparison(folder, measured)
    write_text(folder / "command.txt", " ".join(sys.argv) + "\n")
    return folder
