"""The page about one text: click a word and see where it looks; one file, no server, no network."""

import base64
import json
import zlib
from importlib.resources import files
from pathlib import Path

import numpy as np

from saccade.explain.text.attention import Look, Reading
from saccade.explain.text.plots import plots
from saccade.report import html as show
from saccade.report.html import Html, figure, joined, name, section, soft, tag
from saccade.report.plots import DARK, LIGHT, render, save
from saccade.wording import percent

MEANT = (
    "Attention shows from which words a layer gathered. That need not be why the model chose its answer: "
    "what was gathered is mixed, and other paths go around it (Jain and Wallace 2019)."
)


def write(reading: Reading, folder: Path) -> list[str]:
    """Write a PNG and a JSON for each picture; return their names."""
    made = [plot for look in reading.looks for plot in plots(look)]
    for plot in made:
        save(plot, folder)
    return [plot.name for plot in made]


def page(reading: Reading, model: str) -> str:
    """The whole file."""
    links = {look.name: look.title for look in reading.looks} | {"about": "About this page"}
    parts = [_section(look) for look in reading.looks]
    about = section("about", "About this page", tag("p", MEANT))
    title = f"{reading.answer or reading.text}: saccade explain"
    body = joined([_head(reading, model), *parts, about, _data(reading)])
    return show.page(title, body, links, _asset("reading.css"), _asset("reading.js"))


def _asset(file: str) -> str:
    return files("saccade.explain.text").joinpath(file).read_text(encoding="utf-8")


def _head(reading: Reading, model: str) -> Html:
    said = [tag("h1", "Where it looked")]
    said.append(
        tag("p", name(reading.text), *([" → ", tag("b", name(reading.answer))] if reading.answer else []))
    )
    for guess in reading.guesses:
        words = ", ".join(f"{word.strip() or word!r} {percent(p)}" for word, p in guess.words)
        place = "Next" if guess.place == len(reading.looks[0].rows) else f"At word {guess.place + 1}"
        said.append(tag("p", f"{place}: {words}."))
    said.append(tag("p", reading.kind, " · ", tag("code", name(model)), cls="soft"))
    said.append(tag("noscript", soft("Scripts are switched off here; the pictures and numbers remain.")))
    return joined(said)


def _section(look: Look) -> Html:
    layers, heads = look.p.shape[:2]
    tools = []
    if layers > 1:
        tools.append(
            _choice(f"{look.name}-layer", "layer", [(i, str(i + 1)) for i in range(layers)], look.layer)
        )
    if heads > 1:
        options = [(-1, "mean of all"), *((i, str(i + 1)) for i in range(heads))]
        tools.append(_choice(f"{look.name}-head", "head", options, -1))
    buttons = [_token("button", word, i, look.name) for i, word in enumerate(look.rows)]
    seen = [_token("span", word, i, look.name) for i, word in enumerate(look.columns)]
    stage = tag(
        "div",
        tag("div", *tools, cls="tools"),
        tag("p", "Choose a word:", cls="soft"),
        tag("div", *buttons, cls="line", id=f"{look.name}-rows", role="group", aria_label="Words that look"),
        tag("p", "It looks at:", cls="soft"),
        tag("div", *seen, cls="line", id=f"{look.name}-columns"),
        tag("p", "", cls="told", id=f"{look.name}-told", aria_live="polite"),
        cls="reading",
        hidden="",
        id=f"{look.name}-stage",
    )
    figures = [figure(plot, render(plot, LIGHT), render(plot, DARK)) for plot in plots(look)]
    return section(look.name, look.title, stage, *figures)


def _choice(anchor: str, said: str, options: list[tuple[int, str]], chosen: int) -> Html:
    made = [
        tag("option", words, value=value, selected="" if value == chosen else None)
        for value, words in options
    ]
    return tag("label", f"{said} ", tag("select", *made, id=anchor))


def _token(kind: str, word: str, i: int, look: str) -> Html:
    if kind == "button":
        return tag("button", name(word), type="button", aria_pressed="false", data_i=i)
    return tag("span", name(word), cls="word", id=f"{look}-{i}")


def _data(reading: Reading) -> Html:
    looks = []
    for look in reading.looks:
        levels = np.rint(look.p * 255).astype(np.uint8)
        packed = base64.b64encode(zlib.compress(levels.tobytes(), 6)).decode()
        looks.append({"name": look.name, "shape": list(look.p.shape), "layer": look.layer, "levels": packed})
    inner = json.dumps(looks, separators=(",", ":")).replace("<", "\\u003c")
    return Html(f'<script type="application/json" id="data">{inner}</script>')
