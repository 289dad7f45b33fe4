"""What the first layer of a model responds to (Dosovitskiy et al. 2021, figure 7, left).

A patch projection is shown by its first principal components, which span most of what it can see; a first
convolution, whose filters are few and small, by the filters themselves.

Shapes: f filters, p and q the sides of a filter in pixels.
"""

from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from saccade.explain.inside.tiles import mosaic
from saccade.models.build import Vision
from saccade.models.hybrid import Stem
from saccade.models.resnet import ResNet
from saccade.nn.conv import StdConv, standardize
from saccade.nn.conv_stem import Convolutions
from saccade.report.plots import Axes, Plot
from saccade.wording import count, percent

COMPONENTS = 28
"""As many as the paper shows."""
FILTERS = 64
"""Most filters of a convolution that are shown."""
DEAD = 1e-3
"""A filter whose norm is below this share of the largest is dead."""
MOST = 0.9
"""Share of the variance for which the number of components is reported."""

Kernels = Float[Tensor, "f 3 p q"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Filters:
    """The filters of a first layer as images; 0 means no weight, 1 the largest."""

    layer: str
    """Patch projection, or first convolution."""
    total: int
    """Filters of the layer."""
    side: tuple[int, int]
    numbers: tuple[int, ...]
    """Number of each component or filter, from 1."""
    shares: tuple[float, ...]
    """Share of the variance in the component, or of the squared weights in the filter."""
    enough: int
    """Components, or filters, that together hold nine tenths."""
    dead: int
    """Filters whose weights are close to zero."""
    pictures: tuple[tuple[float, ...], ...]
    """From -1 to 1, the largest being 1 or -1, for each row, column and colour."""


def kernels(module: Vision) -> tuple[str, Kernels]:
    """Return the first layer's name and filters as they are applied (standardised, where it does that)."""
    first: nn.Module = module if isinstance(module, ResNet) else module.patches
    name, conv = "first convolution", first
    if isinstance(first, ResNet | Stem):
        conv = first.root
    elif isinstance(first, Convolutions):
        conv = next(iter(first.convs))
    else:
        name = "patch projection"
    assert isinstance(conv, nn.Conv2d)
    weight = conv.weight.detach()
    return name, standardize(weight, conv.variance_eps) if isinstance(conv, StdConv) else weight


def components(weight: Kernels) -> tuple[Float[Tensor, "rank 3 p q"], Float[Tensor, "rank"]]:
    """Return the principal components of a set of filters, and the share of the variance in each.

    Each component's largest weight is positive, so that the same filters give the same images.
    """
    rows = rearrange(weight.double(), "f c p q -> f (c p q)")
    _, s, v = torch.linalg.svd(rows - rows.mean(0), full_matrices=False)
    largest = v.gather(1, v.abs().argmax(1, keepdim=True))
    shares = s.square() / s.square().sum().clamp_min(torch.finfo(s.dtype).tiny)
    return (v * largest.sign()).reshape(-1, *weight.shape[1:]), shares


def strongest(weight: Kernels) -> tuple[list[int], Float[Tensor, "f"]]:
    """Return the filters in order of their norms, and the share of the squared weights in each."""
    squares = weight.double().square().sum((1, 2, 3))
    order = squares.argsort(descending=True, stable=True)
    return order.tolist(), squares[order] / squares.sum().clamp_min(torch.finfo(squares.dtype).tiny)


def filters(module: Vision) -> Filters:
    """Return the filters of any model's first layer, most important first."""
    layer, weight = kernels(module)
    norms = weight.double().square().sum((1, 2, 3)).sqrt()
    if layer == "patch projection":
        found, shares = components(weight)
        order = list(range(min(COMPONENTS, found.shape[0])))
    else:
        found, (order, shares) = weight.double(), strongest(weight)
        order = order[:FILTERS]
    pictures = rearrange(found[order], "f c p q -> f p q c").cpu()
    top = pictures.abs().amax((1, 2, 3), keepdim=True)
    pictures = pictures / top.masked_fill(top == 0, 1)
    index = torch.searchsorted(shares.cumsum(0).cpu(), torch.tensor(MOST, dtype=shares.dtype)).item()
    return Filters(
        layer=layer,
        total=weight.shape[0],
        side=(weight.shape[2], weight.shape[3]),
        numbers=tuple(i + 1 for i in order),
        shares=tuple(shares[: len(order)].tolist()),
        enough=min(int(index) + 1, shares.shape[0]),
        dead=int((norms <= DEAD * norms.max()).sum()),
        pictures=tuple(tuple(round(value, 4) for value in each.flatten().tolist()) for each in pictures),
    )


def plots(found: Filters) -> list[Plot]:
    """Plot the filters side by side."""
    whole = found.layer == "patch projection"
    noun, unit = ("component", "of the variance") if whole else ("filter", "of the squared weights")
    shown = len(found.numbers)
    dead = f" {count(found.dead, 'filter')} of {found.total:,} are close to zero." if found.dead else ""
    side = "x".join(map(str, found.side))
    kind = "first principal components of the" if whole else "strongest filters of the"
    columns = 7 if whole else 8
    tall = (-(-shown // columns)) / columns
    return [
        Plot(
            name="filters",
            title=f"The {kind} {found.layer}",
            message=(
                f"The first layer has {count(found.total, 'filter')} of {side} pixels; {found.enough:,} "
                f"{noun}s hold {percent(MOST, 0)} {unit}, the {shown} shown here "
                f"{percent(min(1.0, sum(found.shares)))}.{dead}"
            ),
            note="Grey means no weight, a colour more of it, its opposite less; each image is scaled to its "
            "own largest weight. Smooth waves and colour contrasts are learnt, noise is not.",
            columns={noun: "count", f"share {unit}": "percent"},
            rows=list(zip(found.numbers, found.shares, strict=True)),
            draw=lambda axes, _: _draw(found, columns, axes),
            width=5.0,
            height=0.1 + 4.9 * tall,
            extra={"side": found.side, "pictures": found.pictures},
        )
    ]


def _draw(found: Filters, columns: int, axes: Axes) -> None:
    maps = [0.5 + np.array(each).reshape(*found.side, 3) / 2 for each in found.pictures]
    mosaic(axes, maps, columns, (0.0, 1.0))
