"""inside.html: one file that shows what a model has learnt; no script, nothing from elsewhere."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from saccade.files.atomic import write_text
from saccade.files.paths import shown
from saccade.report.html import Html, figure, joined, name, page, section, soft, source, tag
from saccade.report.plots import DARK, Plot, render, save
from saccade.types import Prediction
from saccade.wording import count, percent

Pixels = UInt8[np.ndarray, "height width 3"]
PLOTS = "plots"
TITLE = "What the model has learnt"
STYLE = ".plots { margin-bottom: 1.25rem; }"
SIDE = 144
"""Pixels of a thumbnail."""
QUALITY = 80
PARTS = {
    "model": "The model",
    "positions": "Positions",
    "filters": "First filters",
    "heads": "Attention heads",
    "lens": "The answer by depth",
    "norms": "Token norms",
}
ASKED = {
    "positions": "Has it learnt that a picture has rows and columns?",
    "filters": "What does its first layer respond to?",
    "heads": "How far does each head look, and what hangs on it?",
    "lens": "When does it know the answer, and which patches know it?",
    "norms": "Does it use some patches as scratch paper?",
}


@dataclass(frozen=True, slots=True)
class Shown:
    """The pictures that were looked at, as the model sees them, and its answers (none without a head)."""

    pixels: Sequence[Pixels]
    names: Sequence[str]
    answers: Sequence[Prediction]
    given: int
    """Of how many they were chosen."""


def write(folder: Path, model: str, plots: Mapping[str, Sequence[Plot | str]], seen: Shown) -> Path:
    """Write plots/*.png, plots/*.json and the page; `model` describes it in a sentence."""
    parts = [_model(model, seen)]
    for part, made in plots.items():
        drawn = [_drawn(each, folder) for each in made]
        parts.append(section(part, PARTS[part], tag("p", ASKED[part]), *_placed(made, drawn)))
    path = folder / "inside.html"
    write_text(path, page(TITLE, joined(parts), PARTS, style=STYLE))
    return path


def _drawn(made: Plot | str, folder: Path) -> Html:
    if isinstance(made, str):
        return soft(made)
    return figure(made, save(made, folder / PLOTS), render(made, DARK))


def _placed(made: Sequence[Plot | str], drawn: Sequence[Html]) -> list[Html]:
    """Small plots side by side, wide ones and sentences below them."""
    pairs = list(zip(made, drawn, strict=True))
    small = [html for plot, html in pairs if isinstance(plot, Plot) and plot.width <= 6]
    rest = [html for plot, html in pairs if isinstance(plot, str) or plot.width > 6]
    return [*([tag("div", *small, cls="plots")] if small else []), *rest]


def _model(model: str, seen: Shown) -> Html:
    shown_ = len(seen.pixels)
    said = f"Looked at with {count(shown_, 'picture')}."
    if not shown_:
        said = "No picture was given, so only what needs none is shown: positions and first filters."
    elif seen.given > shown_:
        said = f"Looked at with {shown_} of {count(seen.given, 'picture')}, evenly spread."
    cards = [tag("li", _card(seen, i)) for i in range(shown_)]
    return tag(
        "section",
        tag("h1", TITLE, id="model-title"),
        tag("p", model),
        tag("p", said),
        *([tag("ul", *cards, cls="gallery")] if cards else []),
        id="model",
        aria_labelledby="model-title",
    )


def _card(seen: Shown, i: int) -> Html:
    alt, lines = shown(seen.names[i], 60), [tag("code", name(seen.names[i]))]
    if seen.answers:
        answer = seen.answers[i]
        sure = f", {percent(answer.score)} sure"
        alt += f", taken for {shown(answer.label, 60)}{sure}"
        lines.insert(0, tag("span", "answer: ", tag("b", name(answer.label)), sure))
    return tag("figure", tag("img", src=_small(seen.pixels[i]), alt=alt), tag("figcaption", *lines))


def _small(pixels: Pixels) -> Html:
    """A thumbnail as an address that holds the picture itself; a tiny picture stays as it is."""
    picture, file = Image.fromarray(pixels), io.BytesIO()
    if max(picture.size) <= SIDE:
        picture.save(file, "png")
        return source(file.getvalue())
    picture.thumbnail((SIDE, SIDE), Image.Resampling.BICUBIC)
    picture.save(file, "jpeg", quality=QUALITY)
    return Html(f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}")
