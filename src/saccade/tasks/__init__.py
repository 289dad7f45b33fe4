"""The table of tasks: a task is a folder here and a line below."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from saccade.errors import ModelError, check_word
from saccade.files.strict_json import read_json
from saccade.recipe import set_values
from saccade.task import Task
from saccade.weights.identify import Identified
from saccade.wording import printable

TASKS = {
    "translate": "saccade.tasks.translate.task:Translate",
    "language": "saccade.tasks.language.task:Language",
    "caption": "saccade.tasks.caption.task:Caption",
    "classify": "saccade.tasks.classify.task:Classify",
}
"""Where each task is defined, in the order in which they are asked whether they fit a dataset."""
FIRST = "classify"
"""The task of image models and runs that do not name one."""


def find_task(name: str = "") -> Task:
    """Return the task of that name."""
    check_word("task", name or FIRST, TASKS)
    module, _, kind = TASKS[name or FIRST].partition(":")
    return getattr(import_module(module), kind)()


def fitting_task(data: str, model: str = "", changes: Sequence[str] = ()) -> Task:
    """Return the task that a dataset and a model look like; `--set task=` decides."""
    given = set_values(changes)
    if "task" in given:
        return find_task(given["task"])
    model = model or given.get("model", "")
    return next(task for task in map(find_task, TASKS) if task.matches(data, model))


def task_of(found: Identified) -> Task:
    """Return the task of a model: the one that its folder names, or the one that its tensors show."""
    if not found.task:
        return next((task for task in map(find_task, TASKS) if task.reads(found)), find_task())
    where = printable(found.path)
    if found.task not in TASKS:
        name = printable(repr(found.task), 60)
        raise ModelError(f"{where} is for the task {name}; this version knows {', '.join(TASKS)}")
    task = find_task(found.task)
    if found.kind and (found.kind not in task.kinds if task.kinds else found.text):
        kind = printable(repr(found.kind), 60)
        raise ModelError(f"{where} says task {task.name} in model.json, but its model is a {kind}")
    return task


def other_task(data: str) -> str:
    """Return a hint for a file that could list images or hold sentence pairs, and did not list images."""
    ambiguous = data.removesuffix(".gz").endswith((".tsv", ".jsonl"))
    return "; if it holds sentence pairs, add --task translate" if ambiguous else ""


def kept_task(model: Path) -> str:
    """Return the task that a model folder names, ours or Hugging Face's; empty if it names none."""
    for name, field in (("model.json", "task"), ("config.json", "model_type")):
        if (model / name).is_file():
            found = str(read_json(model / name).get(field))
            return {"gpt2": "language", "bert": "language"}.get(found, found if found in TASKS else "")
    return ""
