"""Arguments that several commands share: a model, a dataset, an image size, a file of labels."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from saccade.errors import ModelError, UsageError, check_number

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A model folder, .safetensors, .npz, timm or HF folder, or a hub id."
    ),
]
DataArgument = Annotated[
    str,
    typer.Argument(metavar="DATA", help="Class folders, a manifest, tar shards, parquet or hf:owner/name."),
]
AnyDataArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="Images (class folders, a manifest, tar shards, parquet, hf:owner/name), sentence pairs (TSV, "
        "JSONL, two files) or a text.",
    ),
]
FormatOption = Annotated[
    str, typer.Option("--format", help="What DATA is: auto, folders, manifest, shards, parquet.")
]
ChangesOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change a field of the recipe.")
]
DeviceOption = Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda, mps, ...")]
EngineOption = Annotated[str, typer.Option(help="auto (the fastest here), eager, onnx or openvino.")]
F = TypeVar("F", bound=Callable[..., Any])
Triple = tuple[float, float, float]
NAMED: dict[str, tuple[Triple, Triple]] = {
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
WNID = re.compile(r"n\d{8}[\s,:]+(?=\S)", re.ASCII)


def examples(*lines: str) -> Callable[[F], F]:
    """Give a command the examples that end its help; a test runs each."""

    def add(command: F) -> F:
        command.examples = lines  # type: ignore[attr-defined]
        return command

    return add


def size(text: str | None) -> tuple[int, int] | None:
    """Parse 384 or 224x448 (height x width)."""
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) not in (1, 2) or not all(s.isascii() and s.isdigit() and len(s) < 10 for s in sides):
        raise UsageError(
            f"the image size is {text!r}; expected a side such as 384, or height x width such as 224x448"
        )
    for side in sides:
        check_number("the image size", int(side), 1, 2**14)
    return int(sides[0]), int(sides[-1])


def normalise(text: str | None) -> tuple[Triple, Triple] | None:
    """Parse half, imagenet, or six numbers: three means and three standard deviations."""
    if text is None or text in NAMED:
        return None if text is None else NAMED[text]
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if len(found) != 6:
        raise UsageError(
            f"normalise is {text!r}; expected half, imagenet, or 3 means and 3 deviations, comma-separated"
        )
    a, b, c, d, e, f = found
    return (a, b, c), (d, e, f)


def labels(path: Path | None) -> list[str] | None:
    """Read one label per line; drop the WordNet id in front if every line has one."""
    if path is None:
        return None
    if not path.is_file():
        raise UsageError(
            f"there is no file of labels at {str(path)!r}; expected text with one label per line"
        )
    from saccade.weights.identify import read_labels

    try:
        found = read_labels(path)
    except ModelError as error:
        raise UsageError(str(error)) from error
    return [WNID.sub("", label, count=1) for label in found] if all(map(WNID.match, found)) else found
