"""Read a run folder piece by piece; any piece may be missing or truncated."""

import base64
import binascii
import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from saccade.errors import UsageError
from saccade.report.html import Card
from saccade.wording import printable

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


SPLITS = ("train", "val", "test")
COUNTED = ("pictures", "pairs", "characters", "count", "files")
PARTIAL = 0.1
"""An epoch that lacks less than this was a whole one; the last batch need not be full."""
LINE = 1_000_000
"""Most characters of an event."""
NAN = math.nan
HUGE = 1e100
"""Larger numbers are ignored: they could not be plotted."""


class LoggedStep(NamedTuple):
    """One logged step; NaN where the log has no value."""

    step: int
    loss: float
    lr: float
    accuracy: float
    seconds: float
    """Seconds per step since the previous one; NaN after any other event, as that took time too."""


class Epoch(NamedTuple):
    """One row of results.csv; NaN where it has no value."""

    epoch: float
    step: float = NAN
    train_loss: float = NAN
    lr: float = NAN
    metrics: Mapping[str, float] = MappingProxyType({})
    """Validation metrics by name."""

    def metric(self, name: str) -> float:
        """Return a metric of the validation split, or NaN."""
        return self.metrics.get(name, NAN)


def _epoch(row: Mapping[str, Any]) -> Epoch:
    """Return the epoch that a row or event describes; a column `val_x` is the metric x."""
    found = {
        str(name).removeprefix("val_"): real(value)
        for name, value in row.items()
        if str(name).startswith("val_")
    }
    metrics = {name: value for name, value in found.items() if not math.isnan(value)}
    epoch, step, loss, lr = (real(row.get(name)) for name in ("epoch", "step", "train_loss", "lr"))
    return Epoch(epoch, step, loss, lr, metrics)


@dataclass(slots=True)
class History:
    """A summary of events.jsonl; of a step repeated after a crash the last one counts."""

    steps: dict[int, LoggedStep] = field(default_factory=dict)
    epochs: dict[float, Epoch] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    resumes: int = 0
    first: float = NAN
    last: float = NAN
    seconds: float = 0.0
    """Running time, without the pauses between a crash and the next start."""
    last_step: int = 0
    ended: str = ""
    """How the last start ended; empty if it was killed or still runs."""
    unsound: int = 0
    """Steps whose loss was NaN or infinite."""
    skipped: int = 0
    parameters: int = 0
    dropped: int = 0
    """Lines in the middle that are not events."""


def real(value: Any) -> float:
    """Return a number from untrusted JSON or CSV, or NaN."""
    try:
        found = NAN if isinstance(value, bool) else float(value)
        return found if abs(found) < HUGE else found * math.inf
    except (TypeError, ValueError, OverflowError):
        return NAN


def whole(value: Any) -> int:
    """Return a count from untrusted JSON, or 0."""
    found = real(value)
    return int(found) if 0 < found < 2**53 else 0


def _lines(path: Path, gaps: dict[str, str]) -> Iterator[tuple[dict[str, Any] | None, bool]]:
    """Yield each line's event, or None, and whether the line is whole."""
    if not path.is_file():
        gaps[path.name] = "is not in the run folder"
        return
    try:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            while line := file.readline(LINE):
                try:
                    event = json.loads(line)
                except (ValueError, RecursionError):
                    event = None
                yield (event if isinstance(event, dict) else None), line.endswith("\n")
    except OSError as error:
        gaps[path.name] = f"cannot be read ({error.strerror})"


