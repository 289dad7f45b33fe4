"""What a model costs: parameters and multiply-accumulates, counted from the real module, not run."""

from dataclasses import replace
from functools import cache

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from saccade.models.blank import blank, undrawn
from saccade.models.hybrid import HybridConfig
from saccade.models.names import Config, config
from saccade.models.resnet import ResNetConfig
from saccade.models.text.captioner import CaptionerConfig
from saccade.models.text.names import build as build_text
from saccade.models.text.names import config as text_config
from saccade.models.text.seq2seq import Seq2SeqConfig


def parameters(module: nn.Module) -> int:
    """How many numbers are learnt."""
    return sum(p.numel() for p in module.parameters())


def macs(module: nn.Module, image: tuple[int, int]) -> int:
    """Multiply-accumulates for one picture, in matrix products, convolutions and attention."""
    with FlopCounterMode(display=False) as counter:  # it needs gradients to be on, to follow the modules
        module(torch.zeros(1, 3, *image, device=next(module.parameters()).device))
    return counter.get_total_flops() // 2


@cache
def _counted(made: Config) -> tuple[int, int]:
    """Parameters and multiply-accumulates of a model without numbers."""
    module = blank(made).eval()
    return parameters(module), macs(module, module.config.image)


def count(made: Config) -> tuple[int, int]:
    """The same, from models of one and of two blocks: all blocks cost the same, and counting is slow."""
    if isinstance(made, ResNetConfig):
        return _counted(made)
    vit = made.vit if isinstance(made, HybridConfig) else made
    short = (replace(vit, depth=depth) for depth in (1, 2))
    one, two = (_counted(replace(made, vit=v) if isinstance(made, HybridConfig) else v) for v in short)
    params, macs = (a + (vit.depth - 1) * (b - a) for a, b in zip(one, two, strict=True))
    return params, macs


def describe(name: str, classes: int = 1000) -> dict[str, int | str | None]:
    """One row of the table of models; no memory is used, as the modules have no numbers."""
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
    """One row of the table of models of text, at the sizes that their names stand for."""
    made = text_config(name)
    assert not isinstance(made, CaptionerConfig), "no name stands for one"
    row: dict[str, int | str | None] = {"name": name}
    if isinstance(made, Seq2SeqConfig):
        row |= {"layers": made.layers, "width": made.width, "hidden": made.hidden, "heads": None}
        row |= {"vocabulary": made.vocabulary, "context": None}
    else:
        row |= {"layers": made.depth, "width": made.width, "hidden": made.hidden, "heads": made.heads}
        row |= {"vocabulary": made.vocabulary, "context": made.context}
    return {**row, "params": parameters(undrawn(lambda: build_text(made)))}
