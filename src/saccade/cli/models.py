"""`saccade runs`, `models`, `convert`, `pull` and `doctor`: list runs and models; convert, fetch, test."""

from pathlib import Path
from typing import Annotated

import typer

from saccade.cli import arguments
from saccade.cli.arguments import examples
from saccade.cli.output import print_json, say, table
from saccade.errors import UsageError
from saccade.wording import show_name

COLOURS = {"ok": "green", "unknown": "yellow", "wrong": "red"}


@examples(
    "saccade runs",
    "saccade runs runs --json",
    "saccade runs experiments",
)
def runs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder with runs.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List runs with model, data, score and date."""
    from saccade.api.evaluate import list_runs

    found = list_runs(folder)
    if as_json:
        print_json([row._asdict() for row in found])
    elif not found:
        say(f"no runs in {folder}; `saccade train DATA` makes one")
    else:
        columns = ("name", "task", "model", "data", "score", "date", "status")
        rows = [[show_name(getattr(row, name)) or "–" for name in columns] for row in found]
        typer.echo(table([columns, *rows]))


@examples(
    "saccade models",
    "saccade models --pretrained",
    "saccade models vit_b16 vit_b16_384 gpt2 --json",
)
def models(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Models to show; default: a list.")
    ] = None,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="List published weights to start from or to use as they are.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List architectures with their sizes and costs."""
    if pretrained:
        _list_pretrained(names or [], as_json)
        return
    from saccade.models import names as vision
    from saccade.models.cost import describe, describe_text
    from saccade.models.text import names as text

    for name in names or ():
        # refuses a name before others are counted
        (text.text_config if vision.is_text(name) else vision.config)(name)
    asked = names or [*vision.EXAMPLES, *text.EXAMPLES]
    rows = [describe_text(name) if vision.is_text(name) else describe(name) for name in asked]
    if as_json:
        print_json(rows)
        return
    kinds = [[row for row in rows if ("macs" in row) == images] for images in (True, False)]
    typer.echo("\n\n".join(_model_table(kind) for kind in kinds if kind))


def _list_pretrained(names: list[str], as_json: bool) -> None:
    from saccade.errors import check_word
    from saccade.weights.pretrained import PRETRAINED, rows

    for name in names:
        check_word("NAME", name, PRETRAINED)
    found = [row for row in rows() if not names or row["name"] in names]
    if as_json:
        print_json(found)
        return
    head, *cells = [list(found[0]), *([_shown(value) for value in row.values()] for row in found)]
    typer.echo(table([head, *cells], right=range(1, 4)))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        f"{value / 1e6:.1f} M"
        if isinstance(value, int) and value > 10**6
        else f"{value:g}"
        if isinstance(value, int | float)
        else str(value)
    )


def _model_table(rows: list[dict[str, int | str | None]]) -> str:
    cells = [[_cell(column, value) for column, value in row.items()] for row in rows]
    return table([list(rows[0]), *cells], right=range(1, len(rows[0])))


def _cell(column: str, value: object) -> str:
    if value is None:
        return ""
    if column == "macs":
        return f"{float(str(value)) / 1e9:.2f} G"
    return f"{value:,}" if isinstance(value, int) else str(value)


@examples(
    "saccade convert vit.npz --out vit",
    "saccade convert checkpoint.pth --out cats --labels names.txt",
    "saccade convert runs/pets --out pets-hf --to hf",
)
def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT", help="A model file or folder, GPT-2 and BERT too; also .pt, .pth, .bin."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write; it must be new or empty.")],
    to: Annotated[str, typer.Option(help="The layout: saccade, timm, hf or google.")] = "saccade",
    image: Annotated[str | None, typer.Option(help="Another image size: 384 or 224x448.")] = None,
    patch: Annotated[int | None, typer.Option(help="Another patch size.")] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="A text file with one label per line; a leading WordNet id (n01440764) is dropped."
        ),
    ] = None,
    normalise: Annotated[
        str | None, typer.Option(help="half, imagenet, or 3 means and 3 deviations, comma-separated.")
    ] = None,
) -> None:
    """Convert a checkpoint to a model folder, or to another layout."""
    from saccade.api import convert as api

    size, values = arguments.size(image), arguments.normalise(normalise)
    model = api.convert(source, out, say, to, size, patch, arguments.labels(labels), values)
    say(f"{model!r} from {model.layout}'s layout, written as {to}")
    typer.echo(out)


@examples(
    "saccade pull google/vit-base-patch16-224",
    "saccade pull google/vit-base-patch16-224 --out vit-base",
    "saccade pull google/vit-base-patch16-224 --revision main",
)
def pull(
    name: Annotated[
        str,
        typer.Argument(
            metavar="HUB-ID", help="google/vit-base-patch16-224, or a name of `saccade models --pretrained`."
        ),
    ],
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write a saccade model folder.")] = None,
) -> None:
    """Download a model from the Hugging Face hub."""
    from saccade.api import convert as api

    typer.echo(api.pull(name, revision, out))


@examples(
    "saccade doctor",
    "saccade doctor runs/pets",
    "saccade doctor vit.npz --pictures photos",
)
def doctor(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A model to test; default: test the machine.")
    ] = None,
    pictures: Annotated[Path | None, typer.Option(help="A folder of ordinary images to test it on.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this machine, or a model file."""
    from saccade.api.doctor import check_machine, check_model

    if model is None and pictures is not None:
        raise UsageError("--pictures was given without a model; name the model to test on them first")
    images = None
    if pictures is not None:
        from saccade.api.predict import find

        images = [source for _, source in find([str(pictures)])]
    rows = check_machine() if model is None else check_model(model, images)
    if as_json:
        print_json([row._asdict() for row in rows])
    else:
        for line, row in zip(table(rows).split("\n"), rows, strict=True):
            # click drops the colour if the output is not a terminal
            colour = typer.style(row.verdict, fg=COLOURS[row.verdict])
            typer.echo(line.replace(f"  {row.verdict}", f"  {colour}", 1))
    if any(row.verdict == "wrong" for row in rows):
        raise typer.Exit(1)
