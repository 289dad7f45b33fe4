"""Build HTML from small pieces; anything that is not `Html` is escaped."""

import base64
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from saccade.report.plots import DARK, LIGHT, Cell, Plot, cells, render, save
from saccade.wording import count, percent, printable

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""The page loads and runs nothing, even if something is not escaped; see `page` for its script."""
EMPTY = frozenset({"img", "input", "meta", "source"})
LONGEST = 2000
"""Most characters of a piece of text; no real name is longer."""
MOST = 500
"""Rows of a table of settings or files; the file itself has the rest."""


class Card(NamedTuple):
    """A thumbnail (a data: address, or nothing) and its caption."""

    thumbnail: str
    label: str
    name: str = ""
    path: str = ""
    predicted: str = ""
    score: float = math.nan
    map: str = ""
    """A second image, of the evidence for the prediction."""


class Html(str):
    """Text that is meant as markup."""

    __slots__ = ()


def text(value: object) -> Html:
    """Return untrusted text as one line, without markup, control characters or changes of direction."""
    return value if isinstance(value, Html) else Html(escape(printable(value, LONGEST)))


def tag(kind: str, /, *inner: str, **attributes: object) -> Html:
    """Return an element: `tag("p", "hi", cls="note")`.

    `cls` is class, `_` in a name is `-`, None leaves an attribute out.
    """
    said = {"class" if key == "cls" else key.replace("_", "-"): value for key, value in attributes.items()}
    opening = kind + "".join(f' {key}="{_quoted(value)}"' for key, value in said.items() if value is not None)
    return Html(f"<{opening}>" if kind in EMPTY else f"<{opening}>{''.join(map(text, inner))}</{kind}>")


def _quoted(value: object) -> str:
    return value if isinstance(value, Html) else escape(printable(value, LONGEST))


def name(value: object) -> Html:
    """Return the name of a class or file, isolated so that its text direction stays its own."""
    return tag("bdi", printable(value))


def joined(parts: Iterable[str]) -> Html:
    """Join pieces."""
    return Html("".join(map(text, parts)))


def soft(sentence: str) -> Html:
    """Return a muted sentence, such as why something is left out."""
    return tag("p", sentence, cls="soft")


def section(anchor: str, title: str, *inner: str) -> Html:
    """Return a section that the list at the top links to."""
    return tag(
        "section",
        tag("h2", title, id=f"{anchor}-title"),
        *inner,
        id=anchor,
        aria_labelledby=f"{anchor}-title",
    )


def pre(lines: str) -> Html:
    """Return preformatted text."""
    shown_lines = Html("\n".join(map(text, lines.rstrip("\n").split("\n"))))
    return tag("pre", tag("code", shown_lines), tabindex="0")


def flat(value: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    """Yield nested JSON as dotted names and values."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from flat(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def settings(value: Mapping[str, Any], caption: str) -> Html:
    """Return a table of dotted names and their values."""
    rows = [(key, said) for key, said in flat(value) if said]
    left = count(len(rows) - MOST, "more row") + " in the file." if len(rows) > MOST else ""
    body = joined(
        tag("tr", tag("th", name(key), scope="row"), tag("td", name(said))) for key, said in rows[:MOST]
    )
    whole = tag("table", tag("caption", caption), tag("tbody", body), cls="settings")
    return joined([tag("div", whole), *([tag("p", left)] if left else [])])


def table(
    anchor: str, caption: str, heads: Sequence[str], rows: Sequence[Sequence[tuple[str, Cell]]]
) -> Html:
    """Return a table of (as shown, exact value); the exact value of a rounded number is in its <data>."""
    head = tag("tr", *(tag("th", tag("span", name(each)), scope="col") for each in heads))
    body = joined(tag("tr", _cell(row[0], first=True), *(_cell(cell) for cell in row[1:])) for row in rows)
    wide = "matrix" if len(heads) > 12 else None
    whole = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", body), id=anchor, cls=wide)
    return _scrolling(whole, caption)


def _cell(cell: tuple[str, Cell], first: bool = False) -> Html:
    said, value = cell
    inner = tag("data", said, value=repr(value)) if isinstance(value, float) else name(said)
    inner = text(said) if isinstance(value, int) else inner
    kind = None if isinstance(value, str) else "n"
    return tag("th", inner, scope="row", cls=kind) if first else tag("td", inner, cls=kind)


def _scrolling(inner: Html, label: str) -> Html:
    # focusable, so that the keyboard can scroll to its right end
    return tag("div", inner, cls="scroll", role="region", aria_label=label, tabindex="0")


def source(picture: bytes) -> Html:
    """Return a PNG as a data: address."""
    return Html(f"data:image/png;base64,{base64.b64encode(picture).decode()}")


