"""What happened, for people and programs: a live panel or a line an epoch, events.jsonl, results.csv."""

import csv
import io
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from saccade.errors import SaccadeError
from saccade.files.atomic import write_text
from saccade.train.sinks import Sinks

SCORED = ("val_loss", "val_accuracy")
"""Columns of results.csv; none depends on the clock, so that a resumed run writes the same bytes."""


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
        """`leads`: of several processes only one writes and speaks."""
        self.columns = ("epoch", "step", "train_loss", *scored, "lr")
        self.folder, self.steps, self.leads = folder, steps, leads
        self.quiet = quiet = quiet or not leads
        self.panel = None if quiet or not sys.stderr.isatty() else _panel(steps)
        self._began = time.monotonic()
        self._last = self._began
        self._torn = False
        self._rows = list(self._read_rows())
        self.sinks: Sinks | None = None

    def event(self, kind: str, step: int, **numbers: Any) -> None:
        """One line of JSON; what a full disk or a kill left of the line before stays a line of its own."""
        if not self.leads:
            return
        line = json.dumps({"kind": kind, "time": round(time.time(), 3), "step": step, **numbers})
        with suppress(OSError), (self.folder / "events.jsonl").open("a+b") as file:
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else f"\n{line}"
            file.write(f"{line}\n".encode())
        if self.sinks is not None and kind in ("step", "epoch"):
            self.sinks.numbers(kind, step, numbers)

    def row(self, **numbers: Any) -> None:
        """One line of results.csv."""
        self._rows.append(_line(numbers.get(name, "") for name in self.columns))
        self._write_rows()

    def forget_after(self, step: int) -> None:
        """Drop rows of steps that will be done again."""
        before = len(self._rows)
        self._rows = [line for line in self._rows if int(line.split(",")[1]) <= step]
        if len(self._rows) < before or self._torn:
            self._write_rows()

    def _write_rows(self) -> None:
        """All rows at once: what a full disk kept out before is in the file with the next one."""
        if not self.leads:
            return
        with suppress(OSError, SaccadeError):
            write_text(self.folder / "results.csv", _line(self.columns) + "".join(self._rows))
            self._torn = False

    def _read_rows(self) -> Iterator[str]:
        """The whole lines of a run that goes on."""
        try:
            lines = (self.folder / "results.csv").read_text("utf-8", "replace").splitlines(keepends=True)
        except OSError:
            return
        for line in lines[1:]:
            cells = line.split(",")
            if line.endswith("\n") and len(cells) == len(self.columns) and cells[1].isdecimal():
                yield line
            else:
                self._torn = True

    def step(self, step: int, numbers: dict[str, float], rate: str) -> None:
        """Tell how a step of training went."""
        right = f"  right {numbers['accuracy']:.0%}" if "accuracy" in numbers else ""
        self.move(step, f"loss {numbers['loss']:.3f}{right}  {rate}")

    def move(self, step: int, told: str) -> None:
        """Move the panel; without a terminal, nothing until 30 seconds have passed."""
        if self.panel is not None:
            with suppress(OSError, ValueError):
                self.panel.update(self.panel.task_ids[0], completed=step, total=self.steps, told=told)
        elif time.monotonic() - self._last > 30 and not self.quiet:
            self._last = time.monotonic()
            left = (self._last - self._began) / max(step, 1) * (self.steps - step)
            self.say(f"step {step}/{self.steps}  {told}  {left:.0f} s left")

    def say(self, words: str) -> None:
        """A line for the person at the terminal, who may have closed it."""
        with suppress(OSError, ValueError):
            if self.panel is not None:
                self.panel.console.print(words, highlight=False, markup=False)
            elif not self.quiet:
                print(words, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was, and let the sinks finish."""
        if self.sinks is not None:
            self.sinks.close()
        if self.panel is not None:
            with suppress(OSError, ValueError):
                self.panel.stop()

    def leave(self) -> None:
        """Do the little of `close` that can be done in the middle of anything: show the cursor again."""
        if self.panel is not None:
            with suppress(OSError):
                os.write(2, b"\033[?25h\n")


def _line(cells: Iterable[Any]) -> str:
    """One line of CSV."""
    made = io.StringIO()
    csv.writer(made, lineterminator="\n").writerow(cells)
    return made.getvalue()


def _panel(steps: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.percentage:3.0f} %"), TextColumn("{task.fields[told]}"))
    panel = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True))
    panel.add_task("train", total=steps, told="")
    panel.start()
    return panel
