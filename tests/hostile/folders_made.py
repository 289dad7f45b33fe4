"""Tiny model folders in every layout, to be damaged."""

import json
from pathlib import Path

import torch
from spoken import speaker
from torch import nn

from saccade.data.image.preprocess import Preprocess
from saccade.models.build import build
from saccade.models.vit import ViTConfig
from saccade.text.model import save_text
from saccade.weights.layouts.google import STYLE
from saccade.weights.save import save_folder

LABELS = ["cat", "dog", "log"]
IMAGES = ("saccade", "timm", "hf", "google")
TEXTS = ("gpt", "bert", "transformer", "seq2seq", "hf gpt", "hf bert")


def small(module: nn.Module) -> nn.Module:
    """Numbers that give finite answers whatever surrounds them."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    return module


def folder(place: Path, layout: str) -> Path:
    """A model that has learnt nothing, written as a layout has it."""
    made = place / layout.replace(" ", "-")
    if layout in IMAGES:
        changes = {"block": STYLE} if layout == "google" else {}
        config = ViTConfig(
            image=(16, 16), patch=4, width=24, depth=2, heads=3, hidden=40, classes=len(LABELS), **changes
        )
        save_folder(made, small(build(config)), Preprocess(size=(16, 16)), LABELS, layout)  # type: ignore[arg-type]
    else:
        save_text(made, speaker(layout.removeprefix("hf ")), "hf" if layout.startswith("hf ") else "saccade")
    return made


def tensors_file(made: Path) -> Path:
    """The file of weights of a folder."""
    return next(path for path in made.iterdir() if path.suffix in (".safetensors", ".npz"))


def with_size(made: Path, size: tuple[int, int]) -> Path:
    """Ask for images of another size."""
    ours, theirs = made / "preprocess.json", made / "preprocessor_config.json"
    path = ours if ours.exists() else theirs if theirs.exists() else made / "config.json"
    told = json.loads(path.read_text())
    if path == ours:
        told["size"] = list(size)
    elif path == theirs:
        told["crop_size"] = {"height": size[0], "width": size[1]}
        told["size"] = {"shortest_edge": size[0]}
    else:
        told["pretrained_cfg"]["input_size"] = [3, *size]
    path.write_text(json.dumps(told))
    return made
