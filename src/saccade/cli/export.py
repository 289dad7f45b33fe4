"""`saccade export`: a model as one graph that answers without saccade, and without torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.arguments import FormatOption, ModelArgument, check_free
from saccade.errors import ModelError, UsageError, check_number, check_word

if TYPE_CHECKING:
    from saccade.data.pictures import Images
    from saccade.engine.verify import Samples, Verdict

FORMATS = ("onnx", "openvino", "torch")
CALIBRATION = 128
FEW = 8
"""So many pictures or more are worth to be kept from the calibration, to be checked on."""


def export(
    model: ModelArgument,
    out: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="Folder to write; default: MODEL's name and --to.")
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
    most: Annotated[
        int,
        typer.Option("--pictures", help="Pictures to check on, and as many others to calibrate on."),
    ] = CALIBRATION,
) -> None:
    """Write a model as one graph with free batch and size: `saccade export runs/pets --to onnx`.

    The graph is asked beside the model before it is kept, and refused if its answers are others. `saccade
    predict` runs the folder without torch.
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
    from saccade.engine.exported import is_exported
    from saccade.weights.identify import locate

    path = locate(model)
    place = out or _beside(model, path, f"-{to}{'-int8' if int8 else ''}")
    check_free(place)
    if is_exported(path):
        raise ModelError(f"{model} is an exported graph already; export the run that it was made from")
    _check_packages(to, int8)
    looked(path)
    learnt, held = _images(data, kind, most, int8) if data else (None, None)
    from saccade.engine.export import fewest
    from saccade.engine.verify import inputs
    from saccade.engine.write import NONE, write
    from saccade.weights.load import load

    loaded = load(path)
    samples = NONE if held is None else _samples(held, loaded.labels)
    batches = None
    if int8 and learnt is not None:
        batches = inputs(loaded.preprocess, pixels, _samples(learnt).sources)
    verdict = write(place, loaded, to, pixels, samples, batches)
    size = sum(file.stat().st_size for file in place.iterdir())
    typer.echo(f"{place}  {size / 1e6:.1f} MB")
    _tell(verdict, len(samples.sources), int8 and learnt is held)
    if to == "torch" and (least := fewest(loaded.module)) > 1:
        typer.echo(f"merges patches     so the program takes pictures of {least} patches or more")


def _beside(model: str, path: Path, ending: str) -> Path:
    """Where a graph goes that nobody gave a place: beside its model, for a hub id into this folder."""
    if path != Path(model):
        from saccade.hub.names import read_name

        return Path(read_name(model)[0].split("/")[-1] + ending)
    named = path if path.name.strip(".") else path.resolve()
    return named.with_name((named.stem if path.is_file() else named.name) + ending)


def _tell(verdict: "Verdict", given: int, again: bool) -> None:
    """What the check found; `again`: on the pictures of the calibration, for want of others."""
    whose = " that it was calibrated on, as there are no others" if again else ""
    told = f"{given} pictures{whose}" if given else f"{verdict.pictures} made-up pictures (yours: --data)"
    typer.echo(f"checked on         {told}, and on {verdict.sizes} sizes")
    typer.echo(f"first answer kept  {verdict.agreement:.1%}")
    if verdict.right >= 0:
        typer.echo(f"right              {verdict.right:.1%} (the model: {verdict.before:.1%})")
    typer.echo(f"largest difference {verdict.difference:.1e} of the largest logit")
    if verdict.ties:
        typer.echo(
            f"left to a rounding {verdict.ties}: pictures with two patches so alike that the model itself "
            f"answers both ways when a pixel moves by a millionth"
        )


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


def _images(data: str, kind: str, most: int, int8: bool) -> "tuple[Images, Images]":
    """Pictures to calibrate on and to check on, spread over their splits: others, where there are enough."""
    import numpy as np

    from saccade.cli.sample import read
    from saccade.data.readers.open import open_images
    from saccade.data.splits import spread

    found = open_images(data, kind, least=1).splits
    learnt = next(found[name] for name in ("train", "val", "test") if name in found)
    held = next(found[name] for name in ("test", "val", "train") if name in found)
    if not int8:
        return learnt, read(held.take(spread(len(held), most)))
    if learnt is not held:
        return read(learnt.take(spread(len(learnt), most))), read(held.take(spread(len(held), most)))
    some = spread(len(held), min(most, max(len(held) * 3 // 4, 1)))
    rest = np.setdiff1d(np.arange(len(held)), some)
    if len(rest) < FEW:
        learnt = read(held.take(spread(len(held), most)))
        return learnt, learnt
    return read(held.take(some)), read(held.take(rest[spread(len(rest), most)]))


def _samples(images: "Images", labels: list[str] | None = None) -> "Samples":
    """Pictures as they lie on the disk, with their classes if the model knows all of them."""
    from saccade.engine.verify import Samples

    sources = [images.open(i) for i in range(len(images))]
    if not labels or set(images.classes) - set(labels):
        return Samples(sources)
    return Samples(sources, images.relabel(labels).labels.tolist())
