"""Log a run: a bar and one line per epoch, events.jsonl, results.csv, and trackers.

A tracker that fails is reported once and dropped; the run continues.
"""

import csv
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from saccade.errors import DataError, SaccadeError, StoppedError, UsageError
from saccade.files.atomic import write_text
from saccade.progress import Progress
from saccade.recipe import trackers
from saccade.report.run_record import read_history
from saccade.task import Job
from saccade.wording import duration, plan_line

SCORED = ("val_loss", "val_accuracy")
"""Columns of results.csv; none depends on the clock, so that a resumed run writes the same bytes."""
TRACKER_MODULES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
TRACKER_INSTALLS = {"tensorboard": "pip install 'saccade[track]'"}


class Tracker(Protocol):
    """Takes metrics by name; may raise anything."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Writes RUN/tensorboard; `tensorboard --logdir runs` shows all runs side by side."""

    def __init__(self, folder: Path, step: int) -> None:
        """Purge what an earlier process wrote after `step`: those steps are repeated."""
        writer = import_module(TRACKER_MODULES["tensorboard"]).SummaryWriter
        self.writer = writer(folder / "tensorboard", purge_step=step + 1)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class Wandb:
    """A run of Weights & Biases; its own settings (WANDB_MODE, ...) choose the account and the mode."""

    def __init__(self, folder: Path, step: int) -> None:
        self.run = import_module("wandb").init(project="saccade", name=folder.name, dir=str(folder))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.log(dict(metrics), step=step)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """A run of MLflow; MLFLOW_TRACKING_URI decides where it is stored."""

    def __init__(self, folder: Path, step: int) -> None:
        self.mlflow = import_module("mlflow")
        self.mlflow.start_run(run_name=folder.name)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.mlflow.log_metrics(dict(metrics), step=step)

    def close(self) -> None:
        self.mlflow.end_run()


