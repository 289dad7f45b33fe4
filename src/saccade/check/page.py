"""Write the page of `saccade check`: everything it found in one file, with thumbnails."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from saccade.check.examine import Balance, DuplicateGroup, Examination, ImageRef
from saccade.data.pictures import Pictures
from saccade.data.splits import Splits
from saccade.errors import UsageError
from saccade.files.atomic import write_text
from saccade.report.html import Html, joined, name, page, section, soft, table, tag
from saccade.report.plots import Cell
from saccade.report.thumbnails import thumbnail
from saccade.wording import count, percent, printable

if TYPE_CHECKING:  # it imports torch, which examining images does not need
    from saccade.check.label_errors import Group, LabelErrors

ENDING = ": saccade check"
"""The end of the title, which identifies a page of `saccade check`."""
PICTURED = 40
"""Groups or suspected labels of one kind shown with thumbnails; the rest are listed by name."""
SIDE_BY_SIDE = 6
"""Thumbnails of one group of duplicates."""
LISTED = 2000
"""Rows of a list; --json has the rest."""
COLOURS = ("var(--accent)", "#bc4c00", "#6e7781")
TWINS = {
    "contradictions": (
        "The same image under two labels",
        "One of the labels is wrong, unless the look-alikes differ in a detail that matters.",
    ),
    "leaks": (
        "The same image in two splits",
        "The model is evaluated on images it was trained on, so its score is too high.",
    ),
    "duplicates": (
        "The same image twice",
        "In one split and under one label: it counts twice, and a new split may separate the copies.",
    ),
}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What `saccade check` found."""

    data: str
    found: Splits[Pictures]
    seen: Examination
    verdict: str
    suspicion: "LabelErrors | None" = None


def check_target(path: Path) -> None:
    """Refuse, before the work starts, a path that cannot be written or that is another file."""
    if not path.name or path.is_dir():
        raise UsageError(f"the page to write is {str(path)!r}, a folder; expected the name of a file in it")
    if not path.parent.is_dir():
        raise UsageError(
            f"{printable(path)} cannot be written: the folder {printable(path.parent)} does not exist; "
            "create it or choose another"
        )
    if not os.path.lexists(path):
        return
    start = b""
    with suppress(OSError):  # an unreadable file is not replaced either
        if path.is_file():
            with path.open("rb") as file:
                start = file.read(4096)
    if not start.startswith(b"<!doctype html>") or f"{ENDING}</title>".encode() not in start:
        raise UsageError(
            f"{printable(path)} exists and is not a page of `saccade check`, so it is not replaced; "
            "choose another name or remove it"
        )


def write_page(path: Path, findings: CheckResult) -> None:
    """Write the page, whole or not at all; replace only a page of an earlier check."""
    check_target(path)
    seen = findings.seen
    parts = [_summary(findings), section("classes", "Classes", _balance(seen)), _shapes(seen)]
    links = {"summary": "Summary", "classes": "Classes", "shapes": "Sizes and formats"}
    if seen.unreadable:
        parts.append(section("unreadable", "Images that cannot be read", *_unreadable(seen)))
        links["unreadable"] = "Unreadable"
    for anchor, (title, meaning) in TWINS.items():
        groups: tuple[DuplicateGroup, ...] = getattr(seen, anchor)
        if groups:
            parts.append(section(anchor, title, tag("p", meaning), *_twins(findings.found, groups, anchor)))
            links[anchor] = title
    if findings.suspicion is not None:
        parts.append(_suspicion(findings.found, findings.suspicion))
        links["suspects"] = "Suspected labels"
    title = f"{printable(findings.data, 80)}{ENDING}"
    write_text(path, page(title, joined(parts), links))


