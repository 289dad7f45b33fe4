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
    """List architectures, their sizes and costs: `saccade models vit_b16 vit_b16_384 gpt2`."""
    from saccade.models import names as pictures
    from saccade.models.cost import describe, describe_text
    from saccade.models.text import names as text

    for name in names or ():
        (text if text.is_text(name) else pictures).config(name)  # refuses a name before others are counted
    asked = names or [*pictures.EXAMPLES, *text.EXAMPLES]
    rows = [describe_text(name) if text.is_text(name) else describe(name) for name in asked]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    kinds = [[row for row in rows if ("macs" in row) == of_pictures] for of_pictures in (True, False)]
    typer.echo("\n\n".join(_table(kind) for kind in kinds if kind))


def _table(rows: list[dict[str, int | str | None]]) -> str:
    from saccade.cli.table import table

    shown = [[_shown(column, value) for column, value in row.items()] for row in rows]
    return table([list(rows[0]), *shown], right=range(1, len(rows[0])))


def _shown(column: str, value: object) -> str:
    if value is None:
        return ""
    if column == "macs":
        return f"{float(str(value)) / 1e9:.2f} G"
    return f"{value:,}" if isinstance(value, int) else str(value)
