"""`saccade predict`: what is in these pictures?"""

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from saccade.cli.arguments import EngineOption, ModelArgument
from saccade.errors import DataError, UsageError, check_number

if TYPE_CHECKING:
    from saccade.api.models import Model
    from saccade.data.image.formats import Source
    from saccade.engine.answer import Answering
    from saccade.types import Prediction

Answerer: TypeAlias = "Model | Answering"
ENDINGS = {
    ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".gif", ".bmp", ".dib",
    ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm",
}  # fmt: skip


def predict(
    model: ModelArgument,
    pictures: Annotated[
        list[str], typer.Argument(metavar="PICTURE", help="Files, folders, or - for a picture on stdin.")
    ],
    top: Annotated[int, typer.Option(help="How many classes to name.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, a line for each class named.")] = False,
    engine: EngineOption = "",
) -> None:
    """Name what is in pictures: `saccade predict runs/pets cat.jpg holiday/ --top 3`."""
    from saccade.weights.identify import locate

    check_number("top", top, 1, 10**6)
    if as_json and as_csv:
        raise UsageError("--json and --csv were both given; choose one")
    sources = list(find(pictures))
    path = locate(model)
    network = opened(path, engine, len(sources))
    answers: Answers = []
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


def opened(path: Path, engine: str, pictures: int) -> "Answerer":
    """A model that predicts; an exported one without torch, a run on torch unless an engine is asked for."""
    from saccade.engine.exported import is_exported

    graph = is_exported(path)
    if not graph:
        from saccade.cli.note import looked

        looked(path)  # refuses a damaged file before torch is imported
    if graph or engine:
        from saccade.engine.answer import answering

        return answering(path, engine or "auto", pictures)
    from saccade.api.models import load

    network = load(path)
    network.check_classes()
    return network


def find(words: list[str]) -> Iterator[tuple[str, "Source"]]:
    """The pictures that the words mean, with their names; a folder gives all of its pictures, sorted."""
    for word in words:
        path = Path(word)
        if not word:
            raise UsageError("the name of a picture is empty; expected a file, a folder, or - for stdin")
        if word == "-":
            yield "-", sys.stdin.buffer
        elif path.is_dir():
            inside = sorted(p for p in path.rglob("*") if _is_picture(p, path))
            if not inside:
                raise DataError(
                    f"the folder {word!r} holds no pictures (looked for {', '.join(sorted(ENDINGS))})"
                )
            yield from ((str(p), p) for p in inside)
        else:
            yield word, path


def _is_picture(path: Path, folder: Path) -> bool:
    """By its ending; what is hidden, and a folder with such an ending, is none."""
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return path.suffix.lower() in ENDINGS and not hidden and not path.is_dir()


Answers = list[tuple[str, "list[Prediction] | DataError"]]


def show_json(answers: Answers) -> None:
    """A list with one object a picture; names are exact, with escapes for what is not ASCII."""
    shown: list[dict[str, object]] = []
    for name, answer in answers:
        if isinstance(answer, DataError):
            shown.append({"picture": name, "error": str(answer)})
        else:
            ranked = [{"label": p.label, "score": round(p.score, 6), "index": p.index} for p in answer]
            shown.append({"picture": name, "predictions": ranked})
    typer.echo(json.dumps(shown, indent=2))


def show_csv(answers: Answers) -> None:
    """A line for each class named; a picture that failed has an empty label; odd names are shown escaped."""
    from saccade.data.image.formats import shown

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["picture", "rank", "label", "score", "index"])
    for name, answer in answers:
        if isinstance(answer, DataError):
            writer.writerow([shown(name), "", "", "", ""])
        else:
            rows = enumerate(answer, 1)
            writer.writerows([shown(name), i, p.label, f"{p.score:.6f}", p.index] for i, p in rows)


def show_table(answers: Answers) -> None:
    """A table for people."""
    from saccade.cli.table import table
    from saccade.data.image.formats import shown

    rows = [("picture", "score", "label")]
    for name, answer in answers:
        if isinstance(answer, DataError):
            rows.append((shown(name), "", "(not read)"))
            continue
        rows += [(shown(name) * (i == 0), f"{p.score:.1%}", p.label) for i, p in enumerate(answer)]
    typer.echo(table(rows, right=(1,)))
