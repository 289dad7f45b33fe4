"""What a model costs: parameters and multiply-accumulates, counted from the real module, not run."""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from saccade.models.build import Vision, build
from saccade.models.names import config
from saccade.models.resnet import ResNetConfig


def parameters(module: nn.Module) -> int:
    """How many numbers are learnt."""
    return sum(p.numel() for p in module.parameters())


def macs(module: Vision, image: tuple[int, int]) -> int:
    """Multiply-accumulates for one picture, in matrix products, convolutions and attention."""
    with FlopCounterMode(display=False) as counter:  # it needs gradients to be on, to follow the modules
        module(torch.zeros(1, 3, *image, device=next(module.parameters()).device))
    return counter.get_total_flops() // 2


def describe(name: str, classes: int = 1000) -> dict[str, int | str | None]:
    """One row of the table of models; no memory is used, as the module has no numbers."""
    made = config(name, classes)
    with torch.device("meta"):
        module = build(made).eval()
    row: dict[str, int | str | None] = {"name": name, "image": module.config.image[0]}
    if isinstance(module.config, ResNetConfig):
        row |= {"patch": None, "layers": sum(module.config.layers)}
        row |= dict.fromkeys(("width", "hidden", "heads", "tokens"))
    else:
        vit = module.config
        row |= {"patch": vit.patch, "layers": vit.depth, "width": vit.width, "hidden": vit.hidden}
        row |= {"heads": vit.heads, "tokens": vit.grid[0] * vit.grid[1] + vit.front}
    return {**row, "params": parameters(module), "macs": macs(module, module.config.image)}