TRACKER_KINDS: dict[str, Callable[[Path, int], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": MLflow,
}


def check_trackers(track: str) -> None:
    """Refuse a tracker whose package is not installed, before a run starts."""
    for word in trackers(track):
        try:
            import_module(TRACKER_MODULES[word])
        except ImportError as error:
            command = TRACKER_INSTALLS.get(word, f"pip install {word}")
            raise UsageError(
                f"track is {word!r}, but the package {word} is not installed or cannot be imported; "
                f"run {command}, or remove it from track"
            ) from error


class Trackers:
    """All trackers of a run; if one fails, the others and the run continue."""

    def __init__(self, track: str, folder: Path, step: int, say: Callable[[str], None]) -> None:
        """`step`: where the run starts or resumes."""
        self.say = say
        self.open: dict[str, Tracker] = {}
        for word in trackers(track):
            self._try(word, self._start, word, folder, step)

    def log(self, kind: str, step: int, metrics: Mapping[str, Any]) -> None:
        """Pass on the metrics, as step/loss or epoch/val_accuracy."""
        named = {
            f"{kind}/{name}": float(value)
            for name, value in metrics.items()
            if isinstance(value, int | float) and name != "epoch"
        }
        for word, tracker in list(self.open.items()):
            self._try(word, tracker.log, step, named)

    def close(self) -> None:
        """Close all trackers."""
        for word, tracker in list(self.open.items()):
            self._try(word, tracker.close)
        self.open = {}

    def _start(self, word: str, folder: Path, step: int) -> None:
        self.open[word] = TRACKER_KINDS[word](folder, step)

    def _try(self, word: str, act: Callable[..., object], *given: object) -> None:
        try:
            act(*given)
        except Exception as error:  # third-party code, networks, disks: whatever it is, the run continues
            self.open.pop(word, None)
            reason = " ".join(str(error).split())[:200]
            cause = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
            self.say(
                f"note: {word} failed and is dropped for this run ({cause}); events.jsonl has all metrics"
            )


class Log:
    """Appends to a run's logs; a full disk or a closed terminal stops the log, never the run."""

    def __init__(
        self,
        folder: Path,
        steps: int,
        quiet: bool = False,
        leads: bool = True,
        scored: tuple[str, ...] = SCORED,
    ) -> None:
        """`leads`: of several processes only this one writes and prints."""
        self.columns = ("epoch", "step", "train_loss", *scored, "lr")
        self.folder, self.steps, self.leads = folder, steps, leads
        self.quiet = quiet or not leads
        self.progress: Progress | None = None
        self._torn = False
        self._rows = list(self._read_rows())
        self.trackers: Trackers | None = None

    @property
    def seconds(self) -> float:
        """The running time so far, of earlier processes too."""
        return read_history(self.folder / "events.jsonl", {}).seconds

    def event(self, kind: str, step: int, **numbers: Any) -> None:
        """Append one line of JSON; a previous line cut off by a full disk or a kill stays on its own line."""
        if not self.leads:
            return
        line = json.dumps({"kind": kind, "time": round(time.time(), 3), "step": step, **numbers})
        with suppress(OSError), (self.folder / "events.jsonl").open("a+b") as file:
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else f"\n{line}"
            file.write(f"{line}\n".encode())
        if self.trackers is not None and kind in ("step", "epoch"):
            self.trackers.log(kind, step, numbers)

    def row(self, **numbers: Any) -> None:
        """Add a line to results.csv."""
        self._rows.append(_line(numbers.get(name, "") for name in self.columns))
        self._write_rows()

    def forget_after(self, step: int) -> None:
        """Drop rows of steps that will be repeated."""
        before = len(self._rows)
        self._rows = [line for line in self._rows if int(line.split(",")[1]) <= step]
        if len(self._rows) < before or self._torn:
            self._write_rows()

    def _write_rows(self) -> None:
        """Write all rows, so that those lost to a full disk appear with the next one."""
        if not self.leads:
            return
        with suppress(OSError, SaccadeError):
            write_text(self.folder / "results.csv", _line(self.columns) + "".join(self._rows))
            self._torn = False

    def _read_rows(self) -> Iterator[str]:
        """Yield the complete lines of a resumed run."""
        try:
            lines = (self.folder / "results.csv").read_text("utf-8", "replace").splitlines(keepends=True)
        except OSError:
            return
        for line in lines[1:]:
            cells = line.split(",")
            whole = line.endswith("\n") and len(cells) == len(self.columns)
            if whole and cells[1].isdecimal() and len(cells[1]) < 19:
                yield line
            else:
                self._torn = True

    def open(self, label: str = "step", total: int | None = None) -> Progress:
        """Show a bar, or a line every 30 seconds, until `close`."""
        self.progress = Progress(label, total, quiet=self.quiet)
        return self.progress

    def step(self, step: int, numbers: dict[str, float], rate: str) -> None:
        """Show the numbers of a training step."""
        accuracy = f"  train accuracy {numbers['accuracy']:.0%}" if "accuracy" in numbers else ""
        self.move(step, f"train loss {numbers['loss']:.3f}{accuracy}  {rate}")

    def move(self, step: int, status: str) -> None:
        """Show that `step` steps are done."""
        if self.progress is not None:
            self.progress.main.total = self.steps
            self.progress.move(step, status)

    @property
    def pace_known(self) -> bool:
        """Whether enough steps have been measured to tell how long the rest takes."""
        return self.progress is not None and self.progress.main.pace.known

    def tell_time(self) -> None:
        """Say how long the training takes on this machine."""
        if (bar := self.progress) is not None:
            words = f"{self.steps:,} steps: about {duration(bar.left)} on this machine"
            self.say(plan_line("time", f"{words} ({duration(bar.main.pace.each)} for a step)"))

    def say(self, words: str) -> None:
        """Print a line to the terminal, which may have been closed."""
        if self.progress is not None:
            self.progress.say(words)
        elif not self.quiet:
            with suppress(OSError, ValueError):
                print(words, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Restore the terminal, and close the trackers."""
        if self.trackers is not None:
            self.trackers.close()
        if self.progress is not None:
            self.progress.close()
            self.progress = None

    def leave(self) -> None:
        """Show the cursor again; unlike `close`, safe at any moment."""
        if self.progress is not None:
            self.progress.leave()


class UnreadableExamples:
    """The examples that could not be read, by split; the job reports them to it."""

    def __init__(self, noun: str, job: Job, log: Log) -> None:
        self.noun, self.job, self.log = noun, job, log
        self.numbers: dict[str, set[int]] = {"train": set(), "val": set()}

    def __call__(self, split: str, numbers: Iterable[int]) -> None:
        """Report the examples that could not be read, and refuse too many; a single one is tolerated."""
        known, limit = self.numbers[split], self.job.recipe.bad
        for number in numbers:
            if number not in known:
                known.add(number)
                self.log.say(f"left out: {self.job.reason(split, number)}")
        total = len(self.job.splits.by_name[split])
        if len(known) > max(limit * total, 1):
            raise DataError(
                f"{len(known)} of {total} {self.noun} cannot be read (limit {limit:.0%}). "
                "Run `saccade check` on the data, or raise `bad`"
            )


class StoppableLog:
    """The log of the work before the first step, which a signal ends where it shows its progress."""

    def __init__(self, log: Log, stopped: Callable[[], bool], brief: bool) -> None:
        """`brief`: show no progress."""
        self.log, self.stopped, self.brief = log, stopped, brief

    def say(self, words: str) -> None:
        self.log.say(words)

    def event(self, kind: str, step: int, **numbers: Any) -> None:
        self.log.event(kind, step, **numbers)

    def expect(self, steps: int) -> None:
        """Say how many steps the work has."""
        self.log.steps = steps

    def move(self, step: int, status: str) -> None:
        if self.stopped():
            raise StoppedError(
                f"stopped before the first step; resume with: saccade train --resume {self.log.folder}"
            )
        if not self.brief:
            self.log.move(step, status)


def _line(cells: Iterable[Any]) -> str:
    """Format a line of CSV."""
    made = io.StringIO()
    csv.writer(made, lineterminator="\n").writerow(cells)
    return made.getvalue()
