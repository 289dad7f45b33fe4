"""Evaluate a model, or an exported graph, on a dataset."""

from pathlib import Path
from typing import Any, NamedTuple

from saccade.api.inputs import send
from saccade.errors import UsageError
from saccade.task import Evaluation, Task
from saccade.tasks import find_task, task_of
from saccade.weights.identify import Identified, identify, locate


class Evaluated(NamedTuple):
    """A task, and what it measured."""

    task: Task
    found: Evaluation


def evaluate_model(
    model: str, data: str, split: str = "", format: str = "auto", engine: str = "", device: str = "auto"
) -> Evaluated:
    """Evaluate what `model` refers to on one split: by default the first of test, val, train."""
    found = identify(locate(model))  # refuses a damaged file before torch is imported
    task = task_of(found)
    if engine and not task.outputs:
        raise UsageError(f"--engine does not work with the task {task.name}; leave it out")
    examples, chosen = _open(task, found, data, split, format)
    loaded = task.load(found, engine, len(examples))
    send(loaded, device)
    return Evaluated(task, task.evaluate(loaded, task.align(loaded, examples, model, data), chosen))


def evaluate_loaded(model: Any, data: str, split: str = "", format: str = "auto") -> Evaluation:
    """Evaluate an image model in memory."""
    task = find_task(model.task)
    wrapped = task.wrap(model)
    examples, chosen = _open(task, Identified(model.folder or Path(), {}), data, split, format)
    return task.evaluate(wrapped, task.align(model, examples, data=data), chosen)


def _open(task: Task, found: Identified, data: str, split: str, format: str) -> tuple[Any, str]:
    splits = task.open_for(found, data, format).by_name
    chosen = chosen_split(data, list(splits), split)
    return splits[chosen], chosen


def chosen_split(data: str, found: list[str], split: str) -> str:
    """Return the split that was asked for, or else the first of the test splits, val, train."""
    tests = [name for name in found if name not in ("train", "val")]
    chosen = split or next(name for name in (*tests, "val", "train") if name in found)
    if chosen not in found:
        raise UsageError(f"{data} has no split {chosen!r}; it has {', '.join(found)}")
    return chosen
