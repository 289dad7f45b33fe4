"""A model on torch, operation by operation: the reference for all other engines."""

import torch
from torch import Tensor, nn

from saccade.engine.engine import LOGITS, Arrays, Logits, Pixels


class Eager:
    """A module of ours, run as it is."""

    name = "eager"

    def __init__(self, module: nn.Module) -> None:
        self.module = module.eval()
        self.device = next(module.parameters()).device

    def arrays(self, pixels: Pixels) -> Arrays:
        """Return all outputs of a batch by name."""
        with torch.inference_mode():
            found = self.module(torch.from_numpy(pixels).to(self.device))
        named: dict[str, Tensor] = {LOGITS: found} if isinstance(found, Tensor) else found
        return {name: value.float().cpu().numpy() for name, value in named.items()}

    def run(self, pixels: Pixels) -> Logits:
        """Return the logits of a batch."""
        return self.arrays(pixels)[LOGITS]
