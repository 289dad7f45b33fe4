"""Check what a user gives before torch is imported: the model, and the folder to write."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from saccade.errors import DataError, UsageError
from saccade.files.atomic import check_free as check_free
from saccade.weights.identify import Identified, identify, locate

Say = Callable[[str], None]
"""Receives progress messages; the command line prints them to stderr."""


def identify_model(model: str | Path, kind: str = "images") -> Identified:
    """Find a model; refuse a damaged one, or one of the wrong kind. Code that it refers to is never run.

    Args:
        kind: What the caller can run: images, text, weights (both of them), or any (exported graphs too).
    """
    path = locate(model)
    found = identify(path)
    checks = {"images": found.check_images, "text": found.check_text, "weights": found.check_weights}
    if kind in checks:
        checks[kind]()
    if found.code:
        print(
            f"note: {path} refers to code of its own ({', '.join(found.code)}); it is ignored and never run",
            file=sys.stderr,
        )
    return found


def check_ability(found: Identified, ability: str) -> None:
    """Refuse a model whose task cannot do this."""
    from saccade.tasks import task_of

    task = task_of(found)
    if ability not in task.abilities:
        raise UsageError(f"saccade {ability} does not work with models for the task {task.name}")


def send(model: Any, device: str) -> None:
    """Send a model to a device; an engine runs on the CPU, without torch."""
    if not getattr(model, "on_torch", True):
        if device not in ("auto", "cpu"):
            raise UsageError(
                f"--device is {device!r}, but exported graphs and engines run on the CPU; leave it out, or "
                "give the run that the graph was exported from"
            )
        return
    from saccade.processes import find_device

    model.module.to(find_device(device))


class OwnData(NamedTuple):
    """The data that a run was trained on."""

    source: str
    format: str
    splits: Any = None
    """Split as the run split them; None if nobody asked for that."""


def is_run(folder: Path) -> bool:
    """Return whether this is a folder that training made, with a record of its data."""
    return (folder / "recipe.json").is_file() and (folder / "data.json").is_file()


def own_source(folder: Path, name: str) -> OwnData:
    """Return where the data of a run are; refuse a model that records none, and data that moved."""
    if not is_run(folder):
        raise UsageError(
            f"{name} does not record the data that it was trained on, as run folders do; give DATA"
        )
    from saccade.files.strict_json import read_json
    from saccade.train.selection import Selection

    selection = Selection.recorded(read_json(folder / "data.json"))
    source, parts = selection.data, [selection.data, *selection.data.split(",")]
    if not source.startswith("hf:") and not any(Path(part).exists() for part in parts):
        raise DataError(f"the data of {name} are no longer at {source}; give their new place as DATA")
    return OwnData(source, selection.format)


def own_data(folder: Path, name: str, data: str = "", format: str = "auto") -> OwnData | None:
    """Return the data of a run as the run split them; None if `data` are other ones.

    Without `data`, those of the run are wanted: refuse them if they changed, as then nobody knows which
    of them the model has seen.
    """
    if data and not is_run(folder):
        return None
    from saccade.files.strict_json import read_json
    from saccade.tasks import find_task
    from saccade.train.selection import Selection, absolute, changed, split_facts

    own = OwnData(absolute(data), format) if data else own_source(folder, name)
    facts = read_json(folder / "data.json")
    if own.source != facts.get("source") or own.format not in ("auto", facts.get("kind")):
        return None
    task, settings = find_task(str(facts.get("task", ""))), read_json(folder / "recipe.json")
    if settings.get("method") == "probe":
        recipe = replace(task.recipe(), **{field: settings[field] for field in ("seed", "val")})
    else:
        from saccade.train.start import read_run

        recipe, _ = read_run(task, folder)
    splits = Selection.recorded(facts).open(task, recipe)
    if classes := facts.get("classes"):  # a pruned model keeps its own order
        splits = splits.map(lambda part: part.relabel(classes, name))
    if changed(facts, split_facts(splits, task)) is None:
        return OwnData(own.source, own.format, splits)
    if data:
        return None
    raise DataError(
        f"the {task.noun} in {own.source} changed after {name} was trained on them, so it is unknown which "
        "of them it has seen; give DATA to use them as they are"
    )
