"""Delete and insert cells of an image in the order that a map gives, and follow the target's probability.

Deletion and insertion after Petsiuk et al. 2018 (https://arxiv.org/abs/1806.07421), positive and negative
perturbation after Chefer et al. 2021 (https://arxiv.org/abs/2012.09838, section 4). One pair of curves gives
all four: an image without its least important tenth is one with the other nine tenths inserted. Deleted cells
show the blurred image (Gaussian, standard deviation of one cell).

Shapes: b images, m maps of each, r rows and c columns of cells, t tenths (1 to 9).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.explain.faithfulness.controls import image_seed
from saccade.explain.replay import Grid, grid_of
from saccade.explain.target import Target, confidence
from saccade.models.build import Vision
from saccade.models.modules import evaluating
from saccade.models.vit import ViT
from saccade.nn.patch import Image

BATCH = 64
"""Images in one forward pass."""
TENTHS = 9
"""Stages of 10% to 90% of the cells; none and all are the two ends."""
FEWEST = 8
"""Fewest cells per side for a CNN, which has no patches; large images have one for each 16 pixels."""

ManyMaps = Float[Tensor, "b m r c"]
Readings = Float[Tensor, "b m t"]


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Predictions for each image: whole, blurred, and every stage between."""

    whole: Float[Tensor, "b"]
    """Probability of the target."""
    blank: Float[Tensor, "b"]
    """The same for the blurred image."""
    deleted: Readings
    """Its probability with the most important tenths deleted."""
    inserted: Readings
    """Its probability with only the most important tenths inserted."""
    kept_positive: Readings
    """1 where the target is still predicted with the most important tenths deleted."""
    kept_negative: Readings
    """The same with the least important deleted."""
    shares: Float[Tensor, "t"]
    """The exact shares of cells: not quite tenths where the cells are few."""

    @property
    def deletion(self) -> Float[Tensor, "b m"]:
        """Area under the probability (low is good)."""
        return self._area(self.whole, self.deleted, self.blank)

    @property
    def insertion(self) -> Float[Tensor, "b m"]:
        """Area under the probability (high is good)."""
        return self._area(self.blank, self.inserted, self.whole)

    @property
    def positive(self) -> Float[Tensor, "b m"]:
        """Mean of `kept_positive` over all stages (low is good)."""
        return self.kept_positive.mean(-1)

    @property
    def negative(self) -> Float[Tensor, "b m"]:
        """Mean of `kept_negative` over all stages (high is good)."""
        return self.kept_negative.mean(-1)

    @property
    def evidence(self) -> Float[Tensor, "b"]:
        """Log of the target's odds for the image over those for the blurred image."""
        return log_odds_gain(self.whole, self.blank)

    def _area(
        self, first: Float[Tensor, "b"], between: Readings, last: Float[Tensor, "b"]
    ) -> Float[Tensor, "b m"]:
        m = between.shape[1]
        ends = (repeat(end, "b -> b m 1", m=m) for end in (first, last))
        first, last = ends
        x = F.pad(F.pad(self.shares, (1, 0)), (0, 1), value=1.0)
        return torch.trapezoid(torch.cat([first, between, last], -1), x, dim=-1)


def log_odds_gain(whole: Float[Tensor, "b"], blank: Float[Tensor, "b"]) -> Float[Tensor, "b"]:
    """Return the log of the odds ratio; probabilities are clipped to a millionth from 0 and 1."""
    odds = [p.double().clamp(1e-6, 1 - 1e-6).logit() for p in (whole, blank)]
    return (odds[0] - odds[1]).float()


