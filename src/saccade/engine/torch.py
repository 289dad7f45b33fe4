"""The model on torch, step by step: the reference for all other engines."""

import torch

from saccade.engine.engine import Logits, Pixels
from saccade.models.build import Vision


class Eager:
    """A module of ours, run as it is."""

    name = "eager"

    def __init__(self, module: Vision) -> None:
        self.module = module.eval()
        self.device = next(module.parameters()).device

    def run(self, pixels: Pixels) -> Logits:
        """The logits of a batch."""
        with torch.inference_mode():
            return self.module(torch.from_numpy(pixels).to(self.device)).float().cpu().numpy()
