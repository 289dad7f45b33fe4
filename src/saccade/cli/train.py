"""`saccade train`: from images, sentence pairs or a text to a model folder."""

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
    model: Annotated[
        str,
        typer.Option(
            help="A name (saccade models), or a model to start from; default: small published weights."
        ),
    ] = "",
    scratch: Annotated[
        bool, typer.Option("--scratch", help="Start from scratch, without pretrained weights.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Run folder, new or empty; default: runs/DATA-MODEL.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume a run that was stopped or killed.")] = None,
    folds: Annotated[
        int | None, typer.Option(metavar="N", help="Score in N folds first, then train on everything.")
    ] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Fit a linear head on the frozen model's features; takes seconds.")
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(help="Train for this many minutes; the learning rate reaches 0 at the end."),
    ] = None,
    recipe: Annotated[Path | None, typer.Option(help="A TOML file with recipe fields.")] = None,
    changes: ChangesOption = None,
    kind: FormatOption = "auto",
) -> None:
    """Train a model on your images: `saccade train photos --set optim.lr=3e-4`.

    Sentence pairs: `saccade train pairs.tsv --task translate`; a text: `saccade train book.txt`.
    """
    if bool(data) == (resume is not None):
        raise UsageError("give either DATA to start a run or --resume RUN to resume one")
    numbers = folds is not None or minutes is not None
    if resume is not None and (
        task or model or scratch or out or numbers or probe or recipe or changes or kind != "auto"
    ):
        raise UsageError("--resume continues a run exactly as it started; leave out the other options")
    for option, given in {"--folds": folds, "--minutes": minutes}.items():
        if probe and given is not None:
            raise UsageError(f"--probe and {option} were both given; give one of them")
    from saccade.recipe import read_recipe
    from saccade.task import choose_start

    model = choose_start(model, scratch, probe)
    changes = [*(read_recipe(recipe) if recipe else ()), *(changes or ())]
    if minutes is not None:
        check_number("minutes", minutes, 0.01, 10**6)
        changes.append(f"budget.minutes={minutes}")
    from saccade.api.train import run_folds, run_probe, run_training

    if probe:
        typer.echo(run_probe(data, model, out, changes, kind, task))
    elif folds is not None:
        typer.echo(run_folds(data, folds, model, out, changes, kind, task))
    elif folder := run_training(data, model, out, changes, kind, task, resume):
        typer.echo(folder)
