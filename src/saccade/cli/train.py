"""`saccade train`: from images, sentence pairs or a text to a model folder."""

from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.arguments import AnyDataArgument, ChangesOption, FormatOption, examples
from saccade.errors import UsageError, check_number


@examples(
    "saccade train pets",
    "saccade train pets --epochs 3 --batch 16 --lr 3e-4",
    "saccade train book.txt --model gpt_mini --epochs 1",
)
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
    epochs: Annotated[int | None, typer.Option(help="Passes over the training data.")] = None,
    batch: Annotated[int | None, typer.Option(help="Batch size.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same run.")] = None,
    device: Annotated[str | None, typer.Option(help="auto (a GPU if there is one), cpu, cuda, mps.")] = None,
    image: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
    recipe: Annotated[Path | None, typer.Option(help="A TOML file with recipe fields.")] = None,
    changes: ChangesOption = None,
    kind: FormatOption = "auto",
    show: Annotated[
        bool, typer.Option("--show-recipe", help="Print every recipe field, its value and origin; then stop.")
    ] = False,
) -> None:
    """Train a model on a folder of images, sentence pairs or a text.

    Without options, the recipe suits the size of the dataset. Every setting is a recipe field, listed in
    docs/training.md; --set changes any of them.
    """
    if bool(data) == (resume is not None):
        raise UsageError("give either DATA to start a run or --resume RUN to resume one")
    given = {"epochs": epochs, "batch": batch, "lr": lr, "seed": seed, "device": device, "image": image}
    given["minutes"] = minutes
    numbers = folds is not None or any(value is not None for value in given.values())
    if resume is not None and (
        task or model or scratch or out or numbers or probe or recipe or changes or show or kind != "auto"
    ):
        raise UsageError("--resume continues a run exactly as it started; leave out the other options")
    for option, value in {"--folds": folds, "--minutes": minutes, "--show-recipe": show or None}.items():
        if probe and value is not None:
            raise UsageError(f"--probe and {option} were both given; give one of them")
    from saccade.task import choose_start

    model = choose_start(model, scratch, probe)
    if minutes is not None:
        check_number("minutes", minutes, 0.01, 10**6)
    from saccade.recipe import from_options, read_recipe

    file, sets = read_recipe(recipe) if recipe else [], changes or []
    options = from_options(given, sets, file)
    changes = [*file, *sets, *options]
    from saccade.api.train import run_folds, run_probe, run_training, show_recipe

    if show:
        from saccade.cli.output import table

        layers = {
            f"--recipe {recipe}": file,
            "--set": sets,
            "option": [*options, f"model={model}"] if model else options,
        }
        typer.echo(table([("field", "value", "from"), *show_recipe(data, model, layers, kind, task)]))
    elif probe:
        typer.echo(run_probe(data, model, out, changes, kind, task))
    elif folds is not None:
        typer.echo(run_folds(data, folds, model, out, changes, kind, task))
    elif folder := run_training(data, model, out, changes, kind, task, resume):
        typer.echo(folder)
