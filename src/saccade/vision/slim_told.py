"""What was measured of a model with fewer patches, for people: in the terminal, in a file, in the report."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from saccade import values
from saccade.errors import ModelError, SaccadeError
from saccade.metrics.interval import wilson
from saccade.report.html import Html, soft, table, tag
from saccade.vision.pruned import Beside
from saccade.weights.formats.tensors import read_json, write_text

FILE = "pruning.json"
TITLE = "Fewer patches"


def rows(found: Beside) -> list[list[str]]:
    """The dense model, the other, and what changed."""
    count, work = found.pictures, found.dense_macs / found.macs
    low, high = wilson(found.right, count)
    lines = [
        ["", "dense", "with fewer patches", "change"],
        [
            f"right ({count:,} {found.split} pictures)",
            f"{found.dense_right / count:.2%}",
            f"{found.right / count:.2%}",
            f"{0.0 - 100 * found.lost:+.2f} points (95 % sure of {low:.1%} to {high:.1%})",
        ],
        ["same answer as dense", "", f"{found.same / count:.1%}", ""],
        [
            "multiply-accumulates",
            f"{found.dense_macs / 1e6:,.1f} M",
            f"{found.macs / 1e6:,.1f} M",
            f"{work:.2f} x fewer",
        ],
    ]
    for each in found.speeds:
        spread = f"{each.ratio:.2f} x as fast (quartiles {each.low:.2f} to {each.high:.2f})"
        times = f"{1e3 * each.dense:.2f} ms", f"{1e3 * each.slim:.2f} ms"
        lines.append([f"time, {each.batch} at once", *times, spread])
    if found.predicted:
        lines.append(["time, predicted", "", f"{1e3 * found.predicted:.2f} ms", ""])
    return lines


def write(folder: Path, found: Beside) -> None:
    """Keep it beside the model."""
    write_text(folder / FILE, json.dumps(values.to_json(found), indent=2, ensure_ascii=False) + "\n")


def read(folder: Path) -> Beside:
    """What `write` has kept."""
    try:
        return values.from_json(Beside, read_json(folder / FILE))
    except ValueError as error:
        raise ModelError(f"{folder / FILE} cannot be used: {error}") from error


def described(found: Beside) -> dict[str, Any]:
    """For a program: all of it, and the shares that a reader would compute first."""
    count = found.pictures
    shares = {"dense_accuracy": found.dense_right / count, "accuracy": found.right / count}
    return {**values.to_json(found), **shares}


def told(folder: Path) -> Iterator[Html]:
    """The section of a report; or why it is left out."""
    try:
        found = read(folder)
        lines = rows(found)
    except (SaccadeError, ArithmeticError):
        yield soft(f"The comparison with the dense model is left out: {FILE} cannot be read.")
        return
    yield tag(
        "p", f"The plan: {found.plan}. Tokens that enter each block: {', '.join(map(str, found.tokens))}."
    )
    shown = [[(cell, cell) for cell in line] for line in lines[1:]]
    yield table("dense-and-pruned", "Beside the dense model, on this machine", lines[0], shown)
