"""Delete and insert cells of an image in the order that a map gives, and follow the target's probability.

Deletion and insertion after Petsiuk et al. 2018 (https://arxiv.org/abs/1806.07421), positive and negative
perturbation after Chefer et al. 2021 (https://arxiv.org/abs/2012.09838, section 4). One pair of curves gives
all four: an image without its least important tenth is one with the other nine tenths inserted. fills.py has
what takes the place of deleted cells.

Shapes: b images, m maps of each, r rows and c columns of cells, t tenths (1 to 9).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from saccade.explain.faithfulness.controls import image_seed
from saccade.explain.faithfulness.evidence import BATCH
from saccade.explain.faithfulness.fills import BLUR, Away, cell_grid, perturbed
from saccade.explain.replay import Grid
from saccade.explain.target import Target, confidence
from saccade.models.build import Vision
from saccade.models.modules import evaluating
from saccade.nn.patch import Image

TENTHS = 9
"""Stages of 10% to 90% of the cells; none and all are the two ends."""

ManyMaps = Float[Tensor, "b m r c"]
Readings = Float[Tensor, "b m t"]


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Predictions for each image: whole, deleted, and every stage between."""

    whole: Float[Tensor, "b"]
    """Probability of the target."""
    blank: Float[Tensor, "b"]
    """The same with all cells deleted."""
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

    def _area(
        self, first: Float[Tensor, "b"], between: Readings, last: Float[Tensor, "b"]
    ) -> Float[Tensor, "b m"]:
        m = between.shape[1]
        ends = (repeat(end, "b -> b m 1", m=m) for end in (first, last))
        first, last = ends
        x = F.pad(F.pad(self.shares, (1, 0)), (0, 1), value=1.0)
        return torch.trapezoid(torch.cat([first, between, last], -1), x, dim=-1)


def resize_maps(maps: ManyMaps, grid: Grid) -> Float[Tensor, "b m rows columns"]:
    """Resize maps to another grid: average within a cell, or interpolate where cells are finer."""
    if maps.shape[-2:] == grid:
        return maps
    if maps.shape[-2] < grid[0] or maps.shape[-1] < grid[1]:
        return F.interpolate(maps, grid, mode="bilinear", align_corners=False)
    return F.adaptive_avg_pool2d(maps, grid)


def rank_cells(maps: ManyMaps, seeds: Sequence[int]) -> Int[Tensor, "b m r c"]:
    """Return the rank of each cell, 0 the most important; ties are broken at random, by a seed per image."""
    flat = rearrange(maps, "b m r c -> b m (r c)").cpu()
    lots = [torch.randperm(flat.shape[-1], generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    luck = rearrange(lots, "b n -> b 1 n").expand_as(flat)
    mixed = flat.gather(-1, luck).argsort(dim=-1, descending=True, stable=True)
    ranked = luck.gather(-1, mixed)
    ranks = torch.empty_like(ranked).scatter_(-1, ranked, torch.arange(flat.shape[-1]).expand_as(ranked))
    return rearrange(ranks, "b m (r c) -> b m r c", c=maps.shape[-1])


def perturbation_curves(
    module: Vision, image: Image, target: Target, maps: ManyMaps, fill: str = BLUR
) -> Curves:
    """Perturb each image by each of its maps: 18 forward passes per map and two per image."""
    grid = cell_grid(module, image)
    count = grid[0] * grid[1]
    ranks = rank_cells(resize_maps(maps, grid), [image_seed(one) + 1 for one in image])
    gone = torch.arange(1, TENTHS + 1).mul(count).add(5).div(10, rounding_mode="floor")
    b, m = maps.shape[:2]
    flat = rearrange(ranks, "b m r c -> (b m) r c")
    owner, every = torch.arange(b).repeat_interleave(m), torch.arange(b)
    with evaluating(module, gradients=True), torch.no_grad():
        without = perturbed(module, image, fill)

        def read(which: Int[Tensor, "k"], away: Away) -> Float[Tensor, "k 2"]:
            """Return the probability of the target, and whether it is predicted."""
            parts = zip(torch.split(which, BATCH), torch.split(away, BATCH), strict=True)
            return torch.cat([_read(without(i.to(image.device), x), target.cpu()[i]) for i, x in parts])

        blank = read(every, torch.ones(b, *grid, dtype=torch.bool))
        whole = read(every, torch.zeros(b, *grid, dtype=torch.bool))
        deleted = [read(owner, flat < cut) for cut in gone.tolist()]
        inserted = [read(owner, flat >= cut) for cut in gone.tolist()]
    p, kept = (
        [rearrange(torch.stack(stages)[..., i], "t (b m) -> b m t", b=b) for stages in (deleted, inserted)]
        for i in range(2)
    )
    return Curves(
        whole=whole[:, 0],
        blank=blank[:, 0],
        deleted=p[0],
        inserted=p[1],
        kept_positive=kept[0],
        # nine tenths inserted is one tenth deleted
        kept_negative=kept[1].flip(-1),
        shares=gone / count,
    )


def _read(logits: Float[Tensor, "k classes"], target: Target) -> Float[Tensor, "k 2"]:
    p = confidence(logits.float()).cpu()
    chosen = p.gather(1, target[:, None])[:, 0]
    predicted = p.argmax(-1) == target if p.shape[-1] > 1 else chosen > 0.5
    return torch.stack([chosen, predicted.float()], 1)
