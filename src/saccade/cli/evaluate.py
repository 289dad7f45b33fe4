"""`saccade evaluate`: how good is a model on data it has not seen?"""

from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.arguments import (
    AnyDataArgument,
    DeviceOption,
    EngineOption,
    FormatOption,
    ModelArgument,
    examples,
)
from saccade.cli.output import print_json, say, table

MOST = 20
"""Classes to print."""


@examples(
    "saccade evaluate runs/pets pets",
    "saccade evaluate runs/pets pets --split train --json",
    "saccade evaluate runs/de-en pairs.tsv",
)
def evaluate(
    model: ModelArgument,
    data: AnyDataArgument = "",
    split: Annotated[
        str, typer.Option(help="train, val or test; default: the first of test, val, train.")
    ] = "",
    kind: FormatOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the worst mistakes.")] = False,
    engine: EngineOption = "",
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Page with the results; default: RUN/evaluation.html for a run."),
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Measure the accuracy of a model on labelled data.

    Without DATA, a run is evaluated on what it held out of its own data: `saccade evaluate runs/pets`.

    A text model is evaluated on sentence pairs or a text: `saccade evaluate runs/multi30k multi30k`.
    """
    from saccade.api.evaluate import default_page, evaluate_model, write_page

    if html is not None:
        from saccade.check.page import check_target

        check_target(html)
    made = evaluate_model(model, data, split, kind, engine, device)
    if not data:
        say(f"data: {made.data}, as split by {model}")
    if as_json:
        print_json({"data": made.data, **made.found.details})
    else:
        for title, value in made.task.score_rows(made.found):
            typer.echo(f"{title:<18} {value}")
        if rows := made.task.class_rows(made.found, made.labels):
            typer.echo(f"\n{_class_table(rows)}")
    page = html or (None if as_json else default_page(made.folder))
    if page is not None:
        write_page(page, made, model)
        say(f"page: {page}")


def _class_table(rows: list[list[str]]) -> str:
    """Return the classes, the worst first."""
    left = len(rows) - 1 - MOST
    more = f"\nand {left:,} better classes; the page lists them all" if left > 0 else ""
    return table(rows[: MOST + 1], right=range(1, 6)) + more
