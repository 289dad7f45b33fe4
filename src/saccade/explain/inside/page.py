"""inside.html: one file that shows what a model has learnt; no script, no network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from saccade.data.image.resize import Pixels
from saccade.files.atomic import write_text
from saccade.files.paths import shown
from saccade.report.html import Html, figure, joined, name, page, section, soft, tag
from saccade.report.plots import DARK, Plot, render, save
from saccade.report.thumbnails import SIDE, shrink
from saccade.types import Prediction
from saccade.wording import count, percent

PLOTS = "plots"
TITLE = "What the model has learnt"
STYLE = ".plots { margin-bottom: 1.25rem; }"
PARTS = {
    "model": "The model",
    "positions": "Positions",
    "filters": "First filters",
    "heads": "Attention heads",
    "lens": "The answer by depth",
    "norms": "Token norms",
}
QUESTIONS = {
    "positions": "Has it learnt that an image has rows and columns?",
    "filters": "What does its first layer respond to?",
    "heads": "How far does each head attend, and what depends on it?",
    "lens": "At what depth is the answer known, and by which patches?",
    "norms": "Does it use some patches as scratch memory?",
}


@dataclass(frozen=True, slots=True)
class InsidePictures:
    """The images used, as the model sees them, and its predictions (none without a head)."""

    pixels: Sequence[Pixels]
    names: Sequence[str]
    answers: Sequence[Prediction]
    given: int
    """How many were given to choose from."""


def write_page(
    folder: Path, model: str, plots: Mapping[str, Sequence[Plot | str]], seen: InsidePictures
) -> Path:
    """Write plots/*.png, plots/*.json and the page; `model` describes the model in a sentence."""
    parts = [_model(model, seen)]
    for part, made in plots.items():
        drawn = [_figure(each, folder) for each in made]
        parts.append(section(part, PARTS[part], tag("p", QUESTIONS[part]), *_layout(made, drawn)))
    path = folder / "inside.html"
    write_text(path, page(TITLE, joined(parts), PARTS, style=STYLE))
    return path


def _figure(made: Plot | str, folder: Path) -> Html:
    if isinstance(made, str):
        return soft(made)
    return figure(made, save(made, folder / PLOTS), render(made, DARK))


def _layout(made: Sequence[Plot | str], drawn: Sequence[Html]) -> list[Html]:
    """Put small plots side by side, wide ones and sentences below them."""
    pairs = list(zip(made, drawn, strict=True))
    small = [html for plot, html in pairs if isinstance(plot, Plot) and plot.width <= 6]
    rest = [html for plot, html in pairs if isinstance(plot, str) or plot.width > 6]
    return [*([tag("div", *small, cls="plots")] if small else []), *rest]


def _model(model: str, seen: InsidePictures) -> Html:
    used = len(seen.pixels)
    said = f"Measured on {count(used, 'image')}."
    if not used:
        said = "No images were given, so only positions and first filters are shown."
    elif seen.given > used:
        said = f"Measured on {used} of {count(seen.given, 'image')}, evenly spread."
    cards = [tag("li", _card(seen, i)) for i in range(used)]
    return tag(
        "section",
        tag("h1", TITLE, id="model-title"),
        tag("p", model),
        tag("p", said),
        *([tag("ul", *cards, cls="gallery")] if cards else []),
        id="model",
        aria_labelledby="model-title",
    )


def _card(seen: InsidePictures, i: int) -> Html:
    alt, lines = shown(seen.names[i], 60), [tag("code", name(seen.names[i]))]
    if seen.answers:
        answer = seen.answers[i]
        confidence = f", confidence {percent(answer.score)}"
        alt += f", predicted as {shown(answer.label, 60)}{confidence}"
        lines.insert(0, tag("span", "answer: ", tag("b", name(answer.label)), confidence))
    small = shrink(Image.fromarray(seen.pixels[i]), tiny=SIDE).address
    return tag("figure", tag("img", src=small, alt=alt), tag("figcaption", *lines))