def _summary(findings: CheckResult) -> Html:
    seen, found = findings.seen, findings.found
    exact = sum(group.exact for group in seen.duplicates)
    tiles = [
        ("Images", seen.pictures, ", ".join(f"{word} {count:,}" for word, count in seen.splits.items())),
        ("Classes", len(seen.balance), ""),
        ("Unreadable", len(seen.unreadable), ""),
        ("Contradictions", len(seen.contradictions), "one image, two labels"),
        ("Leaks", len(seen.leaks), "one image, two splits"),
        ("Duplicates", exact, "identical files"),
        (
            "Look-alikes",
            len(seen.duplicates) - exact,
            "one split, one label: harmless" if seen.full else "not checked",
        ),
    ]
    if findings.suspicion is not None:
        tiles.append(("Suspected labels", findings.suspicion.count, "for you to review"))
    boxes = [
        tag("div", tag("dt", t), tag("dd", f"{n:,}", *([tag("small", s)] if s else []))) for t, n, s in tiles
    ]
    quick = [] if seen.full else [soft("Only the headers were read (--quick): look-alikes were not checked.")]
    notes = [tag("ul", *(tag("li", tag("bdi", note)) for note in found.warnings))] if found.warnings else []
    return tag(
        "section",
        tag("h1", name(printable(findings.data, 80)), id="summary-title"),
        tag("p", tag("bdi", found.summary)),
        tag("p", tag("strong", findings.verdict), cls="note"),
        tag("dl", *boxes, cls="tiles"),
        *quick,
        *([tag("h3", "Notes")] if notes else []),
        *notes,
        id="summary",
        aria_labelledby="summary-title",
    )


def _balance(seen: Examination) -> Html:
    """Return the classes, largest first; a bar repeats the numbers, so a screen reader skips it."""
    words = list(seen.splits)
    rows = sorted(seen.balance, key=lambda each: -sum(each.counts.values()))
    most = sum(rows[0].counts.values())
    numbers = [tag("th", name(each), scope="col", cls="n") for each in (*words, "unreadable")]
    ends = [tag("th", each, scope="col") for each in ("class", "relative to the largest class")]
    head = tag("tr", ends[0], *numbers, ends[1])
    body = joined(_class(each, words, most) for each in rows)
    order = f"; the bars show {', then '.join(words)}" if len(words) > 1 else ""
    caption = f"{count(len(rows), 'class')}, the largest first{order}"
    parts = (tag("caption", caption), tag("thead", head), tag("tbody", body))
    whole = tag("table", *parts, id="balance", style="width: 100%")
    return tag("div", whole, cls="scroll", role="region", aria_label=caption, tabindex="0")


def _class(each: Balance, words: Sequence[str], most: int) -> Html:
    pieces = joined(
        tag("span", style=f"width: {each.counts[word] / most:.2%}; background: {colour}")
        for word, colour in zip(words, COLOURS, strict=False)
    )
    bar = tag("div", pieces, style="display: flex; height: .9rem; min-width: 6rem", aria_hidden="true")
    numbers = [each.counts[word] for word in words] + [each.unreadable]
    cells = [tag("td", f"{number:,}", cls="n") for number in numbers]
    return tag("tr", tag("th", name(each.label), scope="row"), *cells, tag("td", bar, style="width: 60%"))


def _shapes(seen: Examination) -> Html:
    sides = [("width", seen.sizes.width), ("height", seen.sizes.height)]
    rows = [(word, *numbers) for word, numbers in sides]
    common = [(f"{width} x {height}", count) for width, height, count in seen.sizes.common]
    heads = ("side", "smallest", "median", "largest")
    return section(
        "shapes",
        "Sizes and formats",
        _rows("sizes", "Sides in pixels", heads, rows),
        _rows("common", "The commonest sizes", ("width x height", "images"), common),
        _rows("formats", "Formats, by content", ("format", "images"), list(seen.formats.items())),
        _rows("modes", "Colour modes as stored", ("mode", "images"), list(seen.modes.items())),
    )


