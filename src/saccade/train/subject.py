"""What a task adds to a run: how its data are opened, found again, and judged at the end."""

import json
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from saccade import __version__, values
from saccade.errors import DataError
from saccade.recipe import Training
from saccade.train.material import Material
from saccade.train.run import Run
from saccade.weights.formats.tensors import write_text


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a person asked to be trained."""

    data: str
    model: str = ""
    changes: Sequence[str] = ()
    kind: str = "auto"
    task: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """Material, with what a run folder and a person are told of it."""

    material: Material
    data: dict[str, Any]
    """What data.json holds; the splits have a fingerprint each."""
    model: str
    """A sentence on the model that is begun from."""
    told: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    """What else the run folder holds from its first moment on, by name: a vocabulary."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One task of `saccade train`."""

    recipe: type[Training]
    open: Callable[[Asked], Opened]
    reopen: Callable[[Path, Training, dict[str, Any]], Opened]
    """The same again, for a run folder; refused if the data are others."""
    conclude: Callable[[Run], tuple[str, Path]]
    """Judge the model that was kept: the result in a line, and the report."""


def check_same(folder: Path, described: Mapping[str, Any], data: Mapping[str, Any], noun: str) -> None:
    """Refuse data that are not those the run began with."""
    for name in ("train", "val"):
        found, known = data.get(name), described.get(name)
        mark = known.get("fingerprint") if isinstance(known, dict) else None
        if isinstance(found, dict) and found.get("fingerprint") != mark:
            raise DataError(
                f"the {noun} in {described.get('source')} are not those that {folder} began with; start anew"
            )


def describe(folder: Path, recipe: object, data: Mapping[str, Any], command: str = "") -> None:
    """Write what is needed to repeat the run; the command is this process's if none is given."""
    env = {"python": platform.python_version(), "torch": torch.__version__, "platform": platform.platform()}
    env |= {"threads": str(torch.get_num_threads()), "saccade": __version__}
    write_text(folder / "data.json", json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    write_text(folder / "env.json", json.dumps(env, indent=2) + "\n")
    write_text(folder / "command.txt", command or " ".join(sys.argv) + "\n")
    # last, as a folder without it is no run
    write_text(folder / "recipe.json", json.dumps(values.to_json(recipe), indent=2) + "\n")
