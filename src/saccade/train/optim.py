"""AdamW (Loshchilov and Hutter 2019) with the groups that a ViT wants."""

import re

import torch
from torch import nn


def depth_of(name: str, blocks: int) -> int:
    """How far from the input a parameter stands: 0 for patches and positions, blocks + 1 for the head."""
    if match := re.match(r"(?:blocks|stages)\.(\d+)\.", name):
        return int(match[1]) + 1
    return 0 if name.startswith(("patches", "position", "front", "root")) else blocks + 1


def adamw(
    module: nn.Module, lr: float, decay: float, beta2: float = 0.999, layer_decay: float = 1.0
) -> torch.optim.AdamW:
    """Matrices decay, vectors and positions do not; layer i steps by lr * layer_decay^(top - i).

    Each group keeps its share of the learning rate as `share`; a schedule multiplies it.
    """
    blocks = len(getattr(module, "blocks", getattr(module, "stages", ())))
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.numel():
            plain = parameter.ndim < 2 or name.startswith(("position", "front"))
            share = layer_decay ** (blocks + 1 - depth_of(name, blocks))
            groups.setdefault((0.0 if plain else decay, share), []).append(parameter)
    made = [{"params": ps, "weight_decay": d, "share": s, "lr": lr * s} for (d, s), ps in groups.items()]
    return torch.optim.AdamW(made, lr=lr, betas=(0.9, beta2), fused=True)
