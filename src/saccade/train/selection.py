"""Which examples a run trains on and which it holds out: a share, a fold or a fraction; see data.json."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saccade import values
from saccade.data.splits import Fold, few, hold_out, take_fold
from saccade.errors import DataError, ModelError
from saccade.files.atomic import write_text
from saccade.files.tables import from_cell, to_cell
from saccade.recipe import Recipe
from saccade.task import Job, Task
from saccade.wording import show_name

PREDICTIONS = "predictions.csv"
Row = dict[str, Any]
CONTENT = " (same names and sizes, different content)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Where the examples of a run come from, and which of them it holds out."""

    data: str
    format: str = "auto"
    fold: Fold | None = None
    """None: hold out a share, or the data's own validation split."""
    fraction: float = 1.0
    """How much of each class to train on; what is held out is the same for every fraction."""
    blind: bool = False
    """Keep the last epoch, not the one that scores best, so that validation plays no part in training."""

    @property
    def chooses(self) -> bool:
        """Return whether the best epoch is chosen on the validation split."""
        return self.fold is None and not self.blind

    @classmethod
    def recorded(cls, facts: Mapping[str, Any]) -> "Selection":
        """Read it from what data.json holds."""
        fold = facts.get("fold")
        try:
            if not all(isinstance(facts[name], str) for name in ("source", "kind")):
                raise ValueError("`source` and `kind` must be strings")
            return cls(
                data=facts["source"],
                format=facts["kind"],
                fold=None if fold is None else values.from_json(Fold, fold),
                fraction=float(facts.get("fraction", 1)),
                blind=facts.get("blind") is True,
            )
        except (KeyError, ValueError) as error:
            raise ModelError(f"data.json of the run cannot be used ({error}); start a new run") from error

    def open(self, task: Task, recipe: Recipe) -> Any:
        """Open the dataset and split it as the run needs it."""
        return self.apply(task.open(self.data, recipe, self.format), recipe)

    def apply(self, splits: Any, recipe: Recipe) -> Any:
        """Split a dataset that is open already."""
        if self.fold is not None:
            return take_fold(splits, self.fold, recipe.seed)
        held = hold_out(splits, recipe.val, recipe.seed)
        return held if self.fraction == 1 else few(held, self.fraction, recipe.seed)

    def facts(self, task: Task, job: Job) -> dict[str, Any]:
        """Return what data.json holds."""
        return {
            "source": absolute(self.data),
            "kind": self.format,
            "task": task.name,
            **({} if self.fold is None else {"fold": values.to_json(self.fold)}),
            **({} if self.fraction == 1 else {"fraction": self.fraction}),
            **({"blind": True} if self.blind else {}),
            "told": job.splits.summary,
            "warnings": list(job.splits.warnings),
            **job.facts,
            **split_facts(job.splits, task),
        }


def absolute(data: str) -> str:
    """Return where the data is, so that a run can resume from another folder; two files have a comma."""
    if data.startswith("hf:"):
        return data
    try:
        parts = [data] if Path(data).exists() else data.split(",")
        return ",".join(str(Path(part.strip()).resolve()) for part in parts)
    except (OSError, ValueError):  # a name that no file can have; whoever opens it says so
        return data


def split_facts(splits: Any, task: Task) -> dict[str, Any]:
    """Return what data.json holds on each split."""
    return {name: _split_facts(part, task.counted) for name, part in splits.by_name.items()}


def _split_facts(examples: Any, counted: str) -> dict[str, Any]:
    content = {"content": examples.content()} if hasattr(examples, "content") else {}
    return {counted: len(examples), "fingerprint": examples.fingerprint(), **content}


def changed(recorded: Mapping[str, Any], facts: Mapping[str, Any]) -> str | None:
    """Return how the data differ from those that were recorded: "" in their names, or `CONTENT`; else None.

    Runs of older versions have no content hash.
    """
    for name in ("train", "val"):
        found, known = facts.get(name), recorded.get(name)
        marks = known if isinstance(known, dict) else {}
        if not isinstance(found, dict):
            continue
        if found.get("fingerprint") != marks.get("fingerprint"):
            return ""
        if "content" in marks and found.get("content") != marks["content"]:
            return CONTENT
    return None


def check_same(folder: Path, recorded: Mapping[str, Any], facts: Mapping[str, Any], noun: str) -> None:
    """Refuse data other than those the run started with."""
    if (how := changed(recorded, facts)) is not None:
        raise data_changed(recorded.get("source"), folder, noun, how)


def data_changed(source: object, folder: Path, noun: str, what: str = "") -> DataError:
    """Return the error for data that changed after the start."""
    return DataError(
        f"the {noun} in {source} are not the ones that {folder} started with{what}; start a new run"
    )


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write predictions.csv, whole or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0] if rows else ["fold"])
    for row in rows:
        writer.writerow(to_cell(cell) if isinstance(cell, str) else cell for cell in row.values())
    write_text(path, text.getvalue())


def read_rows(path: Path, fold: int, count: int) -> list[Row]:
    """Read what `write_rows` wrote for one fold."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            heads, *lines = csv.reader(file)
        rows: list[Row] = [
            {head: from_cell(cell) for head, cell in zip(heads, line, strict=True)} for line in lines
        ]
        rows = [{**row, "fold": int(row["fold"])} for row in rows]
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise ModelError(f"{show_name(path)} cannot be read ({error}); remove it and resume") from error
    if heads == ["fold"]:  # the task gives no answers to keep
        return []
    if len(rows) != count or any(row["fold"] != fold for row in rows):
        raise ModelError(
            f"{show_name(path)} does not hold the {count} answers of fold {fold}; remove it and resume"
        )
    return rows
