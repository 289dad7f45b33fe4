"""`saccade predict`: what is in these images?"""

import csv
import io
import json
import sys
from collections.abc import Iterable
from contextlib import closing
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.arguments import DeviceOption, EngineOption, ModelArgument, examples
from saccade.errors import DataError, NotFiniteError, SaccadeError, UsageError, check_number
from saccade.wording import count, show_name

if TYPE_CHECKING:
    from saccade.api.predict import NamedAnswer
    from saccade.task import Task

PEEK = 1000
"""Images that are counted to choose an engine: for more than this, the time to load one hardly matters."""
BLOCK = 1000
"""Rows of the table that are aligned and printed together."""


@examples(
    "saccade predict runs/pets cat.jpg",
    "saccade predict runs/pets photos/ --top 1 --csv",
    "saccade predict google/vit-base-patch16-224 cat.jpg",
)
def predict(
    model: ModelArgument,
    pictures: Annotated[
        list[str], typer.Argument(metavar="PICTURE", help="Files, folders, or - for an image on stdin.")
    ],
    top: Annotated[int, typer.Option(help="How many classes to name.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_jsonl: Annotated[bool, typer.Option("--jsonl", help="Print JSON Lines, a line per image.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, a line for each class named.")] = False,
    engine: EngineOption = "",
    device: DeviceOption = "auto",
) -> None:
    """Classify images."""
    from saccade.api.predict import Skipped, find, open_model
    from saccade.api.predict import count as count_images
    from saccade.api.predict import predict as answer
    from saccade.cli.output import progress
    from saccade.engine.select import MANY

    check_number("top", top, 1, 10**6)
    chosen = [name for name, given in (("json", as_json), ("jsonl", as_jsonl), ("csv", as_csv)) if given]
    if len(chosen) > 1:
        raise UsageError(f"--{chosen[0]} and --{chosen[1]} were both given; choose one")
    skipped = Skipped()
    sources = find(pictures, skipped)
    first = list(islice(sources, PEEK))
    few = len(first) < PEEK
    task, network = open_model(model, engine, len(first) if few else MANY, top, device)
    output = FORMATS[chosen[0] if chosen else "table"](task)
    rows = chosen and chosen[0] != "json" and sys.stdout.isatty()  # which would be printed into the bar
    with (
        closing(answer(task, network, chain(first, sources))) as answers,
        progress(
            lambda: len(first) if few else count_images(pictures), "predicting", hidden=bool(rows)
        ) as advance,
    ):
        seen = _print(answers, output, advance)
    if skipped.count:
        names = ", ".join(map(show_name, skipped.names)) + ", ..." * (skipped.count > len(skipped.names))
        print(f"note: {count(skipped.count, 'other file')} skipped: {names}", file=sys.stderr)
    if seen[DataError]:
        print(f"{seen[DataError]} of {count(seen[object], 'image')} could not be read", file=sys.stderr)
    if seen[NotFiniteError]:
        raise typer.Exit(NotFiniteError.exit_code)
    if seen[DataError]:
        raise typer.Exit(1)


def _print(answers: Iterable["NamedAnswer"], output: "Output", advance: Any) -> dict[type, int]:
    """Print each answer as soon as it is ready; return the number of answers and of each kind of error."""
    seen: dict[type, int] = {DataError: 0, NotFiniteError: 0, object: 0}
    try:
        for name, answer in answers:
            if isinstance(answer, SaccadeError):
                print(f"error: {_about(name, answer)}", file=sys.stderr)
                seen[DataError if isinstance(answer, DataError) else NotFiniteError] += 1
            _write(output.show(name, answer))
            seen[object] += 1
            advance()
    except KeyboardInterrupt:
        _write(output.end())
        sys.stdout.flush()  # the signal may have come between writing and flushing
        print(f"interrupted: {count(seen[object], 'image')} answered", file=sys.stderr)
        raise
    _write(output.end())
    return seen


def _write(text: str) -> None:
    """Print in one go: the reader gets all of an answer or nothing."""
    if text:
        sys.stdout.write(text)
        sys.stdout.flush()


def _about(name: str, error: SaccadeError) -> str:
    """Return what went wrong with which image; a DataError already names it."""

    return str(error) if isinstance(error, DataError) else f"{show_name(name)}: {error}"


class Output:
    """JSON Lines: an object per image; names are exact, with escapes for what is not ASCII."""

    def __init__(self, task: "Task") -> None:
        self.task = task

    def show(self, name: str, answer: Any) -> str:
        """Return the text for one image."""
        return json.dumps(self.row(name, answer)) + "\n"

    def end(self) -> str:
        """Return the text after the last image."""
        return ""

    def row(self, name: str, answer: Any) -> dict[str, object]:
        """Return an image and its answer, or what is wrong with it."""
        if isinstance(answer, SaccadeError):
            return {"picture": name, "error": str(answer)}
        return {"picture": name, **self.task.to_json(answer)}


class JsonOutput(Output):
    """One JSON list of these objects, complete even when it is interrupted."""

    start = "[\n"

    def show(self, name: str, answer: Any) -> str:
        lines = json.dumps(self.row(name, answer), indent=2).split("\n")
        start, self.start = self.start, ",\n"
        return start + "\n".join(f"  {line}" for line in lines)

    def end(self) -> str:
        return "[]\n" if self.start == "[\n" else "\n]\n"


class CsvOutput(Output):
    """A line for each row of an answer; an image that failed has empty cells; odd names are shown escaped."""

    def __init__(self, task: "Task") -> None:
        super().__init__(task)
        self.head: tuple[str, ...] = ("picture", "rank", *task.fields)

    def show(self, name: str, answer: Any) -> str:
        from saccade.files.tables import to_cell

        rows: list[tuple[object, ...]] = [self.head] if self.head else []
        self.head = ()
        cell = to_cell(show_name(name))
        if isinstance(answer, SaccadeError):
            rows.append((cell, "", *("" for _ in self.task.fields)))
        else:
            for rank, row in enumerate(self.task.rows(answer), 1):
                rows.append((cell, rank, *(self._cell(row[field]) for field in self.task.fields)))
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        return text.getvalue()

    def _cell(self, value: object) -> object:
        from saccade.files.tables import to_cell

        if isinstance(value, str):
            return to_cell(value)
        return f"{value:.6f}" if isinstance(value, float) else value


class TableOutput(Output):
    """Columns for people, aligned in blocks."""

    def __init__(self, task: "Task") -> None:
        super().__init__(task)
        self.columns = task.columns or task.fields
        self.rows: list[tuple[str, ...]] = [("picture", *self.columns)]
        self.printed = 0
        """Rows that are only kept because the columns below must be as wide."""

    def show(self, name: str, answer: Any) -> str:

        if isinstance(answer, SaccadeError):
            why = "(not read)" if isinstance(answer, DataError) else "(not finite)"
            self.rows.append((show_name(name), *("" for _ in self.columns[1:]), why))
        else:
            for i, line in enumerate(self.task.table(answer)):
                self.rows.append((show_name(name) * (i == 0), *(line[column] for column in self.columns)))
        return self.end() if len(self.rows) > BLOCK else ""

    def end(self) -> str:
        from saccade.cli.output import table

        if len(self.rows) <= max(self.printed, 1):
            return ""
        text = "\n".join(table(self.rows, right=(1,)).split("\n")[self.printed :]) + "\n"
        self.rows = [tuple(max(column, key=len) for column in zip(*self.rows, strict=True))]
        self.printed = 1
        return text


FORMATS = {"json": JsonOutput, "jsonl": Output, "csv": CsvOutput, "table": TableOutput}


def show_table(task: "Task", answers: Iterable["NamedAnswer"]) -> None:
    """Print a table for people."""
    output = TableOutput(task)
    for name, answer in answers:
        _write(output.show(name, answer))
    _write(output.end())
