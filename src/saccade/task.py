"""The contract of a task: `Task`, `Job` and `StreamModel`.

`Task` is what users ask of a model, `Job` a model and its data, ready to train, and `StreamModel` weights or
a graph, ready to answer. A task is one folder under saccade/tasks and one line in its table: the commands,
the run and the report know nothing else about it. torch is imported for type checkers only, so that a task
loads without it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from saccade.engine.stream import BATCH, StreamModel, stream
from saccade.errors import UsageError
from saccade.files.strict_json import read_json
from saccade.wording import Metric as Metric

if TYPE_CHECKING:
    from torch import Tensor, nn

    from saccade.processes import Team
    from saccade.recipe import Recipe
    from saccade.report.html import Draw, Html
    from saccade.report.run_page import Section
    from saccade.report.run_record import Record
    from saccade.weights.identify import Identified

SCRATCH = "scratch"
"""Given as the model: start from scratch, whatever weights are at hand."""
START = "start.json"
"""The shape of the model that a run starts from: its checkpoints have the weights."""
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


def choose_start(model: str, scratch: bool, probe: bool = False) -> str:
    """Return the model that was named, or `SCRATCH`; refuse both, and a probe of no weights."""
    if scratch and probe:
        raise UsageError("--probe and --scratch were both given, but a probe needs weights; leave one out")
    if scratch and model:
        raise UsageError(
            f"--scratch was given with the model {model!r}; expected one of them: an architecture by its "
            "name, such as vit_ti16, starts from scratch anyway"
        )
    return SCRATCH if scratch else model


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
    fields: ClassVar[tuple[str, ...]] = ()
    """The columns of an answer in CSV: keys of what `rows` returns."""
    columns: ClassVar[tuple[str, ...]] = ()
    """The columns of the table that `predict` prints; `fields` if it is empty."""
    kinds: ClassVar[frozenset[str]] = frozenset()
    """The kinds of text models that it has, as model.json names them; empty for a task on images."""
    loss_note: ClassVar[str] = ""
    """What a reader of the loss curve should know."""
    outputs: ClassVar[dict[str, float]] = {}
    """The outputs of an exported graph, each with its tolerance; empty if the task cannot be exported."""
    abilities: ClassVar[frozenset[str]] = frozenset()
    """Beyond train and evaluate: folds, probe, prune, embed, explain."""

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
    def load(
        self, source: "Path | Identified", engine: str = "", images: int | float = float("inf"), top: int = 5
    ) -> Any:
        """Load a model folder or an exported graph, ready to answer.

        Args:
            engine: Empty is torch, and the fastest for an exported graph.
            images: How many will be asked about, which decides what is worth loading.
            top: How many alternatives an answer names, if the task has alternatives.
        """

    @abstractmethod
    def evaluate(self, model: Any, examples: Any, split: str) -> Evaluation:
        """Evaluate what `load` returned on one split."""

    def reads(self, found: "Identified") -> bool:
        """Return whether a model whose folder names no task belongs to this one."""
        return found.kind in self.kinds

    def open_for(self, found: "Identified", data: str, format: str = "auto") -> Any:
        """Open a dataset to evaluate a model on."""
        return self.open(data, self.recipe(), format)

    def align(self, model: Any, examples: Any, name: str = "the model", data: str = "the dataset") -> Any:
        """Return the examples with their targets as the model counts them; refuse targets it cannot know."""
        return examples

    def wrap(self, loaded: Any, top: int = 5, network: Any = None) -> StreamModel[Any]:
        """Return loaded weights, or another `network` in their place, ready to answer."""
        raise UsageError(f"a model for the task {self.name} answers one text at a time; use its own command")

    def probe(self, data: str, model: str, out: Path | None, changes: Sequence[str], format: str) -> Path:
        """Fit a linear head on frozen features; return the run folder."""
        raise UsageError(f"a linear probe does not work with the task {self.name}; leave out --probe")

    def predict(
        self, model: StreamModel[Any], sources: Iterable[Any], batch: int = BATCH
    ) -> Generator[Any, None, None]:
        """Yield an answer to each source, in order; one that cannot be read gives its error instead."""
        return stream(model, sources, batch)

    def rows(self, answer: Any) -> list[dict[str, Any]]:
        """Return an answer as plain values: a row per alternative or object."""
        return [{name: getattr(answer, name) for name in self.fields}]

    def to_json(self, answer: Any) -> dict[str, Any]:
        """Return an answer as `predict --json` prints it, without the name of its image."""
        (row,) = self.rows(answer)
        return row

    def table(self, answer: Any) -> list[dict[str, str]]:
        """Return the lines that `predict` prints for an answer: texts by column."""
        return [{name: _cell(row[name]) for name in self.fields} for row in self.rows(answer)]

    def merit(self, scores: dict[str, float]) -> float:
        """Return what selects the best epoch: never below 0, and higher is better."""
        value = scores[self.headline]
        return value if self.metrics[self.headline].better == "higher" else 1 / (1 + value)

    def score_line(self, scores: dict[str, float]) -> str:
        """Return the validation scores of an epoch in a few words."""
        shown = ((metric, scores[name]) for name, metric in self.metrics.items() if name in scores)
        return "  ".join(f"val {metric.word} {metric.words(value)}" for metric, value in shown)

    def summary(self, found: Evaluation) -> str:
        """Return the result of a run in one line."""
        metric = self.metrics[self.headline]
        words = f"{metric.word} {metric.words(found.metrics[self.headline])}"
        return f"{words} on {found.count:,} validation {self.noun}"

    def doubt(self, found: Evaluation) -> str:
        """Return a warning on a model that has not learnt; empty if it has, or if nobody can tell."""
        return ""

    def next_commands(self, folder: Path, run: str, example: str) -> list[str]:
        """Return commands to go on with; `run` is the folder as typed, `example` an example of the data."""
        return [f"saccade evaluate {run}"]

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

    def next_steps(self, record: "Record") -> list[tuple[str, str]]:
        """Return what to try on the trained model, for report.html: what it is for, and the command."""
        if self.kinds:
            return []
        return [("Predict new images:", f"saccade predict {quote(str(record.folder))} photo.jpg")]

    def evaluation_sections(self, record: "Record", draw: "Draw") -> "Iterator[Section]":
        """Yield the sections of the page of `saccade evaluate`: those that need no training."""
        return self.sections(record, draw)

    def class_rows(self, found: Evaluation, labels: Sequence[str]) -> list[list[str]]:
        """Return the results by class, the worst first, with a row of titles; empty without classes."""
        return []


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def read_start(run: Path | None) -> dict[str, Any] | None:
    """Return what start.json of a run holds; None if the run has no checkpoint that has the weights."""
    if run is None or not (run / START).is_file():
        return None
    if not any(path.name[5:].isdecimal() for path in (run / "checkpoints").glob("step-*")):  # half-written
        return None
    return read_json(run / START)


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

    def warm_start(self, module: "nn.Module", folder: Path, log: "Any", team: "Team") -> bool:
        """Prepare the module before the first step of a new run; return whether to evaluate it as epoch 0.

        Args:
            log: A `saccade.train.log.StoppableLog`: it ends the work where it shows progress.
        """
        return False

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

    def sample_input(self) -> str:
        """Return the file of an example that was held out, or a word for one."""
        return "FILE"

    def finish(self, folder: Path) -> None:  # noqa: B027 - most jobs have nothing to add
        """Write further measurements of the trained model into its run folder."""
