"""Train: start or resume a run of any task, a cross-validation or a linear probe."""

import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from saccade.errors import DataError, DivergedError, UsageError
from saccade.processes import joined
from saccade.recipe import from_options, origins
from saccade.task import SCRATCH, Task, choose_start
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
    chosen, model = _chosen(data, model, changes, task)
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


def show_recipe(
    data: str, model: str, layers: Mapping[str, Sequence[str]], format: str = "auto", task: str = ""
) -> list[tuple[str, str, str]]:
    """Return the name, the value and the origin of each field of the recipe that a run would have.

    Args:
        layers: What was typed, by origin; the last one that names a field counts.
    """
    changes = [text for texts in layers.values() for text in texts]
    chosen = find_task(task) if task else fitting_task(data, model, changes)
    changes = [text for text in changes if text.partition("=")[0].strip() != "task"]
    splits = start.open_data(chosen, data, changes, format)
    return origins(start.default_recipe(chosen, splits, model, changes)[0], chosen.recipe(), layers)


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

    chosen, model = _able(data, model, changes, task, "folds")
    return cross_validation.cross_validate(chosen, data, folds, model, out, changes, format, quiet)


def resume_folds(folder: Path, quiet: bool = False) -> Path:
    """Resume a cross-validation."""
    from saccade.train import cross_validation

    return cross_validation.resume(find_task(start.run_task(folder)), folder, quiet)


def run_probe(
    data: str, model: str, out: Path | None, changes: Sequence[str], format: str, task: str
) -> Path:
    """Fit a linear head on frozen features; return the run folder."""
    chosen, model = _able(data, model, changes, task, "probe")
    return chosen.probe(data, model, out, changes, format)


def _chosen(data: str, model: str, changes: Sequence[str], task: str) -> tuple[Task, str]:
    """Return the task and the model to start from; models of text start from scratch anyway."""
    named = "" if model == SCRATCH else model
    chosen = find_task(task) if task else fitting_task(data, named, changes)
    return chosen, named if chosen.kinds else model


def _able(data: str, model: str, changes: Sequence[str], task: str, ability: str) -> tuple[Task, str]:
    chosen, model = _chosen(data, model, changes, task)
    if ability not in chosen.abilities:
        raise UsageError(f"--{ability} does not work with the task {chosen.name}; leave it out")
    return chosen, model


@overload
def train(
    data: str | Path,
    *,
    task: str,
    model: str | Path = "",
    out: str | Path | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    seed: int | None = None,
    device: str | None = None,
    image: int | None = None,
    minutes: float | None = None,
    scratch: bool = False,
    quiet: bool = False,
    **changes: object,
) -> Any: ...
@overload
def train(
    data: str | Path,
    *,
    model: str | Path = "",
    out: str | Path | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    seed: int | None = None,
    device: str | None = None,
    image: int | None = None,
    minutes: float | None = None,
    scratch: bool = False,
    quiet: bool = False,
    **changes: object,
) -> "Model": ...
def train(
    data: str | Path,
    *,
    model: str | Path = "",
    out: str | Path | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    seed: int | None = None,
    device: str | None = None,
    image: int | None = None,
    minutes: float | None = None,
    scratch: bool = False,
    quiet: bool = False,
    **changes: object,
) -> "Model | TextModel":
    """Train on images or text as `saccade train` does; return the best model, with its run as `folder`.

    Args:
        task: the task, if the data and the model do not show it.
        model: a name, or weights to start from; default: small published weights, if they can be had.
        scratch: start from scratch.
        epochs, batch, lr, seed, device, image, minutes: as the options of `saccade train`.
        changes: other fields of the recipe, with two underscores for a dot: `optim__ema=0.99`.
    """
    given = {"epochs": epochs, "batch": batch, "lr": lr, "seed": seed, "device": device, "image": image}
    typed = [f"{name.replace('__', '.')}={_typed(value)}" for name, value in changes.items()]
    typed += from_options(given | {"minutes": minutes}, typed)
    named = choose_start(str(model), scratch)
    run = start_run(str(data), named, None if out is None else Path(out), typed, quiet=quiet)
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
