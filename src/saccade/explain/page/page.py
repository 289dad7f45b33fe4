"""The page about one picture: click a patch and see where it looks; one file, no server, no network."""

from importlib.resources import files

from saccade.explain.describe import alt, at, listing, tenth, titled, where
from saccade.explain.page.content import Grid, Story, Way
from saccade.explain.page.depths import depth_panel
from saccade.explain.page.pack import data
from saccade.explain.page.panels import gaze_panel, looks, map_panel
from saccade.report import html as show
from saccade.report.html import Html, joined, name, section, soft, table, tag
from saccade.report.plots import cells
from saccade.wording import percent

LINKS = {
    "map": "Why this answer",
    "gaze": "Where a patch looks",
    "depth": "Layer by layer",
    "truth": "Can it be trusted?",
    "about": "About this page",
}
MEANT = (
    "The model itself is asked: patches are blurred away, the hottest first (deletion), or put back into the "
    "blurred picture, the hottest first (insertion), while the probability of the class is watched. Gain is "
    "insertion less deletion. Positive and negative are how often the answer stays while the hottest or the "
    "coldest go. A map is better than random if hardly any of many random maps gains as much, and the same "
    "method on shuffled weights does not either."
)


def page(story: Story) -> str:
    """The whole file."""
    parts = {
        "map": map_panel(LINKS["map"], story),
        "gaze": gaze_panel(LINKS["gaze"], story),
        "depth": depth_panel(LINKS["depth"], story) if story.lens else None,
        "truth": _truth(story),
        "about": _about(story),
    }
    links = {anchor: said for anchor, said in LINKS.items() if parts[anchor] is not None}
    body = joined([_head(story), *(part for part in parts.values() if part is not None), data(story)])
    title = f"{story.name}: {story.answers[0].label}: saccade explain"
    return show.page(title, body, links, _asset("page.css"), _asset("page.js"))


def _asset(file: str) -> str:
    return files("saccade.explain.page").joinpath(file).read_text(encoding="utf-8")


def _head(story: Story) -> Html:
    answer, way = story.answers[0], next(way for way in story.ways if way.name == story.method)
    grid = story.map(way.name, answer.index).grid
    said = [f"The model is {percent(answer.score)} sure of it. ", _first(grid, way)]
    return joined(
        [
            tag("h1", "Why ", name(answer.label), "?"),
            tag("p", tag("code", name(story.name)), " · ", tag("code", name(story.model)), cls="soft"),
            tag("p", *said),
            tag("noscript", _still(story)),
            looks(),
        ]
    )


def _first(grid: Grid, way: Way) -> str:
    """The map shown first, in words."""
    if not (grid > 0).any():
        return f"The map of {titled(way.name)} finds nothing in the picture that speaks for it."
    measured = f" Measured on the model itself, this map is {way.verdict}." if way.verdict else ""
    return (
        f"The map of {titled(way.name)} has most of its heat {at(where(grid))}: the hottest tenth of the "
        f"picture holds {percent(tenth(grid), 0)} of it.{measured}"
    )


def _still(story: Story) -> Html:
    """What is there to see where no script may run."""
    words = tag("p", "Scripts are switched off here, so that nothing can be clicked; the words remain.")
    first = story.map(story.method, story.answers[0].index)
    return joined([words, tag("p", alt(first.grid, first.method, story.answers[0].label, story.name))])


def _truth(story: Story) -> Html | None:
    known = [way for way in story.ways if way.figures]
    if not known:
        return None
    known.sort(key=lambda way: -way.figures.get("gain", 0.0))
    kinds = list(dict.fromkeys(kind for way in known for kind in way.figures))
    heads = {
        "method": "text",
        "verdict": "text",
        **dict.fromkeys(kinds, "number"),
        "why": "text",
        "from": "text",
    }
    rows = [
        (titled(way.name), way.verdict, *(way.figures.get(kind) for kind in kinds), way.reason, way.source)
        for way in known
    ]
    good = [titled(way.name) for way in known if way.good]
    lead = (
        f"Better than random on this picture: {listing(good)}."
        if good
        else "No map of this picture is better than a random one: do not read them as reasons."
    )
    return section(
        "truth",
        LINKS["truth"],
        tag("p", tag("strong", lead)),
        table("truth-numbers", f"Measured for {story.answers[0].label!r}", list(heads), cells(heads, rows)),
        soft(MEANT),
    )


def _about(story: Story) -> Html:
    rounding = (
        "Attention is kept in whole steps of 1/255 of the largest number of its row, so that a number here "
        "is within half a step of the model's own. "
        if story.gaze is not None
        else ""
    )
    left = f"Left out, as they take long: {listing(story.left)} (--all adds them). " if story.left else ""
    return section(
        "about",
        LINKS["about"],
        tag(
            "p",
            "One file, without a network or a server: it can be sent by mail and opened in ten years. "
            "The maps are the very numbers of ",
            tag("code", "model.explain"),
            f" in Python. {rounding}{left}Rows and columns count from 1, at the upper left.",
            cls="soft",
        ),
    )
