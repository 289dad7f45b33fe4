"""`saccade evaluate`: how good is a model on data it has not seen?"""

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
from saccade.cli.output import print_json


@examples(
    "saccade evaluate runs/pets pets",
    "saccade evaluate runs/pets pets --split train --json",
    "saccade evaluate runs/de-en pairs.tsv",
)
def evaluate(
    model: ModelArgument,
    data: AnyDataArgument,
    split: Annotated[
        str, typer.Option(help="train, val or test; default: the first of test, val, train.")
    ] = "",
    kind: FormatOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the worst mistakes.")] = False,
    engine: EngineOption = "",
    device: DeviceOption = "auto",
) -> None:
    """Measure the accuracy of a model on labelled data.

    A text model is evaluated on sentence pairs or a text: `saccade evaluate runs/multi30k multi30k`.
    """
    from saccade.api.evaluate import evaluate_model

    task, found = evaluate_model(model, data, split, kind, engine, device)
    if as_json:
        print_json({"data": data, **found.details})
        return
    for title, value in task.score_rows(found):
        typer.echo(f"{title:<18} {value}")
