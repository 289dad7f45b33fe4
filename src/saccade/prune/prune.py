"""Prune a trained model to fewer patches: learnt, by a fixed rule, or to reach a speed."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from saccade import values
from saccade.data.pictures import Pictures
from saccade.data.readers.open import open_images
from saccade.data.splits import Splits
from saccade.errors import SaccadeError, UsageError
from saccade.files.atomic import new_folder, write_text
from saccade.models.hybrid import Hybrid
from saccade.models.looped import Looped
from saccade.models.vit import ViT
from saccade.prune.search import ENOUGH, made, search
from saccade.recipe import override, set_values, typed
from saccade.tasks import find_task
from saccade.tasks.classify.recipe import ClassifyRecipe
from saccade.tokens.plan import apply_plan, check_saving, prunable
from saccade.tokens.prune import PrunedConfig, usual_places
from saccade.train import start
from saccade.train.run import Run
from saccade.train.selection import Selection
from saccade.vision import pruned
from saccade.vision.backbone import as_known
from saccade.vision.pruned import PrunedComparison
from saccade.weights.identify import locate
from saccade.weights.load import Loaded, load
from saccade.weights.save import save_folder

Say = Callable[[str], None]


def place(model: str, out: Path | None) -> Path:
    """Return the folder for the result, if nothing is there yet."""
    return out or Path("runs") / f"{Path(model).resolve().name.removesuffix('.safetensors')}-pruned"


def check_place(folder: Path) -> None:
    """Refuse a path where no folder can be made, before anything is measured."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; expected a folder; choose another name")
    above = next(path for path in folder.absolute().parents if path.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        why = "is not writable" if above.is_dir() else "is a file"
        raise UsageError(f"{folder} cannot be created ({above} {why}); choose another path")


def learn(
    model: str, data: str, keep: float, out: Path | None, changes: Sequence[str], kind: str = "auto"
) -> Run:
    """Start a run in which the model learns which patches matter, with itself as the teacher."""
    vit = prunable(load(locate(model)).module)
    base = vit.hybrid if isinstance(vit, Hybrid) else vit.config
    where = _places(changes) or usual_places(vit.config.depth)
    check_saving(PrunedConfig(vit=base, keep=keep, places=where))
    usual = [*_inherited(model), "droppath=0", "optim.lr=1e-4", f"teacher={model}", *changes]
    changes = [*_epochs(data, kind), *usual, f"keep={keep}"]
    return start.start(find_task(), data, model, place(model, out), changes, kind)


def _places(changes: Sequence[str]) -> tuple[int, ...]:
    """Return the blocks before which patches are dropped, if `changes` sets them."""
    found = set_values(changes).get("places", "")
    return override(ClassifyRecipe(), [f"places={found}"]).places if found else ()


def _epochs(data: str, kind: str) -> list[str]:
    """Return a short budget: the model is trained, and only learns which patches it can do without."""
    pictures = len(open_images(data, kind).train)
    return [f"budget.epochs={10 if pictures < 1000 else 5 if pictures < 20_000 else 3}"]


def _inherited(model: str) -> list[str]:
    """Return the settings of the model's own training: the same held-out images, the same augmentation."""
    recipe = _recipe(model)
    if recipe is None:
        return []
    kept: dict[str, Any] = {"seed": recipe.seed, "val": recipe.val, "bad": recipe.bad}
    kept |= {"augment": values.to_json(recipe.augment), "mix": values.to_json(recipe.mix)}
    return list(typed(kept))


def _recipe(model: str) -> ClassifyRecipe | None:
    """Return the model's recipe, if it was trained by saccade."""
    try:
        task = find_task(start.run_task(Path(model)))
        recipe, _ = start.read_run(task, Path(model))
    except SaccadeError:
        return None
    return recipe if isinstance(recipe, ClassifyRecipe) else None


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
            f"that it was chosen on, so its accuracy may be too good"
        )
    return f"the plan was chosen on {min(some, ENOUGH):,} images and is evaluated on {others:,} others"


def _opened(model: str, data: str, kind: str, chooses: bool = False) -> tuple[Loaded, Splits[Pictures]]:
    """Load the model and its images, with its held-out validation images if the test split is not enough.

    Args:
        chooses: whether images besides the test split are needed.
    """
    loaded, selection = load(locate(model)), Selection(data=data, format=kind)
    prunable(loaded.module)
    recipe = _recipe(model)
    found = as_known(open_images(data, kind), model)
    if found.test is not None and (recipe is None or not chooses):
        return loaded, found
    return loaded, selection.apply(found, recipe or ClassifyRecipe())


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
    save_folder(folder, slimmed, loaded.preprocess, loaded.labels)
    pruned.write_comparison(folder, measured)
    write_text(folder / "command.txt", " ".join(sys.argv) + "\n")
    return folder
