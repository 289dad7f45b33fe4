"""Start a run in which a model learns which patches matter (DynamicViT, Rao et al. 2021)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from saccade import values
from saccade.data.readers.open import open_images
from saccade.errors import SaccadeError
from saccade.files.atomic import run_path
from saccade.models.hybrid import Hybrid
from saccade.recipe import override, set_values, typed
from saccade.tasks import find_task
from saccade.tokens.plan import check_saving, prunable
from saccade.tokens.prune import PrunedConfig, usual_places
from saccade.train import start
from saccade.train.run import Run
from saccade.weights.identify import locate
from saccade.weights.load import load


def place(model: str, out: Path | None) -> Path:
    """Return the folder for the result, if nothing is there yet."""
    return out or run_path(model, suffix="-pruned")


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
    return start.start(find_task(), data, model, out, changes, kind, usual=place(model, None))


def _places(changes: Sequence[str]) -> tuple[int, ...]:
    """Return the blocks before which patches are dropped, if `changes` sets them."""
    found = set_values(changes).get("places", "")
    recipe: Any = override(find_task().recipe(), [f"places={found}"]) if found else None
    return () if recipe is None else recipe.places


def _epochs(data: str, kind: str) -> list[str]:
    """Return a short budget: the model is already trained, and only learns which patches it does not need."""
    pictures = len(open_images(data, kind).train)
    return [f"budget.epochs={10 if pictures < 1000 else 5 if pictures < 20_000 else 3}"]


def _inherited(model: str) -> list[str]:
    """Return the settings of the model's own training: the same held-out images, the same augmentation."""
    recipe = recipe_of(model)
    if recipe is None:
        return []
    kept: dict[str, Any] = {"seed": recipe.seed, "val": recipe.val, "bad": recipe.bad}
    kept |= {"augment": values.to_json(recipe.augment), "mix": values.to_json(recipe.mix)}
    return list(typed(kept))


def recipe_of(model: str) -> Any:
    """Return the model's recipe, if it was trained by saccade."""
    try:
        task = find_task(start.run_task(Path(model)))
        recipe, _ = start.read_run(task, Path(model))
    except SaccadeError:
        return None
    return recipe if isinstance(recipe, find_task().recipe) else None
