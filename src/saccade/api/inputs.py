"""Check what a user gives before torch is imported: the model, and the folder to write."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from saccade.errors import UsageError
from saccade.weights.identify import Identified, identify, locate

Say = Callable[[str], None]
"""Receives progress messages; the command line prints them to stderr."""


def identify_model(model: str | Path, kind: str = "images") -> Identified:
    """Find a model; refuse a damaged one, or one of the wrong kind. Code that it refers to is never run.

    Args:
        kind: What the caller can run: images, text, weights (both of them), or any (exported graphs too).
    """
    path = locate(model)
    found = identify(path)
    checks = {"images": found.check_images, "text": found.check_text, "weights": found.check_weights}
    if kind in checks:
        checks[kind]()
    if found.code:
        print(
            f"note: {path} refers to code of its own ({', '.join(found.code)}); it is ignored and never run",
            file=sys.stderr,
        )
    return found


def check_ability(found: Identified, ability: str) -> None:
    """Refuse a model whose task cannot do this."""
    from saccade.tasks import task_of

    task = task_of(found)
    if ability not in task.abilities:
        raise UsageError(f"saccade {ability} does not work with models for the task {task.name}")


def send(model: Any, device: str) -> None:
    """Send a model to a device; an engine runs on the CPU, without torch."""
    if not getattr(model, "on_torch", True):
        if device not in ("auto", "cpu"):
            raise UsageError(
                f"--device is {device!r}, but exported graphs and engines run on the CPU; leave it out, or "
                "give the run that the graph was exported from"
            )
        return
    from saccade.processes import find_device

    model.module.to(find_device(device))


def check_free(out: Path | None) -> None:
    """Refuse a folder that is not empty, before any work is done."""
    if out is None:
        return
    if not out.name:
        raise UsageError(f"the folder to write is {str(out)!r}; expected a folder with a name")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and is not empty; nothing was written; give another name")
