"""`saccade pull`: fetch a model from the hub."""

from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.arguments import check_free


def pull(
    name: Annotated[str, typer.Argument(metavar="HUB-ID", help="For example google/vit-base-patch16-224.")],
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write it as a model folder of ours.")] = None,
) -> None:
    """Fetch a model into the cache and check it: `saccade pull facebook/deit-tiny-patch16-224`."""
    from saccade.cli.note import looked
    from saccade.hub.fetch import fetch

    check_free(out)
    folder = fetch(name, revision=revision)
    looked(folder, "any")
    if out is not None:
        from saccade.api.models import load

        folder = load(folder).save(out)
    typer.echo(folder)
