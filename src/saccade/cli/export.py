"""`saccade export`: a model as one graph that runs without saccade, and without torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.arguments import FormatOption, ModelArgument, examples

if TYPE_CHECKING:
    from saccade.api.export import ExportResult


@examples(
    "saccade export runs/pets",
    "saccade export runs/pets pets-ov --to openvino",
    "saccade export runs/pets small --int8 --data pets",
)
def export(
    model: ModelArgument,
    out: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="Folder to write; default: MODEL's name and --to.")
    ] = None,
    to: Annotated[str, typer.Option(help="onnx, openvino or torch (torch.export).")] = "onnx",
    pixels: Annotated[
        str, typer.Option(help="floats, or bytes: resizing and normalising become part of the graph.")
    ] = "floats",
    int8: Annotated[
        bool, typer.Option("--int8", help="Quantise to int8, calibrated on --data or the run's own data.")
    ] = False,
    data: Annotated[
        str, typer.Option(metavar="DATA", help="Images to calibrate and check on; default: the run's own.")
    ] = "",
    kind: FormatOption = "auto",
    most: Annotated[
        int, typer.Option("--pictures", help="Images to check on, and as many others to calibrate on.")
    ] = 128,
) -> None:
    """Export a model to ONNX, OpenVINO or torch.export.

    The graph is checked against the model and discarded if predictions differ. `saccade predict` runs the
    folder without torch.
    """
    from saccade.api.export import export as export_model

    result = export_model(model, out, to, pixels, int8, data, kind, most)
    size = sum(file.stat().st_size for file in result.folder.iterdir())
    typer.echo(f"{result.folder}  {size / 1e6:.1f} MB")
    _print_check(result)


def _print_check(result: "ExportResult") -> None:
    found = result.agreement
    same = " that it was calibrated on, as there are no others" if result.calibrated else ""
    if result.images:
        images = f"{result.images} images{same}"
    else:
        images = f"{found.pictures} synthetic images (yours: --data)"
    typer.echo(f"checked on         {images}, and on {found.sizes} sizes")
    typer.echo(f"top-1 agreement    {found.agreement:.1%}")
    if found.right >= 0:
        typer.echo(f"accuracy           {found.right:.1%} (the model: {found.before:.1%})")
    typer.echo(f"largest difference {found.difference:.1e} of the largest logit")
    if found.ties:
        typer.echo(
            f"left to rounding   {found.ties}: images with two patches so alike that the model itself "
            f"answers both ways when a pixel moves by a millionth"
        )
