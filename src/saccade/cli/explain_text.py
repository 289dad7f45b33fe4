"""`saccade explain` for models of text: where did it look while it wrote, went on or filled in?"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from saccade.cli.arguments import check_free
from saccade.cli.place import check_place, made_folder
from saccade.cli.speak import check_letters, line, texts, word
from saccade.errors import UsageError

if TYPE_CHECKING:
    from saccade.explain.text.attention import Reading
    from saccade.weights.identify import Found


def explain_text(
    found: "Found",
    given: list[str] | None,
    target: str | None,
    html: Path | None,
    out: Path | None,
    others: list[str],
    as_json: bool,
) -> None:
    """Show where a model looked; `others` are the options given that only pictures have."""
    if others:
        raise UsageError(
            f"given was {', '.join(others)}, which models of pictures have; this is one of text (task "
            f"{found.task}), which has --target, --html, --out and --json"
        )
    asked = texts(given)
    check_letters(target or "")
    if target is not None and len(asked) > 1:
        raise UsageError(f"one translation was given for {len(asked)} texts; explain them one by one")
    check_place(html, len(asked), "texts")
    check_free(out)
    from saccade.explain.text.attention import read
    from saccade.explain.text.page import page, write
    from saccade.files.atomic import write_text
    from saccade.weights.load_text import load

    spoken = load(found.path)
    readings = [read(spoken, text, target) for text in asked]
    folder = made_folder(out, not (html or as_json))
    pages = None if html is None or html.suffix.lower() in (".html", ".htm") else made_folder(html, True)
    for i, reading in enumerate(readings, 1):
        if folder is not None:
            write(reading, folder if len(asked) == 1 else folder / f"text-{i:03d}")
        if html is not None:
            place = html if pages is None else pages / f"text-{i:03d}.html"
            write_text(place, page(reading, found.path.name))
            print(f"page: {place}", file=sys.stderr)
    if as_json:
        typer.echo(json.dumps([reading.to_json() for reading in readings], ensure_ascii=False))
    else:
        typer.echo("\n\n".join(map(_table, readings)))
    if folder is not None:
        print(f"pictures and numbers: {folder}", file=sys.stderr)


def _table(reading: "Reading") -> str:
    from saccade.cli.table import table
    from saccade.explain.text.plots import strongest

    head = [line(reading.text) + (f" -> {line(reading.answer)}" if reading.answer else "")]
    look = reading.looks[0]
    for guess in reading.guesses:
        where = "next" if guess.place == len(look.rows) else f"word {guess.place + 1}"
        head.append(f"{where}: " + ", ".join(f"{word(said)!r} {p:.1%}" for said, p in guess.words))
    rows = [("word", "looks most at", "share")]
    rows += [(line(said), line(seen), f"{share:.0%}") for said, seen, share in strongest(look)]
    layer = "" if look.p.shape[0] * look.p.shape[1] == 1 else f" (layer {look.layer + 1}, mean of the heads)"
    return "\n".join([*head, f"{look.title}{layer}:", table(rows, right=(2,))])
