"""A reading as pictures with their numbers: an alignment, and all heads of all layers at once."""

import numpy as np
from jaxtyping import Float

from saccade.explain.text.attention import Look
from saccade.files.paths import shown
from saccade.report.plots import Axes, Ink, Plot, drawable
from saccade.wording import percent

ROWS = 400
"""Rows of the table beside a picture; the JSON has every number."""
Matrix = Float[np.ndarray, "n m"]


def _heat(ink: Ink) -> object:
    from matplotlib.colors import LinearSegmentedColormap

    made = LinearSegmentedColormap.from_list("heat", [ink.paper, ink.first])
    return made.with_extremes(bad=ink.grid)


def strongest(look: Look) -> list[tuple[str, str, float]]:
    """Each word that looks, the word it looks at most, and its share of the look."""
    mean = look.mean()
    return [
        (word, look.columns[int(row.argmax())], float(row.max()))
        for word, row in zip(look.rows, mean, strict=True)
    ]


def words_plot(look: Look) -> Plot:
    """The mean of the heads of one layer, with its words."""
    mean, pairs = look.mean(), strongest(look)
    word, seen, share = max(pairs, key=lambda pair: pair[2])
    layers, heads = look.p.shape[:2]
    single = layers * heads == 1
    where = "" if single else f" in layer {look.layer + 1} of {layers}, the mean of its heads"

    def draw(axes: Axes, ink: Ink) -> None:
        axes.imshow(mean, cmap=_heat(ink), vmin=0, vmax=max(float(mean.max()), 1e-9), aspect="auto")
        axes.set_xticks(range(len(look.columns)), _drawn(look.columns), rotation=60, ha="right")
        axes.set_yticks(range(len(look.rows)), _drawn(look.rows))
        axes.grid(False)

    return Plot(
        name=look.name,
        title=look.title if single else f"Layer {look.layer + 1} of {layers}, the mean of its heads",
        message=f"{shown(word, 30)!r} looks most at {shown(seen, 30)!r} ({percent(share, 0)}){where}.",
        note="Each row sums to 1. It shows where a layer gathered from, not why a word was chosen.",
        columns={"word": "text", "looks most at": "text", "share": "percent"},
        rows=pairs[:ROWS],
        draw=draw,
        width=float(np.clip(1.6 + 0.3 * len(look.columns), 4, 14)),
        height=float(np.clip(1.4 + 0.24 * len(look.rows), 3, 14)),
        extra={"look": look.to_json()},
    )


def _drawn(words: tuple[str, ...]) -> list[str]:
    return [drawable(word, f"({i + 1})", 16) for i, word in enumerate(words)]


def habits(p: Matrix) -> tuple[float, float, float, float, float]:
    """How a head looks: shares to itself, to the word before, after, to the first; words it spreads over.

    Heads that look at the word before or at a mark are what Clark et al. 2019 found in BERT.
    """
    n = p.shape[0]
    spread = float(np.exp(-(p * np.log(np.maximum(p, 1e-12))).sum(1)).mean())
    own, before, after = (float(np.trace(p, offset)) / max(n - abs(offset), 1) for offset in (0, -1, 1))
    return own, before, after, float(p[:, 0].mean()), spread


def heads_plot(look: Look) -> Plot:
    """Every head of every layer, small; a table of what each does."""
    layers, heads, n, m = look.p.shape
    square = look.rows == look.columns
    rows: list[tuple[int | float, ...]] = []
    for i in range(layers):
        for j in range(heads):
            own, before, after, first, spread = habits(look.p[i, j])
            told = (own, before, after, first) if square else (float(look.p[i, j].max(1).mean()),)
            rows.append((i + 1, j + 1, *told, spread))
    wall = np.full((layers * (n + 1) - 1, heads * (m + 1) - 1), np.nan)
    for i in range(layers):
        for j in range(heads):
            wall[i * (n + 1) : i * (n + 1) + n, j * (m + 1) : j * (m + 1) + m] = look.p[i, j]
    surest = min(rows, key=lambda row: row[-1])

    def draw(axes: Axes, ink: Ink) -> None:
        axes.imshow(wall**0.5, cmap=_heat(ink), vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axes.set_xticks([j * (m + 1) + m / 2 for j in range(heads)], range(1, heads + 1))
        axes.set_yticks([i * (n + 1) + n / 2 for i in range(layers)], range(1, layers + 1))
        axes.set_xlabel("head")
        axes.set_ylabel("layer")
        axes.grid(False)

    shares = ("to itself", "to the one before", "to the next", "to the first") if square else ("surest look",)
    return Plot(
        name=f"{look.name}-heads",
        title="Every head of every layer",
        message=f"Head {surest[1]} of layer {surest[0]} looks at the fewest words: {surest[-1]:.1f}.",
        note="Rows are the words that look, columns those looked at; darker is more (by the square root).",
        columns={"layer": "count", "head": "count", **dict.fromkeys(shares, "percent"), "words": "number"},
        rows=rows,
        draw=draw,
        width=float(np.clip(1.0 + 1.2 * heads, 4, 14)),
        height=float(np.clip(0.9 + 1.1 * layers, 2.4, 14)),
    )


def plots(look: Look) -> list[Plot]:
    """What is drawn of one kind of attention."""
    single = look.p.shape[0] * look.p.shape[1] == 1
    return [words_plot(look)] if single else [words_plot(look), heads_plot(look)]
