"""AdamW (Loshchilov and Hutter 2019) with parameter groups for a ViT."""

import torch
from torch import nn

from saccade.models.modules import depth_of


def adamw(
    module: nn.Module, lr: float, decay: float, beta2: float = 0.999, layer_decay: float = 1.0
) -> torch.optim.AdamW:
    """Return AdamW: matrices decay, vectors and positions do not; layer i has lr * layer_decay^(top - i).

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
