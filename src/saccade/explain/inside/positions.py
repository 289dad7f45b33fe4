"""The similarity of learnt position embeddings (Dosovitskiy et al. 2021, figure 7, centre).

Shapes: n positions of a grid, d width, m some of the positions.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from saccade.data.splits import evenly
from saccade.explain.inside.tiles import mosaic
from saccade.models.build import Vision
from saccade.models.resnet import ResNet
from saccade.report.plots import Axes, Ink, Plot
from saccade.wording import count, number, trend

TILES = 14
"""Tiles per side; of a larger grid this many positions are chosen, evenly spread."""
AT_ONCE = 1024
"""Rows of the similarity in memory at a time: a grid of 128 x 128 has 16,384."""
ABSENT = {
    "none": "This model has no positions: to it the patches are a set, so there is nothing to compare.",
    "relative": "This model's positions are relative: it has learnt a bias for each pair of patches, not a "
    "vector for each position, so there is nothing to compare.",
    "rope2d": "This model's positions are rotary: a fixed rotation of queries and keys, not a learnt vector "
    "for each position, so there is nothing to compare.",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Positions:
    """The cosine similarity of position embeddings; positions are numbered in raster order, from 0."""

    kind: str
    grid: tuple[int, int]
    places: tuple[int, ...]
    """The positions that have a tile."""
    similarity: tuple[tuple[float, ...], ...]
    """Of each of `places` with every position of the grid, to five digits."""
    by_offset: tuple[tuple[float, ...], ...]
    """Mean over all pairs at each offset in rows and columns; the first is exactly 1."""
    spearman: float
    """Rank correlation of distance and mean similarity at that distance, distance 0 left out."""
    spearman_pairs: float
    """The same over all single pairs of `places` with others."""
    straight: float
    """Mean similarity of neighbours in a row or column."""
    diagonal: float
    """Mean similarity of diagonal neighbours."""


def similarity(vectors: Float[Tensor, "n d"], places: Int[Tensor, "m"]) -> Float[Tensor, "m n"]:
    """Return the cosine similarity of the vectors at `places` with all; with itself, exactly 1."""
    unit = F.normalize(vectors.detach().double(), dim=-1)
    cosine = (unit[places] @ unit.mT).clamp(-1, 1)
    return cosine.scatter_(1, places[:, None], 1.0)


def by_offset(vectors: Float[Tensor, "n d"], grid: tuple[int, int]) -> Float[Tensor, "rows columns"]:
    """Return the mean similarity of all pairs at each offset in rows and columns."""
    rows, columns = grid
    raster = torch.arange(rows * columns, device=vectors.device)
    row, column = raster // columns, raster % columns
    total, pairs = (torch.zeros(rows * columns, dtype=torch.float64, device=vectors.device) for _ in range(2))
    for part in torch.split(raster, AT_ONCE):
        offset = (row[part, None] - row).abs() * columns + (column[part, None] - column).abs()
        cosine = similarity(vectors, part).flatten()
        total += torch.bincount(offset.flatten(), weights=cosine, minlength=rows * columns)
        pairs += torch.bincount(offset.flatten(), minlength=rows * columns)
    return (total / pairs).reshape(rows, columns)


def by_distance(mean: Float[np.ndarray, "rows columns"]) -> list[tuple[int, int, float]]:
    """Return (distance in whole patches, pairs at that distance, their mean similarity), nearest first."""
    rows, columns = mean.shape
    found: dict[int, tuple[int, float]] = {}
    for (r, c), cosine in np.ndenumerate(mean):
        far = round(math.hypot(r, c))
        pairs = (rows - r) * (columns - c) * (2 if r and c else 1)  # down to the right, and to the left
        before, total = found.get(far, (0, 0.0))
        found[far] = before + pairs, total + pairs * float(cosine)
    return [(far, pairs, total / pairs) for far, (pairs, total) in sorted(found.items())]


def correlation(x: Float[np.ndarray, "n"], y: Float[np.ndarray, "n"]) -> float:
    """Return Spearman's rank correlation, ties averaged; NaN if it is undefined."""
    if not len(x):
        return math.nan
    ranks = [_ranks(values) for values in (x, y)]
    a, b = (rank - rank.mean() for rank in ranks)
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if scale else math.nan


