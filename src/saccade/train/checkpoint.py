"""Checkpoints that survive a kill at any moment: written to a temporary folder, hashed, synced, renamed."""

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
from saccade.files.strict_json import read_json, write_json
from saccade.processes import copy_into, matching, whole
from saccade.train.loop import TrainState
from saccade.weights.formats.tensors import read_tensors, write_safetensors
from saccade.weights.layouts.rules import state as state_of

MANIFEST = "manifest.json"


def optimizer_tensors(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[str, Tensor]:
    """Return the optimiser's state under the names of its parameters."""
    names = {id(p): name for name, p in module.named_parameters()}
    found = {}
    for parameter, values in optimizer.state.items():
        for key, value in values.items():
            found[f"{names[id(parameter)]}/{key}"] = torch.as_tensor(value)
    return found


def restore_optimizer(optimizer: torch.optim.Optimizer, module: nn.Module, found: dict[str, Tensor]) -> None:
    """Restore what `optimizer_tensors` returned."""
    parameters = dict(module.named_parameters())
    optimizer.state.clear()  # a rollback to the first step starts from nothing
    for name, value in found.items():
        parameter, key = name.rsplit("/", 1)
        optimizer.state[parameters[parameter]][key] = matching(parameters[parameter], value)


def restore_module(module: nn.Module, found: dict[str, Tensor]) -> None:
    """Restore a module's tensors; refuse those of another model, as after a change to recipe.json."""
    own = state_of(module)
    if {n: t.shape for n, t in own.items()} != {n: t.shape for n, t in found.items()}:
        raise ModelError("the checkpoint does not match the model in recipe.json; start a new run")
    for name, tensor in found.items():
        copy_into(own[name], tensor)


def culprit(module: nn.Module) -> str:
    """Name the first non-finite weight, else the first such gradient, else the largest gradient."""
    for name, parameter in module.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"the weight {name}"
    for name, parameter in module.named_parameters():
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
            return f"the gradient of {name}"
    lengths = {n: p.grad.norm().item() for n, p in module.named_parameters() if p.grad is not None}
    return f"the gradient of {max(lengths, key=lengths.__getitem__)}" if lengths else "the loss"


def tensor_groups(state: TrainState) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a checkpoint by group; shards of several processes are gathered."""
    groups = {"module": state_of(state.module), "optimizer": optimizer_tensors(state.optimizer, state.module)}
    if state.ema is not None:
        groups["ema"] = state_of(state.ema.module)
    return {name: {key: whole(tensor) for key, tensor in group.items()} for name, group in groups.items()}


def unsound(groups: dict[str, dict[str, Tensor]]) -> str:
    """Return the name of the first tensor with non-finite numbers; "" if there is none."""
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

    A folder counts only if its manifest exists and every hash matches; the manifest is written last.
    One older checkpoint stays: `before`, if it is known to be complete, otherwise the newest.
    """
    if bad := unsound(groups):
        raise ModelError(f"{bad} holds non-finite numbers; the checkpoint was not written")
    place, beside = folder / f"step-{step:09}", folder / f"step-{step:09}.tmp"
    needed = 10_000 + sum(t.numel() * t.element_size() for group in groups.values() for t in group.values())
    try:
        then = f"resume from the previous one with: saccade train --resume {folder.parent}"
        patiently(lambda: _write(beside, step, groups, state), "the checkpoint", folder, needed, then)
        patiently(lambda: _place(beside, place), "the checkpoint", folder, needed, then)
    except ResourceError:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    _forget(folder, place, before)
    return place


def _write(beside: Path, step: int, groups: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> None:
    """Write all files of a checkpoint into its temporary folder."""
    shutil.rmtree(beside, ignore_errors=True)
    beside.parent.mkdir(exist_ok=True)  # not its parents: a deleted run folder is not recreated
    beside.mkdir()
    for name, group in ((n, g) for n, g in groups.items() if g):  # a fresh optimiser holds nothing
        write_safetensors(beside / f"{name}.safetensors", group, None)
    write_json(beside / "state.json", state, indent=None, escape=True, end="")
    hashes = {path.name: digest(path) for path in sorted(beside.iterdir())}
    write_json(beside / MANIFEST, {"step": step, "sha256": hashes}, indent=1, escape=True, end="")


def _place(beside: Path, place: Path) -> None:
    """Rename a complete checkpoint into place; put back the one it replaces if that fails."""
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
    """Remove all checkpoints but this and the previous one: older, incomplete or rolled back."""
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
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(place: Path) -> None:
    """Refuse a checkpoint that is incomplete or changed; links may lead outside it."""
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
    """Return the step in the name of a checkpoint, or -1."""
    return -1 if place.suffix else _number(place)


def _number(place: Path) -> int:
    """Return the step of a checkpoint, temporary ones too (`step-000123.tmp`), or -1."""
    text = place.name.removeprefix("step-").split(".")[0]
    return int(text) if text.isdecimal() and text.isascii() else -1


def latest(folder: Path) -> tuple[Path | None, list[str]]:
    """Return the newest complete checkpoint, and a sentence for each newer one that is damaged.

    One that was complete when its process was killed, but not renamed yet, is renamed.
    """
    damaged: list[str] = []
    found = [path for path in _found(folder) if _number(path) >= 0]
    for place in sorted(found, key=lambda path: (_number(path), not path.suffix, path.name), reverse=True):
        try:
            verify(place)
        except (SaccadeError, OSError) as error:
            if not place.suffix:  # a temporary folder left by a kill is expected
                damaged.append(str(error))
            continue
        return _settled(place), damaged
    return None, damaged


def _settled(place: Path) -> Path:
    """Rename a temporary but complete checkpoint to its own name, if that is free."""
    own = place.with_name(place.name.split(".")[0])
    if own != place and not own.exists():
        with suppress(OSError):
            os.replace(place, own)
            return own
    return place


class Kept(dict[str, Any]):
    """The content of state.json; a missing name is a ModelError."""

    def __init__(self, path: Path) -> None:
        super().__init__(read_json(path))
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise ModelError(
            f"{self.path} has no {name!r}; another version of saccade may have written it; start a new run"
        )


def read(place: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Read the groups of tensors and the state of a checkpoint that `latest` found."""
    groups = {path.stem: read_tensors(path) for path in sorted(place.glob("*.safetensors"))}
    return groups, Kept(place / "state.json")
