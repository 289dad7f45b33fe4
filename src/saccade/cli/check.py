"""`saccade check`: are these pictures fit to be learnt from?"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.arguments import DataArgument, FormatOption

if TYPE_CHECKING:
    from saccade.check.examine import Examination, Place, Twins
    from saccade.check.label_errors import Part, Suspicion
    from saccade.data.readers.listing import Collection

MOST = 20
CLASSES = 40


def check(
    data: DataArgument,
    kind: FormatOption = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="Read the headers only; no look-alikes.")] = False,
    workers: Annotated[int, typer.Option(help="Threads that decode.")] = 2,
    run: Annotated[
        Path | None, typer.Option(metavar="RUN", help="A run folder: its model names labels that look wrong.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write one page, with the pictures found.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every finding.")] = False,
) -> None:
    """Look at every picture before training on it: `saccade check photos --html check.html`."""
    from saccade.check.examine import examine
    from saccade.data.readers.open import open_images
    from saccade.errors import check_number

    check_number("workers", workers, 1, 256)
    if html is not None:
        from saccade.check import page as findings

        findings.check_target(html)
    found = open_images(data, kind)
    print(found.told, file=sys.stderr)
    suspicion: Suspicion | None = None
    if run is not None:
        from saccade.check.label_errors import judge, suspects

        jury = judge(run, found)
        seen = examine(found, workers, not quick)
        suspicion = suspects(jury, found, seen, workers)
    else:
        seen = examine(found, workers, not quick)
    if as_json:
        report = {"told": found.told, "warnings": list(found.warnings), **seen.to_json()}
        judged = {} if suspicion is None else {"suspicion": suspicion.to_json()}
        typer.echo(json.dumps({**report, **judged}, indent=2))
    else:
        typer.echo("\n\n".join(_report(found, seen, suspicion)))
    if html is not None:
        verdict = _verdict(found, seen, suspicion)
        findings.write(html, findings.Findings(data, found, seen, verdict, suspicion))
        print(f"page: {html}", file=sys.stderr)
    if found.warnings or not seen.sound:
        raise typer.Exit(1)


def _report(found: "Collection", seen: "Examination", suspicion: "Suspicion | None") -> list[str]:
    """The parts of the report, each a heading with lines or a table below it."""
    from saccade.data.readers.listing import plural

    parts = [_balance(seen), _shapes(seen)]
    if found.warnings:
        parts.append(_part("notes", list(found.warnings)))
    if seen.unreadable:
        lines = [f"{each.place.split}: {each.reason}" for each in seen.unreadable]
        parts.append(_part(f"{plural(len(lines), 'picture')} that cannot be read", lines))
    for groups, words in (
        (seen.contradictions, "the same picture under two labels"),
        (seen.leaks, "the same picture in two splits"),
        (seen.duplicates, "the same picture twice"),
    ):
        if groups:
            parts.append(_part(f"{words}: {plural(len(groups), 'group')}", [_twins(each) for each in groups]))
    if suspicion is not None:
        parts += [f"note: {suspicion.note}"] * bool(suspicion.note)
        parts += [_suspects(part) for part in suspicion.parts]
    return [*parts, _verdict(found, seen, suspicion)]


def _suspects(part: "Part") -> str:
    """A table of what the model takes for something else; the sentence above it says how far to trust it."""
    from saccade.check.label_errors import CAUTION
    from saccade.cli.table import table
    from saccade.data.image.formats import shown

    caution = f" ({CAUTION[part.kind]})" if CAUTION[part.kind] else ""
    if not part.suspects:
        return part.told + caution
    rows = [["picture", "label says", "model says", "how sure", "of the label"]]
    rows += [
        [each.place.name, shown(each.place.label), shown(each.answer), f"{each.sure:.1%}", f"{each.own:.1%}"]
        for each in part.suspects
    ]
    head, *lines = table(rows[: MOST + 1], right=(3, 4)).splitlines()
    more = [f"and {len(rows) - 1 - MOST:,} more; --json lists them all"] if len(rows) - 1 > MOST else []
    return "\n  ".join([part.told + caution, head, *lines, *more])


def _verdict(found: "Collection", seen: "Examination", suspicion: "Suspicion | None") -> str:
    from saccade.data.readers.listing import plural

    suspected = suspicion.count if suspicion is not None else 0
    if seen.sound and not found.warnings and not suspected:
        return "nothing is wrong with them"
    counts = [
        (len(seen.unreadable), "unreadable picture"),
        (len(seen.contradictions), "contradiction"),
        (len(seen.leaks), "leak between splits"),
        (sum(each.exact for each in seen.duplicates), "duplicate"),
        (len(found.warnings), "note"),
        (suspected, "suspected label"),
    ]
    told = [
        plural(count, noun) if noun != "leak between splits" else f"{plural(count, 'leak')} between splits"
        for count, noun in counts
        if count
    ]
    return "found: " + ", ".join(told)


def _part(heading: str, lines: list[str]) -> str:
    more = [f"and {len(lines) - MOST:,} more; --json lists them all"] if len(lines) > MOST else []
    return "\n  ".join([heading, *lines[:MOST], *more])


def _balance(seen: "Examination") -> str:
    from saccade.cli.table import table
    from saccade.data.image.formats import shown

    words = list(seen.splits)
    rows = sorted(seen.balance, key=lambda each: -sum(each.counts.values()))
    shown_rows = rows if len(rows) <= CLASSES else rows[: CLASSES // 2] + rows[-CLASSES // 2 :]
    lines = [["class", *words, "unreadable"]]
    lines += [
        [shown(each.label), *(f"{each.counts[word]:,}" for word in words), f"{each.unreadable:,}"]
        for each in shown_rows
    ]
    lost = len(seen.unreadable)
    lines.append(["all", *(f"{count:,}" for count in seen.splits.values()), f"{lost:,}"])
    text = table(lines, right=range(1, len(words) + 2))
    left = len(rows) - len(shown_rows)
    return f"{text}\n({left:,} classes of middling size are not shown; --json lists them)" if left else text


def _shapes(seen: "Examination") -> str:
    from saccade.cli.table import table

    width, height = seen.sizes.width, seen.sizes.height
    common = ", ".join(f"{w} x {h} ({count:,})" for w, h, count in seen.sizes.common[:3])
    kinds = ", ".join(f"{word} {count:,}" for word, count in seen.formats.items())
    modes = ", ".join(f"{word} {count:,}" for word, count in seen.modes.items())
    rows = [
        ["width", f"{width[0]} to {width[2]}, median {width[1]}"],
        ["height", f"{height[0]} to {height[2]}, median {height[1]}"],
        ["commonest", common],
        ["formats", kinds],
        ["modes", modes],
    ]
    return table(rows)


def _twins(group: "Twins") -> str:
    def told(place: "Place") -> str:
        from saccade.data.image.formats import shown

        return f"{place.name} ({place.split}, {shown(place.label)})"

    some = " = " if group.exact else " ~ "
    more = f" and {len(group.places) - 4} more" if len(group.places) > 4 else ""
    return some.join(told(place) for place in group.places[:4]) + more