def _ranks(values: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def measure(vectors: Float[Tensor, "n d"], grid: tuple[int, int], kind: str = "learned") -> Positions:
    """Compare the positions of a grid in raster order; a text is a grid of one row."""
    mean = by_offset(vectors, grid).cpu().numpy()
    rows, columns = (evenly(side, TILES if min(grid) > 1 else TILES**2) for side in grid)
    places = np.array([r * grid[1] + c for r in rows for c in columns])
    cosine = similarity(vectors, torch.from_numpy(places).to(vectors.device)).cpu().numpy()
    means = np.array(by_distance(mean)[1:], float).reshape(-1, 3)
    there = np.stack(np.divmod(np.arange(grid[0] * grid[1]), grid[1]))
    far = np.hypot(*(there[:, places, None] - there[:, None]))
    return Positions(
        kind=kind,
        grid=grid,
        places=tuple(places.tolist()),
        similarity=tuple(map(tuple, cosine.round(5).tolist())),
        by_offset=tuple(map(tuple, mean.tolist())),
        spearman=correlation(means[:, 0], means[:, 2]),
        spearman_pairs=correlation(far[far > 0], cosine[far > 0]),
        straight=_mean(mean, (0, 1), (1, 0)),
        diagonal=_mean(mean, (1, 1)),
    )


def _mean(mean: Float[np.ndarray, "rows columns"], *offsets: tuple[int, int]) -> float:
    rows, columns = mean.shape
    there = [(r, c) for r, c in offsets if r < rows and c < columns]
    weights = [(rows - r) * (columns - c) for r, c in there]
    return float(np.average([mean[o] for o in there], weights=weights)) if there else math.nan


def positions(module: Vision) -> Positions | str:
    """Compare the positions of a model at its own grid, or say why it has none to compare."""
    if isinstance(module, ResNet):
        return "A ResNet has no position embeddings: convolutions are local by construction."
    config = module.config
    if config.position in ABSENT:
        return ABSENT[config.position]
    vectors = module.position(*config.grid, module.front)
    assert vectors is not None
    return measure(vectors, config.grid, config.position)


def _said(found: Positions) -> str:
    (_, *rest) = by_distance(np.array(found.by_offset))
    if not rest:
        return "There is a single position and nothing to compare it with."
    low = min(rest, key=lambda row: row[2])
    said = f"The similarity of neighbouring positions is {number(rest[0][2])}"
    if low is not rest[0]:
        said += f"; it is lowest, {number(low[2])}, at a distance of {count(low[0], 'patch')}"
    if low is not rest[-1]:
        said += f" and {number(rest[-1][2])} at the largest distance, {rest[-1][0]}"
    said += f" (rank correlation with distance: {number(found.spearman)})."
    if math.isnan(found.diagonal):
        return said
    more = "more similar" if found.straight > found.diagonal else "no more similar"
    return (
        f"{said} Neighbours in a row or column are {more} ({number(found.straight)}) than diagonal ones "
        f"({number(found.diagonal)})."
    )


def plots(found: Positions) -> list[Plot]:
    """Plot the grid of grids, and the mean similarity by distance."""
    rows = by_distance(np.array(found.by_offset))
    total = found.grid[0] * found.grid[1]
    some = f" {count(len(found.places), 'position')} of {total:,} have a tile." * (len(found.places) < total)
    table = {"distance in patches": "count", "pairs": "count", "mean similarity": "number"}
    names = ("spearman", "spearman_pairs", "straight", "diagonal")
    numbers = {name: getattr(found, name) for name in names if math.isfinite(getattr(found, name))}
    flat = min(found.grid) == 1
    return [
        Plot(
            name="positions",
            title="Similarity of position embeddings",
            message=_said(found),
            note="Each tile belongs to one position of the grid and shows its similarity to every other "
            f"position.{some}",
            columns=table,
            rows=rows,
            draw=lambda axes, _: _grid(found, axes),
            width=6.0,
            height=5.0 if flat else 0.2 + 5.0 * found.grid[0] / max(found.grid),
            extra={**numbers, "grid": found.grid, "places": found.places, "similarity": found.similarity},
        ),
        Plot(
            name="positions-by-distance",
            title="Similarity of positions by distance",
            message=f"{trend('Mean similarity', [row[2] for row in rows[1:]] or [1.0])} over "
            f"{count(rows[-1][0], 'patch')}; single pairs have a rank correlation of "
            f"{number(found.spearman_pairs)} with distance.",
            note="Points are pairs with the same offset. Where a model has learnt that an image has rows and "
            "columns, the lines for one row or column lie above the mean.",
            columns=table,
            rows=rows,
            draw=lambda axes, ink: _curve(found, axes, ink),
            extra={**numbers, "by_offset": found.by_offset},
        ),
    ]


def _grid(found: Positions, axes: Axes) -> None:
    maps = [np.array(line).reshape(found.grid) for line in found.similarity]
    columns = len({place % found.grid[1] for place in found.places})
    if min(found.grid) == 1:
        maps, columns = [np.array(found.similarity)], 1
    mosaic(axes, maps, columns, (min(0.0, *map(np.min, maps)), 1.0), "cosine similarity")


def _curve(found: Positions, axes: Axes, ink: Ink) -> None:
    mean = np.array(found.by_offset)
    rows = by_distance(mean)
    far = np.hypot(*np.indices(mean.shape))
    axes.plot(far.flat, mean.flat, ".", color=ink.first, markersize=3, alpha=0.6)
    axes.plot([row[0] for row in rows], [row[2] for row in rows], color=ink.first, label="mean")
    for values, dash, name in ((mean[:, 0], ":", "same column"), (mean[0], "--", "same row")):
        if values.size > 1:
            axes.plot(values, dash, color=ink.second, label=name)
    axes.set(xlabel="distance in patches", ylabel="cosine similarity")
    axes.legend(loc="upper right")
