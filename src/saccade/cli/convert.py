"""`saccade convert`: any checkpoint to a model folder, or a model folder to anyone's layout."""

import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from saccade.cli import arguments as parse
from saccade.errors import SaccadeError, UsageError, check_number, check_word

LAYOUTS = ("saccade", "timm", "hf", "google")


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT", help="A model file or folder, GPT-2 and BERT too; also .pt, .pth, .bin."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write; it must not exist, or be empty.")],
    to: Annotated[str, typer.Option(help="The layout: saccade, timm, hf or google.")] = "saccade",
    image: Annotated[str | None, typer.Option(help="Another picture size: 384 or 224x448.")] = None,
    patch: Annotated[int | None, typer.Option(help="Another patch size.")] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="A text file with one label a line; numbers such as n01440764 in front are dropped."
        ),
    ] = None,
    normalise: Annotated[
        str | None, typer.Option(help="half, imagenet, or 3 means and 3 deviations with commas.")
    ] = None,
) -> None:
    """Turn a checkpoint into a model folder: `saccade convert vit.npz --out vit --labels names.txt`."""
    from saccade.cli.note import looked
    from saccade.files.paths import shown
    from saccade.weights.identify import locate

    check_word("layout", to, LAYOUTS)
    if patch is not None:
        check_number("patch", patch, 1, 1024)
    size, values, names = parse.size(image), parse.normalise(normalise), parse.labels(labels)
    parse.check_free(out)
    with TemporaryDirectory() as scratch:
        given = locate(source)
        path = _readable(given, Path(scratch))
        try:
            text = looked(path, "any").text
            if text and (values is not None or names is not None or size is not None or patch is not None):
                raise UsageError(
                    f"{shown(given)} is a model of text; --image, --patch, --labels and --normalise are for "
                    "models of pictures; leave them out"
                )
            from saccade.api.models import Model, load

            model = load(path, text=True) if text else load(path, image=size, patch=patch, labels=names)
        except SaccadeError as error:  # the person knows the checkpoint, and not our copy of it
            raise type(error)(str(error).replace(str(path), shown(given))) from error
        if values is not None and isinstance(model, Model):
            model.preprocess = replace(model.preprocess, mean=values[0], std=values[1])
        model.save(out, to)
    print(f"{model!r} from {model.layout}'s layout, written as {to}", file=sys.stderr)
    typer.echo(out)


def _readable(path: Path, scratch: Path) -> Path:
    """The path itself, or for a pickle the safetensors file that a restricted process made of it."""
    from saccade.weights.formats.tensors import PICKLES, kind
    from saccade.weights.identify import SPOKEN, THEIRS, weights_in

    weights = weights_in(path)
    if kind(weights) not in PICKLES:
        return path
    from saccade.weights.formats.pickle.convert import unpickle

    report = unpickle(weights, scratch / "model.safetensors")
    for name in (*THEIRS, *SPOKEN):
        if (weights.parent / name).is_file():
            (scratch / name).symlink_to((weights.parent / name).absolute())
    dropped = f", left out {len(report.dropped)} other entries" if report.dropped else ""
    print(f"{weights.name}: took {report.tensors} tensors of {report.chosen!r}{dropped}", file=sys.stderr)
    return scratch
