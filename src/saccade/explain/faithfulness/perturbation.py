"""Take a picture apart in the order that a map gives, and watch the probability of the target.

Deletion and insertion after Petsiuk et al. 2018 (https://arxiv.org/abs/1806.07421), positive and negative
perturbation after Chefer et al. 2021 (https://arxiv.org/abs/2012.09838, section 4). One pair of curves gives
all four: what is left when the least important tenth is gone is what stands there when the other nine tenths
have been inserted. What is taken away is replaced by the picture blurred, with a deviation of one cell.

Shapes: b pictures, m maps of each, r rows and c columns of cells, t tenths (1 to 9).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.explain.ask import Target, held
from saccade.explain.faithfulness.controls import seed_of
from saccade.explain.replay import Grid, grid_of
from saccade.models.build import Vision
from saccade.models.vit import ViT
from saccade.nn.patch import Image

BATCH = 64
"""Pictures in one forward pass."""
TENTHS = 9
"""Shares of the cells that are taken away: 10 % to 90 %; before and after them are all and none."""
FEWEST = 8
"""Cells along a side of a CNN's picture, which has no patches; large ones have one for each 16 pixels."""

Maps = Float[Tensor, "b m r c"]
Readings = Float[Tensor, "b m t"]


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """What the model said of each picture, whole, blurred, and in every stage between."""

    whole: Float[Tensor, "b"]
    """Probability of the target."""
    blank: Float[Tensor, "b"]
    """The same for the blurred picture."""
    deleted: Readings
    """The most important tenths are gone."""
    inserted: Readings
    """Only the most important tenths are there."""
    kept_positive: Readings
    """1 where the target is still the answer though the most important tenths are gone."""
    kept_negative: Readings
    """The same with the least important ones gone."""
    shares: Float[Tensor, "t"]
    """The share of cells, which is not quite a tenth where the cells are few."""

    @property
    def deletion(self) -> Float[Tensor, "b m"]:
        """Area under the probability; low is good."""
        return self._area(self.whole, self.deleted, self.blank)

    @property
    def insertion(self) -> Float[Tensor, "b m"]:
        """Area under the probability; high is good."""
        return self._area(self.blank, self.inserted, self.whole)

    @property
    def positive(self) -> Float[Tensor, "b m"]:
        """Mean over 10 % to 90 % gone, the most important first, of `kept_positive`; low is good."""
        return self.kept_positive.mean(-1)

    @property
    def negative(self) -> Float[Tensor, "b m"]:
        """The same, the least important first; high is good."""
        return self.kept_negative.mean(-1)

    @property
    def evidence(self) -> Float[Tensor, "b"]:
        """Logarithm of how many times the blurred picture's odds of the target the picture's are."""
        return raised(self.whole, self.blank)

    def _area(
        self, first: Float[Tensor, "b"], between: Readings, last: Float[Tensor, "b"]
    ) -> Float[Tensor, "b m"]:
        m = between.shape[1]
        ends = (repeat(end, "b -> b m 1", m=m) for end in (first, last))
        first, last = ends
        x = F.pad(F.pad(self.shares, (1, 0)), (0, 1), value=1.0)
        return torch.trapezoid(torch.cat([first, between, last], -1), x, dim=-1)


def raised(whole: Float[Tensor, "b"], blank: Float[Tensor, "b"]) -> Float[Tensor, "b"]:
    """Logarithm of the quotient of the odds; probabilities within a millionth of 0 or 1 count as that."""
    odds = [p.double().clamp(1e-6, 1 - 1e-6).logit() for p in (whole, blank)]
    return (odds[0] - odds[1]).float()


def cells_of(module: Vision, image: Image) -> Grid:
    """The grid on which pictures are taken apart: the patches, for a CNN squares of 16 pixels or less."""
    if isinstance(module, ViT):
        return grid_of(module, image)
    rows, columns = (min(side, max(FEWEST, side // 16)) for side in image.shape[-2:])
    return rows, columns


def fitted(maps: Maps, grid: Grid) -> Float[Tensor, "b m rows columns"]:
    """The maps on another grid: mean over what falls into a cell, or interpolated where cells are finer."""
    if maps.shape[-2:] == grid:
        return maps
    if maps.shape[-2] < grid[0] or maps.shape[-1] < grid[1]:
        return F.interpolate(maps, grid, mode="bilinear", align_corners=False)
    return F.adaptive_avg_pool2d(maps, grid)


def blurred(image: Image, grid: Grid) -> Image:
    """The picture with nothing left in it that is smaller than a cell."""
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
    """The evidence (see `Curves`) of each picture for the model's own answer: two forward passes."""
    with held(module), torch.no_grad():
        whole, blank = (
            torch.cat([module(x).float().softmax(-1).cpu() for x in torch.split(part, BATCH)])
            for part in (image, blurred(image, cells_of(module, image)))
        )
    answer = whole.argmax(-1, keepdim=True)
    return raised(whole.gather(1, answer)[:, 0], blank.gather(1, answer)[:, 0])


def order(maps: Maps, seeds: Sequence[int]) -> Int[Tensor, "b m r c"]:
    """The rank of each cell, 0 the most important; equal ones stand in an order drawn for each picture."""
    flat = rearrange(maps, "b m r c -> b m (r c)").cpu()
    lots = [torch.randperm(flat.shape[-1], generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    luck = rearrange(lots, "b n -> b 1 n").expand_as(flat)
    mixed = flat.gather(-1, luck).argsort(dim=-1, descending=True, stable=True)
    ranked = luck.gather(-1, mixed)
    places = torch.empty_like(ranked).scatter_(-1, ranked, torch.arange(flat.shape[-1]).expand_as(ranked))
    return rearrange(places, "b m (r c) -> b m r c", c=maps.shape[-1])


def curves(module: Vision, image: Image, target: Target, maps: Maps) -> Curves:
    """Take each picture apart by each of its maps: 18 forward passes a map, and two a picture."""
    grid = cells_of(module, image)
    count = grid[0] * grid[1]
    places = order(fitted(maps, grid), [seed_of(one) + 1 for one in image])
    gone = torch.arange(1, TENTHS + 1).mul(count).add(5).div(10, rounding_mode="floor")
    cuts = rearrange(gone, "t -> t 1 1")
    first = rearrange(places, "b m r c -> b m 1 r c")
    away = torch.stack([first < cuts, first >= cuts], 2)  # the most important ones; all others
    b, m = maps.shape[:2]
    flat = rearrange(away, "b m two t r c -> (b m two t) r c")
    owner = torch.arange(b).repeat_interleave(m * 2 * TENTHS)
    with held(module), torch.no_grad():
        blank = blurred(image, grid)
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
        # nine tenths inserted is one tenth gone
        kept_negative=kept[1].flip(-1),
        shares=gone / count,
    )


def _without(image: Image, blank: Image, away: Bool[Tensor, "b r c"]) -> Image:
    size = image.shape[-2:]
    cover = F.interpolate(rearrange(away, "b r c -> b 1 r c").to(image), size, mode="nearest")
    return torch.where(cover > 0, blank, image)


def _read(module: Vision, image: Image, target: Target) -> tuple[Float[Tensor, "b"], Float[Tensor, "b"]]:
    """Probability of the target, and whether it is the answer; on the CPU."""
    parts = [module(x).float().softmax(-1).cpu() for x in torch.split(image, BATCH)]
    p = torch.cat(parts)
    chosen = p.gather(1, target.cpu()[:, None])[:, 0]
    return chosen, (p.argmax(-1) == target.cpu()).float()
