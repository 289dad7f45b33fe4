"""An exponential moving average of the weights, often more accurate (Polyak and Juditsky 1992)."""

import copy

import torch
from torch import nn


class Ema:
    """A copy of a module whose tensors average it: mean ← decay · mean + (1 - decay) · now."""

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
