"""The contract of a task: `Task`, what users ask of a model, and `Job`, a model and its data, ready to train.

A task is one folder under saccade/tasks and one line in its table. `saccade.train`, the commands and the
report know nothing else of it. torch is imported for type checkers only, so that a task loads without it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from saccade.wording import Metric as Metric

if TYPE_CHECKING:
    from torch import Tensor, nn

    from saccade.processes import Team
    from saccade.recipe import Recipe
    from saccade.report.html import Draw, Html
    from saccade.report.run_page import Section
    from saccade.report.run_record import Record
    from saccade.weights.identify import Identified

Batch: TypeAlias = "dict[str, Tensor]"
"""Tensors by name, batch first; `index` numbers the examples, `failed` those that could not be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """How good a model is on one split."""

    split: str
    count: int
    metrics: dict[str, float]
    details: dict[str, Any]
    """What evaluation.json holds; `Task.sections` shows it."""
    rows: Sequence[dict[str, Any]] = ()
    """One row per example with its answer, for predictions.csv."""


class Target(NamedTuple):
    """What an explanation is for: a number that the outputs of a model give."""

    name: str
    score: Callable[..., Any]


class Task(ABC):
    """What users ask of a model. Stateless; torch is imported inside the methods."""

    name: ClassVar[str]
    """Written to model.json and data.json; the value of --task."""
    noun: ClassVar[str]
    """What is trained on, in the plural: images, sentence pairs."""
    unit: ClassVar[str]
    """What is counted per second: images, words."""
    counted: ClassVar[str]
    """The key under which data.json counts the examples of a split."""
    metrics: ClassVar[dict[str, Metric]]
    """The columns of results.csv, in order."""
    headline: ClassVar[str]
    """The metric that selects the best epoch and sums up a run."""
    fold_metrics: ClassVar[dict[str, Metric]]
    """What cross-validation reports of each fold."""
    loss_note: ClassVar[str] = ""
    """What a reader of the loss curve should know."""
    outputs: ClassVar[dict[str, float]] = {}
    """The outputs of an exported graph, each with its tolerance; empty if the task cannot be exported."""
    abilities: ClassVar[frozenset[str]] = frozenset()
    """Beyond train, evaluate and predict: folds, probe, prune, compare, embed, explain, export."""

    @property
    @abstractmethod
    def recipe(self) -> "type[Recipe]":
        """The frozen dataclass of its settings: the shared fields and its own."""

    @abstractmethod
    def matches(self, data: str, model: str) -> bool:
        """Return whether this task fits when --task is not given; look at names and headers only."""

    @abstractmethod
    def open(self, data: str, recipe: "Recipe", format: str = "auto") -> Any:
        """Open a dataset as splits whose examples have targets of this task's kind."""

    @abstractmethod
    def plan(self, splits: Any, model: str) -> "tuple[Recipe, str]":
        """Return the default recipe for a dataset, and the reason in one sentence."""

    @abstractmethod
    def start(self, recipe: "Recipe", splits: Any, resume: Path | None = None) -> "Job":
        """Return a model and its data, ready to train; `resume` is the folder of the run to continue."""

    @abstractmethod
    def load(self, source: "Path | Identified", engine: str = "torch") -> Any:
        """Load a model folder or an exported graph."""

    @abstractmethod
    def evaluate(self, model: Any, examples: Any, split: str) -> Evaluation:
        """Evaluate a model on one split."""

    def open_for(self, model: Any, data: str, format: str = "auto") -> Any:
        """Open a dataset to evaluate a model on."""
        return self.open(data, self.recipe(), format)

    def merit(self, scores: dict[str, float]) -> float:
        """Return what selects the best epoch: never below 0, and higher is better."""
        value = scores[self.headline]
        return value if self.metrics[self.headline].better == "higher" else 1 / (1 + value)

    def score_line(self, scores: dict[str, float]) -> str:
        """Return the scores of an epoch in a few words."""
        metric = self.metrics[self.headline]
        return f"{metric.title.lower()} {metric.words(scores[self.headline])}"

    def summary(self, found: Evaluation) -> str:
        """Return the result of a run in one line."""
        return f"{self.score_line(found.metrics)} on {found.count:,} validation {self.noun}"

    def score_rows(self, found: Evaluation) -> list[tuple[str, str]]:
        """Return the rows that `saccade evaluate` prints: a title and a value."""
        rows = [
            (metric.title.lower(), metric.words(found.metrics[name])) for name, metric in self.metrics.items()
        ]
        return [*rows, (self.noun, f"{found.count}  ({found.split})")]

    def pooled(self, parts: Sequence[Evaluation], split: str) -> Evaluation:
        """Combine the evaluations of folds into one; by default the mean, weighted by their counts."""
        total = sum(part.count for part in parts)
        names = parts[0].metrics
        metrics = {name: sum(part.metrics[name] * part.count for part in parts) / total for name in names}
        return Evaluation(
            split=split,
            count=total,
            metrics=metrics,
            details={"split": split, "scores": metrics | {"count": total}},
        )

    def fold_notes(self, splits: Any, parts: Sequence[Any]) -> list[str]:
        """Return what a user should know about folds before they are trained."""
        return []

    def revive(self, details: dict[str, Any]) -> Evaluation:
        """Return the evaluation that an evaluation.json holds."""
        scores = dict(details["scores"])
        count = int(scores.pop("count"))
        return Evaluation(split=str(details["split"]), count=count, metrics=scores, details=details)

    def results(self, record: "Record") -> "Iterator[Html]":
        """Yield the scores of evaluation.json for the summary of report.html."""
        from saccade.report.html import soft, tiles

        scores = record.evaluation.get("scores")
        if not isinstance(scores, dict):
            yield soft(record.without("The final score", "evaluation.json"))
            return
        yield tiles((m.title, m.words(scores[key]), "") for key, m in self.metrics.items() if key in scores)

    def data_words(self, record: "Record") -> "Html":
        """Return what follows "trained on 1,000 images" in the summary, such as the number of classes."""
        from saccade.report.html import Html

        return Html("")

    def sections(self, record: "Record", draw: "Draw") -> "Iterator[Section]":
        """Yield this task's sections of report.html."""
        return iter(())

    def targets(self, answer: Any) -> list[Target]:
        """Return what `explain` can be asked about, of an answer."""
        return []


