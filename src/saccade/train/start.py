"""Start a run of any task, resume it, and evaluate what it trained."""

import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import torch

from saccade import __version__, values
from saccade.errors import ModelError, SaccadeError, UsageError
from saccade.files.atomic import check_free, new_folder, run_path, sweep, write_text
from saccade.files.lock import lock
from saccade.files.strict_json import read_json, write_json
from saccade.models import names
from saccade.processes import Team, current, launch, restarted
from saccade.progress import tracking
from saccade.recipe import Recipe, override, set_values
from saccade.report.folds_section import FILE as FOLDS
from saccade.report.run_page import write_report
from saccade.report.run_record import read_history
from saccade.task import Evaluation, Job, Task
from saccade.train.checkpoint import latest
from saccade.train.log import check_trackers
from saccade.train.run import Run
from saccade.train.selection import PREDICTIONS, Selection, check_same, write_rows
from saccade.train.summary import closing, diverged, plan

WEIGHTS = ("model", "teacher")
"""The fields of a recipe that may be paths of weights."""


def default_recipe(task: Task, splits: Any, model: str, changes: Sequence[str]) -> tuple[Recipe, str]:
    """Return the recipe for a dataset as the user changed it, and the reason in one sentence."""
    given = set_values(changes)
    recipe, why = task.plan(splits, model or given.get("model", ""))
    if not {"budget.epochs", "budget.steps", "budget.minutes", "budget.limit"}.isdisjoint(given):
        recipe = replace(recipe, budget=replace(recipe.budget, limit=0.0))  # the user says how long
        why = why.partition("; at most")[0]
    return override(recipe, [*changes, f"model={recipe.model}"]), why


def open_data(task: Task, data: str, changes: Sequence[str], format: str = "auto") -> Any:
    """Open a dataset; fields such as `pair` and `bad` may decide how."""
    return task.open(data, override(task.recipe(), changes), format)


def start(
    task: Task,
    data: str,
    model: str = "",
    out: Path | None = None,
    changes: Sequence[str] = (),
    format: str = "auto",
    quiet: bool = False,
    empty: bool = False,
    usual: Path | None = None,
) -> Run:
    """Return a run about to start: everything is read and checked, and its folder can repeat it.

    Args:
        empty: `out` exists already, and holds nothing but the data.
        usual: The folder if `out` is None, numbered if it exists; by default runs/DATA-MODEL.
    """
    began = time.monotonic()
    if not empty:
        check_out(out)
    changes = [text for text in changes if text.partition("=")[0].strip() != "task"]
    splits, selection = open_data(task, data, changes, format), Selection(data=data, format=format)
    recipe, why = default_recipe(task, splits, model, changes)
    splits = selection.apply(splits, recipe)
    job, team = start_job(task, recipe, splits)
    wanted = out or usual or _usual(data, f"-{short_name(recipe.model)}")
    _check_text(data, wanted)
    folder = wanted if empty else team.broadcast(_made(wanted, out) if team.leads else wanted)
    run = start_run(folder, task, job, selection, quiet)
    notes = (f"note: {words}" for words in (*splits.warnings, *job.notes))
    for words in (*plan(task, job, splits, why), *notes):
        run.log.say(words)
    run.time_budget.spent = time.monotonic() - began
    return run


def start_job(task: Task, recipe: Recipe, splits: Any, resume: Path | None = None) -> tuple[Job, Team]:
    """Return the job and the processes that train it; refuse a device or tracker that is missing."""
    team = current()
    team.device(recipe.device)
    check_trackers(recipe.track)
    team = replace(team, sharded=recipe.parallel == "fsdp" and team.size > 1)
    return task.start(recipe, splits, resume), team


def start_run(
    folder: Path,
    task: Task,
    job: Job,
    selection: Selection,
    quiet: bool = False,
    brief: bool = False,
    command: str = "",
) -> Run:
    """Return a run in a folder that exists already; `command` is this process's if none is given."""
    team = replace(current(), sharded=job.recipe.parallel == "fsdp" and current().size > 1)
    held = lock(folder) if team.leads else None
    run = Run(folder, task, job, team, selection, quiet=quiet, brief=brief, lock=held)
    if team.leads:
        for name, text in job.files.items():
            write_text(folder / name, text)
        describe(folder, job.recipe, selection.facts(task, job), command)
        if started := launch():
            write_text(folder / "launch.txt", started)
    run.log.event("start", 0, parameters=sum(p.numel() for p in job.module.parameters()))
    run.save()
    return run


