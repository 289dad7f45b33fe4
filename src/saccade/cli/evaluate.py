"""`saccade evaluate`: how good is a model on data it has not seen?"""

from typing import Annotated

import typer

from saccade.cli.arguments import AnyDataArgument, EngineOption, FormatOption, ModelArgument
from saccade.cli.output import print_json


def evaluate(
    model: ModelArgument,
    data: AnyDataArgument,
    split: Annotated[
        str, typer.Option(help="train, val or test; default: the first of test, val, train.")
    ] = "",
    kind: FormatOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the worst mistakes.")] = False,
    engine: EngineOption = "",
) -> None:
    """Evaluate a model on labelled images: `saccade evaluate runs/pets pets/test`.

    A text model is evaluated on sentence pairs or a text: `saccade evaluate runs/multi30k multi30k`.
    """
    from saccade.api.evaluate import evaluate_model

    task, found = evaluate_model(model, data, split, kind, engine)
    if as_json:
        print_json({"data": data, **found.details})
        return
    for title, value in task.score_rows(found):
        typer.echo(f"{title:<18} {value}")
