"""`saccade bench`: how fast a model answers here, on every engine."""

from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.arguments import FormatOption, examples
from saccade.cli.output import print_json, say, table
from saccade.errors import UsageError


@examples(
    "saccade bench runs/pets",
    "saccade bench vit_ti16 resnet18 --engine onnx --seconds 0.5",
    "saccade bench runs/pets --data pets --engine eager,onnx",
)
def bench(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL", help="Model folders, exported ones, or names (vit_s16)."),
    ],
    data: Annotated[
        str,
        typer.Option(metavar="DATA", help="Labelled images, to score each engine and draw a plot."),
    ] = "",
    engine: Annotated[str, typer.Option(help="all, auto, or a list from eager, onnx, openvino.")] = "all",
    batch: Annotated[str, typer.Option(help="Batch sizes, comma-separated.")] = "1,8",
    seconds: Annotated[float, typer.Option(help="Time for each model, engine and batch size.")] = 2.0,
    count: Annotated[int, typer.Option(help="Images of DATA to score on.")] = 500,
    out: Annotated[Path | None, typer.Option(help="The plot, a .png; default accuracy-by-speed.png.")] = None,
    kind: FormatOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure how fast a model runs on this machine."""
    try:
        batches = sorted({int(word) for word in batch.split(",")})
    except ValueError:
        raise UsageError(
            f"--batch is {batch!r}; expected comma-separated whole numbers such as 1,8"
        ) from None
    if data and out is None:
        out = Path("accuracy-by-speed.png")
    from saccade.api.bench import bench as measure

    result = measure(models, say, data, engine, batches, seconds, count, out, kind)
    if as_json:
        print_json(result.to_json())
        return
    from saccade.engine.bench import table_rows

    typer.echo(table(table_rows(result.cells), right=range(2, 10)))
    typer.echo(result.notes)