def describe(folder: Path, recipe: object, facts: Mapping[str, Any], command: str = "") -> None:
    """Write what is needed to repeat the run; the command is this process's if none is given."""
    env = {"python": platform.python_version(), "torch": torch.__version__, "platform": platform.platform()}
    env |= {"threads": str(torch.get_num_threads()), "saccade": __version__}
    write_json(folder / "data.json", facts)
    write_json(folder / "env.json", env)
    write_text(folder / "command.txt", command or " ".join(sys.argv) + "\n")
    write_json(folder / "recipe.json", _resolved(recipe))  # last: a folder without it is not a run


def _resolved(recipe: object) -> dict[str, Any]:
    """Return a recipe as JSON with absolute paths of weights, so that a run resumes from any folder."""
    found = values.to_json(recipe)
    for name in WEIGHTS:
        word = found.get(name)
        if word and not names.is_architecture(word) and Path(word).exists():
            found[name] = os.path.abspath(word)
    return found


def new_run_folder(
    selection: Selection, out: Path | None, task: Task, job: Job, recipe: object, kind: str
) -> Path:
    """Make the folder of a cross-validation or a probe, which are not a `Run`; return its path."""
    wanted = out or _usual(selection.data, f"-{kind}")
    _check_text(selection.data, wanted)
    folder = _made(wanted, out)
    describe(folder, recipe, selection.facts(task, job))
    return folder


def check_out(out: Path | None) -> None:
    """Refuse a folder for a new run that is not empty; torchrun may start a run a second time."""
    if out is None or restarted() or not out.is_dir():
        return
    if (out / "recipe.json").is_file():
        raise UsageError(
            f"{out} holds a run already; nothing was written; give another name, or resume it with: "
            f"saccade train --resume {quote(str(out))}"
        )
    check_free(out)


def _made(wanted: Path, out: Path | None) -> Path:
    return new_folder(wanted, numbered=out is None or restarted())


def _usual(data: str, suffix: str = "") -> Path:
    """Return the usual folder of a run: runs/DATA-MODEL, where DATA has no endings of files."""
    path = run_path(data, unnamed="run")
    name = path.name.split(".")[0] if Path(data).is_file() else path.name
    return path.with_name(f"{name or path.name}{suffix}")


def short_name(model: str) -> str:
    """Return the name of a model or its weights without folders, owners and endings."""
    name = Path(model.removeprefix("hf:")).name or "model"
    return name.removesuffix(".safetensors").removesuffix(".npz")


def _check_text(data: str, wanted: Path) -> None:
    try:
        f"{data} {wanted}".encode()
    except UnicodeEncodeError as error:  # a run records both as text
        raise UsageError(
            f"{data!r} or {str(wanted)!r} contains bytes that are not UTF-8; choose another name"
        ) from error


def interrupted(data: str, out: Path | None, team: Team) -> Path | None:
    """Return the run that torchrun started and, because a process failed, starts again."""
    if not restarted():
        return None
    wanted, mine = out or _usual(data), launch()
    found = [
        path.parent
        for path in sorted(wanted.parent.glob("*/launch.txt"))
        if path.parent.name.startswith(wanted.name)
        and path.read_text(encoding="utf-8") == mine
        and latest(path.parent / "checkpoints")[0] is not None
    ]
    return team.broadcast(found[-1] if found else None)


def resume(task: Task, folder: Path, quiet: bool = False, brief: bool = False) -> Run:
    """Return a run as its newest complete checkpoint left it; refuse data that have changed."""
    recipe, facts = read_run(task, folder)
    selection = Selection.recorded(facts)
    splits = selection.open(task, recipe)
    job, team = start_job(task, recipe, splits, folder)
    check_same(folder, facts, selection.facts(task, job), task.noun)
    held = lock(folder) if team.leads else None
    place, damaged = latest(folder / "checkpoints")
    if place is None and (damaged or (folder / "results.csv").exists()):
        raise ModelError(f"{folder} has no complete checkpoint to resume from; start a new run")
    sweep(folder)
    run = Run(folder, task, job, team, selection, quiet=quiet, brief=brief, lock=held)
    for words in damaged:
        run.log.say(f"note: {words}")
    if place is None:  # killed before its first step
        run.save()
    else:
        run.restore(place)
    if not brief:
        if note := note_threads(folder):
            run.log.say(note)
        run.log.say(f"resuming from step {run.state.step} of {run.plan.steps}")
    run.log.event("resume", run.state.step)
    return run


