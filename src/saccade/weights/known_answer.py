"""A model's answer to one fixed image, stored with its weights: proof that a copy computes the same."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from saccade.data.image.preprocess import Preprocess
from saccade.errors import ModelError
from saccade.models.build import Vision
from saccade.models.modules import device_of, evaluating

KEPT = 16
TOLERANCE = 2e-5
"""Measured: rounding differs by up to 2e-6 (fp32 against fp64), eps 1e-5 for 1e-6 by 7e-5, the other GELU by
8e-5 to 8e-3, weights rounded to fp16 by 1e-4."""


def picture(height: int, width: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return an image of coloured waves and a few edges, made by a formula: the same on every machine."""
    row, col = np.mgrid[0:height, 0:width] / np.array([height, width])[:, None, None]
    waves = [np.sin(2 * np.pi * (a * row + b * col)) for a, b in ((3, 1), (1, 4), (5, 2))]
    edges = (np.floor(6 * row) + np.floor(4 * col)) % 2
    channels = [np.rint(127 + 80 * wave + 40 * (edges - 0.5)) for wave in waves]
    return np.stack(channels, axis=-1).astype(np.uint8)


def summary(vector: Float[Tensor, "n"]) -> list[float]:
    """Return the first cosine coefficients of a vector: a few numbers that depend on every entry."""
    positions = torch.arange(vector.shape[0], dtype=torch.float64) + 0.5
    waves = torch.cos(torch.pi / max(vector.shape[0], 1) * torch.arange(KEPT)[:, None] * positions)
    numbers = waves @ vector.cpu().double() / max(vector.shape[0], 1) ** 0.5
    return [float(f"{number:.9g}") for number in numbers]  # fp32 has no more digits


def probe(module: Vision, preprocess: Preprocess) -> dict[str, list[float]]:
    """Return a summary of the features and logits for the fixed image, preprocessed as any other."""
    height, width = preprocess.size
    image = torch.from_numpy(preprocess(picture(height * 5 // 4, width * 3 // 2)))[None]
    with evaluating(module):
        z = module.encode(image.to(device_of(module)))
        features, logits = module.features(z).flatten(), module.read(z).flatten()
    return {"features": summary(features), "logits": summary(logits)}


def is_finite(answer: Mapping[str, list[float]]) -> bool:
    """Return whether an answer is finite; that of a model whose weights overflow is not."""
    return all(math.isfinite(number) for numbers in answer.values() for number in numbers)


def drift(module: Vision, preprocess: Preprocess, kept: object) -> float:
    """Return how far today's answer is from the stored one, relative to its size."""
    today = probe(module, preprocess)
    try:
        assert isinstance(kept, Mapping)
        pairs = [(np.array(today[name]), np.array(kept[name], dtype=float)) for name in today]
        assert all(a.shape == b.shape for a, b in pairs)
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise ModelError("the stored answer in model.json is malformed; save the model again") from error
    return max(float(np.abs(a - b).max() / (1e-6 + np.abs(b).max())) for a, b in pairs)
