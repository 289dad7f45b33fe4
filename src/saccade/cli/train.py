"""`saccade train`: from a folder of pictures to a model folder."""

from pathlib import Path
from typing import Annotated

import typer

from saccade.errors import UsageError


def train(
    data: Annotated[
        str,
        typer.Argument(
            metavar="[DATA]", help="Class folders, a CSV or JSONL manifest, tar shards or parquet."
        ),
    ] = "",
    model: Annotated[str, typer.Option(help="A name (saccade models), or a model to start from.")] = "",
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/<name of the data>.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with a run that was stopped or killed.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change a field of the recipe.")
    ] = None,
    kind: Annotated[
        str, typer.Option("--format", help="Force what DATA is: folders, manifest, shards, parquet.")
    ] = "auto",
) -> None:
    """Train a model on your pictures: `saccade train photos --set optim.lr=3e-4`."""
    if bool(data) == (resume is not None):
        raise UsageError("give either DATA to start a run or --resume RUN to go on with one")
    if resume is not None and (model or out or changes or kind != "auto"):
        raise UsageError("--resume goes on exactly as the run began; leave out the other options")
    from saccade.train import start

    run = start.resume(resume) if resume is not None else start.start(data, model, out, changes or (), kind)
    run.go()
    start.finish(run)
    typer.echo(run.folder)
