"""`saccade train`: from a folder of pictures to a model folder."""

from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.parse import ChangesOption, DataArgument, FormatOption
from saccade.errors import UsageError


def train(
    data: DataArgument = "",
    model: Annotated[str, typer.Option(help="A name (saccade models), or a model to start from.")] = "",
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/<name of the data>.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with a run that was stopped or killed.")] = None,
    folds: Annotated[
        int | None, typer.Option(metavar="N", help="Score in N folds first, then train on all pictures.")
    ] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Fit a linear head on the frozen model's features: seconds.")
    ] = False,
    minutes: Annotated[
        float | None, typer.Option(help="Train for so long; the learning rate falls to 0 by then.")
    ] = None,
    recipe: Annotated[Path | None, typer.Option(help="A TOML file with fields of the recipe.")] = None,
    changes: ChangesOption = None,
    kind: FormatOption = "auto",
) -> None:
    """Train a model on your pictures: `saccade train photos --set optim.lr=3e-4`."""
    if bool(data) == (resume is not None):
        raise UsageError("give either DATA to start a run or --resume RUN to go on with one")
    others = (model, out, folds is not None, probe, minutes is not None, recipe, changes, kind != "auto")
    if resume is not None and any(others):
        raise UsageError("--resume goes on exactly as the run began; leave out the other options")
    if probe:
        _check_alone({"--folds": folds, "--minutes": minutes})
    from saccade.train.recipe import read

    changes = [*(read(recipe) if recipe else ()), *(changes or ())]
    if minutes is not None:
        changes.append(f"budget.minutes={minutes}")
    if probe:
        from saccade.train.probe import probe as fit

        typer.echo(fit(data, model, out, changes, kind))
        return
    from saccade.train import crossval, start
    from saccade.train.distributed import joined

    if folds is not None:
        typer.echo(crossval.crossval(data, folds, model, out, changes, kind))
        return
    if resume is not None and crossval.is_crossval(resume):
        typer.echo(crossval.resume(resume))
        return
    with joined() as team:
        if resume is None:
            resume = start.interrupted(data, out, team)
        run = start.resume(resume) if resume is not None else start.start(data, model, out, changes, kind)
        run.go()
        if team.leads:
            start.finish(run)
            typer.echo(run.folder)


def _check_alone(others: dict[str, object]) -> None:
    for option, given in others.items():
        if given is not None:
            raise UsageError(f"--probe and {option} were both given; give one of them")
