"""What a run says before and after: the plan, the result, and commands to go on with."""

import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from shlex import quote
from typing import Any

from saccade.recipe import Recipe
from saccade.task import Evaluation, Job, Task
from saccade.wording import duration, plan_line

GROWN = 1.5
"""A training loss that ends above its start by this factor, and by `RISEN`, has diverged."""
RISEN = 0.5


def plan(task: Task, job: Job, splits: Any, why: str) -> Iterator[str]:
    """Yield the lines before training; the time follows when it is measured, unless it was given."""
    sizes = f"{len(splits.train):,} {task.noun} to train on, {len(splits.val):,} to validate on"
    yield plan_line("data", f"{splits.summary}; {sizes}")
    parameters = sum(p.numel() for p in job.module.parameters())
    count = f"{parameters / 1e6:.3g} million" if parameters >= 1e6 else f"{parameters:,}"
    yield plan_line("model", f"{job.summary or job.recipe.model}, {count} parameters")
    if job.recipe.budget.minutes:
        yield plan_line("time", f"{job.recipe.budget.minutes:g} minutes as asked, then the report")
    yield plan_line("recipe", why)


def diverged(first: float | None, last: float | None, val: float | None, recipe: Recipe) -> str:
    """Return a warning if the loss ended far above that of the first step; empty if it did not.

    Overfitting raises the validation loss too, but not to ten times the start.
    """
    if first is None or last is None:
        return ""
    if val is not None and val > 10 * (first + RISEN):
        last = max(last, val)
    if last <= max(GROWN * first, first + RISEN):
        return ""
    lower = min(recipe.optim.lr / 10, 1e-3)
    return (
        f"the training diverged: its loss was {first:.3g} at the first step and {last:,.3g} at the end. "
        f"The learning rate of {recipe.optim.lr:g} is too high; train again with a lower one, "
        f"such as --set optim.lr={lower:g}"
    )


def closing(
    task: Task, folder: Path, found: Evaluation | None, seconds: float, doubts: Iterable[str], example: str
) -> list[str]:
    """Return the lines after training: result, warnings, time, folder, and commands that work here."""
    lines = [] if found is None else [plan_line("result", task.summary(found))]
    lines += [plan_line("warning", words) for words in doubts]
    if seconds:
        lines.append(plan_line("time", duration(seconds)))
    lines.append(plan_line("folder", f"{folder}, report: {folder / 'report.html'}"))
    commands = task.next_commands(folder, quote(str(folder)), example)
    lines += [plan_line("" if i else "next", command) for i, command in enumerate(commands)]
    if not sys.stderr.isatty():
        return lines
    rule = "─" * min(max(map(len, lines)), shutil.get_terminal_size().columns)
    return [rule, *lines, rule]
