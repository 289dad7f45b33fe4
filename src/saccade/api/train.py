"""Train: start or resume a run of any task, a cross-validation or a linear probe."""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from saccade.errors import DataError, DivergedError, UsageError
from saccade.processes import joined
from saccade.task import Task
from saccade.tasks import find_task, fitting_task, other_task
from saccade.train import start
from saccade.train.run import Run

if TYPE_CHECKING:
    from saccade.api.models import Model
    from saccade.api.text_models import TextModel


def start_run(
    data: str,
    model: str = "",
    out: Path | None = None,
    changes: Sequence[str] = (),
    format: str = "auto",
    task: str = "",
    quiet: bool = False,
    empty: bool = False,
) -> Run:
    """Return a run ready to start; an empty `task` is inferred from the data and the model."""
    chosen = find_task(task) if task else fitting_task(data, model, changes)
    try:
        return start.start(chosen, data, model, out, changes, format, quiet, empty)
    except DataError as error:
        if task or chosen.name != find_task().name or not (hint := other_task(data)):
            raise
        raise DataError(f"{error}{hint}") from error


def resume_run(folder: Path, quiet: bool = False) -> Run:
    """Return a run, resumed from its newest complete checkpoint."""
    return start.resume(find_task(start.run_task(folder)), folder, quiet)


def run_training(
    data: str,
    model: str = "",
    out: Path | None = None,
    changes: Sequence[str] = (),
    format: str = "auto",
    task: str = "",
    resume: Path | None = None,
) -> Path | None:
    """Train to the end and evaluate; under torchrun, only the leading process gets the folder."""
    done = "" if resume is None else start.finished(find_task(start.run_task(resume)), resume)
    if resume is not None and not done and start.is_cross_validation(resume):
        return resume_folds(resume)
    with joined() as team:
        if done:
            if team.leads:
                print(done, file=sys.stderr)
            return resume if team.leads else None
        if resume is None:
            resume = start.interrupted(data, out, team)
        if resume is not None:
            run = resume_run(resume)
        else:
            run = start_run(data, model, out, changes, format, task)
        run.go()
        if not team.leads:
            return None
        start.finish(run)
        if run.diverged:  # not a success: a script should not go on with this model
            raise DivergedError(
                f"the training diverged, see the warning above; the model and its report are in {run.folder}"
            )
        return run.folder


def run_folds(
    data: str,
    folds: int,
    model: str = "",
    out: Path | None = None,
    changes: Sequence[str] = (),
    format: str = "auto",
    task: str = "",
    quiet: bool = False,
) -> Path:
    """Cross-validate, then train on everything; return the run folder."""
    from saccade.train import cross_validation

    chosen = _able(data, model, changes, task, "folds")
    return cross_validation.cross_validate(chosen, data, folds, model, out, changes, format, quiet)


def resume_folds(folder: Path, quiet: bool = False) -> Path:
    """Resume a cross-validation."""
    from saccade.train import cross_validation

    return cross_validation.resume(find_task(start.run_task(folder)), folder, quiet)


def run_probe(
    data: str, model: str, out: Path | None, changes: Sequence[str], format: str, task: str
) -> Path:
    """Fit a linear head on frozen features; return the run folder."""
    return _able(data, model, changes, task, "probe").probe(data, model, out, changes, format)


def _able(data: str, model: str, changes: Sequence[str], task: str, ability: str) -> Task:
    chosen = find_task(task) if task else fitting_task(data, model, changes)
    if ability not in chosen.abilities:
        raise UsageError(f"--{ability} does not work with the task {chosen.name}; leave it out")
    return chosen


@overload
def train(
    data: str | Path,
    *,
    task: str,
    model: str | Path = "",
    out: str | Path | None = None,
    minutes: float | None = None,
    quiet: bool = False,
    **changes: object,
) -> Any: ...
@overload
def train(
    data: str | Path,
    *,
    model: str | Path = "",
    out: str | Path | None = None,
    minutes: float | None = None,
    quiet: bool = False,
    **changes: object,
) -> "Model": ...
def train(
    data: str | Path,
    *,
    model: str | Path = "",
    out: str | Path | None = None,
    minutes: float | None = None,
    quiet: bool = False,
    **changes: object,
) -> "Model | TextModel":
    """Train on images or text as `saccade train` does; return the best model, with its run as `folder`.

    Args:
        task: the task, if the data and the model do not show it.
        model: a name, or weights to start from.
        changes: fields of the recipe, with two underscores for a dot: `budget__epochs=10`, `freeze="body"`.
    """
    typed = [f"{name.replace('__', '.')}={_typed(value)}" for name, value in changes.items()]
    typed += [] if minutes is None else [f"budget.minutes={minutes}"]
    run = start_run(str(data), str(model), None if out is None else Path(out), typed, quiet=quiet)
    run.go()
    start.finish(run)
    if run.diverged:
        warnings.warn(run.diverged, stacklevel=2)
    from saccade.api.load import load

    made = load(run.folder)
    made.folder = run.folder
    return made


def _typed(value: object) -> str:
    """Return a value as a user would type it after --set."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