def _add(total: History, event: dict[str, Any], before: dict[str, Any]) -> None:
    kind, time, step = event.get("kind"), real(event.get("time")), whole(event.get("step"))
    if kind in ("start", "resume"):
        total.resumes += kind == "resume" or before.get("kind") != ""
        total.ended = ""
        total.parameters = whole(event.get("parameters")) or total.parameters
    elif (passed := time - real(before.get("time"))) > 0:
        total.seconds += passed
    if math.isfinite(time):
        total.first, total.last = (time if math.isnan(total.first) else total.first), time
    total.last_step = step or total.last_step
    total.skipped = max(total.skipped, whole(event.get("skipped")))
    match kind:
        case "step":
            seconds = _pace(event, before)
            loss, lr, accuracy = (real(event.get(name)) for name in ("loss", "lr", "accuracy"))
            total.steps[step] = made = LoggedStep(step, loss, lr, accuracy, seconds)
            total.unsound += "loss" in event and not math.isfinite(made.loss)
        case "epoch" | "eval":
            _join(total, event)
        case "note":
            total.notes.append(str(event.get("text", event.get("message", ""))))
        case "end":
            total.ended = str(event.get("reason", "done"))


def _pace(event: dict[str, Any], before: dict[str, Any]) -> float:
    steps, seconds = (real(event.get(name)) - real(before.get(name)) for name in ("step", "time"))
    return seconds / steps if before.get("kind") == "step" and steps > 0 and seconds >= 0 else NAN


def _join(total: History, event: dict[str, Any]) -> None:
    """Add an epoch, which may be spread over two events: the training's and the validation's."""
    number = real(event.get("epoch"))
    if math.isnan(number):
        return
    known = total.epochs.get(number, Epoch(number))
    fresh = _epoch({**event, "train_loss": event.get("train_loss", event.get("loss"))})
    numbers = {
        name: value for name in ("step", "train_loss", "lr") if not math.isnan(value := getattr(fresh, name))
    }
    total.epochs[number] = known._replace(**numbers, metrics={**known.metrics, **fresh.metrics})