def _rows(anchor: str, caption: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Html:
    shown_rows = [[(_said(cell), cell) for cell in row] for row in rows[:LISTED]]
    return joined([table(anchor, caption, heads, shown_rows), *_left(len(rows))])


def _said(cell: Cell) -> str:
    return f"{cell:,}" if isinstance(cell, int) else percent(cell) if isinstance(cell, float) else str(cell)


def _unreadable(seen: Examination) -> Iterator[Html]:
    yield tag("p", "Training skips a few such images, and stops if there are too many.")
    lines = []
    for each in seen.unreadable[:LISTED]:
        where = f" ({each.place.split}, {printable(each.place.label)})"
        called = [] if each.place.name in each.reason else [tag("code", name(each.place.name)), ": "]
        lines.append(tag("li", *called, tag("bdi", each.reason), tag("span", where, cls="soft")))
    yield tag("ul", *lines)
    yield from _left(len(seen.unreadable))


def _left(count: int) -> list[Html]:
    more = count - LISTED
    return [soft(f"And {more:,} more; saccade check --json lists them all.")] if more > 0 else []


def _twins(found: Splits[Pictures], groups: Sequence[DuplicateGroup], anchor: str) -> Iterator[Html]:
    for group in groups[:PICTURED]:
        cards = [_card(found, place, []) for place in group.places[:SIDE_BY_SIDE]]
        more = len(group.places) - SIDE_BY_SIDE
        said = "Identical files" if group.exact else "Look-alikes"
        said += f"; {more:,} more are not shown." if more > 0 else "."
        yield tag("figure", tag("ul", *cards, cls="gallery"), tag("figcaption", said))
    rest = groups[PICTURED:]
    if rest:
        rows = [
            (number, "identical" if group.exact else "look-alike", place.name, place.split, place.label)
            for number, group in enumerate(rest, PICTURED + 1)
            for place in group.places
        ]
        heads = ("group", "how", "image", "split", "class")
        yield _rows(f"{anchor}-more", f"{count(len(rest), 'more group')}, without thumbnails", heads, rows)


def _suspicion(found: Splits[Pictures], suspicion: "LabelErrors") -> Html:
    intro = tag(
        "p",
        "The model of ",
        name(suspicion.run),
        " assigns these images to another class, with at least its average confidence in images of that "
        "class (confident learning, Northcutt et al. 2021). Review them: the label or the model is wrong.",
    )
    note = [soft(suspicion.note[0].upper() + suspicion.note[1:] + ".")] if suspicion.note else []
    parts = [each for part in suspicion.parts for each in _part(found, part)]
    return section("suspects", "Suspected labels", intro, *note, *parts)


def _part(found: Splits[Pictures], part: "Group") -> Iterator[Html]:
    from saccade.check.label_errors import CAUTION

    caution = CAUTION[part.kind]
    yield tag("h3", f"{part.heading[0].upper()}{part.heading[1:]}")
    if caution:
        yield soft(f"{caution[0].upper()}{caution[1:]}.")
    if part.suspects:
        cards = [
            _card(
                found, each.place, [("model says", each.answer), ("confidence", _sure(each.sure, each.own))]
            )
            for each in part.suspects[:PICTURED]
        ]
        yield tag("ul", *cards, cls="gallery")
    rest = part.suspects[PICTURED:]
    if rest:
        rows = [(e.place.name, e.place.split, e.place.label, e.answer, e.sure, e.own) for e in rest]
        heads = ("image", "split", "label says", "model says", "confidence", "confidence in the label")
        yield _rows(
            f"{part.kind}-more",
            f"{count(len(rest), 'more suspected label')}, without thumbnails",
            heads,
            rows,
        )


def _sure(sure: float, own: float) -> str:
    return f"{percent(sure)}, in the label {percent(own)}"


def _card(found: Splits[Pictures], place: ImageRef, more: Sequence[tuple[str, str]]) -> Html:
    """Return a thumbnail with its name, split and label, and further lines."""
    said = [("label says", place.label), *more]
    alt = ", ".join([printable(place.name, 60), *(f"{what} {printable(value, 60)}" for what, value in said)])
    small = thumbnail(found.by_name[place.split], place.index)
    image = tag("span", "no thumbnail", cls="none")
    if small is not None:
        style = "image-rendering: pixelated" if small.tiny else None
        image = tag("img", src=small.address, alt=alt, style=style, loading="lazy")
    lines = [tag("span", f"{what}: ", tag("b", name(value))) for what, value in said]
    where = tag("code", name(place.name), f" ({place.split})")
    return tag("li", tag("figure", image, tag("figcaption", *lines, where)))
