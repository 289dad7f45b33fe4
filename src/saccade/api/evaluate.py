"""Evaluate a model, or an exported graph, on a dataset."""

from typing import Any, NamedTuple

from saccade.errors import DataError, ModelError, UsageError
from saccade.task import Evaluation, Task
from saccade.tasks import find_task
from saccade.weights.identify import Identified, identify, locate


class Evaluated(NamedTuple):
    """A task, and what it measured."""

    task: Task
    found: Evaluation


def evaluate_model(
    model: str, data: str, split: str = "", format: str = "auto", engine: str = ""
) -> Evaluated:
    """Evaluate whatever lies at `model` on one split: by default the first of test, val, train."""
    found = identify(locate(model))  # refuses a damaged file before torch is imported
    task = find_task("" if found.exported else found.task)
    if task.outputs and (found.exported or engine):
        return Evaluated(task, _on_engine(task, found, model, data, split, format, engine or "auto"))
    if task.outputs:
        splits = task.open_for(None, data, format).by_name
        chosen = chosen_split(data, list(splits), split)
        loaded = task.load(found)
        examples = known_classes(model, data, splits[chosen], loaded.labels)
    else:
        loaded = task.load(found)
        splits = task.open_for(loaded, data, format).by_name
        chosen = chosen_split(data, list(splits), split)
        examples = splits[chosen]
    return Evaluated(task, task.evaluate(loaded, examples, chosen))


def evaluate_loaded(model: Any, data: str, split: str = "", format: str = "auto") -> Evaluation:
    """Evaluate an image model in memory."""
    task = find_task()
    splits = task.open_for(None, data, format).by_name
    chosen = chosen_split(data, list(splits), split)
    return task.evaluate(model, known_classes("the model", data, splits[chosen], model.labels), chosen)


def _on_engine(
    task: Task, source: Identified, model: str, data: str, split: str, format: str, engine: str
) -> Evaluation:
    """Evaluate an exported graph without torch, or any model on the engine asked for."""
    from saccade.tasks.classify.evaluate import evaluate_answers
    from saccade.vision.model import LabelledImages, load_model

    splits = task.open_for(None, data, format).by_name
    chosen = chosen_split(data, list(splits), split)
    network = load_model(source, engine, len(splits[chosen]))
    examples = known_classes(model, data, splits[chosen], network.labels)
    return evaluate_answers(examples, *LabelledImages(network, examples).table(), split=chosen)


def known_classes(model: str, data: str, examples: Any, labels: Any) -> Any:
    """Return the examples with their classes numbered as the model's; refuse others."""
    if not labels:
        raise ModelError(f"{model} has no labels to compare its answers with; convert it with --labels")
    unknown = sorted(set(examples.classes) - set(labels))
    if unknown:
        raise DataError(
            f"{data} has {len(unknown)} classes that the model does not know ({', '.join(unknown[:3])}); "
            f"expected folders named like its labels ({', '.join(labels[:3])}, ...)"
        )
    return examples.relabel(list(labels))


def chosen_split(data: str, found: list[str], split: str) -> str:
    """Return the split that was asked for, or else the first of the test splits, val, train."""
    tests = [name for name in found if name not in ("train", "val")]
    chosen = split or next(name for name in (*tests, "val", "train") if name in found)
    if chosen not in found:
        raise UsageError(f"{data} has no split {chosen!r}; it has {', '.join(found)}")
    return chosen
