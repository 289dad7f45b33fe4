"""The page about one text: click a word to see what it attends to; one file, no server, no network."""

from pathlib import Path

import numpy as np
from jaxtyping import Float

from saccade.explain.page.attention_data import to_base64
from saccade.explain.text.attention import AttentionMaps, TextReading
from saccade.report import html
from saccade.report.html import Html, asset, figure, joined, json_script, name, section, soft, tag
from saccade.report.plots import DARK, LIGHT, Axes, Ink, Plot, drawable, render, save
from saccade.wording import percent, printable

ROWS = 400
"""Rows of the table beside a plot; the JSON has every number."""
MEANT = (
    "Attention shows which words a layer read from. That need not be why the model chose its answer: what it "
    "read is mixed, and other paths bypass it (Jain and Wallace 2019)."
)
_Matrix = Float[np.ndarray, "n m"]


def _heat(ink: Ink) -> object:
    from matplotlib.colors import LinearSegmentedColormap

    made = LinearSegmentedColormap.from_list("heat", [ink.paper, ink.first])
    return made.with_extremes(bad=ink.grid)


def strongest(maps: AttentionMaps) -> list[tuple[str, str, float]]:
    """Return each word, the word it attends to most, and the share of that."""
    mean = maps.mean()
    return [
        (word, maps.columns[int(row.argmax())], float(row.max()))
        for word, row in zip(maps.rows, mean, strict=True)
    ]


def words_plot(maps: AttentionMaps) -> Plot:
    """Plot the mean of the heads of one layer, with its words."""
    mean, pairs = maps.mean(), strongest(maps)
    word, seen, share = max(pairs, key=lambda pair: pair[2])
    layers, heads = maps.p.shape[:2]
    single = layers * heads == 1
    where = "" if single else f" in layer {maps.layer + 1} of {layers}, the mean of its heads"

    def draw(axes: Axes, ink: Ink) -> None:
        axes.imshow(mean, cmap=_heat(ink), vmin=0, vmax=max(float(mean.max()), 1e-9), aspect="auto")
        axes.set_xticks(range(len(maps.columns)), _drawn(maps.columns), rotation=60, ha="right")
        axes.set_yticks(range(len(maps.rows)), _drawn(maps.rows))
        axes.grid(False)

    return Plot(
        name=maps.name,
        title=maps.title if single else f"Layer {maps.layer + 1} of {layers}, the mean of its heads",
        message=f"{printable(word, 30)!r} attends most to {printable(seen, 30)!r} "
        f"({percent(share, 0)}){where}.",
        note="Each row sums to 1. It shows what a layer read from, not why a word was chosen.",
        columns={"word": "text", "looks most at": "text", "share": "percent"},
        rows=pairs[:ROWS],
        draw=draw,
        width=float(np.clip(1.6 + 0.3 * len(maps.columns), 4, 14)),
        height=float(np.clip(1.4 + 0.24 * len(maps.rows), 3, 14)),
        extra={"look": maps.to_json()},
    )


def _drawn(words: tuple[str, ...]) -> list[str]:
    return [drawable(word, f"({i + 1})", 16) for i, word in enumerate(words)]


def head_statistics(p: _Matrix) -> tuple[float, float, float, float, float]:
    """Return a head's mean attention to the word itself, the one before, the next and the first; its spread.

    Clark et al. 2019 found heads in BERT that attend to the word before or to a special token.
    """
    n = p.shape[0]
    spread = float(np.exp(-(p * np.log(np.maximum(p, 1e-12))).sum(1)).mean())
    own, before, after = (float(np.trace(p, offset)) / max(n - abs(offset), 1) for offset in (0, -1, 1))
    return own, before, after, float(p[:, 0].mean()), spread


