"""Evaluate a model, or an exported graph, on a dataset, and list the runs in a folder."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from saccade.api.inputs import OwnData, is_run, own_data, send
from saccade.errors import SaccadeError, UsageError
from saccade.task import Evaluation, Task
from saccade.tasks import find_task, task_of
from saccade.weights.identify import Identified, identify, locate

if TYPE_CHECKING:
    from saccade.report.run_record import Record

PAGE = "evaluation.html"


class Evaluated(NamedTuple):
    """What was measured, on which data, and the names of the classes."""

    task: Task
    found: Evaluation
    data: str
    labels: Sequence[str]
    folder: Path
    """Of the model."""


def evaluate_model(
    model: str,
    data: str = "",
    split: str = "",
    format: str = "auto",
    engine: str = "",
    device: str = "auto",
) -> Evaluated:
    """Evaluate what `model` refers to on one split: by default the first of test, val, train.

    Args:
        data: By default the run's own data, as the run split them: what it held out is evaluated.
    """
    found = identify(locate(model))  # refuses a damaged file before torch is imported
    task = task_of(found)
    if engine and not task.outputs:
        raise UsageError(f"--engine does not work with the task {task.name}; leave it out")
    own = own_data(found.folder, model, data, format)
    examples, chosen = _open(task, found, own, model, data, split, format)
    data = data or (own.source if own else "")
    loaded = task.load(found, engine, len(examples))
    send(loaded, device)
    result = task.evaluate(loaded, task.align(loaded, examples, model, data), chosen)
    return Evaluated(task, result, data, getattr(loaded, "labels", []), found.folder)


def evaluate_loaded(model: Any, data: str = "", split: str = "", format: str = "auto") -> Evaluation:
    """Evaluate an image model in memory."""
    task, folder = find_task(model.task), model.folder or Path()
    wrapped = task.wrap(model)
    own = None
    if model.folder is not None or not data:
        own = own_data(folder, str(model.folder or "this model"), data, format)
    examples, chosen = _open(task, Identified(folder, {}), own, "the model", data, split, format)
    return task.evaluate(wrapped, task.align(model, examples, data=data or "the dataset"), chosen)


def _open(
    task: Task, found: Identified, own: OwnData | None, model: str, data: str, split: str, format: str
) -> tuple[Any, str]:
    splits = (task.open_for(found, data, format) if own is None else own.splits).by_name
    if own is not None and list(splits) == ["train"] and not split:
        raise UsageError(
            f"{model} was trained on all of its {task.noun}, so none are left to evaluate it on; "
            "give other DATA, or add --split train"
        )
    chosen = chosen_split(data or (own.source if own else ""), list(splits), split)
    return splits[chosen], chosen


def chosen_split(data: str, found: list[str], split: str) -> str:
    """Return the split that was asked for, or else the first of the test splits, val, train."""
    tests = [name for name in found if name not in ("train", "val")]
    chosen = split or next(name for name in (*tests, "val", "train") if name in found)
    if chosen not in found:
        raise UsageError(f"{data} has no split {chosen!r}; it has {', '.join(found)}")
    return chosen


def default_page(folder: Path) -> Path | None:
    """Return where the page of an evaluation goes: into a run's folder; other folders are the user's."""
    return folder / PAGE if is_run(folder) and os.access(folder, os.W_OK) else None


def write_page(path: Path, made: Evaluated, model: str) -> None:
    """Write what was measured as one page that needs no other file."""
    from saccade.files.atomic import write_text
    from saccade.report.html import Html, drawing, joined, name, page, section, tag
    from saccade.report.run_record import History, Record

    record = Record(
        folder=path.parent,
        recipe={"model": model},
        command="",
        env={},
        data={},
        labels=list(made.labels),
        events=History(),
        epochs=[],
        evaluation=made.found.details,
        samples=[],
        gaps={},
    )
    parts = list(made.task.evaluation_sections(record, drawing(None)))
    title = f"{Path(model).name} on {Path(made.data).name}"
    what = f"{made.found.count:,} {made.task.noun} of the {made.found.split} split of {made.data}."
    summary: Html = tag(
        "section",
        tag("h1", name(title), id="summary-title"),
        tag("p", "Evaluated on ", name(what)),
        *made.task.results(record),
        id="summary",
        aria_labelledby="summary-title",
    )
    links = {"summary": "Summary"} | {part.anchor: part.title for part in parts}
    body = joined([summary, *(section(part.anchor, part.title, part.body) for part in parts)])
    write_text(path, page(f"{title}: evaluation", body, links))


class RunRow(NamedTuple):
    """A run as `saccade runs` lists it."""

    name: str
    task: str
    model: str
    data: str
    metric: str
    """Name of the headline metric."""
    value: float | None
    """Its value; None without an evaluation."""
    examples: int
    """How many it was measured on."""
    score: str
    """Metric, value and count in words."""
    date: str
    """When the run last logged something, in UTC."""
    status: str
    """finished, running or interrupted, after what it is if it is a probe or folds."""


def list_runs(folder: Path) -> list[RunRow]:
    """Return the runs in a folder, the newest first."""
    if not folder.is_dir():
        raise UsageError(
            f"there is no folder {folder}; expected a folder with runs; run `saccade train` first"
        )
    found = [path.parent for path in folder.glob("*/recipe.json") if is_run(path.parent)]
    rows = [(_last(run), run) for run in found]
    return [_row(run, last) for last, run in sorted(rows, key=lambda row: (-row[0], row[1].name))]


def _last(run: Path) -> float:
    path = run / "events.jsonl"
    return (path if path.is_file() else run / "recipe.json").stat().st_mtime


def _row(run: Path, last: float) -> RunRow:
    from saccade.report.run_page import source
    from saccade.report.run_record import read_record
    from saccade.wording import amount, moment

    record = read_record(run)
    task, value, count, score = str(record.data.get("task", "")), None, 0, ""
    metric = ""
    with suppress(SaccadeError, KeyError, TypeError, ValueError):
        kind = find_task(str(record.data.get("task", "")))
        task, metric = kind.name, kind.headline
        if record.evaluation:
            made = kind.revive(record.evaluation)
            value, count = made.metrics[metric], made.count
            shown = kind.metrics[metric]
            score = f"{shown.word} {shown.words(value)} on {amount(count, kind.noun)}"
    return RunRow(
        name=run.name,
        task=task,
        model=record.model,
        data=source(record),
        metric=metric,
        value=value,
        examples=count,
        score=score,
        date=moment(last),
        status=_status(run, record),
    )


def _status(run: Path, record: "Record") -> str:
    from saccade.files.lock import is_locked

    kind = "probe" if record.recipe.get("method") == "probe" else "folds" if "fold" in record.data else ""
    if record.events.ended == "done" and (run / "report.html").is_file():
        done = "finished"
    else:
        done = "running" if is_locked(run) else "interrupted"
    return f"{kind}, {done}" if kind else done
