"""A model on torch, operation by operation: the reference for all other engines."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from saccade.engine.engine import LOGITS, Arrays, Pixels
from saccade.models.modules import device_of


class Eager:
    """A module of ours, run as it is; `outputs` names a single tensor that it returns."""

    name = "eager"

    def __init__(self, module: nn.Module, outputs: Sequence[str] = (LOGITS,)) -> None:
        self.module, self.outputs = module.eval(), tuple(outputs)
        self.device = device_of(module)

    def arrays(self, pixels: Pixels) -> Arrays:
        """Return all outputs of a batch by name."""
        with torch.inference_mode():
            found = self.module(torch.from_numpy(pixels).to(self.device))
        named = {self.outputs[0]: found} if isinstance(found, Tensor) else found
        return {name: named[name].float().cpu().numpy() for name in self.outputs}

    def run(self, pixels: Pixels) -> np.ndarray:
        """Return the first output of a batch."""
        return self.arrays(pixels)[self.outputs[0]]