def ignore_unreadable(split: str, numbers: Iterable[int]) -> None:
    """Count nothing."""


@dataclass(kw_only=True)
class Job(ABC):
    """A model and its data, ready to train: all that `Run` knows.

    A batch depends on its number, never on history.
    """

    recipe: "Recipe"
    splits: Any
    module: "nn.Module"
    summary: str = ""
    """A sentence on the model that training starts from."""
    notes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    """What data.json holds on the dataset, besides its source and its splits."""
    files: dict[str, str] = field(default_factory=dict)
    """Written to the run folder before the first step: a vocabulary."""
    unreadable: Callable[[str, Iterable[int]], None] = ignore_unreadable
    """Called by `score` with the split and the numbers of the examples that it could not read."""

    @property
    def steps(self) -> int:
        """Steps in an epoch; 0 if the number of training examples decides."""
        return 0

    @abstractmethod
    def batches(self, first: int, last: int, part: tuple[int, int]) -> "Iterator[Batch]":
        """Yield batches by number, over the whole training; of several processes, one `part` of each."""

    @abstractmethod
    def loss(self, module: "nn.Module", batch: "Batch", progress: float) -> "Batch":
        """Return `loss` and anything worth logging; `progress` is the share of the training done."""

    @abstractmethod
    def score(self, module: "nn.Module", team: "Team") -> dict[str, float]:
        """Return the metrics on the validation split, summed over processes; empty if there is none."""

    @abstractmethod
    def save(self, folder: Path, module: "nn.Module") -> None:
        """Write a model folder that `Task.load` opens."""

    def amount(self, batch: "Batch") -> float:
        """Return how many units a batch counts for in the rate per second."""
        return float(batch["index"].shape[0])

    def name(self, number: int) -> str:
        """Return the name by which a user finds a training example."""
        return f"number {number + 1:,}"

    def reason(self, split: str, number: int) -> str:
        """Return why an example could not be read."""
        return f"{self.name(number)} could not be read"

    def examples(self) -> list[dict[str, str]]:
        """Return training examples as the model sees them, for the report."""
        return []

    def finish(self, folder: Path) -> None:  # noqa: B027 - most jobs have nothing to add
        """Write further measurements of the trained model into its run folder."""
