"""Write explanations: a PNG and a JSON for each image, and interactive pages.

Importing this file does not import torch, so that an unwritable path is refused at once.
"""

from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from saccade.errors import UsageError
from saccade.files.atomic import replacing, write_text
from saccade.files.strict_json import write_json
from saccade.report.plots import LIGHT, drawable, render_figure

if TYPE_CHECKING:
    from saccade.explain.explanation import Explanation
    from saccade.explain.page.content import PageContent

PAGES = (".html", ".htm")
WIDTH = 7.0
"""Inches of a PNG."""
COLUMNS = 92
"""Characters of a line of its caption."""


def check_page(html: Path, pictures: int, noun: str = "images") -> None:
    """Refuse a page that cannot be written, before any work is done."""
    if pictures > 1:
        raise UsageError(
            f"{pictures} {noun} were given, and {html} is one page; give a folder, such as --html "
            f"{html.with_suffix('')}"
        )
    if html.exists():
        raise UsageError(f"{html} exists; nothing was written; give another name")
    if not html.parent.is_dir():
        raise UsageError(f"{html} cannot be written: the folder {html.parent} does not exist; create it")


def is_page(html: Path) -> bool:
    """Whether the path names one page rather than a folder of pages."""
    return html.suffix.lower() in PAGES


@dataclass
class ExplanationWriter:
    """Writes one explanation after another, each file whole or not at all."""

    model: str
    html: Path | None = None
    """One page, or a folder of pages."""
    out: Path | None = None
    """An existing folder for pictures and numbers."""
    entries: "list[tuple[Explanation, str]]" = field(default_factory=list)
    """What the index lists, each with the file of its page."""
    taken: set[str] = field(default_factory=set)

    def write(self, explanation: "Explanation", content: "PageContent | None") -> None:
        """Write the files of one image."""
        stem = self._stem(explanation.name)
        if self.out is not None:
            _write_picture(self.out, stem, explanation)
        if self.html is not None and content is not None:
            from saccade.explain.page.page import render_page

            if is_page(self.html):
                write_text(self.html, render_page(content))
                return
            self.html.mkdir(parents=True, exist_ok=True)
            write_text(self.html / f"{stem}.html", render_page(content))
            self.entries.append((explanation, f"{stem}.html"))

    def finish(self) -> Path | None:
        """Write the index of a folder of pages; return the page to open first."""
        if self.html is None or is_page(self.html):
            return self.html if self.html is not None and self.html.exists() else None
        if not self.entries:
            return None
        from saccade.explain.page.page import render_index

        write_text(self.html / "index.html", render_index(self.entries, self.model))
        return self.html / "index.html"

    def _stem(self, name: str) -> str:
        """Return a file stem that no other image has."""
        first = "stdin" if name == "-" else Path(name).stem[:100]
        stem, number = first, 1
        while stem.casefold() in {*self.taken, "index"}:
            number += 1
            stem = f"{first}-{number}"
        self.taken.add(stem.casefold())
        return stem


def caption(explanation: "Explanation") -> str:
    """Return the verdict in words, in lines that fit below the images."""
    words = drawable(explanation.words or "The map was not tested.", explanation.heatmap.method, 1000)
    return fill(words, COLUMNS, break_long_words=False)


def draw_explanation(explanation: "Explanation") -> bytes:
    """Return a PNG: the image, the map over it, a colour bar, and the verdict in words."""
    from saccade.explain.explanation import method_title

    heatmap = explanation.heatmap
    words = caption(explanation)
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
        figure.supxlabel(words, fontsize=9, x=0.02, ha="left")

    return render_figure(draw, WIDTH, tall, LIGHT)


def _colour_bar(figure: Any, axes: Any, signed: bool) -> None:
    from matplotlib.cm import ScalarMappable

    from saccade.explain.heatmap import DIVERGING, SEQUENTIAL

    colours = ScalarMappable(cmap=DIVERGING if signed else SEQUENTIAL)
    colours.set_clim(-1 if signed else 0, 1)
    bar = figure.colorbar(colours, ax=axes, fraction=0.04, pad=0.02)
    ticks = {-1: "against", 0: "none", 1: "for"} if signed else {0: "least", 1: "most"}
    bar.set_ticks(list(ticks), labels=list(ticks.values()))
    bar.outline.set_visible(False)


def _write_picture(folder: Path, stem: str, explanation: "Explanation") -> None:
    made = draw_explanation(explanation)
    with replacing(folder / f"{stem}.png", len(made)) as opened:
        opened.write(made)
    write_json(folder / f"{stem}.json", explanation.to_json(), indent=None, escape=True, finite=True)
