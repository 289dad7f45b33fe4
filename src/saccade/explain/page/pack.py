"""What the script of the page reads: maps to the last bit, attention as packed bytes, words about them."""

import base64
import json
import zlib
from typing import Any

import numpy as np

from saccade.explain.describe import alt, at, tenth, where
from saccade.explain.page.attention_data import Gaze
from saccade.explain.page.content import Shown, Story, Way
from saccade.report.html import Html
from saccade.wording import number, percent


def data(story: Story) -> Html:
    known = {
        "maps": [_one(story, each) for each in story.maps],
        "attention": None if story.gaze is None else _packed(story.gaze),
    }
    inner = json.dumps(known, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return Html(f'<script type="application/json" id="data">{inner}</script>')


def _one(story: Story, each: Shown) -> dict[str, Any]:
    label = next((a.label for a in story.answers if a.index == each.target), "every class")
    way = next(way for way in story.ways if way.name == each.method)
    rows, columns = each.grid.shape
    first = each.target in (None, story.answers[0].index)
    return {
        "method": each.method,
        "target": each.target,
        "rows": rows,
        "columns": columns,
        "values": _base64(each.grid.astype("<f4")),
        "alt": alt(each.grid, each.method, label, story.name),
        "told": _told(each, way, label),
        "verdict": _verdict(way) if first else "",
        "good": way.good if first else None,
    }


def _told(each: Shown, way: Way, label: str) -> str:
    if not (each.grid > 0).any():
        return f"No place of the picture speaks for {label!r}."
    held = f"the hottest tenth holds {percent(tenth(each.grid), 0)} of the heat"
    if not way.by_class:
        lead = "This method knows no classes: its map is the same for each of them. "
        return f"{lead}Most of the heat is {at(where(each.grid))}; {held}."
    return f"Most of what speaks for {label!r} is {at(where(each.grid))}; {held}."


def _verdict(way: Way) -> str:
    if not way.verdict:
        return ""
    gain = f" (gain {number(way.figures['gain'])})" if "gain" in way.figures else ""
    return f"{way.verdict[0].upper()}{way.verdict[1:]}: {way.reason}{gain}."


def _packed(gaze: Gaze) -> dict[str, Any]:
    return {
        "layers": list(gaze.layers),
        "depth": gaze.depth,
        "heads": gaze.heads,
        "kept": gaze.levels.shape[1],
        "grid": list(gaze.grid),
        "front": list(gaze.front),
        "scale": _base64(gaze.scale.astype("<f4")),
        "levels": base64.b64encode(zlib.compress(gaze.levels.tobytes(), 6)).decode(),
    }


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()
