"""`saccade train`: from pictures, sentence pairs or a text to a model folder."""

from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.arguments import AnyDataArgument, ChangesOption, FormatOption
from saccade.errors import UsageError, check_number


def train(
    data: AnyDataArgument = "",
    task: Annotated[
        str,
        typer.Option(
            help="classify, translate or language; default: the model's, language for a .txt, else classify."
        ),
    ] = "",
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
    """Train a model on your pictures: `saccade train photos --set optim.lr=3e-4`.

    Sentence pairs: `saccade train pairs.tsv --task translate`; a text: `saccade train book.txt`.
    """
    if bool(data) == (resume is not None):
        raise UsageError("give either DATA to start a run or --resume RUN to go on with one")
    others = (
        task,
        model,
        out,
        folds is not None,
        probe,
        minutes is not None,
        recipe,
        changes,
        kind != "auto",
    )
    if resume is not None and any(others):
        raise UsageError("--resume goes on exactly as the run began; leave out the other options")
    if probe:
        _check_alone({"--folds": folds, "--minutes": minutes})
    from saccade.recipe import read

    changes = [*(read(recipe) if recipe else ()), *(changes or ())]
    if minutes is not None:
        check_number("minutes", minutes, 0.01, 10**6)
        changes.append(f"budget.minutes={minutes}")
    from saccade.processes import joined
    from saccade.train import cross_validation as crossval
    from saccade.train import start

    if probe or folds is not None:
        _check_pictures(task or start.task_of(data, model, changes), "--probe" if probe else "--folds")
        typer.echo(_on_pictures(data, folds, model, out, changes, kind))
        return
    if resume is not None and crossval.is_crossval(resume):
        typer.echo(crossval.resume(resume))
        return
    with joined() as team:
        if resume is None:
            resume = start.interrupted(data, out, team)
        if resume is not None:
            run = start.resume(resume)
        else:
            run = start.start(data, model, out, changes, kind, task=task)
        run.go()
        if team.leads:
            start.finish(run)
            typer.echo(run.folder)


def _on_pictures(
    data: str, folds: int | None, model: str, out: Path | None, changes: list[str], kind: str
) -> Path:
    """What only pictures can do: a linear probe, or folds."""
    if folds is not None:
        from saccade.train.cross_validation import crossval

        return crossval(data, folds, model, out, changes, kind)
    from saccade.tasks.classify.probe import probe

    return probe(data, model, out, changes, kind)


def _check_alone(others: dict[str, object]) -> None:
    for option, given in others.items():
        if given is not None:
            raise UsageError(f"--probe and {option} were both given; give one of them")


def _check_pictures(task: str, option: str) -> None:
    if task != "classify":
        raise UsageError(f"{option} is for pictures, but the task is {task}; leave it out")
