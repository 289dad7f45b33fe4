"""The page of a survey: an interactive map, scores, copies and label errors in one file."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from saccade.embedding.embedded import Sketches
from saccade.embedding.neighbours import neighbours
from saccade.embedding.projection import WAYS
from saccade.embedding.survey import Survey
from saccade.files.atomic import write_text
from saccade.report import html
from saccade.report.html import Html, asset, figure, joined, json_script, name, section, soft, table, tag
from saccade.report.plots import DARK, Axes, Ink, Plot, drawable, render, save
from saccade.wording import count, number, percent, printable

PAGE = "map.html"
NEAR = 6
"""Neighbours of an image that the page shows."""
MOST = 60
"""Most copies and label errors on the page; report.json has all."""
COLOURS = (
    "#2f81d8", "#d9730d", "#2f9e44", "#c2255c", "#8250df",
    "#0c8599", "#a5750b", "#e64980", "#5c7cfa", "#748b00",
)  # fmt: skip
MARKS = "os^DP"
LEGEND = 20
SCORES = {
    "knn": ("k nearest neighbours", "the most frequent class among the neighbours"),
    "nearest": ("nearest neighbour", "the class of the nearest image"),
    "pixels": ("raw pixels, k nearest", "the same without a model: the baseline to beat"),
    "few_shot": ("few-shot probe", "least squares on a few images per class; mean of 5 draws"),
    "linear": ("linear probe", "a logistic regression on the vectors"),
    "retrieval": ("retrieval (mAP)", "mean average precision when all others are ranked by distance"),
    "chance": ("most frequent class", "always the same answer"),
}
"""Title of each score, and how it is measured."""


def map_plot(survey: Survey) -> Plot:
    """Return the map as a plot: map.png and map.json."""
    found, way = survey.found, WAYS[survey.map.way]
    used = sorted(set(found.labels[survey.drawn].tolist())) if found.labelled else []
    rows = [
        (found.images.name(i), found.label(i), float(x), float(y))
        for i, (x, y) in zip(survey.drawn.tolist(), survey.map.points, strict=True)
    ]
    message = f"{way} of {count(len(rows), 'image')}"
    message += f" of {count(len(used), 'class')}" if used else ", without labels"
    if not math.isnan(survey.trust):
        message += f"; trustworthiness {percent(survey.trust)}"

    def draw(axes: Axes, ink: Ink) -> None:
        labels = found.labels[survey.drawn]
        size = float(np.clip(4000 / max(len(rows), 1), 4, 40))
        for label in used or [-1]:
            chosen = survey.map.points[labels == label] if used else survey.map.points
            index = used.index(label) if used else 0
            axes.scatter(
                chosen[:, 0], chosen[:, 1], s=size, linewidths=0.3, edgecolors=ink.paper,
                c=COLOURS[max(label, 0) % len(COLOURS)],
                marker=MARKS[max(label, 0) // len(COLOURS) % len(MARKS)],
                label=drawable(found.images.classes[label], f"class {index}", 18) if used else None,
            )  # fmt: skip
        if 1 < len(used) <= LEGEND:
            axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), handletextpad=0.2)
        axes.set_xticks([])
        axes.set_yticks([])

    return Plot(
        name="map",
        title=f"Map of the images ({way})",
        message=f"{message}.",
        note="Near points are similar to the model; distances between far groups mean little, axes nothing.",
        columns={"picture": "text", "label": "text", "x": "number", "y": "number"},
        rows=rows,
        draw=draw,
        width=7.0,
        height=5.2,
        extra={"way": survey.map.way, "trust": None if math.isnan(survey.trust) else survey.trust},
    )


def write_map(folder: Path, survey: Survey, sketches: Sketches, title: str, lead: str = "") -> Path:
    """Write map.png, map.json and the page, which is returned; `lead` is its first sentence."""
    plot = map_plot(survey)
    light = save(plot, folder)
    found = survey.found
    parts = {"map": "Map", "scores": "Scores", "copies": "Copies", "labels": "Labels", "numbers": "Numbers"}
    facts = f"{count(len(found.vectors), 'image')}, vectors of {found.vectors.shape[1]:,} numbers."
    body = joined(
        [
            tag("h1", title),
            tag("p", lead, " ", facts, *(f" Note: {note}." for note in survey.notes)),
            section("map", "Map", _map(survey, sketches, plot)),
            section("scores", "How well the vectors separate the classes", *_scores(survey)),
            section("copies", "Possible copies", *_copies(survey, sketches)),
            section("labels", "Labels that the neighbours contradict", *_labels(survey, sketches)),
            section("numbers", "The map as an image and as numbers", figure(plot, light, render(plot, DARK))),
        ]
    )
    style, script = (asset("saccade.embedding", file) for file in ("map.css", "map.js"))
    write_text(folder / PAGE, html.page(title, body, parts, style, script))
    return folder / PAGE


def _map(survey: Survey, sketches: Sketches, drawn: Plot) -> Html:
    def button(anchor: str, text: str, label: str) -> Html:
        return tag("button", text, type="button", id=anchor, aria_label=label)

    options = [("all", "all images"), ("suspects", "label errors"), ("copies", "possible copies")]
    tools = tag(
        "div",
        button("map-in", "+", "Zoom in"),
        button("map-out", "−", "Zoom out"),
        button("map-whole", "whole map", "Show the whole map"),
        tag(
            "label",
            "show ",
            tag("select", *(tag("option", said, value=key) for key, said in options), id="map-only"),
        ),
        id="map-tools",
        hidden="",
    )
    stage = tag(
        "div",
        tag(
            "canvas",
            drawn.message,
            id="map-canvas",
            tabindex="0",
            role="application",
            aria_label=f"{drawn.message} Arrow keys move from image to image, Enter to the nearest.",
            aria_describedby="map-state",
        ),
        tag("div", id="map-tip", hidden=""),
    )
    keys = tag(
        "p",
        "Point at an image, or focus the map with ",
        tag("kbd", "Tab"),
        " and use the arrow keys; ",
        tag("kbd", "Enter"),
        " moves to the nearest image, ",
        tag("kbd", "+"),
        " and ",
        tag("kbd", "−"),
        " (or the wheel, once the map has focus) zoom. Dashed neighbours have another label.",
        cls="soft",
    )
    stage = tag("div", tag("div", stage, cls="stage"), tools, tag("p", id="map-state", role="status"), keys)
    beside = [tag("div", id="map-picked")]
    if survey.found.labelled:
        find = tag(
            "input", type="search", id="map-find", placeholder="find a class", aria_label="Find a class"
        )
        chooser = tag(
            "div",
            find,
            button("map-all", "all", "Show all"),
            button("map-none", "none", "Hide all"),
            cls="filter",
        )
        group = tag("div", id="map-classes", role="group", aria_label="Classes that are shown")
        beside.append(tag("div", chooser, group))
    data = json_script("map-data", _data(survey, sketches))
    return joined([tag("div", stage, tag("div", *beside, cls="beside"), cls="atlas"), data])


def _data(survey: Survey, sketches: Sketches) -> dict[str, Any]:
    """Return what the script draws, in the order of the map."""
    found, drawn = survey.found, survey.drawn.tolist()
    suspects = {each.row: found.images.classes[each.answer] for each in survey.suspects}
    copies = {row for pair in survey.copies for row in (pair.first, pair.second)}
    low, high = survey.map.points.min(0), survey.map.points.max(0)
    scaled = np.where(high > low, (survey.map.points - low) / np.where(high > low, high - low, 1), 0.5)
    near = neighbours(found.vectors[survey.drawn], NEAR, metric=survey.settings.metric).places
    several = len(set(found.splits)) > 1
    return {
        "classes": [printable(each, 200) for each in found.images.classes] if found.labelled else [],
        "label": found.labels[survey.drawn].tolist(),
        "x": np.round(scaled[:, 0], 4).tolist(),
        "y": np.round(1 - scaled[:, 1], 4).tolist(),
        "row": drawn,
        "names": [found.images.name(i) for i in drawn],
        "split": [found.splits[i] if several else "" for i in drawn],
        "suspect": [printable(suspects.get(i, ""), 200) for i in drawn],
        "copy": [int(i in copies) for i in drawn],
        "near": near.tolist(),
        "thumbs": [sketches.thumbs.get(i, "") for i in drawn],
        "tiny": sketches.tiny,
    }


def _scores(survey: Survey) -> list[Html]:
    rows = [
        [(SCORES[key][0], SCORES[key][0]), (percent(value), value), (SCORES[key][1], SCORES[key][1])]
        for key in SCORES
        if not math.isnan(value := getattr(survey.scores, key))
    ]
    if not rows:
        return [soft("Nothing to score: scores need labels of two or more classes.")]
    k, shots = survey.settings.neighbours, count(survey.settings.shots, "image")
    said = f"Scored: {survey.scored_by}. k is {k}; the few-shot probe is fitted on {shots} per class."
    return [tag("p", said), table("scores-table", "Scores", ["score", "value", "how"], rows)]


def rows_on_page(survey: Survey) -> set[int]:
    """Return the rows whose image is on the page."""
    copies = {row for pair in survey.copies[:MOST] for row in (pair.first, pair.second)}
    doubtful = [each.row for each in survey.suspects[:MOST]]
    return {
        *survey.drawn.tolist(),
        *copies,
        *doubtful,
        *survey.near.places[doubtful, :2].reshape(-1).tolist(),
    }


def _copies(survey: Survey, sketches: Sketches) -> list[Html]:
    if not survey.copies:
        least = f"{survey.settings.alike:g}"
        return [soft(f"No two images have a cosine of {least} or more and are far from all others.")]
    found, cards = survey.found, []
    for pair in survey.copies[:MOST]:
        rows = (pair.first, pair.second)
        words = [tag("span", "cosine ", tag("b", number(pair.cosine)))]
        if found.labelled and found.labels[pair.first] != found.labels[pair.second]:
            words.append(tag("b", "their labels differ"))
        if found.splits[pair.first] != found.splits[pair.second]:
            words.append(tag("b", f"in {found.splits[pair.first]} and in {found.splits[pair.second]}"))
        words += [tag("code", name(found.images.name(row))) for row in rows]
        cards.append(_card(survey, sketches, rows, words))
    return [tag("ul", *cards, cls="pairs"), *_more(len(survey.copies))]


def _labels(survey: Survey, sketches: Sketches) -> list[Html]:
    if not survey.suspects:
        return [soft("The neighbours contradict no label.")]
    found, cards = survey.found, []
    for each in survey.suspects[:MOST]:
        words = [
            tag("span", "label: ", tag("b", name(found.label(each.row)))),
            tag(
                "span",
                "neighbours: ",
                tag("b", name(found.images.classes[each.answer])),
                f", {percent(each.p_answer, 0)}",
            ),
            tag("code", name(found.images.name(each.row))),
        ]
        nearest = [int(i) for i in survey.near.places[each.row][:2]]
        cards.append(_card(survey, sketches, (each.row, *nearest), words))
    return [
        soft("Each image with the two nearest to it."),
        tag("ul", *cards, cls="pairs"),
        *_more(len(survey.suspects)),
    ]


def _card(survey: Survey, sketches: Sketches, rows: Iterable[int], words: list[Html]) -> Html:
    images = [_image(survey, sketches, row) for row in rows]
    return tag("li", tag("figure", tag("div", *images), tag("figcaption", *words)))


def _more(total: int) -> list[Html]:
    return [tag("p", f"{total - MOST:,} more are in report.json.")] if total > MOST else []


def _image(survey: Survey, sketches: Sketches, row: int) -> Html:
    found = survey.found
    if row not in sketches.thumbs:
        return tag("span", "no thumbnail", cls="none")
    label = f", labelled {printable(found.label(row), 60)}" if found.labelled else ""
    alt = f"{printable(found.images.name(row), 80)}{label}"
    return tag("img", src=Html(sketches.thumbs[row]), alt=alt, cls="tiny" if sketches.tiny else None)
