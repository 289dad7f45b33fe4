"""The cost of a model: parameters and multiply-accumulates, counted on the meta device."""

from dataclasses import replace
from functools import cache

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from saccade.models.build import blank, build, undrawn
from saccade.models.hybrid import HybridConfig
from saccade.models.modules import device_of
from saccade.models.names import Config, config
from saccade.models.resnet import ResNetConfig


def parameters(module: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(p.numel() for p in module.parameters())


def macs(module: nn.Module, image: tuple[int, int]) -> int:
    """Return the multiply-accumulates for one image, in matrix products, convolutions and attention."""
    with FlopCounterMode(display=False) as counter:  # it follows the modules only with gradients on
        module(torch.zeros(1, 3, *image, device=device_of(module)))
    return counter.get_total_flops() // 2


@cache
def _counted(made: Config) -> tuple[int, int]:
    """Return parameters and multiply-accumulates, counted on the whole model."""
    module = blank(made).eval()
    return parameters(module), macs(module, module.config.image)


def count(made: Config) -> tuple[int, int]:
    """Return the same from models of one and two blocks: all blocks cost the same, and counting is slow."""
    if isinstance(made, ResNetConfig):
        return _counted(made)
    vit = made.vit if isinstance(made, HybridConfig) else made
    short = (replace(vit, depth=depth) for depth in (1, 2))
    one, two = (_counted(replace(made, vit=v) if isinstance(made, HybridConfig) else v) for v in short)
    params, macs = (a + (vit.depth - 1) * (b - a) for a, b in zip(one, two, strict=True))
    return params, macs


def describe(name: str, classes: int = 1000) -> dict[str, int | str | None]:
    """Return one row of the table of models, without allocating the model."""
    made = config(name, classes)
    vit = made.vit if isinstance(made, HybridConfig) else made
    row: dict[str, int | str | None] = {"name": name, "image": vit.image[0]}
    if isinstance(vit, ResNetConfig):
        row |= {"patch": None, "layers": sum(vit.layers)}
        row |= dict.fromkeys(("width", "hidden", "heads", "tokens"))
    else:
        row |= {"patch": vit.patch, "layers": vit.depth, "width": vit.width, "hidden": vit.hidden}
        row |= {"heads": vit.heads, "tokens": vit.grid[0] * vit.grid[1] + vit.front}
    params, macs = count(made)
    return {**row, "params": params, "macs": macs}


def describe_text(name: str) -> dict[str, int | str | None]:
    """Return one row of the table of text models, at the published sizes."""
    from saccade.models.text.names import text_config
    from saccade.models.text.seq2seq import Seq2SeqConfig
    from saccade.models.text.transformer import CaptionerConfig

    made = text_config(name)
    assert not isinstance(made, CaptionerConfig), "no name stands for a captioner"
    row: dict[str, int | str | None] = {"name": name}
    if isinstance(made, Seq2SeqConfig):
        row |= {"layers": made.layers, "width": made.width, "hidden": made.hidden, "heads": None}
        row |= {"vocabulary": made.vocabulary, "context": None}
    else:
        row |= {"layers": made.depth, "width": made.width, "hidden": made.hidden, "heads": made.heads}
        row |= {"vocabulary": made.vocabulary, "context": made.context}
    return {**row, "params": parameters(undrawn(lambda: build(made)))}
