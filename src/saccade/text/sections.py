"""The sections of a report on a text model: scores, the effect of its own mistakes, samples."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from saccade.report import curves
from saccade.report.html import Draw, Html, joined, name, soft, table, tag, tiles
from saccade.report.plots import Axes, Ink, Plot
from saccade.report.run_page import Section
from saccade.report.run_record import Record, real, whole
from saccade.wording import count, number, percent, printable

CAUTION = "The best epoch was chosen on these same texts, so expect slightly less on others."
LONGEST = 600
"""Characters of a sample."""

Tile = tuple[str, str, str]


def _scores(record: Record) -> dict[str, Any] | None:
    found = record.evaluation.get("scores")
    return found if isinstance(found, dict) else None


def _tiles(scores: dict[str, Any], hidden: bool) -> list[Tile]:
    words = "of the hidden words" if hidden else "given the true words before"
    return [
        (
            "Perplexity",
            number(real(scores.get("perplexity"))),
            "as uncertain as a choice among this many words",
        ),
        ("Word accuracy", percent(real(scores.get("accuracy"))), words),
        ("Loss", number(real(scores.get("loss"))), "nats per word; lower is better"),
    ]


def translation_results(record: Record) -> Iterator[Html]:
    """Yield the scores of a translation model for the summary."""
    scores = _scores(record)
    if scores is None:
        yield soft(record.without("The final score", "evaluation.json"))
        return
    lower, simple = real(scores.get("bleu_lowercase")), real(scores.get("simple_bleu"))
    yield tiles(
        [
            ("BLEU", f"{real(scores.get('bleu')):.2f}", f"{lower:.2f} ignoring case"),
            *_tiles(scores, hidden=False),
            ("Simple BLEU", number(simple), "mean of the sentences, k = 2"),
        ]
    )
    signatures = record.evaluation.get("signatures")
    signature = signatures.get("bleu", "") if isinstance(signatures, dict) else ""
    several = count(whole(scores.get("count")), "held-out sentence")
    words = [f"{several} translated greedily, scored by sacrebleu: ", name(signature), ". ", CAUTION]
    yield tag("p", *words, cls="note")


def language_results(record: Record) -> Iterator[Html]:
    """Yield the scores of a language model for the summary."""
    scores = _scores(record)
    if scores is None:
        yield soft(record.without("The final score", "evaluation.json"))
        return
    yield tiles(_tiles(scores, bool(record.evaluation.get("hidden"))))
    several = count(whole(scores.get("count")), "held-out word")
    yield tag("p", f"Evaluated on {several}; a word is an entry of the vocabulary. {CAUTION}", cls="note")


def sections(record: Record, draw: Draw, translates: bool) -> Iterator[Section]:
    """Yield the sections between the curves and the data."""
    found = record.evaluation
    yield Section("exposure", "Its own mistakes", joined(_exposed(found, draw, translates)))
    yield Section("samples", "Samples", joined(_samples(found, translates)))


def _numbers(found: Any) -> list[float]:
    return [real(value) for value in found] if isinstance(found, list) else []


def _exposed(found: dict[str, Any], draw: Draw, translates: bool) -> Iterator[Html]:
    """Teacher forcing against free running."""
    bias = found.get("exposure")
    columns = (
        [_numbers(bias.get(key)) for key in ("places", "forced", "free")] if isinstance(bias, dict) else []
    )
    rows = [row for row in zip(*columns, strict=False) if all(map(math.isfinite, row))]
    if not rows:
        yield soft(
            "A model that fills in hidden words never reads its own output, so it has no such mistakes."
        )
        return
    yield tag(
        "p",
        "In training a model always reads the true words so far; in use it reads its own. The loss in "
        "accuracy is called exposure bias (Bengio et al. 2015). ",
        "A correct translation with different words counts as wrong here, word by word."
        if translates
        else "Here it continues on its own from the middle of a window; another good text counts as wrong.",
    )
    yield draw(_places(rows))


def _places(rows: Sequence[tuple[float, ...]]) -> Plot:
    forced, free = (sum(row[i] for row in rows) / len(rows) for i in (1, 2))

    def draw(axes: Axes, ink: Ink) -> None:
        shares = [(row[0], 100 * row[1], 100 * row[2]) for row in rows]
        curves.lines(axes, ink, shares, ("after true words", "after its own words"), "position in the text")
        axes.set_ylabel("word accuracy, %")
        axes.set_ylim(0, 100)

    return Plot(
        name="exposure",
        title="Word accuracy by position",
        message=(
            f"Averaged over positions, {percent(forced)} of the words are correct after true words, and "
            f"{percent(free)} after the model's own."
        ),
        note="Teacher forcing against free running; the gap is the exposure bias.",
        columns={"position": "count", "after true words": "percent", "after its own words": "percent"},
        rows=[(int(row[0]), row[1], row[2]) for row in rows],
        draw=draw,
    )


def _samples(found: dict[str, Any], translates: bool) -> Iterator[Html]:
    listed = found.get("samples")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    if not rows:
        yield soft("No samples: evaluation.json has none.")
        return
    keys = [key for key in ("source", "wanted", "written") if any(key in row for row in rows)]
    heads = {"source": "source" if translates else "given", "wanted": "wanted", "written": "written"}
    cells = [[(_line(row.get(key, "")),) * 2 for key in keys] for row in rows]
    yield tag("p", "Evenly spaced in the validation split, not hand-picked.")
    yield table("read", "What the model writes", [heads[key] for key in keys], cells)


def _line(text: object) -> str:
    """Return a sample on one line; a sign shows where a line ended."""
    return printable(str(text).replace("\n", " \N{DOWNWARDS ARROW WITH CORNER LEFTWARDS} "), LONGEST)
