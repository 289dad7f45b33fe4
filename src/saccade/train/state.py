"""Checkpoints that survive a kill at any moment: written beside, synced, hashed, renamed into place."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from saccade.errors import ModelError, SaccadeError
from saccade.weights.files import read_json, tensors, write_safetensors, write_text

KEPT = 2
MANIFEST = "manifest.json"


def optimizer_tensors(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[str, Tensor]:
    """The optimiser's state under the names of the parameters it belongs to."""
    names = {id(p): name for name, p in module.named_parameters()}
    found = {}
    for parameter, values in optimizer.state.items():
        for key, value in values.items():
            found[f"{names[id(parameter)]}/{key}"] = torch.as_tensor(value)
    return found


def restore_optimizer(optimizer: torch.optim.Optimizer, module: nn.Module, found: dict[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` took out."""
    parameters = dict(module.named_parameters())
    for name, value in found.items():
        parameter, key = name.rsplit("/", 1)
        optimizer.state[parameters[parameter]][key] = value.clone()


def save(folder: Path, step: int, groups: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> Path:
    """Write `step-000123` with a safetensors file for each group; older checkpoints beyond the last two go.

    A folder counts only if its manifest is there with every hash right, and the manifest is written last.
    """
    for name, group in groups.items():
        bad = [key for key, tensor in group.items() if not torch.isfinite(tensor).all()]
        if bad:
            raise ModelError(
                f"{name} holds numbers that are not finite ({bad[0]}); the checkpoint was not written"
            )
    place = folder / f"step-{step:09}"
    beside = folder / f"step-{step:09}.tmp"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    for name, group in ((n, g) for n, g in groups.items() if g):  # a fresh optimiser holds nothing
        write_safetensors(beside / f"{name}.safetensors", group, None)
    write_text(beside / "state.json", json.dumps(state))
    hashes = {path.name: digest(path) for path in sorted(beside.iterdir())}
    write_text(beside / MANIFEST, json.dumps({"step": step, "sha256": hashes}, indent=1))
    if place.exists():  # the same step again, after a resume: the same bytes
        shutil.rmtree(place)
    os.replace(beside, place)
    _sync(folder)
    for old in sorted(folder.glob("step-*"))[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return place


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(place: Path) -> None:
    """Refuse a checkpoint that is not whole; a link may lead to what was not saved with it."""
    if (place / MANIFEST).is_symlink():
        raise ModelError(f"{place / MANIFEST} is a link and not the file that was saved; it is not used")
    manifest = read_json(place / MANIFEST)
    hashes = manifest.get("sha256")
    if not isinstance(hashes, dict) or manifest.get("step") != step_of(place):
        raise ModelError(f"{place} has a manifest of another checkpoint; it is not used")
    for name, wanted in hashes.items():
        path = place / name
        if path.is_symlink() or not path.is_file() or digest(path) != wanted:
            raise ModelError(f"{path} is not the file that was saved (missing or changed); it is not used")


def step_of(place: Path) -> int:
    """The step in the name of a checkpoint, or -1."""
    text = place.name.removeprefix("step-")
    return int(text) if text.isdigit() else -1


def latest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint, and a sentence for each newer one that is damaged."""
    told: list[str] = []
    for place in sorted((p for p in folder.glob("step-*") if step_of(p) >= 0), reverse=True):
        try:
            verify(place)
        except (SaccadeError, OSError) as error:
            told.append(str(error))
        else:
            return place, told
    return None, told


def read(place: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """The groups of tensors and the state of a checkpoint that `latest` found."""
    groups = {path.stem: tensors(path) for path in sorted(place.glob("*.safetensors"))}
    return groups, read_json(place / "state.json")


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
