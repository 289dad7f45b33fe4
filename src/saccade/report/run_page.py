"""Write report.html of a run of any task: what was trained, on what, how well, and how to repeat it."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from saccade.files.atomic import write_text
from saccade.report import curves, folds_section
from saccade.report.html import (
    Draw,
    Html,
    drawing,
    joined,
    name,
    page,
    pre,
    section,
    settings,
    soft,
    table,
    tag,
)
from saccade.report.plots import Cell, Plot
from saccade.report.run_record import SPLITS, Record, read_record, splits
from saccade.wording import Metric, amount, count, duration, moment, printable

PICTURES = 24
"""Thumbnails of one kind to show."""
NOTES = 50
FILES = 200
"""Skipped files to list; data.json has the rest."""
PRINT = 12
"""Characters of a fingerprint to show."""


LINEAGE = (
    ("name", "weights"),
    ("hub", "hub id"),
    ("revision", "revision"),
    ("licence", "licence"),
    ("trained_on", "trained on"),
    ("sha256", "SHA-256"),
)


class Section(NamedTuple):
    """A section that the list at the top links to."""

    anchor: str
    title: str
    body: Html


@runtime_checkable
class Reporter(folds_section.Folded, Protocol):
    """What a report needs from a task (`saccade.task.Task`)."""

    @property
    def metrics(self) -> dict[str, Metric]: ...

    @property
    def loss_note(self) -> str: ...

    def results(self, record: Record) -> Iterator[Html]: ...

    def data_words(self, record: Record) -> Html: ...

    def sections(self, record: Record, draw: Draw) -> Iterator[Section]: ...

    def next_steps(self, record: Record) -> list[tuple[str, str]]: ...


SHOWN_APART = frozenset({"splits", "skipped", "classes", "lineage", "task", "told", "warnings", *SPLITS})
"""Entries of data.json that the section on the data shows in other words, or not at all."""


def write_report(folder: Path, task: Reporter) -> Path:
    """Write plots/*.png, plots/*.json and report.html from what the run folder records; return the page.

    The same record gives the same bytes. A missing or damaged piece is left out, and the page says so.
    """
    record, draw = read_record(folder), drawing(folder)
    probe = record.recipe.get("method") == "probe"  # its head is solved for, not trained step by step
    parts = [] if probe else [Section("curves", "Curves", joined(_curves(record, task, draw)))]
    parts += task.sections(record, draw)
    if steps := task.next_steps(record):
        parts.append(Section("next", "Next steps", joined(_next(steps))))
    if (folder / folds_section.FILE).is_file():
        parts.insert(0, Section("spread", "Folds", joined(folds_section.folds(folder, task, draw))))
    parts.append(Section("data", "Data", joined(_data(record, task.noun))))
    if not probe:
        parts.append(Section("schedule", "Learning rate and speed", joined(_schedule(record, draw))))
    parts.append(Section("repeat", "How to repeat it", joined(_repeat(record))))
    links = {"summary": "Summary"} | {part.anchor: part.title for part in parts}
    body = joined([_summary(record, task), *(section(part.anchor, part.title, part.body) for part in parts)])
    write_text(folder / "report.html", page(f"{_title(record)}: report", body, links))
    return folder / "report.html"


def _title(record: Record) -> str:
    model, data = record.model, source(record)
    return (
        f"{printable(model, 80)} on {printable(data, 80)}" if model and data else printable(record.name, 80)
    )


def _summary(record: Record, task: Reporter) -> Html:
    notes = [tag("li", name(note)) for note in record.events.notes[:NOTES]]
    return tag(
        "section",
        tag("h1", name(_title(record)), id="summary-title"),
        tag("p", _what(record, task)),
        *task.results(record),
        *(tag("p", words) for words in _troubles(record)),
        *([tag("ul", *notes)] if notes else []),
        id="summary",
        aria_labelledby="summary-title",
    )


def _troubles(record: Record) -> Iterator[Html | str]:
    events = record.events
    if "events.jsonl" not in record.gaps and not events.ended:
        yield f"The log breaks off: the run was killed or is still running. Last step: {events.last_step:,}."
    elif events.ended not in ("", "done"):
        yield joined(["The run ended early: ", name(events.ended), "."])
    if events.resumes:
        yield f"It was interrupted and resumed {count(events.resumes, 'time')}; the pauses are not counted."
    if events.dropped:
        yield f"events.jsonl holds {count(events.dropped, 'line')} that could not be read."


def _what(record: Record, task: Reporter) -> Html:
    """Return a sentence: what was trained, on what, for how long."""
    events, train = record.events, splits(record.data).get("train")
    size = f" ({events.parameters / 1e6:.1f} million parameters)" if events.parameters else ""
    what = "was frozen and a linear head trained" if record.recipe.get("method") == "probe" else "was trained"
    words = [name(record.model or "A model"), f"{size} {what}"]
    if train:
        words += [f" on {amount(train, task.noun)}", task.data_words(record)]
    if record.epochs:
        words.append(f" for {curves.epochs(record.epochs[-1].epoch)}")
        words.append(f" ({count(events.last_step, 'step')})" if events.last_step else "")
    if events.seconds:
        words.append(f" in {duration(events.seconds)}")
    if math.isfinite(events.first):
        words.append(f", from {moment(events.first)} to {moment(events.last)}")
    return joined([*words, "."])


def _curves(record: Record, task: Reporter, draw: Draw) -> Iterator[Html]:
    metrics = [curves.metric(record, key, metric) for key, metric in task.metrics.items() if key != "loss"]
    yield from _plots([curves.loss(record, task.loss_note), *metrics], draw)
    for file in ("events.jsonl", "results.csv"):
        if file in record.gaps:
            yield soft(f"{file} {record.gaps[file]}.")


def _schedule(record: Record, draw: Draw) -> Iterator[Html]:
    yield from _plots([curves.lr(record), curves.pace(record)], draw)


def _plots(made: list[Plot | str], draw: Draw) -> Iterator[Html]:
    """Yield the plots side by side, then the reasons for those that are missing."""
    yield tag("div", *(draw(plot) for plot in made if isinstance(plot, Plot)), cls="plots")
    yield from (draw(words) for words in made if isinstance(words, str))


def _next(steps: list[tuple[str, str]]) -> Iterator[Html]:
    for words, command in steps:
        yield tag("p", words)
        yield pre(command)


def source(record: Record) -> str:
    """Return the name of the folder or file that the data came from, if it is known."""
    found = next((record.data[key] for key in ("source", "path", "root") if record.data.get(key)), "")
    return Path(str(found)).name


def _data(record: Record, noun: str) -> Iterator[Html]:
    """Yield the splits, the unusable files, and the rest of data.json."""
    data = record.data
    if not data:
        yield soft(record.without("The description of the data", "data.json"))
        return
    if counted := splits(data):
        rows: list[list[tuple[str, Cell]]] = [[(key, key), (f"{n:,}", n)] for key, n in counted.items()]
        yield table("splits", f"{noun.capitalize()} per split", ["split", noun], rows)
    if "skipped" in data:
        yield from _skipped(data["skipped"])
    if later := record.events.skipped:
        yield tag("p", f"While training, {amount(later, noun)} could not be read.")
    if isinstance(warnings := data.get("warnings"), list) and warnings:
        yield tag("ul", *(tag("li", name(words)) for words in warnings[:NOTES]))
    prints = {key: data[key].get("fingerprint") for key in SPLITS if isinstance(data.get(key), dict)}
    rest = {key: value for key, value in data.items() if key not in SHOWN_APART and value not in ("", [], {})}
    if rest.get("kind") == "auto":
        del rest["kind"]
    rest |= {f"{key} fingerprint": str(value)[:PRINT] for key, value in prints.items() if value}
    if rest:
        yield settings(rest, "The data")


def _skipped(found: Any) -> Iterator[Html]:
    if not isinstance(found, list):
        return
    if not found:
        yield tag("p", "Every file could be used.")
        return
    yield tag("p", f"{count(len(found), 'file')} could not be used:")
    listed = [row if isinstance(row, dict) else {"path": row} for row in found[:FILES]]
    words = [[str(row.get(key, "")) for key in ("path", "class", "reason")] for row in listed]
    cells = [[(cell, cell) for cell in row] for row in words]
    yield table("skipped", "Skipped files", ["file", "class", "reason"], cells)
    if len(found) > FILES:
        yield tag("p", f"data.json lists {count(len(found) - FILES, 'more file')}.")


def _command(record: Record) -> str:
    """Return the command as it is typed: without the folder that it is installed in."""
    return re.sub(r"^\S*/(?=saccade\s)", "", record.command)


def _repeat(record: Record) -> Iterator[Html]:
    """Yield the command, the recipe and the versions."""
    yield (
        pre(_command(record))
        if record.command.strip()
        else soft(record.without("The command", "command.txt"))
    )
    pieces = (("The recipe", "recipe.json", record.recipe), ("The list of versions", "env.json", record.env))
    tables = [settings(value, what) for what, _, value in pieces if value]
    yield tag("div", *(tag("div", made) for made in tables), cls="plots")
    yield from (soft(record.without(what, file)) for what, file, value in pieces if not value)
    if ancestors := record.lineage:
        yield tag("p", "The weights it started from, and what those were made from:")
        rows = [[str(entry.get(key, "")) for key, _ in LINEAGE] for entry in ancestors]
        cells: list[list[tuple[str, Cell]]] = [[(cell, cell) for cell in row] for row in rows]
        yield table("lineage", "Starting weights", [title for _, title in LINEAGE], cells)
    yield tag("p", "The numbers behind every plot are in plots/*.json, the whole log is in events.jsonl.")
