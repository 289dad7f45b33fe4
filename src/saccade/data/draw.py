"""Draws for the words of a batch, each a function of (seed, epoch, sentence, place)."""

import numpy as np
import torch
from jaxtyping import Float64, Int
from torch import Tensor

from saccade.data.randomness import Chance


def uniform(operation: str, seed: int, epoch: int, index: Int[Tensor, "b"], n: int) -> Float64[Tensor, "b n"]:
    """Numbers in [0, 1) for the first n words of the sentences numbered `index`.

    They stay the same in whatever batch, order, process or number of processes a sentence comes.
    """
    rows = [Chance(seed, epoch, int(i)).noise(operation, 8 * n).view("<u8") for i in index.tolist()]
    return torch.from_numpy((np.stack(rows) >> np.uint64(11)) * 2.0**-53)
