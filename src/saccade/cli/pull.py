"""`saccade pull`: fetch a model from the hub."""

from pathlib import Path
from typing import Annotated

import typer

from saccade.weights.fetch import fetch
from saccade.weights.look import look


def pull(
    name: Annotated[str, typer.Argument(metavar="HUB-ID", help="For example google/vit-base-patch16-224.")],
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write it as a model folder of ours.")] = None,
) -> None:
    """Fetch a model into the cache and check it: `saccade pull facebook/deit-tiny-patch16-224`."""
    folder = fetch(name, revision=revision)
    look(folder)
    if out is not None:
        from saccade.api import load

        folder = load(folder).save(out)
    typer.echo(folder)
