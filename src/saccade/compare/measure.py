"""Measure trained models: how far each looks, and what it costs."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch

from saccade.compare.plan import BATCH, Cost
from saccade.data.image.preprocess import Preprocess
from saccade.data.pictures import Pictures
from saccade.data.splits import evenly
from saccade.engine import timing
from saccade.errors import DataError
from saccade.models import cost
from saccade.models.build import Vision
from saccade.models.receptive_field import (
    SHARES,
    attention_distances,
    effective_field,
    layers,
    receptive_field,
)
from saccade.models.resnet import ResNet
from saccade.nn.patch import Image
from saccade.weights.load import load

LOOKS = 16
"""Images for measuring how far a model looks."""


def measure_reach(folder: Path, images: Pictures) -> tuple[tuple[float, ...], tuple[tuple[float, ...], ...]]:
    """Return the radii of the effective field at `SHARES`, and the attention distances by block and head."""
    loaded = load(folder)
    pictures = _pictures(images, loaded.preprocess)
    effective = effective_field(loaded.module, pictures)
    vit = None if isinstance(loaded.module, ResNet) else loaded.module
    attention = () if vit is None else tuple(map(tuple, attention_distances(vit, pictures)))
    return tuple(effective[share] for share in SHARES), attention


def _pictures(images: Pictures, preprocess: Preprocess) -> Image:
    """Return some images, evenly spread over the set and preprocessed."""
    made = []
    for i in evenly(len(images), LOOKS).tolist():
        try:
            made.append(torch.from_numpy(preprocess(images.read(i))))
        except DataError:
            continue
    return torch.stack(made)


def measure_costs(models: Sequence[str], folders: Sequence[Path]) -> list[Cost]:
    """Return the cost of the models in these folders; they take turns, so that a slow moment hits all."""
    modules = [load(folder).module for folder in folders]
    image = modules[0].config.image
    alone, together = (
        [median(row) for row in timing.forward_times(modules, image, batch)] for batch in (1, BATCH)
    )
    return [
        _cost(model, module, one, many)
        for model, module, one, many in zip(models, modules, alone, together, strict=True)
    ]


def _cost(model: str, module: Vision, one: float, many: float) -> Cost:
    image = module.config.image
    return Cost(
        model=model,
        parameters=cost.parameters(module),
        macs=cost.macs(module, image),
        latency=one,
        throughput=BATCH / many,
        forward=timing.forward_memory(module, image, BATCH),
        field=receptive_field(layers(module)) if isinstance(module, ResNet) else 0,
        step=timing.step_memory(module, image, BATCH),
    )