def cell_grid(module: Vision, image: Image) -> Grid:
    """Return the grid of cells to delete: the patches; for a CNN, squares of 16 pixels or less."""
    if isinstance(module, ViT):
        return grid_of(module, image)
    rows, columns = (min(side, max(FEWEST, side // 16)) for side in image.shape[-2:])
    return rows, columns


def resize_maps(maps: ManyMaps, grid: Grid) -> Float[Tensor, "b m rows columns"]:
    """Resize maps to another grid: average within a cell, or interpolate where cells are finer."""
    if maps.shape[-2:] == grid:
        return maps
    if maps.shape[-2] < grid[0] or maps.shape[-1] < grid[1]:
        return F.interpolate(maps, grid, mode="bilinear", align_corners=False)
    return F.adaptive_avg_pool2d(maps, grid)


def blur(image: Image, grid: Grid) -> Image:
    """Blur images until nothing smaller than a cell is left."""
    for axis, cells in ((-2, grid[0]), (-1, grid[1])):
        side = image.shape[axis]
        deviation = side / cells
        reach = min(math.ceil(3 * deviation), 3 * side)
        x = torch.arange(-reach, reach + 1, device=image.device, dtype=image.dtype)
        weight = (-0.5 * (x / deviation).square()).exp()
        place = (torch.arange(side, device=image.device)[:, None] + x.long()).clamp(0, side - 1)
        matrix = image.new_zeros(side, side)
        matrix.scatter_add_(1, place, repeat(weight / weight.sum(), "k -> side k", side=side))
        image = matrix @ image if axis == -2 else image @ matrix.mT
    return image


def dependence(module: Vision, image: Image) -> Float[Tensor, "b"]:
    """Return the evidence (see `Curves`) of each image for its predicted class: two forward passes."""
    with evaluating(module, gradients=True), torch.no_grad():
        whole, blank = (
            torch.cat([confidence(module(x).float()).cpu() for x in torch.split(part, BATCH)])
            for part in (image, blur(image, cell_grid(module, image)))
        )
    answer = whole.argmax(-1, keepdim=True)
    return log_odds_gain(whole.gather(1, answer)[:, 0], blank.gather(1, answer)[:, 0])


def rank_cells(maps: ManyMaps, seeds: Sequence[int]) -> Int[Tensor, "b m r c"]:
    """Return the rank of each cell, 0 the most important; ties are broken at random, by a seed per image."""
    flat = rearrange(maps, "b m r c -> b m (r c)").cpu()
    lots = [torch.randperm(flat.shape[-1], generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    luck = rearrange(lots, "b n -> b 1 n").expand_as(flat)
    mixed = flat.gather(-1, luck).argsort(dim=-1, descending=True, stable=True)
    ranked = luck.gather(-1, mixed)
    ranks = torch.empty_like(ranked).scatter_(-1, ranked, torch.arange(flat.shape[-1]).expand_as(ranked))
    return rearrange(ranks, "b m (r c) -> b m r c", c=maps.shape[-1])


def perturbation_curves(module: Vision, image: Image, target: Target, maps: ManyMaps) -> Curves:
    """Perturb each image by each of its maps: 18 forward passes per map and two per image."""
    grid = cell_grid(module, image)
    count = grid[0] * grid[1]
    ranks = rank_cells(resize_maps(maps, grid), [image_seed(one) + 1 for one in image])
    gone = torch.arange(1, TENTHS + 1).mul(count).add(5).div(10, rounding_mode="floor")
    cuts = rearrange(gone, "t -> t 1 1")
    first = rearrange(ranks, "b m r c -> b m 1 r c")
    away = torch.stack([first < cuts, first >= cuts], 2)  # delete the most important; delete all others
    b, m = maps.shape[:2]
    flat = rearrange(away, "b m two t r c -> (b m two t) r c")
    owner = torch.arange(b).repeat_interleave(m * 2 * TENTHS)
    with evaluating(module, gradients=True), torch.no_grad():
        blank = blur(image, grid)
        ends = [_read(module, x, target) for x in (image, blank)]
        read = [
            _read(module, _without(image[i], blank[i], flat[at : at + BATCH]), target[i])
            for at in range(0, flat.shape[0], BATCH)
            for i in [owner[at : at + BATCH].to(image.device)]
        ]
    p, kept = (
        rearrange(torch.cat(part), "(b m two t) -> two b m t", b=b, m=m, two=2)
        for part in zip(*read, strict=True)
    )
    return Curves(
        whole=ends[0][0],
        blank=ends[1][0],
        deleted=p[0],
        inserted=p[1],
        kept_positive=kept[0],
        # nine tenths inserted is one tenth deleted
        kept_negative=kept[1].flip(-1),
        shares=gone / count,
    )


def _without(image: Image, blank: Image, away: Bool[Tensor, "b r c"]) -> Image:
    size = image.shape[-2:]
    cover = F.interpolate(rearrange(away, "b r c -> b 1 r c").to(image), size, mode="nearest")
    return torch.where(cover > 0, blank, image)


def _read(module: Vision, image: Image, target: Target) -> tuple[Float[Tensor, "b"], Float[Tensor, "b"]]:
    """Return the probability of the target, and whether it is predicted; on the CPU."""
    parts = [confidence(module(x).float()).cpu() for x in torch.split(image, BATCH)]
    p = torch.cat(parts)
    chosen = p.gather(1, target.cpu()[:, None])[:, 0]
    predicted = p.argmax(-1) == target.cpu() if p.shape[-1] > 1 else chosen > 0.5
    return chosen, predicted.float()