def heads_plot(maps: AttentionMaps) -> Plot:
    """Plot every head of every layer, small, with a table of what each does."""
    layers, heads, n, m = maps.p.shape
    square = maps.rows == maps.columns
    rows: list[tuple[int | float, ...]] = []
    for i in range(layers):
        for j in range(heads):
            own, before, after, first, spread = head_statistics(maps.p[i, j])
            shares = (own, before, after, first) if square else (float(maps.p[i, j].max(1).mean()),)
            rows.append((i + 1, j + 1, *shares, spread))
    wall = np.full((layers * (n + 1) - 1, heads * (m + 1) - 1), np.nan)
    for i in range(layers):
        for j in range(heads):
            wall[i * (n + 1) : i * (n + 1) + n, j * (m + 1) : j * (m + 1) + m] = maps.p[i, j]
    sharpest = min(rows, key=lambda row: row[-1])

    def draw(axes: Axes, ink: Ink) -> None:
        axes.imshow(wall**0.5, cmap=_heat(ink), vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axes.set_xticks([j * (m + 1) + m / 2 for j in range(heads)], range(1, heads + 1))
        axes.set_yticks([i * (n + 1) + n / 2 for i in range(layers)], range(1, layers + 1))
        axes.set_xlabel("head")
        axes.set_ylabel("layer")
        axes.grid(False)

    names = ("to itself", "to the one before", "to the next", "to the first") if square else ("surest look",)
    return Plot(
        name=f"{maps.name}-heads",
        title="Every head of every layer",
        message=f"Head {sharpest[1]} of layer {sharpest[0]} attends to the fewest words: {sharpest[-1]:.1f}.",
        note="Rows are the words that attend, columns those attended to; darker is more (square root).",
        columns={"layer": "count", "head": "count", **dict.fromkeys(names, "percent"), "words": "number"},
        rows=rows,
        draw=draw,
        width=float(np.clip(1.0 + 1.2 * heads, 4, 14)),
        height=float(np.clip(0.9 + 1.1 * layers, 2.4, 14)),
    )


def attention_plots(maps: AttentionMaps) -> list[Plot]:
    """Return the plots of one kind of attention."""
    single = maps.p.shape[0] * maps.p.shape[1] == 1
    return [words_plot(maps)] if single else [words_plot(maps), heads_plot(maps)]


def write_plots(reading: TextReading, folder: Path) -> list[str]:
    """Write a PNG and a JSON for each plot; return their names."""
    made = [plot for maps in reading.maps for plot in attention_plots(maps)]
    for plot in made:
        save(plot, folder)
    return [plot.name for plot in made]


def render_page(reading: TextReading, model: str) -> str:
    """Return the whole file."""
    links = {maps.name: maps.title for maps in reading.maps} | {"about": "About this page"}
    parts = [_section(maps) for maps in reading.maps]
    about = section("about", "About this page", tag("p", MEANT))
    title = f"{reading.answer or reading.text}: saccade explain"
    body = joined([_head(reading, model), *parts, about, _data(reading)])
    style, script = (asset("saccade.explain.text", file) for file in ("reading.css", "reading.js"))
    return html.page(title, body, links, style, script)


def _head(reading: TextReading, model: str) -> Html:
    said = [tag("h1", "Attention, word by word")]
    said.append(
        tag("p", name(reading.text), *([" → ", tag("b", name(reading.answer))] if reading.answer else []))
    )
    for guess in reading.guesses:
        words = ", ".join(f"{word.strip() or word!r} {percent(p)}" for word, p in guess.words)
        where = "Next" if guess.place == len(reading.maps[0].rows) else f"At word {guess.place + 1}"
        said.append(tag("p", f"{where}: {words}."))
    said.append(tag("p", reading.kind, " · ", tag("code", name(model)), cls="soft"))
    said.append(tag("noscript", soft("Scripts are disabled; the plots and numbers remain.")))
    return joined(said)


def _section(maps: AttentionMaps) -> Html:
    layers, heads = maps.p.shape[:2]
    tools = []
    if layers > 1:
        tools.append(
            _choice(f"{maps.name}-layer", "layer", [(i, str(i + 1)) for i in range(layers)], maps.layer)
        )
    if heads > 1:
        options = [(-1, "mean of all"), *((i, str(i + 1)) for i in range(heads))]
        tools.append(_choice(f"{maps.name}-head", "head", options, -1))
    buttons = [_token("button", word, i, maps.name) for i, word in enumerate(maps.rows)]
    seen = [_token("span", word, i, maps.name) for i, word in enumerate(maps.columns)]
    stage = tag(
        "div",
        tag("div", *tools, cls="tools"),
        tag("p", "Choose a word:", cls="soft"),
        tag(
            "div", *buttons, cls="line", id=f"{maps.name}-rows", role="group", aria_label="Words that attend"
        ),
        tag("p", "It attends to:", cls="soft"),
        tag("div", *seen, cls="line", id=f"{maps.name}-columns"),
        tag("p", "", cls="summary", id=f"{maps.name}-summary", aria_live="polite"),
        cls="reading",
        hidden="",
        id=f"{maps.name}-stage",
    )
    figures = [figure(plot, render(plot, LIGHT), render(plot, DARK)) for plot in attention_plots(maps)]
    return section(maps.name, maps.title, stage, *figures)


def _choice(anchor: str, said: str, options: list[tuple[int, str]], chosen: int) -> Html:
    made = [
        tag("option", words, value=value, selected="" if value == chosen else None)
        for value, words in options
    ]
    return tag("label", f"{said} ", tag("select", *made, id=anchor))


def _token(kind: str, word: str, i: int, section: str) -> Html:
    if kind == "button":
        return tag("button", name(word), type="button", aria_pressed="false", data_i=i)
    return tag("span", name(word), cls="word", id=f"{section}-{i}")


def _data(reading: TextReading) -> Html:
    """Return what the script reads: attention in steps of 1/255."""
    packed = []
    for maps in reading.maps:
        levels = to_base64(np.rint(maps.p * 255).astype(np.uint8), compress=True)
        packed.append({"name": maps.name, "shape": list(maps.p.shape), "layer": maps.layer, "levels": levels})
    return json_script("data", packed)
