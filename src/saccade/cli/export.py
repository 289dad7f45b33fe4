"""`saccade export`: a model as one graph that answers without saccade, and without torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.parse import FormatOption, ModelArgument, check_free
from saccade.errors import ModelError, UsageError, check_number, check_word

if TYPE_CHECKING:
    from saccade.data.images import Images

FORMATS = ("onnx", "openvino", "torch")
CALIBRATION = 128


def export(
    model: ModelArgument,
    out: Annotated[
        Path | None, typer.Argument(metavar="[OUT]", help="Folder to write; default: MODEL's name and --to.")
    ] = None,
    to: Annotated[str, typer.Option(help="onnx, openvino or torch (torch.export).")] = "onnx",
    pixels: Annotated[
        str, typer.Option(help="floats, or bytes: resizing and normalising become part of the graph.")
    ] = "floats",
    int8: Annotated[bool, typer.Option("--int8", help="Round to int8, calibrated on --data.")] = False,
    data: Annotated[
        str, typer.Option(metavar="DATA", help="Pictures to calibrate and check on, as for train.")
    ] = "",
    kind: FormatOption = "auto",
    most: Annotated[int, typer.Option("--pictures", help="How many pictures of DATA to use.")] = CALIBRATION,
) -> None:
    """Write a model as one graph with free batch and size: `saccade export runs/pets --to onnx`.

    The graph is asked beside the model before it is kept. `saccade predict` runs the folder without torch.
    """
    check_word("--to", to, FORMATS)
    check_word("--pixels", pixels, ("floats", "bytes"))
    check_number("--pictures", most, 1, 100_000)
    if to == "torch" and (int8 or pixels == "bytes"):
        raise UsageError(
            "--to torch keeps floats and float32; choose --to onnx or --to openvino for the rest"
        )
    if int8 and not data:
        raise UsageError("--int8 rounds by what your pictures need; give some with --data DATA")
    from saccade.cli.note import looked
    from saccade.engine.folder import is_exported
    from saccade.weights.look import locate

    path = locate(model)
    place = out or Path(f"{path.with_suffix('') if path.is_file() else path}-{to}{'-int8' if int8 else ''}")
    check_free(place)
    if is_exported(path):
        raise ModelError(f"{model} is an exported graph already; export the run that it was made from")
    _check_packages(to, int8)
    looked(path)
    images = _images(data, kind) if data else None
    from saccade.engine.write import write
    from saccade.weights.load import load

    loaded = load(path)
    chosen = _sources(images, most) if images is not None else []
    batches = None
    if int8:
        batches = [loaded.preprocess.batch(chosen[i : i + 8]) for i in range(0, len(chosen), 8)]
    verdict = write(place, loaded, to, pixels, chosen[:64], batches)
    size = sum(file.stat().st_size for file in place.iterdir())
    typer.echo(f"{place}  {size / 1e6:.1f} MB")
    typer.echo(f"checked on         {verdict.pictures} pictures of {verdict.sizes} sizes")
    typer.echo(f"first answer kept  {verdict.agreement:.1%}")
    typer.echo(f"largest difference {verdict.difference:.1e} of the largest logit")


def _check_packages(to: str, int8: bool) -> None:
    from importlib.util import find_spec

    from saccade.engine.engine import check_installed

    if to != "torch":
        check_installed(to)
        if int8:
            check_installed("onnx")
        if find_spec("onnx") is None:
            raise UsageError(
                "graphs are drawn with the package onnx, which is not installed; "
                "run `pip install 'saccade[onnx]'`"
            )


def _images(data: str, kind: str) -> "Images":
    from saccade.data.open import open_images

    found = open_images(data, kind, least=1).splits
    return found[next(name for name in ("val", "train", "test") if name in found)]


def _sources(images: "Images", most: int) -> list[bytes]:
    """Pictures spread over the whole set."""
    count = min(most, len(images))
    return [images.read(i * len(images) // count) for i in range(count)]
