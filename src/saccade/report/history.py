"""events.jsonl, added up: what happened in a run, also in one that was killed in the middle of a line."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

LINE = 1_000_000
"""No honest event is longer (characters)."""
NAN = math.nan
HUGE = 1e100
"""No honest number is larger, and none can be drawn beside it."""


class Step(NamedTuple):
    """One logged step; NaN where the log is silent."""

    step: int
    loss: float
    lr: float
    accuracy: float
    seconds: float
    """Since the step before it, per step; NaN after anything else than a step, as that took time too."""


class Epoch(NamedTuple):
    """One line of results.csv."""

    epoch: float
    step: float
    train_loss: float
    val_loss: float
    val_accuracy: float
    lr: float
    val_bleu: float = NAN
    val_perplexity: float = NAN


@dataclass(slots=True)
class History:
    """What the events come to; a step that was done again after a crash counts once, the last time."""

    steps: dict[int, Step] = field(default_factory=dict)
    epochs: dict[float, Epoch] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    resumes: int = 0
    began: float = NAN
    last: float = NAN
    seconds: float = 0.0
    """Time at work: the pauses between a crash and the next start are not in it."""
    last_step: int = 0
    ended: str = ""
    """What the last start came to; nothing if it was killed or still runs."""
    unsound: int = 0
    """Steps whose loss was NaN or infinite."""
    skipped: int = 0
    parameters: int = 0
    dropped: int = 0
    """Lines in the middle that are no event."""


def real(value: Any) -> float:
    """Return a number of a stranger's JSON or CSV, or NaN."""
    try:
        found = NAN if isinstance(value, bool) else float(value)
        return found if abs(found) < HUGE else found * math.inf
    except (TypeError, ValueError, OverflowError):
        return NAN


def whole(value: Any) -> int:
    """Return a count of a stranger's JSON, or 0."""
    found = real(value)
    return int(found) if 0 < found < 2**53 else 0


def _lines(path: Path, gaps: dict[str, str]) -> Iterator[tuple[dict[str, Any] | None, bool]]:
    """Each line's event, or None; and whether the line is whole."""
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
        total.began, total.last = (time if math.isnan(total.began) else total.began), time
    total.last_step = step or total.last_step
    total.skipped = max(total.skipped, whole(event.get("skipped")))
    match kind:
        case "step":
            seconds = _pace(event, before)
            loss, lr, accuracy = (real(event.get(name)) for name in ("loss", "lr", "accuracy"))
            total.steps[step] = made = Step(step, loss, lr, accuracy, seconds)
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
    """An epoch may be told in two events: the training's and the validation's."""
    number = real(event.get("epoch"))
    if math.isnan(number):
        return
    known = total.epochs.get(number, Epoch(number, NAN, NAN, NAN, NAN, NAN))
    said = {**event, "train_loss": event.get("train_loss", event.get("loss"))}
    fresh = {name: value for name in Epoch._fields if not math.isnan(value := real(said.get(name)))}
    total.epochs[number] = known._replace(**fresh)


def read_history(path: Path, gaps: dict[str, str]) -> History:
    """Read the events; what is half written or no event is passed over, an unreadable file is a gap."""
    total, before = History(), {"kind": "", "time": NAN, "step": NAN}
    for event, is_whole in _lines(path, gaps):
        if event is None:
            total.dropped += is_whole
            continue
        _add(total, event, before)
        before = event
    return total
