"""What a run folder records, read so that any piece may be missing or cut short and the rest still counts."""

import base64
import binascii
import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saccade.errors import UsageError
from saccade.files.paths import shown
from saccade.metrics.classify import Scores
from saccade.report.history import Epoch, History, read_history, real
from saccade.report.html import Picture

NAMES = (
    "recipe.json",
    "command.txt",
    "env.json",
    "data.json",
    "events.jsonl",
    "results.csv",
    "evaluation.json",
)
"""A folder with none of these is not a run."""
THUMBNAIL = 100_000
"""Bytes; more than a thumbnail needs, and few enough to keep the report small."""
KINDS = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Everything that a report can tell of a run."""

    name: str
    recipe: dict[str, Any]
    command: str
    env: dict[str, Any]
    data: dict[str, Any]
    labels: list[str]
    events: History
    epochs: list[Epoch]
    scores: Scores | None
    split: str
    mistakes: list[Picture]
    samples: list[Picture]
    gaps: dict[str, str]
    """Why a file could not be used, by its name."""

    def label(self, number: int) -> str:
        """Return the name of a class, or its number if it has none."""
        return self.labels[number] if number < len(self.labels) else f"class {number}"

    def without(self, what: str, file: str) -> str:
        """Return the sentence that stands where something is left out."""
        return f"{what} is left out: {file} {self.gaps.get(file, 'holds nothing of it')}."


def read(folder: Path) -> Record:
    """Read a run folder; only a folder that is no run at all is an error."""
    if not any((folder / name).is_file() for name in NAMES):
        raise UsageError(
            f"{shown(folder)} holds none of {', '.join(NAMES)}, where a run folder was expected; "
            "give the folder that `saccade train` made"
        )
    gaps: dict[str, str] = {}
    evaluation = _object(folder, "evaluation.json", gaps)
    lines = _text(folder, "labels.txt", gaps).removeprefix("\ufeff").split("\n")
    labels = [line for line in lines if line.strip()]
    events = read_history(folder / "events.jsonl", gaps)
    samples = _json(folder, "samples.json", gaps)
    return Record(
        name=folder.resolve().name,
        recipe=_object(folder, "recipe.json", gaps),
        command=_text(folder, "command.txt", gaps),
        env=_object(folder, "env.json", gaps),
        data=_object(folder, "data.json", gaps),
        labels=labels,
        events=events,
        epochs=_results(folder, gaps) or [events.epochs[key] for key in sorted(events.epochs)],
        scores=_scores(evaluation, gaps),
        split=str(evaluation.get("split", "val")),
        mistakes=_pictures(evaluation.get("mistakes"), labels),
        samples=_pictures(samples.get("samples") if isinstance(samples, dict) else samples, labels),
        gaps=gaps,
    )


def judged(folder: Path) -> dict[str, Any]:
    """What evaluation.json holds of a run on text; nothing if it cannot be read."""
    return _object(folder, "evaluation.json", {})


def _text(folder: Path, name: str, gaps: dict[str, str]) -> str:
    path = folder / name
    if not path.is_file():  # false for a pipe too, which would never end
        gaps[name] = "is not in the run folder"
        return ""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        gaps[name] = f"cannot be read ({error.strerror})"
        return ""


def _json(folder: Path, name: str, gaps: dict[str, str]) -> Any:
    text = _text(folder, name, gaps)
    try:
        return json.loads(text) if name not in gaps else None
    except (ValueError, RecursionError) as error:
        gaps[name] = f"is not whole JSON ({shown(error, 100)})"
        return None


def _object(folder: Path, name: str, gaps: dict[str, str]) -> dict[str, Any]:
    found = _json(folder, name, gaps)
    if isinstance(found, dict):
        return found
    gaps.setdefault(name, "holds no JSON object")
    return {}


def _results(folder: Path, gaps: dict[str, str]) -> list[Epoch]:
    # A last line without its newline was cut: half of a number is a number too.
    text, _, _ = _text(folder, "results.csv", gaps).rpartition("\n")
    rows = csv.DictReader(text.splitlines())
    found = {}
    for row in rows:
        epoch = Epoch(*(real(row.get(name)) for name in Epoch._fields))
        if math.isfinite(epoch.epoch):
            found[epoch.epoch] = epoch
    return [found[key] for key in sorted(found)]


def _scores(evaluation: dict[str, Any], gaps: dict[str, str]) -> Scores | None:
    if "evaluation.json" in gaps:
        return None
    try:
        return Scores.from_json(evaluation["scores"])
    except KeyError:
        gaps["evaluation.json"] = "holds no scores"
    except (ValueError, TypeError) as error:
        gaps["evaluation.json"] = f"holds scores that cannot be read ({shown(error, 100)})"
    return None


def _pictures(found: Any, labels: list[str]) -> list[Picture]:
    rows = [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
    return [
        Picture(
            thumbnail=_thumbnail(row.get("thumbnail")),
            label=_label(row.get("label"), labels),
            name=str(row.get("picture", "")),
            path=str(row.get("path", "")),
            predicted=_label(row.get("predicted"), labels),
            score=real(row.get("score")),
        )
        for row in rows
    ]


def _label(value: Any, labels: list[str]) -> str:
    if isinstance(value, int) and 0 <= value < len(labels):
        return labels[value]
    return "" if value is None else str(value)


def _thumbnail(text: Any) -> str:
    """Decoded and encoded again: nothing but the bytes of a PNG or JPEG can end up in the page."""
    try:
        data = base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        return ""
    kind = next((kind for magic, kind in KINDS.items() if data.startswith(magic)), "")
    if not kind or len(data) > THUMBNAIL:
        return ""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