def read_history(path: Path, gaps: dict[str, str]) -> History:
    """Read the events; skip lines that are incomplete or not events; an unreadable file is a gap."""
    total, before = History(), {"kind": "", "time": NAN, "step": NAN}
    for event, is_whole in _lines(path, gaps):
        if event is None:
            total.dropped += is_whole
            continue
        _add(total, event, before)
        before = event
    return total


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Everything that a run folder holds for its report."""

    folder: Path
    recipe: dict[str, Any]
    command: str
    env: dict[str, Any]
    data: dict[str, Any]
    labels: list[str]
    events: History
    epochs: list[Epoch]
    evaluation: dict[str, Any]
    samples: list[Card]
    gaps: dict[str, str]
    """Why a file could not be used, by its name."""

    @property
    def name(self) -> str:
        """Return the name of the folder."""
        return self.folder.resolve().name

    @property
    def lineage(self) -> list[dict[str, Any]]:
        """Return the weights that it started from, the newest first; empty from scratch."""
        found = self.data.get("lineage")
        return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []

    @property
    def model(self) -> str:
        """Return the name of the model that the run started from, without the folders of its weights."""
        found = str(self.recipe.get("model") or "")
        return Path(found).name if found.startswith("/") else found

    @property
    def split(self) -> str:
        """Return the split that the model was evaluated on."""
        return str(self.evaluation.get("split", "val"))

    def label(self, number: int) -> str:
        """Return the name of a class, or its number if it has none."""
        return self.labels[number] if number < len(self.labels) else f"class {number}"

    def without(self, what: str, file: str) -> str:
        """Return the sentence that replaces what is left out."""
        return f"{what} is left out: {file} {self.gaps.get(file, 'does not have it')}."


def read_record(folder: Path) -> Record:
    """Read a run folder; only a folder that is not a run at all is an error."""
    if not any((folder / name).is_file() for name in NAMES):
        raise UsageError(
            f"{printable(folder)} has none of {', '.join(NAMES)}; expected a run folder; "
            "give the folder that `saccade train` made"
        )
    gaps: dict[str, str] = {}
    lines = _text(folder, "labels.txt", gaps).removeprefix("\ufeff").split("\n")
    labels = [line for line in lines if line.strip()]
    events = read_history(folder / "events.jsonl", gaps)
    recipe, data = _object(folder, "recipe.json", gaps), _object(folder, "data.json", gaps)
    epochs = _results(folder, gaps) or [events.epochs[key] for key in sorted(events.epochs)]
    samples = _json(folder, "samples.json", gaps)
    return Record(
        folder=folder,
        recipe=recipe,
        command=_text(folder, "command.txt", gaps),
        env=_object(folder, "env.json", gaps),
        data=data,
        labels=labels,
        events=events,
        epochs=_unfinished(epochs, recipe, data.get("train")),
        evaluation=_object(folder, "evaluation.json", gaps),
        samples=read_cards(samples.get("samples") if isinstance(samples, dict) else samples, labels),
        gaps=gaps,
    )


def splits(data: dict[str, Any]) -> dict[str, int]:
    """Return the examples per split, given as a number, a list of files, or an object that counts them."""
    listed = data.get("splits")
    found = listed if isinstance(listed, dict) else {key: data[key] for key in SPLITS if key in data}
    return {str(key): _examples(value) for key, value in found.items()}


def _examples(value: Any) -> int:
    if isinstance(value, dict):
        return next((_examples(value[key]) for key in COUNTED if key in value), 0)
    return len(value) if isinstance(value, list) else whole(value)


def _unfinished(epochs: list[Epoch], recipe: dict[str, Any], train: Any) -> list[Epoch]:
    """Return the epochs; where a time limit cut the last one short, its number is what was passed of it.

    Only of images, which are counted as they are batched; a text is counted in characters.
    """
    budget, images = recipe.get("budget"), whole(train.get("pictures")) if isinstance(train, dict) else 0
    if not epochs or not images or not isinstance(budget, dict):
        return epochs
    per_step = whole(budget.get("batch")) * (whole(budget.get("accumulate")) or 1)
    last = epochs[-1]
    passed = last.step * per_step / images
    if not last.epoch - 1 < passed < last.epoch - PARTIAL:
        return epochs
    return [*epochs[:-1], last._replace(epoch=round(passed, 2))]


def _text(folder: Path, name: str, gaps: dict[str, str]) -> str:
    path = folder / name
    if not path.is_file():  # also false for a pipe, which might never end
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
        gaps[name] = f"is not complete JSON ({printable(error, 100)})"
        return None


def _object(folder: Path, name: str, gaps: dict[str, str]) -> dict[str, Any]:
    found = _json(folder, name, gaps)
    if isinstance(found, dict):
        return found
    gaps.setdefault(name, "is not a JSON object")
    return {}


def _results(folder: Path, gaps: dict[str, str]) -> list[Epoch]:
    # a last line without its newline is truncated, and half a number still looks like one
    text, _, _ = _text(folder, "results.csv", gaps).rpartition("\n")
    rows = csv.DictReader(text.splitlines())
    found = {}
    for row in rows:
        epoch = _epoch(row)
        if math.isfinite(epoch.epoch):
            found[epoch.epoch] = epoch
    return [found[key] for key in sorted(found)]


def read_cards(found: Any, labels: list[str]) -> list[Card]:
    """Return the thumbnails that untrusted JSON lists."""
    rows = [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
    return [
        Card(
            thumbnail=_thumbnail(row.get("thumbnail")),
            label=_label(row.get("label"), labels),
            name=str(row.get("picture", "")),
            path=str(row.get("path", "")),
            predicted=_label(row.get("predicted"), labels),
            score=real(row.get("score")),
            map=_thumbnail(row.get("map")),
        )
        for row in rows
    ]


def _label(value: Any, labels: list[str]) -> str:
    if isinstance(value, int) and 0 <= value < len(labels):
        return labels[value]
    return "" if value is None else str(value)


def _thumbnail(text: Any) -> str:
    """Decode and encode again, so that only PNG or JPEG bytes end up in the page."""
    try:
        data = base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        return ""
    kind = next((kind for magic, kind in KINDS.items() if data.startswith(magic)), "")
    if not kind or len(data) > THUMBNAIL:
        return ""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
