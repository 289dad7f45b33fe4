"""The controls of the faithfulness meter: random maps, and a model with randomised weights.

Adebayo et al. 2018 (Sanity Checks for Saliency Maps, https://arxiv.org/abs/1810.03292): a map that looks the
same when the weights are random shows the image, not what the model has learnt.
"""

import copy
from hashlib import sha256

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from saccade.explain.replay import Grid
from saccade.explain.target import Maps, Target, evaluation_mode, map_grid
from saccade.models.build import Vision
from saccade.nn.patch import Image

COARSE = (2, 3, 4, 6)
"""Points per side from which smooth random maps are interpolated: large blobs and small ones."""


def randomise(module: Vision, seed: int = 0) -> Vision:
    """Return a copy with every weight and batch-norm statistic shuffled; the module stays as it is.

    Shuffled within each tensor, so that layers keep their scale and nothing else.
    """
    made = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*made.parameters(), *made.buffers()):
            if tensor.is_floating_point():
                order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
                tensor.copy_(tensor.flatten()[order].view_as(tensor))
    return made


def image_seed(image: Float[Tensor, "3 height width"]) -> int:
    """Return a seed that depends on this image alone, not on its batch."""
    samples = image.detach().float().cpu().contiguous().numpy()
    return int.from_bytes(sha256(samples.tobytes()).digest()[:7], "big")


def random_maps(image: Image, grid: Grid, draws: int) -> Float[Tensor, "b m r c"]:
    """Return `draws` random maps per image, alternately rough (independent cells) and smooth (blobs).

    Objects are blobs too: against rough maps alone, any smooth map would seem informative.
    """
    return torch.stack([_maps(image_seed(one), grid, draws) for one in image])


def _maps(seed: int, grid: Grid, draws: int) -> Float[Tensor, "m r c"]:
    generator = torch.Generator().manual_seed(seed)
    made = []
    for i in range(draws):
        points = COARSE[i // 2 % len(COARSE)]
        size = grid if i % 2 == 0 else (min(points, grid[0]), min(points, grid[1]))
        noise = torch.randn(1, 1, *size, generator=generator)
        made.append(F.interpolate(noise, grid, mode="bicubic", align_corners=True)[0, 0])
    return torch.stack(made)


@evaluation_mode
def random(module: Vision, image: Image, target: Target) -> Maps:  # noqa: ARG001 (as all methods)
    """Return uniform noise, the same for the same image: a method no better than this explains nothing."""
    size = map_grid(module, image)
    made = [np.random.default_rng(image_seed(one)).random(size, dtype=np.float32) for one in image]
    return torch.from_numpy(np.stack(made)).to(image.device)
