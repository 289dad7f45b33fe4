"""`saccade models`: which architectures there are, counted from the real modules."""

import json
from typing import Annotated

import typer


def models(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Names to count; default: a list.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List architectures, their sizes and costs: `saccade models vit_b16 vit_b16_384`."""
    from rich.console import Console
    from rich.table import Table

    from saccade.models.cost import describe
    from saccade.models.names import EXAMPLES

    rows = [describe(name) for name in names or EXAMPLES]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in rows[0]:
        table.add_column(column, justify="left" if column == "name" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(_shown(name, value) for name, value in row.items()))
    Console().print(table)


def _shown(column: str, value: object) -> str:
    if value is None:
        return ""
    if column == "macs":
        return f"{float(str(value)) / 1e9:.2f} G"
    return f"{value:,}" if isinstance(value, int) else str(value)
