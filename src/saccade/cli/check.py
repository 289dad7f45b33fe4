"""`saccade check`: are these images fit to train on?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.arguments import DataArgument, FormatOption, examples
from saccade.cli.output import print_json, say, table
from saccade.errors import UsageError
from saccade.wording import count, show_name

if TYPE_CHECKING:
    from saccade.check.examine import DuplicateGroup, Examination, ImageRef
    from saccade.check.label_errors import Group
    from saccade.check.page import CheckResult

MOST = 20
CLASSES = 40


@examples(
    "saccade check pets",
    "saccade check pets --html check.html",
    "saccade check pets --run runs/pets --json",
)
def check(
    data: DataArgument = "",
    kind: FormatOption = "auto",
    quick: Annotated[
        bool, typer.Option("--quick", help="Read the headers only; do not look for near duplicates.")
    ] = False,
    workers: Annotated[int, typer.Option(help="Threads that decode.")] = 2,
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="A run folder: list the labels that its model contradicts (default DATA: its own).",
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a page that shows the images found.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every finding.")] = False,
) -> None:
    """Find unreadable files, duplicates and leaks in a dataset."""
    from saccade.api.inputs import own_source
    from saccade.check.check import check_data

    if not data:
        if run is None:
            raise UsageError("no DATA was given; give images to check, or --run RUN to check its own")
        data, kind, _ = own_source(run, str(run))
    findings = check_data(data, say, kind, quick, workers, run, html)
    found, seen, suspicion = findings.found, findings.seen, findings.suspicion
    if as_json:
        report = {"told": found.summary, "warnings": list(found.warnings), **seen.to_json()}
        print_json(report if suspicion is None else {**report, "suspicion": suspicion.to_json()})
    else:
        typer.echo("\n\n".join(_report(findings)))
    if html is not None:
        say(f"page: {html}")
    if found.warnings or not seen.sound:
        raise typer.Exit(1)


def _report(findings: "CheckResult") -> list[str]:
    """Return the parts of the report, each a table or a heading with lines below it."""

    seen, suspicion = findings.seen, findings.suspicion
    parts = [_class_table(seen), _shape_table(seen)]
    if findings.found.warnings:
        parts.append(_part("notes", list(findings.found.warnings)))
    if seen.unreadable:
        lines = [f"{each.place.split}: {each.reason}" for each in seen.unreadable]
        parts.append(_part(f"{count(len(lines), 'image')} that cannot be read", lines))
    for groups, words in (
        (seen.contradictions, "the same image under two labels"),
        (seen.leaks, "the same image in two splits"),
        (seen.duplicates, "the same image twice"),
    ):
        if groups:
            parts.append(_part(f"{words}: {count(len(groups), 'group')}", [_copies(each) for each in groups]))
    if suspicion is not None:
        parts += [f"note: {suspicion.note}"] * bool(suspicion.note)
        parts += [_label_errors(part) for part in suspicion.parts]
    return [*parts, findings.verdict]


def _label_errors(part: "Group") -> str:
    """Return a table of labels that the model contradicts; the line above it says how far to trust it."""
    from saccade.check.label_errors import CAUTION

    caution = f" ({CAUTION[part.kind]})" if CAUTION[part.kind] else ""
    if not part.suspects:
        return part.heading + caution
    rows = [["image", "label", "prediction", "confidence", "in the label"]]
    for each in part.suspects[:MOST]:
        names = (each.place.name, show_name(each.place.label), show_name(each.answer))
        rows.append([*names, f"{each.sure:.1%}", f"{each.own:.1%}"])
    lines = table(rows, right=(3, 4)).splitlines()
    return "\n  ".join([part.heading + caution, *lines, *_more(len(part.suspects))])


def _part(heading: str, lines: list[str]) -> str:
    return "\n  ".join([heading, *lines[:MOST], *_more(len(lines))])


def _more(count: int) -> list[str]:
    return [f"and {count - MOST:,} more; --json lists them all"] if count > MOST else []


def _class_table(seen: "Examination") -> str:

    words = list(seen.splits)
    rows = sorted(seen.balance, key=lambda each: -sum(each.counts.values()))
    kept = rows if len(rows) <= CLASSES else rows[: CLASSES // 2] + rows[-CLASSES // 2 :]
    lines = [["class", *words, "unreadable"]]
    lines += [
        [show_name(each.label), *(f"{each.counts[word]:,}" for word in words), f"{each.unreadable:,}"]
        for each in kept
    ]
    lines.append(["all", *(f"{count:,}" for count in seen.splits.values()), f"{len(seen.unreadable):,}"])
    text = table(lines, right=range(1, len(words) + 2))
    left = len(rows) - len(kept)
    return f"{text}\n({left:,} medium-sized classes omitted; --json lists them all)" if left else text


def _shape_table(seen: "Examination") -> str:
    sides = {"width": seen.sizes.width, "height": seen.sizes.height}
    rows = [[name, f"{low} to {high}, median {middle}"] for name, (low, middle, high) in sides.items()]
    rows.append(["commonest", ", ".join(f"{w} x {h} ({count:,})" for w, h, count in seen.sizes.common[:3])])
    for name, counts in (("formats", seen.formats), ("modes", seen.modes)):
        rows.append([name, ", ".join(f"{word} {count:,}" for word, count in counts.items())])
    return table(rows)


def _copies(group: "DuplicateGroup") -> str:

    def words(place: "ImageRef") -> str:
        return f"{place.name} ({place.split}, {show_name(place.label)})"

    sign = " = " if group.exact else " ~ "
    more = f" and {len(group.places) - 4} more" if len(group.places) > 4 else ""
    return sign.join(words(place) for place in group.places[:4]) + more
