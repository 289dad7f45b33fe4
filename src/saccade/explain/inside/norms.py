"""The norms of tokens through a model, and the outliers among them.

Large ViTs use patches of plain background as scratch memory: the norms of those tokens grow far beyond the
others, and attention maps show them as artefacts (Darcet et al. 2024, https://arxiv.org/abs/2309.16588).

Shapes: b batch, n tokens, l depths (before the first block, after each).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from saccade.explain.inside.lens import streams
from saccade.explain.inside.tiles import Tile, tiles
from saccade.explain.replay import Grid, grid_of, moments
from saccade.models.vit import ViT
from saccade.nn.attention import Tokens
from saccade.nn.patch import Image
from saccade.report.plots import Axes, Ink, Plot
from saccade.wording import count, number, percent, printable

TIMES = 2.0
"""A token is an outlier if its norm is this many times the median of its image's patches ..."""
DEVIATIONS = 6.0
"""... and this many standard deviations above it, as the median of absolute deviations estimates them."""
NORMAL = 1.4826
"""Standard deviations of a normal distribution in one median absolute deviation."""
FAR = 5
"""With a highest norm beyond this many medians the scale is logarithmic: the rest would be flat."""
MAPS = 8
"""Images whose patches are drawn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Depth:
    """All images after one block; 0 is before the first."""

    block: int
    median: float
    """Of the norms of patches."""
    low: float
    high: float
    """The lowest and the highest norm of a patch."""
    front: float
    """Mean norm of the tokens that are not patches; 0 where there are none."""
    outliers: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlier:
    """A patch whose norm is far above the others of its image."""

    picture: int
    """Index of the image."""
    block: int
    row: int
    column: int
    norm: float
    times: float
    """Multiple of the median of the image's patches at that depth."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Norms:
    """Token norms by depth; rows and columns count from 0."""

    pictures: tuple[str, ...]
    grid: Grid
    depths: tuple[Depth, ...]
    outliers: tuple[Outlier, ...]
    last: tuple[tuple[float, ...], ...]
    """Norms of each image's patches after the last block."""


def norms(found: Sequence[Tokens]) -> Float[Tensor, "l b n"]:
    """Return the norm of every token of a list of streams."""
    return torch.stack([z.double().norm(dim=-1) for z in found])


def outliers(found: Float[Tensor, "*any n"]) -> Bool[Tensor, "*any n"]:
    """Return which norms are far above the others along the last dimension."""
    middle = found.median(-1, keepdim=True).values
    deviation = NORMAL * (found - middle).abs().median(-1, keepdim=True).values
    return (found > TIMES * middle) & (found > middle + DEVIATIONS * deviation)


@torch.no_grad()
def measure(vit: ViT, image: Image, names: Sequence[str]) -> Norms:
    """Measure the norms of every token at every depth, and find the outliers."""
    each = [norms(streams(moments(vit, one))).cpu() for one in torch.split(image, 1)]
    return summarise(torch.cat(each, dim=1), vit.config.front, grid_of(vit, image), names)


def summarise(found: Float[Tensor, "l b n"], front: int, grid: Grid, names: Sequence[str]) -> Norms:
    """Summarise norms by depth; the first `front` tokens are not patches and are not compared."""
    before, patches = found[..., :front], found[..., front:]
    out = outliers(patches)
    depths = [
        Depth(
            block=block,
            median=float(now.median()),
            low=float(now.min()),
            high=float(now.max()),
            front=float(ahead.mean()) if front else 0.0,
            outliers=int(marked.sum()),
        )
        for block, (now, ahead, marked) in enumerate(zip(patches, before, out, strict=True))
    ]
    middle = patches.median(-1).values
    return Norms(
        pictures=tuple(names),
        grid=grid,
        depths=tuple(depths),
        outliers=tuple(
            Outlier(
                picture=b,
                block=block,
                row=n // grid[1],
                column=n % grid[1],
                norm=float(patches[block, b, n]),
                times=float(patches[block, b, n] / middle[block, b]),
            )
            for block, b, n in out.nonzero().tolist()
        ),
        last=tuple(map(tuple, patches[-1].tolist())),
    )


def plots(found: Norms) -> list[Plot]:
    """Plot norms by depth, and maps of the last block with the outliers ringed."""
    return [_curve(found), _maps(found)]