def note_threads(folder: Path) -> str:
    """Return a note if the run started with another number of threads, as sums may differ in the last bit."""
    try:
        before, now = int(read_json(folder / "env.json")["threads"]), torch.get_num_threads()
    except (SaccadeError, KeyError, TypeError, ValueError):
        return ""
    if before == now:
        return ""
    return (
        f"note: the run started with {before} threads and resumes with {now}, so the result may differ "
        f"slightly from that of an uninterrupted run; set OMP_NUM_THREADS={before} for an identical one"
    )


def is_cross_validation(folder: Path) -> bool:
    """Return whether this is the folder of a cross-validation, not of a single run or a fold."""
    return (folder / FOLDS).is_file()


def finished(task: Task, folder: Path) -> str:
    """Return a sentence on a run that has nothing left to do; empty if it can be resumed."""
    written = all((folder / name).is_file() for name in ("events.jsonl", "report.html"))
    if not written or read_history(folder / "events.jsonl", {}).ended != "done":
        return ""
    result = ""
    with suppress(SaccadeError, KeyError, ValueError):
        result = f": {task.summary(task.revive(read_json(folder / 'evaluation.json')))}"
    return (
        f"{folder} is already finished{result}. To train further, start a new run from it: "
        f"saccade train DATA --model {quote(str(folder))}"
    )


def run_task(folder: Path) -> str:
    """Return the name of the task that a run folder records; empty for one that does not name it."""
    if not (folder / "recipe.json").is_file():
        raise UsageError(
            f"{folder} is not a run folder (it has no recipe.json); give the folder that training made"
        )
    if read_json(folder / "recipe.json").get("method") == "probe":
        raise UsageError(
            f"{folder} is a linear probe; probes cannot be resumed. Run it again: its features are cached, "
            "so it takes seconds"
        )
    return str(read_json(folder / "data.json").get("task", ""))


def read_run(task: Task, folder: Path) -> tuple[Recipe, dict[str, Any]]:
    """Return the recipe that a run folder records, and what data.json holds."""
    found = read_json(folder / "recipe.json")
    try:
        return values.from_json(task.recipe, found), read_json(folder / "data.json")
    except ValueError as error:
        raise ModelError(f"{folder / 'recipe.json'} cannot be used: {error}") from error


def write_results(folder: Path, task: Task, job: Job, found: Evaluation | None) -> Path:
    """Write samples.json, evaluation.json and what the job adds to them; return the report on them."""
    with tracking("writing the report"):
        if shown := job.examples():
            write_json(folder / "samples.json", shown, indent=1)
        if found is not None:
            write_json(folder / "evaluation.json", found.details, indent=1)
            job.finish(folder)
        return write_report(folder, task)


def evaluate_run(run: Run) -> tuple[Evaluation | None, Path]:
    """Evaluate the model that was kept on the validation split, if there is one, and write the report."""
    task, job, folder = run.task, run.job, run.folder
    found = None
    with run.log.open("evaluating"):
        if job.splits.val is not None:
            split = "val" if run.chooses else "held-out"
            found = task.evaluate(task.load(folder), job.splits.val, split)
        _doubt(run, found)
        page = write_results(folder, task, job, found)
    run.log.close()
    if found is not None and run.selection.fold is not None:  # last: where they are, the fold is done
        number = run.selection.fold.number
        write_rows(folder / PREDICTIONS, [{**row, "fold": number} for row in found.rows])
    return found, page


def _doubt(run: Run, found: Evaluation | None) -> None:
    """Note in the run and its log whether the training diverged, or the model has not learnt."""
    loss = None if found is None else found.metrics.get("loss")
    run.diverged = diverged(run.first, run.last, loss, run.job.recipe)
    run.doubts = [words for words in (run.diverged, "" if found is None else run.task.doubt(found)) if words]
    for words in run.doubts:
        run.log.event("note", run.state.step, text=words)


def finish(run: Run) -> Path:
    """Evaluate the model that was kept, write the report, and print the result."""
    found, page = evaluate_run(run)
    example = run.job.sample_input()
    for line in closing(run.task, run.folder, found, run.log.seconds, run.doubts, example):
        run.log.say(line)
    return page
