"""Log a run: a live panel or one line per epoch, events.jsonl and results.csv."""

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
        """`leads`: of several processes only this one writes and prints."""
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
        """Append one line of JSON; a previous line cut off by a full disk or a kill stays on its own line."""
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

    def step(self, step: int, numbers: dict[str, float], rate: str) -> None:
        """Show the numbers of a training step."""
        accuracy = f"  accuracy {numbers['accuracy']:.0%}" if "accuracy" in numbers else ""
        self.move(step, f"loss {numbers['loss']:.3f}{accuracy}  {rate}")

    def move(self, step: int, status: str) -> None:
        """Update the panel; without a terminal, print a line every 30 seconds."""
        if self.panel is not None:
            with suppress(OSError, ValueError):
                self.panel.update(self.panel.task_ids[0], completed=step, total=self.steps, status=status)
        elif time.monotonic() - self._last > 30 and not self.quiet:
            self._last = time.monotonic()
            left = (self._last - self._began) / max(step, 1) * (self.steps - step)
            self.say(f"step {step}/{self.steps}  {status}  {left:.0f} s left")

    def say(self, words: str) -> None:
        """Print a line to the terminal, which may have been closed."""
        with suppress(OSError, ValueError):
            if self.panel is not None:
                self.panel.console.print(words, highlight=False, markup=False)
            elif not self.quiet:
                print(words, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Restore the terminal, and close the sinks."""
        if self.sinks is not None:
            self.sinks.close()
        if self.panel is not None:
            with suppress(OSError, ValueError):
                self.panel.stop()

    def leave(self) -> None:
        """Show the cursor again; unlike `close`, safe at any moment."""
        if self.panel is not None:
            with suppress(OSError):
                os.write(2, b"\033[?25h\n")


def _line(cells: Iterable[Any]) -> str:
    """Format a line of CSV."""
    made = io.StringIO()
    csv.writer(made, lineterminator="\n").writerow(cells)
    return made.getvalue()


def _panel(steps: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.percentage:3.0f} %"), TextColumn("{task.fields[status]}"))
    panel = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True))
    panel.add_task("train", total=steps, status="")
    panel.start()
    return panel
