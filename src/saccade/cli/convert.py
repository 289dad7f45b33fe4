"""`saccade convert`: any checkpoint to a model folder, or a model folder to anyone's layout."""

import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from saccade.cli import parse
from saccade.errors import UsageError, check_word
from saccade.weights.files import PICKLES, kind
from saccade.weights.look import THEIRS, locate, look, weights_in


def convert(
    source: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="A model file or folder; .pt, .pth and .bin too.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write; it must not exist, or be empty.")],
    to: Annotated[str, typer.Option(help="The layout: saccade, timm, hf or google.")] = "saccade",
    image: Annotated[str | None, typer.Option(help="Another picture size: 384 or 224x448.")] = None,
    patch: Annotated[int | None, typer.Option(help="Another patch size.")] = None,
    labels: Annotated[Path | None, typer.Option(help="A text file with one label a line.")] = None,
    normalise: Annotated[
        str | None, typer.Option(help="half, imagenet, or 3 means and 3 deviations.")
    ] = None,
) -> None:
    """Turn a checkpoint into a model folder: `saccade convert vit.npz --out vit --labels names.txt`."""
    check_word("layout", to, ("saccade", "timm", "hf", "google"))
    size, values, names = parse.size(image), parse.normalise(normalise), parse.labels(labels)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and is not empty; nothing was written; give another name")
    with TemporaryDirectory() as scratch:
        path = _readable(locate(source), Path(scratch))
        look(path)  # refuses a damaged file before torch is imported
        from saccade.api import load

        model = load(path, image=size, patch=patch, labels=names)
        if values is not None:
            model.preprocess = replace(model.preprocess, mean=values[0], std=values[1])
        model.save(out, to)
    print(f"{model!r} from {model.layout}'s layout, written as {to}", file=sys.stderr)
    typer.echo(out)


def _readable(path: Path, scratch: Path) -> Path:
    """The path itself, or for a pickle the safetensors file that a restricted process made of it."""
    weights = weights_in(path)
    if kind(weights) not in PICKLES:
        return path
    from saccade.weights.unpickle import unpickle

    report = unpickle(weights, scratch / "model.safetensors")
    for name in THEIRS:
        if (weights.parent / name).is_file():
            (scratch / name).write_bytes((weights.parent / name).read_bytes())
    dropped = f", left out {len(report.dropped)} other entries" if report.dropped else ""
    print(f"{weights.name}: took {report.tensors} tensors of {report.chosen!r}{dropped}", file=sys.stderr)
    return scratch
