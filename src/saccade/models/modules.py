"""Helpers for any module: evaluation mode as a context manager, device, unwrapping, depth of a parameter."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(module: nn.Module, gradients: bool = False) -> Iterator[None]:
    """Switch to evaluation mode; afterwards, even after an error, every submodule is as it was.

    Args:
        gradients: Compute them, even if the caller switched them off; otherwise tensors made here can never
            be part of a graph (`torch.inference_mode`).
    """
    training = [part for part in module.modules() if part.training]
    try:
        for part in training:
            part.training = False
        with torch.inference_mode(not gradients), torch.set_grad_enabled(gradients):
            yield
    finally:
        for part in training:
            part.training = True


def device_of(module: nn.Module) -> torch.device:
    """Return the device of the first parameter."""
    return next(module.parameters()).device


def bare(module: nn.Module) -> nn.Module:
    """Unwrap DDP and torch.compile."""
    for name in ("_orig_mod", "module"):
        found = getattr(module, name, None)
        if isinstance(found, nn.Module):
            return bare(found)
    return module


def depth_of(name: str, blocks: int) -> int:
    """Return how far from the input a parameter is: 0 for patches and positions, blocks + 1 for the head."""
    if match := re.match(r"(?:blocks|stages)\.(\d+)\.", name):
        return int(match[1]) + 1
    return 0 if name.startswith(("patches", "position", "front", "root")) else blocks + 1