def _rule() -> str:
    return (
        f"A ringed patch has more than {number(TIMES)} times the median norm of its image and is more "
        f"than {number(DEVIATIONS)} deviations above it."
    )


def _curve(found: Norms) -> Plot:
    first, last = found.depths[0], found.depths[-1]
    worst = max(found.depths, key=lambda depth: depth.outliers)
    if worst.outliers:
        share = worst.outliers / (len(found.pictures) * found.grid[0] * found.grid[1])
        most = max(outlier.times for outlier in found.outliers)
        said = (
            f"{count(worst.outliers, 'outlier')} ({percent(share)} of the patches) after block "
            f"{worst.block}, the most of all; the largest norm is {number(most)} times the median."
        )
    else:
        said = "No block has outliers."
    return Plot(
        name="norms",
        title="Token norms after each block",
        message=f"The median norm goes from {number(first.median)} to {number(last.median)}. {said}",
        note=f"The band contains every patch, the line is their median; the dashed line is the tokens that "
        f"are not patches. {_rule()}",
        columns={
            "block": "count",
            **dict.fromkeys(("lowest", "median", "highest", "other tokens"), "number"),
            "outliers": "count",
        },
        rows=[(d.block, d.low, d.median, d.high, d.front or None, d.outliers) for d in found.depths],
        draw=lambda axes, ink: _draw(found, axes, ink),
        extra={"outliers": [[o.picture, o.block, o.row, o.column, o.norm, o.times] for o in found.outliers]},
    )


def _draw(found: Norms, axes: Axes, ink: Ink) -> None:
    blocks = [d.block for d in found.depths]
    axes.fill_between(
        blocks, [d.low for d in found.depths], [d.high for d in found.depths], color=ink.first, alpha=0.22
    )
    axes.plot(blocks, [d.median for d in found.depths], color=ink.first, label="patches, median")
    if any(d.front for d in found.depths):
        axes.plot(
            blocks, [d.front for d in found.depths], "--", color=ink.second, label="class token, registers"
        )
    if found.outliers:
        points = [(o.block, o.norm) for o in found.outliers]
        axes.plot(*zip(*points, strict=True), "o", fillstyle="none", color=ink.text, ms=6, label="outliers")
    axes.set(xlabel="after block (0: before the first)", ylabel="norm")
    if max(d.high for d in found.depths) > FAR * max(d.median for d in found.depths):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()


def _usual(found: Norms) -> float:
    """Return the highest norm after the last block that is not an outlier."""
    last = torch.tensor(found.last)
    return float(last.masked_fill(outliers(last), 0).max())


def _maps(found: Norms) -> Plot:
    last = len(found.depths) - 1
    shown_ = found.last[:MAPS]
    final = [o for o in found.outliers if o.block == last]
    rings = [[(o.row, o.column) for o in final if o.picture == i] for i in range(len(shown_))]
    maps = [np.array(each).reshape(found.grid) for each in shown_]
    columns = min(4, len(maps))
    rows = -(-len(maps) // columns)
    top = max(max(each) for each in found.last)
    some = "" if len(shown_) == len(found.last) else f" of {len(found.last)}"
    said = (
        f"{count(len(final), 'outlier')} in {count(len({o.picture for o in final}), 'image')}; the largest "
        f"norm is {number(top)}."
        if final
        else f"No outliers after the last block; the largest norm is {number(top)}."
    )
    return Plot(
        name="norms-last",
        title="Patch norms after the last block",
        message=said,
        note=f"{count(len(shown_), 'image')}{some}. {_rule()}"
        + " The colour scale ends at the largest norm that is not ringed." * bool(final),
        columns={
            "picture": "text",
            **dict.fromkeys(("lowest", "median", "highest"), "number"),
            "outliers": "count",
        },
        rows=[
            (name, min(each), float(np.median(each)), max(each), sum(o.picture == i for o in final))
            for i, (name, each) in enumerate(zip(found.pictures, found.last, strict=True))
        ],
        draw=lambda axes, ink: tiles(
            axes,
            ink,
            [Tile(m, printable(n, 24), r) for m, n, r in zip(maps, found.pictures, rings, strict=False)],
            columns,
            (0.0, _usual(found)),
            "norm",
        ),
        width=5.6,
        height=0.4 + rows * (1.15 * found.grid[0] / found.grid[1] + 0.2) * 4 / columns,
        extra={"grid": found.grid, "norms": found.last},
    )
