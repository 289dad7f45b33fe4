"""The page about one image: click a patch to see what it attends to; one file, no server, no network."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from saccade.explain.explanation import (
    Explanation,
    MapValues,
    alt_text,
    at_region,
    hottest_region,
    hottest_tenth,
    join_words,
    method_title,
)
from saccade.explain.faithfulness.fills import BLUR, FILLS
from saccade.explain.faithfulness.meter import BETTER, UNJUDGED
from saccade.explain.page.attention_data import to_base64
from saccade.explain.page.content import MethodResult, PageContent, PageMap
from saccade.explain.page.panels import attention_panel, depth_panel, drawing_controls, map_panel
from saccade.report import html
from saccade.report.html import Html, asset, joined, json_script, name, section, soft, table, tag
from saccade.report.plots import cells
from saccade.report.thumbnails import shrink
from saccade.wording import count, percent

LINKS = {
    "map": "Why this answer",
    "gaze": "What a patch attends to",
    "depth": "Layer by layer",
    "truth": "Can it be trusted?",
    "about": "About this page",
}
MEANT = (
    "How it is measured: the model answers again and again while the image is taken apart in the order of "
    "the map. Deletion: the hottest cells are {fill} first; the probability of the class should fall early. "
    "Insertion: the hottest are put back first; it should rise early. Gain is insertion minus deletion. "
    "Positive and negative: how often the answer stays the same while the hottest or the coldest are "
    "deleted. A map is better than random if hardly any of 40 random maps gains as much and the same method "
    "gains less on a model with shuffled weights."
)
SIDE = 200
"""Pixels of a thumbnail in the index."""


def render_page(content: PageContent) -> str:
    """Return the whole file."""
    parts = {
        "map": map_panel(LINKS["map"], content),
        "gaze": attention_panel(LINKS["gaze"], content),
        "depth": depth_panel(LINKS["depth"], content) if content.lens else None,
        "truth": _faithfulness(content),
        "about": _about(content),
    }
    links = {anchor: title for anchor, title in LINKS.items() if parts[anchor] is not None}
    body = joined([_head(content), *(part for part in parts.values() if part is not None), _data(content)])
    title = f"{content.name}: {content.answers[0].label}: saccade explain"
    style, script = (asset("saccade.explain.page", file) for file in ("page.css", "page.js"))
    return html.page(title, body, links, style, script)


def _head(content: PageContent) -> Html:
    answer = content.answers[0]
    result = next(each for each in content.results if each.name == content.method)
    grid = content.map(result.name, answer.index).grid
    alt = alt_text(grid, result.name, answer.label, content.name)
    return joined(
        [
            tag("h1", "Why ", name(answer.label), "?"),
            tag("p", tag("code", name(content.name)), " · ", tag("code", name(content.model)), cls="soft"),
            tag("p", f"The model's confidence is {percent(answer.score)}. ", _first_map(grid, result)),
            tag("noscript", tag("p", "Scripts are disabled, so nothing can be clicked."), tag("p", alt)),
            drawing_controls(),
        ]
    )


def _first_map(grid: MapValues, result: MethodResult) -> str:
    """Describe the map shown first."""
    title = method_title(result.name)
    if not (grid > 0).any():
        return f"The map of {title} finds no evidence for it in the image."
    measured = {
        "": "",
        BETTER: f" Tested on the model, this map is better than random. {result.words}",
        UNJUDGED: f" It cannot be judged: {result.reason}.",
    }.get(result.verdict, f" Tested on the model, this map is not better than random: {result.reason}.")
    return (
        f"The map of {title} has most of its heat {at_region(hottest_region(grid))}: the hottest tenth of "
        f"the image holds {percent(hottest_tenth(grid), 0)} of it.{measured}"
    )


def _faithfulness(content: PageContent) -> Html | None:
    known = [result for result in content.results if result.figures]
    if not known:
        return None
    known.sort(key=lambda result: -result.figures.get("gain", 0.0))
    kinds = list(dict.fromkeys(kind for result in known for kind in result.figures))
    words = dict.fromkeys(("method", "verdict"), "text")
    heads = {**words, **dict.fromkeys(kinds, "number"), "why": "text", "from": "text"}
    rows = [
        (
            *(method_title(result.name), result.verdict),
            *(result.figures.get(kind) for kind in kinds),
            *(result.reason, result.source),
        )
        for result in known
    ]
    plain = dict.fromkeys(("method", "verdict", "what the test shows"), "text")
    lines = [(method_title(r.name), r.verdict, r.words or r.reason) for r in known]
    return section(
        "truth",
        LINKS["truth"],
        tag("p", tag("strong", _lead(known))),
        table("truth-words", f"Tested for {content.answers[0].label!r}", list(plain), cells(plain, lines)),
        tag(
            "details",
            tag("summary", "All numbers, and how they are measured"),
            table("truth-numbers", "Measured", list(heads), cells(heads, rows)),
            soft(MEANT.format(fill=FILLS[content.fill or BLUR])),
        ),
    )


def _lead(known: Sequence[MethodResult]) -> str:
    tested = [result for result in known if result.good is not None]
    if good := [method_title(result.name) for result in tested if result.good]:
        return f"Better than random on this image: {join_words(good)}."
    if tested and tested[0].verdict == UNJUDGED:
        return f"No map of this image can be judged: {tested[0].reason}."
    return "No map of this image is better than a random one; they should not be trusted."


def _about(content: PageContent) -> Html:
    rounding = (
        "Attention is rounded to steps of 1/255 of the largest number in its row, so a number here is within "
        "half a step of the model's own. "
        if content.attention is not None
        else ""
    )
    left = (
        f"Skipped because they are slow: {join_words(content.left)} (--all adds them). "
        if content.left
        else ""
    )
    return section(
        "about",
        LINKS["about"],
        tag(
            "p",
            "One file that needs no network and no server: mail it, or open it in ten years. "
            "The maps are the exact numbers of ",
            tag("code", "model.explain"),
            f" in Python. {rounding}{left}Rows and columns count from 1 at the upper left.",
            cls="soft",
        ),
    )


def _data(content: PageContent) -> Html:
    """Return what the script reads: maps to the last bit, packed attention, and sentences about them."""
    packed = None if content.attention is None else content.attention.to_json()
    return json_script(
        "data", {"maps": [_map_data(content, each) for each in content.maps], "attention": packed}
    )


def _map_data(content: PageContent, each: PageMap) -> dict[str, Any]:
    label = next((a.label for a in content.answers if a.index == each.target), "every class")
    result = next(result for result in content.results if result.name == each.method)
    rows, columns = each.grid.shape
    first = each.target in (None, content.answers[0].index)
    return {
        "method": each.method,
        "target": each.target,
        "rows": rows,
        "columns": columns,
        "values": to_base64(each.grid.astype("<f4")),
        "alt": alt_text(each.grid, each.method, label, content.name),
        "summary": _describe_map(each, result, label),
        "verdict": _describe_verdict(result) if first else "",
        "good": result.good if first else None,
    }


def _describe_map(each: PageMap, result: MethodResult, label: str) -> str:
    if not (each.grid > 0).any():
        return f"The map finds no evidence for {label!r} in the image."
    where = at_region(hottest_region(each.grid))
    share = f"the hottest tenth holds {percent(hottest_tenth(each.grid), 0)} of the heat"
    if not result.by_class:
        lead = "This method does not distinguish classes: its map is the same for all of them. "
        return f"{lead}Most of the heat is {where}; {share}."
    return f"Most of the evidence for {label!r} is {where}; {share}."


def _describe_verdict(result: MethodResult) -> str:
    if not result.verdict:
        return ""
    words = f" {result.words}" if result.words else ""
    return f"{result.verdict[0].upper()}{result.verdict[1:]}: {result.reason}.{words}"


def render_index(entries: Sequence[tuple[Explanation, str]], model: str) -> str:
    """Return a page that links to the pages of several images, which are in the same folder."""
    images = count(len(entries), "image")
    cards = tag("ul", *(tag("li", _card(*entry)) for entry in entries), cls="gallery")
    body = [
        tag("h1", f"Why these answers: {images}"),
        tag("p", tag("code", name(model)), cls="soft"),
        section("pictures", "Images", cards),
    ]
    return html.page(f"{model}: {images}: saccade explain", joined(body), {"pictures": "Images"})


def _card(explanation: Explanation, file: str) -> Html:
    heatmap = explanation.heatmap
    seen, small = (
        shrink(picture, SIDE, tiny=0, quality=85).address
        for picture in (explanation.enlarged(), explanation.overlay())
    )
    words = tag(
        "figcaption",
        tag(
            "span",
            tag("b", name(heatmap.label)),
            f", confidence {percent(heatmap.probability)}" if heatmap.value is None else f" {heatmap.answer}",
        ),
        tag("span", f"{method_title(heatmap.method)}: {explanation.where}"),
        *([] if explanation.verdict is None else [tag("span", explanation.verdict.word)]),
        tag("code", name(explanation.name)),
    )
    both = (
        tag("img", src=seen, alt=f"The image {explanation.name}"),
        tag("img", src=small, alt=explanation.alt),
    )
    link = tag("a", tag("span", *both, cls="beside"), href=Html(quote(file)))
    return tag("figure", link, words)
