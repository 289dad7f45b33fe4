"""Many small maps in one plot, on one colour scale, with rings around outliers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from einops import rearrange
from jaxtyping import Float

from saccade.report.plots import Axes, Ink, drawable

COLOURS = "viridis"
"""Readable on light and dark pages, in grey, and with most colour blindness."""
RING = "#ff3b30"


@dataclass(frozen=True, slots=True)
class Tile:
    """One map or image, its title, and the (row, column) of what is ringed."""

    map: Float[np.ndarray, "rows columns *rgb"]
    title: str = ""
    rings: Sequence[tuple[int, int]] = ()


def mosaic(
    axes: Axes,
    maps: Sequence[Float[np.ndarray, "rows columns *rgb"]],
    columns: int,
    limits: tuple[float, float],
    scale: str = "",
) -> None:
    """Draw maps of one size as a single image with gaps: hundreds of them are as fast as one."""
    tall, wide, *_ = maps[0].shape
    gap = max(1, max(tall, wide) // 14)
    colour = [(0, 0)] * (maps[0].ndim - 2)
    empty = np.full_like(maps[0], np.nan, dtype=float)
    full = [*maps, *[empty] * (-len(maps) % columns)]
    padded = [np.pad(each, [(0, gap), (0, gap), *colour], constant_values=np.nan) for each in full]
    whole = rearrange(np.stack(padded), "(r c) i j ... -> (r i) (c j) ...", c=columns)[:-gap, :-gap]
    axes.set_axis_off()
    if colour:  # NaN would be black
        whole = np.concatenate([np.nan_to_num(whole), np.isfinite(whole[..., :1])], axis=-1)
    drawn = axes.imshow(whole, cmap=COLOURS, vmin=limits[0], vmax=limits[1], interpolation="nearest")
    _bar(axes.figure, drawn, axes, scale)


def tiles(
    axes: Axes, ink: Ink, shown: Sequence[Tile], columns: int, limits: tuple[float, float], scale: str = ""
) -> None:
    """Draw maps with titles; `scale` is the label of the colour bar."""
    figure = axes.figure
    axes.remove()
    places = figure.subplots(-(-len(shown) // columns), columns, squeeze=False)
    drawn = None
    for place in places.flat:
        place.set_axis_off()
    for place, tile in zip(places.flat, shown, strict=False):
        found = place.imshow(tile.map, cmap=COLOURS, vmin=limits[0], vmax=limits[1], interpolation="nearest")
        drawn = found if tile.map.ndim == 2 else drawn
        title = drawable(tile.title, "", 30)
        place.set_title(title, fontsize=7.5, pad=2, color=ink.text, parse_math=False)
        for row, column in tile.rings:
            for colour, wide in (("white", 2.6), (RING, 1.4)):
                place.plot(column, row, "o", ms=7, fillstyle="none", color=colour, markeredgewidth=wide)
    _bar(figure, drawn, places, scale)


def _bar(figure: Any, drawn: Any, places: Any, scale: str) -> None:
    if scale and drawn is not None:
        bar = figure.colorbar(drawn, ax=places, shrink=0.8, aspect=30, pad=0.015)
        bar.set_label(scale)
        bar.outline.set_visible(False)
