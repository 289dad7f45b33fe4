"""Language modelling, trained on running text: the next word, or a hidden one; loads without torch."""

import math
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from saccade.report.html import Draw, Html
from saccade.report.run_page import Section
from saccade.report.run_record import Record
from saccade.task import Evaluation, Job, Metric, Task

if TYPE_CHECKING:
    from saccade.recipe import Recipe
    from saccade.text.recipe import TextRecipe
    from saccade.weights.identify import Identified

DEFAULT = "gpt_mini"
PLAIN = (".txt", ".text", ".md")


class Language(Task):
    """Predict the next word of a text, or hidden words in it."""

    name, noun, unit, counted = "language", "characters", "words", "characters"
    metrics = {
        "loss": Metric("Loss", better="lower"),
        "perplexity": Metric("Perplexity", better="lower"),
        "accuracy": Metric("Word accuracy", "percent"),
    }
    headline, fold_metrics = "perplexity", metrics
    abilities = frozenset({"embed", "explain"})
    kinds = frozenset({"gpt", "bert"})
    loss_note = (
        "Training loss is measured with dropout and smoothing, so it may lie above the validation loss."
    )

    @property
    def recipe(self) -> "type[TextRecipe]":
        from saccade.text.recipe import TextRecipe

        return TextRecipe

    def matches(self, data: str, model: str) -> bool:
        from saccade.tasks import kept_task

        if Path(model).exists() and (found := kept_task(Path(model))):
            return found == self.name
        return model.startswith(("gpt", "bert")) or (not model and data.removesuffix(".gz").endswith(PLAIN))

    def reads(self, found: "Identified") -> bool:
        return found.kind in self.kinds or (found.model is None and found.text)

    def open(self, data: str, recipe: "Recipe", format: str = "auto") -> Any:
        from saccade.tasks.language.data import open_text

        return open_text(data)

    def plan(self, splits: Any, model: str) -> "tuple[TextRecipe, str]":
        from saccade.tasks.language.recipe import default_recipe

        return default_recipe(model or DEFAULT, len(splits.train))

    def start(self, recipe: "Recipe", splits: Any, resume: Path | None = None) -> Job:
        from saccade.tasks.language.job import start_job

        assert isinstance(recipe, self.recipe)
        return start_job(recipe, splits, resume)

    def load(
        self, source: "Path | Identified", engine: str = "", images: int | float = float("inf"), top: int = 5
    ) -> Any:
        from saccade.text.model import load_text

        return load_text(source, self.name)

    def open_for(self, found: "Identified", data: str, format: str = "auto") -> Any:
        from saccade.tasks.language.data import open_text

        return open_text(data)

    def evaluate(self, model: Any, examples: Any, split: str) -> Evaluation:
        from saccade.tasks.language.evaluate import evaluate_text

        return evaluate_text(model, examples, split)

    def merit(self, scores: dict[str, float]) -> float:
        """Return the probability of a word, as the geometric mean: 1 over the perplexity."""
        return math.exp(-scores["loss"])

    def summary(self, found: Evaluation) -> str:
        scores = found.metrics
        more = f"(loss {scores['loss']:.4f}, word accuracy {scores['accuracy']:.1%})"
        return f"perplexity {scores['perplexity']:.2f} {more} on {found.count:,} validation words"

    def next_commands(self, folder: Path, run: str, example: str) -> list[str]:
        from saccade.files.strict_json import read_json
        from saccade.text.vocabulary import HOLE

        kind = read_json(folder / "model.json")["model"]["kind"]
        verb, text = ("fill", f'"The {HOLE} is"') if kind == "bert" else ("complete", '"The"')
        commands = [f"{verb} {run} {text}", f"explain {run} {text} --html why.html", f"evaluate {run}"]
        return [f"saccade {command}" for command in commands]

    def score_rows(self, found: Evaluation) -> list[tuple[str, str]]:
        scores = found.metrics
        what = "of those that were hidden" if found.details["hidden"] else "after the true words"
        return [
            ("perplexity", f"{scores['perplexity']:.4f}"),
            ("loss", f"{scores['loss']:.4f}"),
            ("word accuracy", f"{scores['accuracy']:.2%}  ({what})"),
            ("words", f"{found.count}  ({found.split})"),
        ]

    def results(self, record: Record) -> Iterator[Html]:
        from saccade.text.sections import language_results

        return language_results(record)

    def sections(self, record: Record, draw: Draw) -> Iterator[Section]:
        from saccade.text.sections import sections

        return sections(record, draw, translates=False)

    def next_steps(self, record: Record) -> list[tuple[str, str]]:
        run = quote(str(record.folder))
        if str(record.recipe.get("model", "")).startswith("bert"):
            return [("Suggest a hidden word:", f'saccade fill {run} "the [MASK] sat on the mat"')]
        return [("Continue a text:", f'saccade complete {run} "Once upon a time"')]
