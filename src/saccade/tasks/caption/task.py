"""Captions: a sentence for each image. Such a model answers and is explained; it is not trained here yet."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.errors import UsageError
from saccade.task import Evaluation, Job, Metric, Task

if TYPE_CHECKING:
    from saccade.recipe import Recipe
    from saccade.weights.identify import Identified

MISSING = "captioning models can be loaded and used, but not yet trained or evaluated; expected another task"


class Caption(Task):
    """A sentence for each image."""

    name, noun, unit, counted = "caption", "images", "words", "pictures"
    metrics = {"loss": Metric("Loss", better="lower")}
    headline, fold_metrics = "loss", metrics
    abilities = frozenset({"embed", "explain"})
    kinds = frozenset({"captioner"})

    @property
    def recipe(self) -> "type[Recipe]":
        raise UsageError(MISSING)

    def matches(self, data: str, model: str) -> bool:
        from saccade.tasks import kept_task

        return Path(model).exists() and kept_task(Path(model)) == self.name

    def open(self, data: str, recipe: "Recipe", format: str = "auto") -> Any:
        raise UsageError(MISSING)

    def plan(self, splits: Any, model: str) -> "tuple[Recipe, str]":
        raise UsageError(MISSING)

    def start(self, recipe: "Recipe", splits: Any, resume: Path | None = None) -> Job:
        raise UsageError(MISSING)

    def load(
        self, source: "Path | Identified", engine: str = "", images: int | float = float("inf"), top: int = 5
    ) -> Any:
        from saccade.text.model import load_text

        return load_text(source, self.name)

    def evaluate(self, model: Any, examples: Any, split: str) -> Evaluation:
        raise UsageError(MISSING)