def figure(plot: Plot, light: bytes, dark: bytes) -> Html:
    """Return a plot for light and dark pages, its message, and its numbers one click away."""
    image = tag(
        "picture",
        tag("source", srcset=source(dark), media="(prefers-color-scheme: dark)"),
        tag(
            "img",
            src=source(light),
            alt=plot.message,
            width=round(plot.width * 115),
            height=round(plot.height * 115),
        ),
    )
    numbers = table(
        f"{plot.name}-numbers",
        f"{plot.title}: the numbers",
        list(plot.columns),
        cells(plot.columns, plot.rows),
    )
    wide = plot.width > 6
    return tag(
        "figure",
        tag("h3", plot.title),
        tag(
            "div",
            image,
            cls="scroll plot",
            **({"role": "region", "aria_label": plot.title, "tabindex": "0"} if wide else {}),
        ),
        tag("figcaption", tag("strong", plot.message), " " if plot.note else "", plot.note),
        tag(
            "details", tag("summary", f"{plot.title}: the numbers ({count(len(plot.rows), 'row')})"), numbers
        ),
        id=plot.name,
        cls="wide" if wide else None,
    )


Draw = Callable[[Plot | str], Html]
"""Renders a plot as a figure, or the reason for its absence as a sentence."""


def drawing(folder: Path | None) -> Draw:
    """Return a function that shows plots, and saves them below a folder if there is one."""

    def draw(plot: Plot | str) -> Html:
        if isinstance(plot, str):
            return soft(plot)
        light = render(plot, LIGHT) if folder is None else save(plot, folder / "plots")
        return figure(plot, light, render(plot, DARK))

    return draw


def tiles(cells: Iterable[tuple[str, str, str]]) -> Html:
    """Return numbers in large print: title, value, and a short explanation of each."""
    made = (tag("div", tag("dt", t), tag("dd", value, tag("small", words))) for t, value, words in cells)
    return tag("dl", *made, cls="tiles")


def gallery(pictures: Iterable[Card]) -> Html:
    """Return thumbnails with their captions; in wider places where they have a second image."""
    shown = list(pictures)
    kind = "gallery wide" if any(picture.map for picture in shown) else "gallery"
    return tag("ul", *(tag("li", _card(picture)) for picture in shown), cls=kind)


def _card(picture: Card) -> Html:
    title = printable(picture.name or "Training image", 60)
    alt = f"{title}, labelled {printable(picture.label, 60)}"
    lines = [tag("span", "label: ", tag("b", name(picture.label)))]
    if picture.predicted:
        alt += f", predicted {printable(picture.predicted, 60)} (confidence {percent(picture.score)})"
        lines.insert(
            0,
            tag(
                "span",
                "predicted: ",
                tag("b", name(picture.predicted)),
                f", confidence {percent(picture.score)}",
            ),
        )
    if picture.path or picture.name:
        lines.append(tag("code", name(picture.path or picture.name)))
    image = (
        tag("img", src=Html(picture.thumbnail), alt=alt)
        if picture.thumbnail
        else tag("span", "no thumbnail", cls="none")
    )
    if picture.map:
        seen = f"The evidence for {printable(picture.predicted, 60)} in it"
        image = tag("div", image, tag("img", src=Html(picture.map), alt=seen), cls="beside")
    return tag("figure", image, tag("figcaption", *lines))


def json_script(anchor: str, value: Any) -> Html:
    """Return data for a script of the page; nothing in it can end the element."""
    inner = json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return tag("script", Html(inner), type="application/json", id=anchor)


def asset(package: str, file: str) -> str:
    """Return the text of a style or script in a package's folder."""
    return files(package).joinpath(file).read_text(encoding="utf-8")


def page(title: str, body: Html, links: Mapping[str, str], style: str = "", script: str = "") -> str:
    """Return the whole file, with its style and nothing from elsewhere.

    Args:
        script: The whole script; the policy allows exactly this text, by its hash, and no other.
    """
    style = asset("saccade.report", "page.css") + style
    digest = base64.b64encode(sha256(script.encode()).digest()).decode()
    policy = f"{POLICY}; script-src 'sha256-{digest}'" if script else POLICY
    head = joined(
        [
            Html('<meta charset="utf-8">'),
            tag("meta", http_equiv="Content-Security-Policy", content=policy),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("meta", name="generator", content="saccade"),
            tag("title", title),
            tag("style", Html(style)),
        ]
    )
    items = joined(tag("li", tag("a", said, href=f"#{anchor}")) for anchor, said in links.items())
    nav = tag("nav", tag("ul", items), aria_label="Parts of this report")
    skip = tag("a", "Skip to the report", href="#main", cls="skip")
    main = tag("main", body, id="main", tabindex="-1")
    end = [tag("script", Html(script))] if script else []
    whole = tag("html", Html(f"\n<head>{head}</head>\n"), tag("body", skip, nav, main, *end), lang="en")
    return f"<!doctype html>\n{whole}\n"
