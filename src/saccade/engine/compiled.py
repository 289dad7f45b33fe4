"""The model on torch, compiled when it meets its first batch."""

import torch
from torch._dynamo.exc import TorchDynamoException

from saccade.engine.engine import Logits, Pixels, brief
from saccade.errors import UsageError
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
            try:
                found = self.fast(torch.from_numpy(pixels).to(self.device))
            except TorchDynamoException as error:
                raise UsageError(
                    f"torch cannot compile this model here ({brief(error)}); install a C++ compiler if none "
                    f"is there, or choose another engine: eager, onnx or openvino"
                ) from error
            return found.float().cpu().numpy()
