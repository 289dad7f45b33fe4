"""From a trained model to one that looks at fewer patches: learnt, by a fixed rule, or for a speed."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from saccade import values
from saccade.data.pictures import Images
from saccade.data.readers.listing import Collection
from saccade.data.readers.open import open_images
from saccade.errors import SaccadeError, UsageError
from saccade.files.atomic import new_folder
from saccade.models.hybrid import Hybrid
from saccade.models.looped import Looped
from saccade.models.vit import ViT
from saccade.prune.search import ENOUGH, made, search
from saccade.recipe import Recipe, override, typed
from saccade.tasks.classify.job import Source
from saccade.tokens.plan import check_saving, planned, prunable
from saccade.tokens.prune import PrunedConfig, usual_places
from saccade.train import start
from saccade.train.run import Run
from saccade.vision import pruned as slim
from saccade.vision import slim_told
from saccade.vision.backbone import as_known
from saccade.vision.pruned import Beside
from saccade.weights.formats.tensors import write_text
from saccade.weights.identify import locate
from saccade.weights.load import Loaded, load, write

Say = Callable[[str], None]


def place(model: str, out: Path | None) -> Path:
    """Where the result goes if nothing is there yet."""
    return out or Path("runs") / f"{Path(model).resolve().name.removesuffix('.safetensors')}-pruned"


def check_place(folder: Path) -> None:
    """Refuse a place where no folder can be made, before anything is measured."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; expected a folder; choose another name")
    above = next(path for path in folder.absolute().parents if path.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        why = "may not be written to" if above.is_dir() else "is a file"
        raise UsageError(f"{folder} cannot be made ({above} {why}); choose another place")


def learn(
    model: str, data: str, keep: float, out: Path | None, changes: Sequence[str], kind: str = "auto"
) -> Run:
    """A training about to begin, in which the model learns which patches matter, taught by itself."""
    vit = prunable(load(locate(model)).module)
    base = vit.hybrid if isinstance(vit, Hybrid) else vit.config
    where = _places(changes) or usual_places(vit.config.depth)
    check_saving(PrunedConfig(vit=base, keep=keep, places=where))
    usual = [*_inherited(model), "droppath=0", "optim.lr=1e-4", f"teacher={model}", *changes]
    return start.start(data, model, place(model, out), [*_epochs(data, kind), *usual, f"keep={keep}"], kind)


def _places(changes: Sequence[str]) -> tuple[int, ...]:
    """Where patches are to be dropped, if that was typed."""
    return override(Recipe(), [text for text in changes if text.partition("=")[0].strip() == "places"]).places


def _epochs(data: str, kind: str) -> list[str]:
    """Few: the model knows the pictures, and has only to learn which patches it can do without."""
    pictures = len(open_images(data, kind).train)
    return [f"budget.epochs={10 if pictures < 1000 else 5 if pictures < 20_000 else 3}"]


def _inherited(model: str) -> list[str]:
    """How the model itself was trained: the same pictures held back, the same augmentation."""
    recipe = _recipe(model)
    if recipe is None:
        return []
    kept: dict[str, Any] = {"seed": recipe.seed, "val": recipe.val, "bad": recipe.bad}
    kept |= {"augment": values.to_json(recipe.augment), "mix": values.to_json(recipe.mix)}
    return list(typed(kept))


def _recipe(model: str) -> Recipe | None:
    """How the model was trained, if it was trained here."""
    try:
        recipe, _ = start.recorded(Path(model))
    except SaccadeError:
        return None
    return recipe if isinstance(recipe, Recipe) else None


def untrained(model: str, data: str, how: str, keep: float, out: Path | None, kind: str = "auto") -> Path:
    """The model with a rule that needs no training, measured and written."""
    check_place(place(model, out))
    loaded, found = _opened(model, data, kind)
    slimmed = planned(prunable(loaded.module), how, keep)
    check_saving(slimmed.loop)
    split, images = slim.unseen(found)
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
    """The model by the plan that reaches a speed and answers best; None if the dense one reaches it."""
    check_place(place(model, out))
    loaded, found = _opened(model, data, kind, chooses=True)
    vit = prunable(loaded.module)
    choosing, split, images = slim.apart(found, ENOUGH)
    best = search(vit, loaded.preprocess, choosing, wanted, batch, say)
    if best is None:
        return None
    say(_parted(len(choosing), len(images), choosing is images))
    slimmed = made(vit, best.tried.config)
    measured = _measured(model, loaded, slimmed, images, split, ())
    told = replace(measured, speeds=(best.speed,), predicted=best.tried.predicted, wanted=best.aim)
    return _written(model, loaded, slimmed, told, out)


def _parted(some: int, others: int, same: bool) -> str:
    if same:
        return (
            f"note: {others} unseen pictures are too few to choose on some and score on others; the score is "
            f"of those that the plan was chosen on, and may be too good"
        )
    return f"the plan was chosen on {min(some, ENOUGH):,} pictures, and is scored on {others:,} others"


def _opened(model: str, data: str, kind: str, chooses: bool = False) -> tuple[Loaded, Collection]:
    """The model and its pictures, with what its training held back if those of test are not enough.

    Args:
        chooses: whether others are needed beside those of test.
    """
    loaded, source = load(locate(model)), Source(data=data, kind=kind)
    prunable(loaded.module)
    recipe = _recipe(model)
    found = as_known(open_images(data, kind), model)
    if found.test is not None and (recipe is None or not chooses):
        return loaded, found
    return loaded, source.part(found, recipe or Recipe())


def _measured(
    model: str,
    loaded: Loaded,
    slimmed: Looped,
    images: Images,
    split: str,
    batches: Sequence[int] = slim.BATCHES,
) -> Beside:
    assert isinstance(loaded.module, ViT)
    return slim.compare(loaded.module, slimmed, loaded.preprocess, images, split, model, batches)


def _written(model: str, loaded: Loaded, slimmed: Looped, told: Beside, out: Path | None) -> Path:
    """A model folder, with what was measured in it."""
    folder = new_folder(place(model, out))
    write(folder, slimmed, loaded.preprocess, loaded.labels)
    slim_told.write(folder, told)
    write_text(folder / "command.txt", " ".join(sys.argv) + "\n")
    return folder
