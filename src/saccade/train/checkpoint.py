"""Checkpoints that survive a kill at any moment: written beside, synced, hashed, renamed into place."""

import hashlib
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from saccade.errors import ModelError, ResourceError, SaccadeError
from saccade.files.atomic import patiently, sync_folder
from saccade.processes import like, put
from saccade.weights.formats.tensors import read_json, tensors, write_safetensors, write_text
from saccade.weights.layouts.rules import state as state_of

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
    optimizer.state.clear()  # a return to the first step forgets all
    for name, value in found.items():
        parameter, key = name.rsplit("/", 1)
        optimizer.state[parameters[parameter]][key] = like(parameters[parameter], value)


def restore_module(module: nn.Module, found: dict[str, Tensor]) -> None:
    """Give a module its tensors back; refuse those of another model, as of a recipe.json that was changed."""
    own = state_of(module)
    if {n: t.shape for n, t in own.items()} != {n: t.shape for n, t in found.items()}:
        raise ModelError("the checkpoint is of another model than recipe.json describes; start anew")
    for name, tensor in found.items():
        put(own[name], tensor)


def culprit(module: nn.Module) -> str:
    """Where numbers are not finite: the first such weight, or gradient, or else the longest gradient."""
    for name, parameter in module.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"the weight {name}"
    for name, parameter in module.named_parameters():
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
            return f"the gradient of {name}"
    lengths = {n: p.grad.norm().item() for n, p in module.named_parameters() if p.grad is not None}
    return f"the gradient of {max(lengths, key=lengths.__getitem__)}" if lengths else "the loss"


def unsound(groups: dict[str, dict[str, Tensor]]) -> str:
    """The first tensor that holds a number that is not finite, by name; nothing if all is well."""
    for name, group in groups.items():
        for key, tensor in group.items():
            if not torch.isfinite(tensor).all():
                return f"{name} {key}"
    return ""


def save(
    folder: Path,
    step: int,
    groups: dict[str, dict[str, Tensor]],
    state: dict[str, Any],
    before: Path | None = None,
) -> Path:
    """Write `step-000123` with a safetensors file for each group, whole or not at all.

    A folder counts only if its manifest is there with every hash right, and the manifest is written last.
    One older checkpoint stays: `before`, if it is known to be whole, or else the newest.
    """
    if bad := unsound(groups):
        raise ModelError(f"{bad} holds numbers that are not finite; the checkpoint was not written")
    place, beside = folder / f"step-{step:09}", folder / f"step-{step:09}.tmp"
    needed = 10_000 + sum(t.numel() * t.element_size() for group in groups.values() for t in group.values())
    try:
        then = f"go on from the one before with: saccade train --resume {folder.parent}"
        patiently(lambda: _write(beside, step, groups, state), "the checkpoint", folder, needed, then)
        patiently(lambda: _place(beside, place), "the checkpoint", folder, needed, then)
    except ResourceError:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    _forget(folder, place, before)
    return place


def _write(beside: Path, step: int, groups: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> None:
    """Write all files of a checkpoint into a folder that counts for nothing yet."""
    shutil.rmtree(beside, ignore_errors=True)
    beside.parent.mkdir(exist_ok=True)  # not its parents: a run folder that has gone is not made anew
    beside.mkdir()
    for name, group in ((n, g) for n, g in groups.items() if g):  # a fresh optimiser holds nothing
        write_safetensors(beside / f"{name}.safetensors", group, None)
    write_text(beside / "state.json", json.dumps(state))
    hashes = {path.name: digest(path) for path in sorted(beside.iterdir())}
    write_text(beside / MANIFEST, json.dumps({"step": step, "sha256": hashes}, indent=1))


def _place(beside: Path, place: Path) -> None:
    """Give a whole checkpoint its name; one that has the name is out of the way for that moment only."""
    old = place.with_name(f"{place.name}.old.tmp")
    if beside.exists():
        if place.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.replace(place, old)
        try:
            os.replace(beside, place)
        except OSError:
            with suppress(OSError):
                os.replace(old, place)
            raise
    sync_folder(place.parent)


def _forget(folder: Path, place: Path, before: Path | None) -> None:
    """Remove all checkpoints but this and the one before: older, cut off, or of steps that are undone."""
    older = [path for path in _found(folder) if 0 <= step_of(path) < step_of(place)]
    stays = {place, before if before in older else max(older, default=None)}
    for path in _found(folder):
        if path not in stays:
            shutil.rmtree(path, ignore_errors=True)


def _found(folder: Path) -> list[Path]:
    try:
        return sorted(folder.glob("step-*"))
    except OSError:
        return []


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(place: Path) -> None:
    """Refuse a checkpoint that is not whole; a link may lead to what was not saved with it."""
    path = place / MANIFEST
    if path.is_symlink():
        raise ModelError(f"{path} is a link and not the file that was saved; it is not used")
    manifest = read_json(path)
    hashes = manifest.get("sha256")
    if not isinstance(hashes, dict) or manifest.get("step") != _number(place):
        raise ModelError(f"{place} has a manifest of another checkpoint; it is not used")
    if path.read_bytes() != json.dumps(manifest, indent=1).encode() or "state.json" not in hashes:
        raise ModelError(f"{path} is not the file that was saved (it has changed); it is not used")
    if strangers := {file.name for file in place.iterdir()} - {MANIFEST, *hashes}:
        raise ModelError(f"{place} holds {min(strangers)}, which was not saved with it; it is not used")
    for name, wanted in hashes.items():
        path = place / name
        if path.is_symlink() or not path.is_file() or digest(path) != wanted:
            raise ModelError(f"{path} is not the file that was saved (missing or changed); it is not used")


def step_of(place: Path) -> int:
    """The step in the name of a checkpoint, or -1."""
    return -1 if place.suffix else _number(place)


def _number(place: Path) -> int:
    """The step of a checkpoint or of one on its way there (`step-000123.tmp`), or -1."""
    text = place.name.removeprefix("step-").split(".")[0]
    return int(text) if text.isdecimal() and text.isascii() else -1


def latest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint, and a sentence for each newer one that is damaged.

    One that was whole when its process was killed, but not in its place yet, is put there.
    """
    told: list[str] = []
    found = [path for path in _found(folder) if _number(path) >= 0]
    for place in sorted(found, key=lambda path: (_number(path), not path.suffix, path.name), reverse=True):
        try:
            verify(place)
        except (SaccadeError, OSError) as error:
            if not place.suffix:  # what a kill cut off is no damage
                told.append(str(error))
            continue
        return _settled(place), told
    return None, told


def _settled(place: Path) -> Path:
    """A whole checkpoint under its own name, if that is free."""
    own = place.with_name(place.name.split(".")[0])
    if own != place and not own.exists():
        with suppress(OSError):
            os.replace(place, own)
            return own
    return place


class Kept(dict[str, Any]):
    """What state.json holds; a name that it lacks is a refusal in words."""

    def __init__(self, path: Path) -> None:
        super().__init__(read_json(path))
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise ModelError(f"{self.path} has no {name!r}, as of another version of saccade; start anew")


def read(place: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """The groups of tensors and the state of a checkpoint that `latest` found."""
    groups = {path.stem: tensors(path) for path in sorted(place.glob("*.safetensors"))}
    return groups, Kept(place / "state.json")
