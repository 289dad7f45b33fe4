"""`saccade fill`: which word is missing?"""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.speak import RunArgument, TextsArgument, line, opened, tell_unknown, texts, word
from saccade.errors import UsageError, check_number

if TYPE_CHECKING:
    from saccade.text.generate import Filling


def fill(
    model: RunArgument,
    given: TextsArgument = None,
    top: Annotated[int, typer.Option(help="How many words to name for each hole.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Name the words that are hidden by [MASK]: `saccade fill runs/bert "the [MASK] sat on the mat"`."""
    from saccade.text.vocabulary import HOLE

    check_number("top", top, 1, 10**6)
    asked = texts(given)
    for text in asked:
        if HOLE not in text:
            raise UsageError(
                f"{line(text)[:60]!r} has no {HOLE}; write {HOLE} in the place of each word to be filled in"
            )
    network = opened(model, "fill")
    tell_unknown(network.vocabulary, [text.replace(HOLE, "") for text in asked])
    found = network.fill(asked, top)
    if as_json:
        shown = [
            {
                "text": text,
                "filled": _filled(text, holes),
                "holes": [[{"word": said, "p": round(p, 6)} for said, p in hole] for hole in holes],
            }
            for text, holes in zip(asked, found, strict=True)
        ]
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    from saccade.cli.table import table

    rows = [("text", "hole", "sure", "word")]
    for text, holes in zip(asked, found, strict=True):
        for i, hole in enumerate(holes):
            for j, (said, p) in enumerate(hole):
                rows.append((line(text) * (i + j == 0), f"{i + 1}" * (j == 0), f"{p:.1%}", word(said)))
    typer.echo(table(rows, right=(1, 2)))


def _filled(text: str, holes: "list[list[Filling]]") -> str:
    """The text with the likeliest word in each hole."""
    from saccade.text.vocabulary import HOLE

    for hole in holes:
        text = text.replace(HOLE, hole[0].word.removeprefix("##"), 1)
    return text
