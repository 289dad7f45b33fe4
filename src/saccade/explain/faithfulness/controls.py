"""The two controls of the truth meter: maps drawn at random, and a model whose weights are.

Adebayo et al. 2018 (Sanity Checks for Saliency Maps, https://arxiv.org/abs/1810.03292): a map that looks the
same when the weights are random shows the picture, not what the model has learnt.
"""

import copy
from hashlib import sha256

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from saccade.explain.replay import Grid
from saccade.models.build import Vision
from saccade.nn.patch import Image

COARSE = (2, 3, 4, 6)
"""Points along a side from which smooth random maps are interpolated: large blobs and smaller ones."""


def randomised(module: Vision, seed: int = 0) -> Vision:
    """A copy with every weight drawn anew, and the statistics of batch norms; the module stays as it is.

    Each tensor's numbers are shuffled among its places, so that layers keep their scale and nothing else.
    """
    made = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*made.parameters(), *made.buffers()):
            if tensor.is_floating_point():
                places = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
                tensor.copy_(tensor.flatten()[places].view_as(tensor))
    return made


def seed_of(image: Float[Tensor, "3 height width"]) -> int:
    """A number that belongs to this picture, whatever stands beside it."""
    samples = image.detach().float().cpu().contiguous().numpy()
    return int.from_bytes(sha256(samples.tobytes()).digest()[:7], "big")


def random_maps(image: Image, grid: Grid, draws: int) -> Float[Tensor, "b m r c"]:
    """So many random maps for each picture, in turn rough (every cell by itself) and smooth (blobs).

    Objects are blobs too: against rough maps alone, any smooth map would seem to know something.
    """
    return torch.stack([_maps(seed_of(one), grid, draws) for one in image])


def _maps(seed: int, grid: Grid, draws: int) -> Float[Tensor, "m r c"]:
    generator = torch.Generator().manual_seed(seed)
    made = []
    for i in range(draws):
        points = COARSE[i // 2 % len(COARSE)]
        size = grid if i % 2 == 0 else (min(points, grid[0]), min(points, grid[1]))
        noise = torch.randn(1, 1, *size, generator=generator)
        made.append(F.interpolate(noise, grid, mode="bicubic", align_corners=True)[0, 0])
    return torch.stack(made)
