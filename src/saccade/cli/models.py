"""`saccade models`: which architectures there are, counted from the real modules."""

import json
from typing import Annotated

import typer


def models(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Names to count; default: a list.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List architectures, their sizes and costs: `saccade models vit_b16 vit_b16_384`."""
    from saccade.cli.table import table
    from saccade.models.cost import describe
    from saccade.models.names import EXAMPLES, config

    for name in names or ():
        config(name)  # refuses a name before the others are counted
    rows = [describe(name) for name in names or EXAMPLES]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    shown = [[_shown(column, value) for column, value in row.items()] for row in rows]
    typer.echo(table([list(rows[0]), *shown], right=range(1, len(rows[0]))))


def _shown(column: str, value: object) -> str:
    if value is None:
        return ""
    if column == "macs":
        return f"{float(str(value)) / 1e9:.2f} G"
    return f"{value:,}" if isinstance(value, int) else str(value)
