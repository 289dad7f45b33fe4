"""AdamW with parameter groups, a cosine learning rate, and a moving average of the weights.

Loshchilov and Hutter 2019 (AdamW), 2017 (cosine); Polyak and Juditsky 1992 (averaging).
"""

import copy
import math

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


def cosine(done: float, warmup: float, step: float) -> float:
    """Return the factor on the learning rate: it rises to 1 until `warmup`, then falls to 0.

    Args:
        done: The share of the training that is done, from 0 to 1.
        step: What one step adds to it, so that the first step has a rate above 0.
    """
    if done < warmup:
        return min((done + step) / warmup, 1.0)
    return 0.5 * (1 + math.cos(math.pi * min((done - warmup) / max(1 - warmup, 1e-9), 1.0)))


class Ema:
    """A copy of a module whose tensors average it: mean ← decay · mean + (1 - decay) · now.

    It is often more accurate than the module itself.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.module = copy.deepcopy(module).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, module: nn.Module, step: int) -> None:
        """Update after a step; early on the decay is smaller, so that the initial weights fade quickly."""
        decay = min(self.decay, (1 + step) / (10 + step))
        mine, theirs = self.module.state_dict(), module.state_dict()
        for name, mean in mine.items():
            if mean.is_floating_point():
                mean.lerp_(theirs[name], 1 - decay)
            else:
                mean.copy_(theirs[name])
