"""inside.html: one file that shows what a model has learnt; no script, no network."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from saccade.data.image.resize import Pixels
from saccade.explain.inside.sections import SECTIONS, Inside, section_plots
from saccade.files.atomic import write_text
from saccade.report.html import Html, figure, joined, name, page, section, soft, tag
from saccade.report.plots import DARK, Plot, render, save
from saccade.report.thumbnails import SIDE, shrink
from saccade.vision.model import Prediction
from saccade.wording import count, percent, printable

PLOTS = "plots"
TITLE = "What the model has learnt"
STYLE = ".plots { margin-bottom: 1.25rem; }"


@dataclass(frozen=True, slots=True)
class InsidePictures:
    """The images used, as the model sees them, and its predictions (none without a head)."""

    pixels: Sequence[Pixels]
    names: Sequence[str]
    answers: Sequence[Prediction]
    given: int
    """How many were given to choose from."""


def write_page(folder: Path, found: Inside, seen: InsidePictures) -> Path:
    """Write plots/*.png, plots/*.json and the page."""
    parts, titles = [_model(found.model, seen)], {"model": "The model"}
    for part, made in section_plots(found).items():
        titles[part], question, _ = SECTIONS[part]
        drawn = [_figure(each, folder) for each in made]
        parts.append(section(part, titles[part], tag("p", question), *_layout(made, drawn)))
    path = folder / "inside.html"
    write_text(path, page(TITLE, joined(parts), titles, style=STYLE))
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
    alt, lines = printable(seen.names[i], 60), [tag("code", name(seen.names[i]))]
    if seen.answers:
        answer = seen.answers[i]
        confidence = f", confidence {percent(answer.score)}"
        alt += f", predicted as {printable(answer.label, 60)}{confidence}"
        lines.insert(0, tag("span", "answer: ", tag("b", name(answer.label)), confidence))
    small = shrink(Image.fromarray(seen.pixels[i]), tiny=SIDE).address
    return tag("figure", tag("img", src=small, alt=alt), tag("figcaption", *lines))
