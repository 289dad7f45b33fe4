"""The model on torch, compiled when it meets its first batch."""

import torch

from saccade.engine.engine import Logits, Pixels
from saccade.models.build import Vision


class Compiled:
    """A module of ours through torch.compile; the first batch of a new size waits for the compiler."""

    name = "compiled"

    def __init__(self, module: Vision) -> None:
        self.module = module.eval()
        self.device = next(module.parameters()).device
        self.fast = torch.compile(module)

    def run(self, pixels: Pixels) -> Logits:
        """The logits of a batch."""
        with torch.inference_mode():
            return self.fast(torch.from_numpy(pixels).to(self.device)).float().cpu().numpy()
