"""A running mean of the weights, which often answers better than they do (Polyak and Juditsky 1992)."""

import copy

import torch
from torch import nn


class Ema:
    """A copy of a module whose tensors follow it: mean ← decay · mean + (1 - decay) · now."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.module = copy.deepcopy(module).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, module: nn.Module, step: int) -> None:
        """Follow one step; the first steps follow faster, so that the start is soon forgotten."""
        decay = min(self.decay, (1 + step) / (10 + step))
        mine, theirs = self.module.state_dict(), module.state_dict()
        for name, mean in mine.items():
            if mean.is_floating_point():
                mean.lerp_(theirs[name], 1 - decay)
            else:
                mean.copy_(theirs[name])
