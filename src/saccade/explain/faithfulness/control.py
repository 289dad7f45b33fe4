"""The control: a map that knows nothing. A method that does no better than this one explains nothing."""

import numpy as np
import torch

from saccade.explain.ask import Maps, Target, grid, still
from saccade.explain.faithfulness.controls import seed_of
from saccade.models.build import Vision
from saccade.nn.patch import Image


@still
def random(module: Vision, image: Image, target: Target) -> Maps:  # noqa: ARG001 (as all methods)
    """Noise between 0 and 1, always the same for the same picture, whatever else is in the batch."""
    size = grid(module, image)
    made = [np.random.default_rng(seed_of(one)).random(size, dtype=np.float32) for one in image]
    return torch.from_numpy(np.stack(made)).to(image.device)
