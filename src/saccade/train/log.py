"""What happened, for people and programs: a live panel or a line an epoch, events.jsonl, results.csv."""

import csv
import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

COLUMNS = ("epoch", "step", "train_loss", "val_loss", "val_accuracy", "lr")
"""Of results.csv: nothing that depends on the clock, so that a resumed run writes the same bytes."""


class Log:
    """Appends to a run's logs; a full disk or a closed terminal stops the log, never the run."""

    def __init__(self, folder: Path, steps: int, quiet: bool = False) -> None:
        self.folder, self.steps = folder, steps
        self.panel = None if quiet or not sys.stderr.isatty() else _panel(steps)
        self.quiet = quiet
        self._began = time.monotonic()
        self._last = 0.0

    def event(self, kind: str, step: int, **numbers: Any) -> None:
        """One line of JSON."""
        line = json.dumps({"kind": kind, "time": round(time.time(), 3), "step": step, **numbers})
        with suppress(OSError), (self.folder / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def row(self, **numbers: Any) -> None:
        """One line of results.csv."""
        path = self.folder / "results.csv"
        with suppress(OSError), path.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if path.stat().st_size == 0:
                writer.writeheader()
            writer.writerow(numbers)

    def forget_after(self, step: int) -> None:
        """Drop rows of steps that will be done again."""
        path = self.folder / "results.csv"
        if path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines[1:] if line.endswith("\n") and int(line.split(",")[1]) <= step]
            path.write_text("".join([*lines[:1], *kept]) if lines else "", encoding="utf-8")

    def step(self, step: int, numbers: dict[str, float], images: int) -> None:
        """Move the panel; without a terminal, nothing until 30 seconds have passed."""
        if self.panel is not None:
            told = f"loss {numbers['loss']:.3f}  {images} images/s"
            self.panel.update(self.panel.task_ids[0], completed=step, told=told)
        elif time.monotonic() - self._last > 30 and not self.quiet:
            self._last = time.monotonic()
            left = (self._last - self._began) / max(step, 1) * (self.steps - step)
            self.say(
                f"step {step}/{self.steps}  loss {numbers['loss']:.3f}  {images} images/s  {left:.0f} s left"
            )

    def say(self, words: str) -> None:
        """A line for the person at the terminal."""
        if self.panel is not None:
            self.panel.console.print(words, highlight=False, markup=False)
        elif not self.quiet:
            print(words, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self.panel is not None:
            self.panel.stop()


def _panel(steps: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.percentage:3.0f} %"), TextColumn("{task.fields[told]}"))
    panel = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True))
    panel.add_task("train", total=steps, told="")
    panel.start()
    return panel
