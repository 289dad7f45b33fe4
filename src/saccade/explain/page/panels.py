"""The two panels of the page that are clicked: which places speak for a class, and where a patch looks."""

import base64
import io
from collections.abc import Iterable

from PIL import Image

from saccade.explain.describe import titled
from saccade.explain.page.attention_data import Gaze
from saccade.explain.page.content import Story, Way
from saccade.report.html import Html, name, section, soft, tag
from saccade.wording import percent

TINY = 64
"""Pixels of a side up to which each is to be seen as a square."""


def looks() -> Html:
    return tag(
        "div",
        tag(
            "label",
            "Heat ",
            Html('<input type="range" id="strength" min="0" max="100" value="85">'),
        ),
        tag("label", Html('<input type="checkbox" id="smooth">'), " smooth"),
        tag("label", Html('<input type="checkbox" id="lines" checked>'), " grid"),
        cls="looks",
        role="group",
        aria_label="How the maps are drawn",
    )


def _stage(story: Story, kind: str, label: str) -> Html:
    width, height = story.picture.size
    seen = tag("img", src=_picture(story.picture), alt=f"The picture as the model sees it: {story.name}")
    heat = tag("canvas", id=f"{kind}-canvas", role="img", aria_label=label)
    grid = tag("div", role="grid", aria_label=label)
    tiny = " tiny" if max(width, height) <= TINY else ""
    return tag(
        "div",
        seen,
        heat,
        grid,
        id=f"{kind}-stage",
        cls=f"stage{tiny}",
        style=f"aspect-ratio: {width} / {height}",
    )


def _picture(picture: Image.Image) -> Html:
    file = io.BytesIO()
    if max(picture.size) <= TINY:
        return _address("png", _saved(picture, file, "PNG"))
    return _address("jpeg", _saved(picture, file, "JPEG"))


def _saved(picture: Image.Image, file: io.BytesIO, kind: str) -> bytes:
    picture.save(file, kind, quality=90)
    return file.getvalue()


def _address(kind: str, data: bytes) -> Html:
    return Html(f"data:image/{kind};base64,{base64.b64encode(data).decode()}")


def _choice(group: str, value: object, chosen: bool, *inner: str) -> Html:
    ticked = " checked" if chosen else ""
    radio = Html(f'<input type="radio" name="{group}" value="{value}"{ticked}>')
    return tag("label", radio, *inner, cls="choice")


def _fieldset(legend: str, cls: str, choices: Iterable[Html]) -> Html:
    return tag("fieldset", tag("legend", legend), tag("div", *choices, cls=cls))


def _classes(story: Story) -> Html:
    def level(share: float) -> Html:
        return tag("span", cls="level", style=f"width: {max(0.0, min(1.0, share)) * 100:.1f}%")

    return _fieldset(
        "What speaks for",
        "choices",
        (
            _choice(
                "class",
                each.index,
                i == 0,
                tag("span", name(each.label)),
                tag("span", percent(each.score), cls="amount"),
                level(each.score),
            )
            for i, each in enumerate(story.answers)
        ),
    )


def _methods(story: Story) -> Html:
    return _fieldset(
        "According to",
        "choices methods",
        (
            _choice("method", way.name, way.name == story.method, tag("span", titled(way.name)), _mark(way))
            for way in story.ways
        ),
    )


def _mark(way: Way) -> Html:
    good = {True: "good", False: "bad", None: None}[way.good]
    return tag("small", way.verdict, cls=good) if way.verdict else tag("small")


def _tops(kind: str, caption: str, amount: str) -> Html:
    head = tag(
        "tr",
        tag("th", "", scope="col", aria_label="Rank"),
        tag("th", "Where", scope="col"),
        tag("th", amount, scope="col"),
    )
    return tag(
        "table",
        tag("caption", caption),
        tag("thead", head),
        tag("tbody", id=f"{kind}-rows"),
        cls="tops",
    )


def _here(kind: str) -> Html:
    return tag("p", "", id=f"{kind}-here", cls="here")


def map_panel(title: str, story: Story) -> Html:
    cold = tag("span", tag("i", cls="cold"), "against it", id="map-key", hidden="hidden")
    key = tag("div", tag("span", "little ", tag("i"), " much for it"), cold, cls="key", aria_hidden="true")
    left = tag("div", _stage(story, "map", "Heat map over the picture"), key, _here("map"))
    right = tag(
        "div",
        _classes(story),
        _methods(story),
        tag("div", tag("p", id="map-told", aria_live="polite"), tag("p", id="map-score", cls="verdict")),
        _tops("map", "The hottest places", "Share of the heat"),
        cls="panel",
    )
    return section("map", title, tag("div", left, right, cls="pair"))


def gaze_panel(title: str, story: Story) -> Html:
    if story.gaze is None:
        return section("gaze", title, soft(story.why))
    gaze = story.gaze
    count = len(gaze.layers)
    slider = Html(f'<input type="range" id="layer" min="1" max="{count}" value="{count}">')
    layers = tag(
        "div",
        Html('<label for="layer"><b>Layer</b></label>'),
        slider,
        Html('<output id="layer-said" for="layer"></output>'),
        cls="slide",
    )
    left = tag(
        "div",
        tag("div", id="fronts", cls="tokens", role="group", aria_label="Tokens that are no patch"),
        _stage(story, "gaze", "Where the chosen token looks"),
        _here("gaze"),
    )
    right = tag(
        "div",
        layers,
        *([_heads(gaze)] if not gaze.averaged and gaze.heads > 1 else []),
        tag("p", id="gaze-told", aria_live="polite"),
        _tops("gaze", "Where it looks most", "Share of its attention"),
        cls="panel",
    )
    atlas = tag(
        "figure",
        tag("h3", "Every layer and head at once"),
        tag("div", id="atlas", cls="atlas", role="img", aria_label="Small maps of every layer and head"),
        tag("figcaption", "Click one to see it large; layer and head can be chosen above too."),
    )
    lead = "Choose a patch: the others light up as much as it takes from them. "
    return section("gaze", title, tag("p", lead, gaze.told), tag("div", left, right, cls="pair"), atlas)


def _heads(gaze: Gaze) -> Html:
    words = ["mean", *(str(head + 1) for head in range(gaze.heads))]
    return _fieldset(
        "Head",
        "heads",
        (_choice("head", i - 1, i == 0, tag("span", word)) for i, word in enumerate(words)),
    )
