"""Save a model as a folder in any layout."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from saccade.data.class_names import name_labels
from saccade.data.image.preprocess import Preprocess
from saccade.errors import UsageError, check_word
from saccade.files.atomic import write_text
from saccade.files.digest import KEY, digests, withdraw
from saccade.files.strict_json import write_json
from saccade.models.build import Known, Vision, config_of, to_json
from saccade.models.looped import LoopConfig
from saccade.models.resnet import ResNetConfig
from saccade.weights.formats.tensors import SINGLE, write_safetensors
from saccade.weights.identify import FORMAT, LABELS, LINEAGE, OURS, PREPROCESS
from saccade.weights.known_answer import is_finite, probe
from saccade.weights.layouts import dynamicvit, google
from saccade.weights.layouts.rules import Layout, Rule, save, some_sorted, state
from saccade.weights.load import LAYOUTS

CHOICES = ("timm", "hf", "google")
"""The layouts that an error message may recommend."""


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a module by name, on the CPU."""
    return {name: tensor.detach().cpu() for name, tensor in state(module).items()}


def save_ours(
    folder: Path, module: nn.Module, files: Mapping[str, str | Mapping[str, Any]], described: dict[str, Any]
) -> None:
    """Write a saccade folder: the weights, the files beside them (text or JSON), and model.json last."""
    folder.mkdir(parents=True, exist_ok=True)
    withdraw(folder / OURS)
    write_safetensors(folder / SINGLE, tensors_of(module), {"format": "pt"})
    for name, content in files.items():
        if isinstance(content, str):
            write_text(folder / name, content)
        else:
            write_json(folder / name, content)
    write_json(folder / OURS, {**described, KEY: digests(folder, (SINGLE, *files))})


def _save_theirs(
    folder: Path,
    layout: Layout[Any],
    config: Known,
    tensors: Mapping[str, Tensor],
    preprocess: Preprocess,
    labels: list[str],
) -> None:
    try:
        rules, side = _described(layout, config, tensors.keys(), preprocess, labels)
    except UsageError as error:
        others = [name for name in CHOICES if _can_hold(LAYOUTS[name], config, tensors.keys(), preprocess)]
        raise UsageError(f"{error}; write it as {' or '.join([*others, 'saccade'])}") from error
    theirs = {name: tensor.contiguous() for name, tensor in save(rules, tensors).items()}
    folder.mkdir(parents=True, exist_ok=True)
    if layout.name == "google":
        google.write_npz(folder / "model.npz", theirs)
    else:
        write_safetensors(folder / SINGLE, theirs, {"format": "pt"})
    for name, content in side.items():
        write_json(folder / name, content)


def _described(
    layout: Layout[Any], config: Known, names: Collection[str], preprocess: Preprocess, labels: list[str]
) -> tuple[list[Rule], dict[str, Any]]:
    """Return the table and the side files; refuse a model that the reader would compute differently."""
    if isinstance(config, ResNetConfig):
        raise UsageError(f"{layout.name}'s layout is for ViTs and cannot hold a ResNet")
    if isinstance(config, LoopConfig) and layout is not dynamicvit.LAYOUT:
        raise UsageError(f"{layout.name}'s readers would run a {config.kind} model as a plain one")
    rules = layout.rules(config)
    side = layout.write_side(config, preprocess, labels)
    if left := {name for rule in rules for name in rule.ours} ^ set(names):
        raise UsageError(
            f"{layout.name}'s layout cannot hold a model like this one (it differs in {some_sorted(left)})"
        )
    return rules, side


def _can_hold(layout: Layout[Any], config: Known, names: Collection[str], preprocess: Preprocess) -> bool:
    try:
        _described(layout, config, names, preprocess, [])
    except UsageError:
        return False
    return True


def save_folder(
    folder: Path,
    module: Vision,
    preprocess: Preprocess,
    labels: list[str],
    layout: str = "saccade",
    task: str = "",
    lineage: Sequence[dict[str, str]] = (),
) -> None:
    """Write an image model as a folder.

    Args:
        layout: saccade, timm, hf, dynamicvit or google (one .npz).
        task, lineage: Written to model.json, if the layout is saccade.
    """
    check_word("layout", layout, ("saccade", *LAYOUTS))
    if layout != "saccade":
        _save_theirs(folder, LAYOUTS[layout], config_of(module), tensors_of(module), preprocess, labels)
        return
    described = {"format": FORMAT, **({"task": task} if task else {}), "model": to_json(config_of(module))}
    if lineage:
        described[LINEAGE] = list(lineage)
    if is_finite(answer := probe(module, preprocess)):  # JSON cannot hold other numbers
        described["probe"] = answer
    names = "".join(f"{label}\n" for label in name_labels(labels))
    save_ours(folder, module, {PREPROCESS: preprocess.to_json(), LABELS: names}, described)
