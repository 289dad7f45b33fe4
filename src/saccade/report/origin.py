"""Where a run came from: its data, and what it takes to do it again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from saccade.report.history import whole
from saccade.report.html import Html, pre, settings, soft, table, tag
from saccade.report.plots import Cell
from saccade.report.run_record import Record
from saccade.wording import count

FILES = 200
"""Skipped files that are listed; data.json has the rest."""
SPLITS = ("train", "val", "test")
COUNTED = ("pictures", "pairs", "characters", "count", "files")


def source(record: Record) -> str:
    """Return the name of the folder or file that the pictures came from, if it is known."""
    found = next((record.data[key] for key in ("source", "path", "root") if record.data.get(key)), "")
    return Path(str(found)).name


def splits(data: dict[str, Any]) -> dict[str, int]:
    """Examples per split, however they are told: a number, a list of files, or an object that counts them."""
    listed = data.get("splits")
    found = listed if isinstance(listed, dict) else {key: data[key] for key in SPLITS if key in data}
    return {str(key): _pictures(value) for key, value in found.items()}


def _pictures(value: Any) -> int:
    if isinstance(value, dict):
        return next((_pictures(value[key]) for key in COUNTED if key in value), 0)
    return len(value) if isinstance(value, list) else whole(value)


def described(record: Record, noun: str = "pictures") -> Iterator[Html]:
    """The splits, the files that could not be used, and the rest of data.json."""
    data = record.data
    if not data:
        yield soft(record.without("The description of the data", "data.json"))
        return
    if counted := splits(data):
        rows: list[list[tuple[str, Cell]]] = [[(key, key), (f"{n:,}", n)] for key, n in counted.items()]
        yield table("splits", f"{noun.capitalize()} per split", ["split", noun], rows)
    if noun == "pictures":
        yield from _skipped(data.get("skipped"))
    if later := record.events.skipped:
        yield tag("p", f"While training, {count(later, 'picture')} could not be read.")
    prints = {key: data[key].get("fingerprint") for key in SPLITS if isinstance(data.get(key), dict)}
    rest = {key: value for key, value in data.items() if key not in ("splits", "skipped", "classes", *SPLITS)}
    rest |= {f"{key}.fingerprint": value for key, value in prints.items() if value}
    if rest:
        yield settings(rest, "The data")


def _skipped(found: Any) -> Iterator[Html]:
    if not isinstance(found, list):
        yield soft("Skipped files are left out: data.json has no list of them.")
        return
    if not found:
        yield tag("p", "Every file could be used.")
        return
    yield tag("p", f"{count(len(found), 'file')} could not be used:")
    told = [row if isinstance(row, dict) else {"path": row} for row in found[:FILES]]
    words = [[str(row.get(key, "")) for key in ("path", "class", "reason")] for row in told]
    yield table(
        "skipped", "Skipped files", ["file", "class", "reason"], [[(w, w) for w in row] for row in words]
    )
    if len(found) > FILES:
        yield tag("p", f"data.json names {count(len(found) - FILES, 'more file')}.")


def repeated(record: Record) -> Iterator[Html]:
    """The command, the recipe and the versions."""
    if record.command.strip():
        yield pre(record.command)
    else:
        yield soft(record.without("The command", "command.txt"))
    pieces = (
        ("The recipe", "recipe.json", record.recipe),
        ("The list of versions", "env.json", record.env),
    )
    for what, file, value in pieces:
        yield settings(value, what) if value else soft(record.without(what, file))
    yield tag("p", "The numbers behind every plot are in plots/*.json, the whole log is in events.jsonl.")
