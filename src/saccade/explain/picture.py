"""The PNG of an explanation: the image, the map over it, a colour bar, and the verdict in words."""

from textwrap import fill
from typing import Any

import numpy as np

from saccade.explain.explanation import Explanation, method_title
from saccade.explain.heatmap import DIVERGING, SEQUENTIAL
from saccade.report.plots import LIGHT, drawable, render_figure

WIDTH = 7.0
"""Inches."""
COLUMNS = 92
"""Characters of a line of the caption."""


def draw_explanation(explanation: Explanation) -> bytes:
    """Return a PNG."""
    heatmap = explanation.heatmap
    words = fill(explanation.words or "The map was not tested.", COLUMNS, break_long_words=False)
    answer = f", confidence {heatmap.answer}" if heatmap.value is None else f": {heatmap.answer}"
    width, height = heatmap.picture.size
    tall = min(max(0.44 * WIDTH * height / width, 1.2), 6.0) + 0.85 + 0.2 * words.count("\n")

    def draw(figure: Any) -> None:
        figure.suptitle(
            f"{drawable(heatmap.label, f'class {heatmap.target}', 60)}{answer}",
            fontsize=13,
            fontweight="bold",
            parse_math=False,
        )
        left, right = figure.subplots(1, 2)
        for axes, shown, title in (
            (left, explanation.enlarged(), "image"),
            (right, explanation.overlay(), f"evidence by {method_title(heatmap.method)}"),
        ):
            axes.imshow(np.asarray(shown), interpolation="nearest")
            axes.set_title(title, fontsize=9.5)
            axes.set_axis_off()
        _colour_bar(figure, right, heatmap.signed)
        figure.supxlabel(drawable(words, explanation.heatmap.method, 1000), fontsize=9, x=0.02, ha="left")

    return render_figure(draw, WIDTH, tall, LIGHT)


def _colour_bar(figure: Any, axes: Any, signed: bool) -> None:
    from matplotlib.cm import ScalarMappable

    colours = ScalarMappable(cmap=DIVERGING if signed else SEQUENTIAL)
    colours.set_clim(-1 if signed else 0, 1)
    bar = figure.colorbar(colours, ax=axes, fraction=0.04, pad=0.02)
    ticks = {-1: "against", 0: "none", 1: "for"} if signed else {0: "least", 1: "most"}
    bar.set_ticks(list(ticks), labels=list(ticks.values()))
    bar.outline.set_visible(False)
