"""A model's answer to one fixed picture, kept with its weights: proof that a copy computes the same."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from saccade.data.transform import Preprocess
from saccade.errors import ModelError
from saccade.models.build import Vision

KEPT = 16
TOLERANCE = 1e-4
"""Two machines differ by their rounding, some 1e-6; another GELU by some 1e-3."""


def picture(height: int, width: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Coloured waves and a few edges, made by a formula: the same on every machine."""
    row, col = np.mgrid[0:height, 0:width] / np.array([height, width])[:, None, None]
    waves = [np.sin(2 * np.pi * (a * row + b * col)) for a, b in ((3, 1), (1, 4), (5, 2))]
    edges = (np.floor(6 * row) + np.floor(4 * col)) % 2
    return np.stack([np.rint(127 + 80 * wave + 40 * (edges - 0.5)) for wave in waves], axis=-1).astype(
        np.uint8
    )


@torch.inference_mode()
def probe(module: Vision, preprocess: Preprocess) -> dict[str, list[float]]:
    """The first features and logits for the fixed picture, preprocessed as any other."""
    height, width = preprocess.size
    image = torch.from_numpy(preprocess(picture(height * 5 // 4, width * 3 // 2)))[None]
    training = module.training
    module.eval()
    z = module.encode(image.to(next(module.parameters()).device))
    features, logits = module.features(z).flatten(), module.read(z).flatten()
    module.train(training)
    return {name: t[:KEPT].tolist() for name, t in (("features", features), ("logits", logits))}


def drift(module: Vision, preprocess: Preprocess, kept: Mapping[str, Any]) -> float:
    """How far today's answer is from the one kept, as a share of its size."""
    today = probe(module, preprocess)
    pairs = [(np.array(today[name]), np.array(kept.get(name, []), dtype=float)) for name in today]
    if any(a.shape != b.shape for a, b in pairs):
        raise ModelError("the answer kept in model.json is not one of this model; save the model again")
    return max(float(np.abs(a - b).max(initial=0) / (1e-6 + np.abs(b).max(initial=0))) for a, b in pairs)
