"""`saccade predict`: what is in these pictures?"""

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.parse import ModelArgument
from saccade.errors import DataError, UsageError, check_number
from saccade.weights.look import locate, look

if TYPE_CHECKING:
    from saccade.types import Prediction

ENDINGS = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".mpo"}


def predict(
    model: ModelArgument,
    pictures: Annotated[
        list[str], typer.Argument(metavar="PICTURE...", help="Files, folders, or - for a picture on stdin.")
    ],
    top: Annotated[int, typer.Option(help="How many classes to name.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, a line for each class named.")] = False,
) -> None:
    """Name what is in pictures: `saccade predict runs/pets cat.jpg holiday/ --top 3`."""
    check_number("top", top, 1, 10**6)
    if as_json and as_csv:
        raise UsageError("--json and --csv were both given; choose one")
    sources = list(find(pictures))
    path = locate(model)
    look(path)  # refuses a damaged file before torch is imported
    from saccade.api import load

    network = load(path)
    answers: list[tuple[str, list[Prediction] | DataError]] = []
    for name, source in sources:
        try:
            answers.append((name, network.predict(source, top)))
        except DataError as error:
            answers.append((name, error))
            print(f"error: {error}", file=sys.stderr)
    (show_json if as_json else show_csv if as_csv else show_table)(answers)
    failed = sum(isinstance(answer, DataError) for _, answer in answers)
    if failed:
        print(f"{failed} of {len(answers)} pictures could not be read", file=sys.stderr)
        raise typer.Exit(1)


def find(words: list[str]) -> Iterator[tuple[str, "Path | bytes"]]:
    """The pictures that the words mean, with their names; a folder gives all of its pictures, sorted."""
    for word in words:
        path = Path(word)
        if word == "-":
            yield "-", sys.stdin.buffer.read()
        elif path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in ENDINGS and p.name[0] != ".")
            if not inside:
                raise DataError(
                    f"the folder {word!r} holds no pictures (looked for {', '.join(sorted(ENDINGS))})"
                )
            yield from ((str(p), p) for p in inside)
        else:
            yield word, path


Answers = list[tuple[str, "list[Prediction] | DataError"]]


def show_json(answers: Answers) -> None:
    """A list with one object a picture."""
    shown: list[dict[str, object]] = []
    for name, answer in answers:
        if isinstance(answer, DataError):
            shown.append({"picture": name, "error": str(answer)})
        else:
            ranked = [{"label": p.label, "score": round(p.score, 6), "index": p.index} for p in answer]
            shown.append({"picture": name, "predictions": ranked})
    typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))


def show_csv(answers: Answers) -> None:
    """A line for each class named; pictures that failed have an empty label."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["picture", "rank", "label", "score", "index"])
    for name, answer in answers:
        if isinstance(answer, DataError):
            writer.writerow([name, "", "", "", ""])
        else:
            writer.writerows([name, i, p.label, f"{p.score:.6f}", p.index] for i, p in enumerate(answer, 1))


def show_table(answers: Answers) -> None:
    """A table for people."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("picture", overflow="fold")
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("label", overflow="fold")
    for name, answer in answers:
        if isinstance(answer, DataError):
            table.add_row(escape(name), "", "[red]not read[/red]")
            continue
        for i, p in enumerate(answer):
            table.add_row(escape(name) if i == 0 else "", f"{p.score:.1%}", escape(p.label))
    Console(highlight=False).print(table)
