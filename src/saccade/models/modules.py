"""A module out of training for a while, and out of what training has wrapped it in."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def resting(module: nn.Module) -> Iterator[torch.device]:
    """Evaluation mode without gradients; the module is left as it was. Gives its device."""
    training = module.training
    module.eval()
    try:
        with torch.inference_mode():
            yield next(module.parameters()).device
    finally:
        module.train(training)


def bare(module: nn.Module) -> nn.Module:
    """The module itself, out of the wrapping of several processes or of a compiler."""
    for name in ("_orig_mod", "module"):
        found = getattr(module, name, None)
        if isinstance(found, nn.Module):
            return bare(found)
    return module
