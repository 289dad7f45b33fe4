"""`saccade embed` for models of text: which words are alike to it?"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from saccade.errors import UsageError

if TYPE_CHECKING:
    from saccade.embedding.analogies import Near
    from saccade.embedding.words import Words
    from saccade.weights.identify import Found

LISTED = 10


def embed_text(
    found: "Found",
    data: str,
    side: str,
    way: str,
    query: list[str],
    analogy: tuple[str, str, str] | None,
    top: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """List the words nearest to some, solve an analogy, or map all words."""
    if data:
        raise UsageError(
            f"{found.path.name} is a model of text (task {found.task}), whose words are in its "
            "folder; leave out DATA"
        )
    from saccade.embedding.words import words
    from saccade.weights.load_text import load

    known = words(load(found.path), side or "source")
    if query or analogy is not None:
        answers = [(word, known.near(word, top)) for word in query]
        if analogy is not None:
            told = f"{analogy[2]} + {analogy[1]} - {analogy[0]}"
            answers.append((told, known.analogy(*analogy, top)))
        _show(answers, as_json)
        return
    _map(known, found.path, way, out, as_json)


def _map(known: "Words", path: Path, way: str, out: Path | None, as_json: bool) -> None:
    from dataclasses import asdict

    from saccade.cli.table import table
    from saccade.embedding.words import contrast
    from saccade.embedding.words_page import write
    from saccade.files.atomic import new_folder

    name = (path if path.is_dir() else path.parent).resolve().name
    made = new_folder(out or Path("runs") / f"embed-{name}")
    page = write(made, known, way, f"The words of {name}")
    told = contrast(known)
    if as_json:
        numbers = {key: asdict(each) for key, each in told.items()}
        typer.echo(
            json.dumps({"folder": str(made), "words": len(known.names), "contrast": numbers}, indent=2)
        )
    else:
        rows = [("", "numbers a word", "cosine of two words", "of the nearest")]
        rows += [(key, f"{e.numbers:,}", f"{e.alike:.3f}", f"{e.nearest:.3f}") for key, e in told.items()]
        near = [(word, ", ".join(each.name for each in known.near(word, 4))) for word in known.names[:LISTED]]
        near.insert(0, ("word", "nearest words"))
        typer.echo(f"{len(known.names):,} whole words\n{table(rows, right=(1, 2, 3))}\n\n{table(near)}")
    print(f"map: {page}", file=sys.stderr)


def _show(answers: "list[tuple[str, list[Near]]]", as_json: bool) -> None:
    from saccade.cli.table import table

    if as_json:
        told = [
            {"query": query, "nearest": [{"word": n.name, "distance": n.distance} for n in near]}
            for query, near in answers
        ]
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
        return
    rows = [("query", "distance", "word")]
    for query, near in answers:
        rows += [(query * (i == 0), f"{n.distance:.4f}", n.name) for i, n in enumerate(near)]
    typer.echo(table(rows, right=(1,)))
