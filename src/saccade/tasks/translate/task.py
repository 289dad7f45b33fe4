"""Translation, trained on sentence pairs; loads without torch."""

from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from saccade.report.html import Draw, Html, joined, name
from saccade.report.run_page import Section
from saccade.report.run_record import Record
from saccade.task import Evaluation, Job, Metric, Task

if TYPE_CHECKING:
    from saccade.recipe import Recipe
    from saccade.text.recipe import TextRecipe
    from saccade.weights.identify import Identified

DEFAULT = "seq2seq_attention"


class Translate(Task):
    """A sentence in another language for each sentence."""

    name, noun, unit, counted = "translate", "sentence pairs", "words", "pairs"
    metrics = {
        "loss": Metric("Loss", better="lower"),
        "bleu": Metric("BLEU"),
        "perplexity": Metric("Perplexity", better="lower"),
        "accuracy": Metric("Word accuracy", "percent"),
    }
    headline, fold_metrics = "bleu", metrics
    abilities = frozenset({"embed", "explain"})
    kinds = frozenset({"seq2seq", "transformer"})
    loss_note = (
        "Training loss is measured with dropout and smoothing, so it may lie above the validation loss."
    )

    @property
    def recipe(self) -> "type[TextRecipe]":
        from saccade.text.recipe import TextRecipe

        return TextRecipe

    def matches(self, data: str, model: str) -> bool:
        from saccade.tasks import kept_task

        if Path(model).exists():
            return kept_task(Path(model)) == self.name
        return model.startswith(("seq2seq", "transformer"))

    def open(self, data: str, recipe: "Recipe", format: str = "auto") -> Any:
        from saccade.tasks.translate.data import open_pairs

        assert isinstance(recipe, self.recipe)
        return open_pairs(data, recipe.pair, recipe.bad)

    def plan(self, splits: Any, model: str) -> "tuple[TextRecipe, str]":
        from saccade.tasks.translate.recipe import default_recipe

        return default_recipe(model or DEFAULT, len(splits.train))

    def start(self, recipe: "Recipe", splits: Any, resume: Path | None = None) -> Job:
        from saccade.tasks.translate.job import start_job

        assert isinstance(recipe, self.recipe)
        return start_job(recipe, splits, resume)

    def load(
        self, source: "Path | Identified", engine: str = "", images: int | float = float("inf"), top: int = 5
    ) -> Any:
        from saccade.text.model import load_text

        return load_text(source, self.name)

    def open_for(self, found: "Identified", data: str, format: str = "auto") -> Any:
        from saccade.tasks.translate.data import open_pairs
        from saccade.text.model import SIDES, read_sides

        sides = read_sides((found.model or {}).get("sides"))
        pair = "" if sides == SIDES else "-".join(sides)
        return open_pairs(data, pair, learns=False)

    def evaluate(self, model: Any, examples: Any, split: str) -> Evaluation:
        from saccade.tasks.translate.evaluate import evaluate_pairs

        return evaluate_pairs(model, examples, split)

    def merit(self, scores: dict[str, float]) -> float:
        """Return BLEU; while it is 0, the probability of a word breaks the tie."""
        return scores["bleu"] + min(1 / scores["perplexity"], 1) * 1e-6

    def summary(self, found: Evaluation) -> str:
        from saccade.metrics.text import signature

        scores = found.metrics
        line = f"BLEU {scores['bleu']:.2f}, perplexity {scores['perplexity']:.2f}"
        return f"{line} on {found.count:,} validation sentence pairs ({signature()})"

    def next_commands(self, folder: Path, run: str, example: str) -> list[str]:
        return [
            f"saccade translate {run} {example}",
            f"saccade explain {run} {example} --html why.html",
            f"saccade evaluate {run}",
        ]

    def score_rows(self, found: Evaluation) -> list[tuple[str, str]]:
        scores, signed = found.metrics, found.details["signatures"]
        return [
            ("BLEU", f"{scores['bleu']:.2f}  ({signed['bleu']})"),
            ("BLEU, lower case", f"{scores['bleu_lowercase']:.2f}  ({signed['bleu_lowercase']})"),
            ("simple BLEU", f"{scores['simple_bleu']:.4f}  (k = 2, mean of the sentences)"),
            ("perplexity", f"{scores['perplexity']:.4f}"),
            ("loss", f"{scores['loss']:.4f}"),
            ("word accuracy", f"{scores['accuracy']:.2%}  (after the true words)"),
            ("sentence pairs", f"{found.count}  ({found.split})"),
        ]

    def results(self, record: Record) -> Iterator[Html]:
        from saccade.text.sections import translation_results

        return translation_results(record)

    def data_words(self, record: Record) -> Html:
        sides = record.data.get("sides")
        if not isinstance(sides, list) or len(sides) != 2:
            return Html("")
        return joined([" from ", name(sides[0]), " to ", name(sides[1])])

    def sections(self, record: Record, draw: Draw) -> Iterator[Section]:
        from saccade.text.sections import sections

        return sections(record, draw, translates=True)

    def next_steps(self, record: Record) -> list[tuple[str, str]]:
        return [("Translate a sentence:", f'saccade translate {quote(str(record.folder))} "A sentence."')]
