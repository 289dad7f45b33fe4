"""report.html of a run on text: scores, curves, samples to read, and what its own mistakes do to a model."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from saccade.files.atomic import write_text
from saccade.files.paths import shown
from saccade.report import curves as figures
from saccade.report import origin
from saccade.report.history import real, whole
from saccade.report.html import Html, figure, joined, name, page, section, soft, table, tag
from saccade.report.plots import DARK, Axes, Ink, Plot, render, save
from saccade.report.run_page import troubles
from saccade.report.run_record import Record, judged, read
from saccade.wording import count, duration, moment, number, percent, trend

PARTS = {
    "summary": "Summary",
    "curves": "Curves",
    "exposure": "Its own mistakes",
    "samples": "Samples",
    "data": "Data",
    "repeat": "How to repeat it",
}
SMOOTHED = "Training loss is measured with dropout and smoothing, so it may lie above the validation loss."
LONGEST = 600
"""Characters of a sample."""

Drawn = Callable[[Plot | str], Html]


def report(folder: Path) -> Path:
    """Write plots/*.png, plots/*.json and report.html from what the run folder records; return the page.

    The same record gives the same bytes. A missing or damaged piece is left out and said so.
    """
    record, found = read(folder), judged(folder)

    def drawn(made: Plot | str) -> Html:
        if isinstance(made, str):
            return soft(made)
        return figure(made, save(made, folder / "plots"), render(made, DARK))

    translates = record.recipe.get("task") != "language"
    parts = [
        _summary(record, found, translates),
        section("curves", PARTS["curves"], *_curves(record, drawn, translates)),
        section("exposure", PARTS["exposure"], *_exposed(found, drawn, translates)),
        section("samples", PARTS["samples"], *_samples(found, translates)),
        section("data", PARTS["data"], *origin.described(record, "pairs" if translates else "characters")),
        section("repeat", PARTS["repeat"], *origin.repeated(record)),
    ]
    write_text(folder / "report.html", page(f"{_title(record)}: report", joined(parts), PARTS))
    return folder / "report.html"


def _title(record: Record) -> str:
    model, place = record.recipe.get("model"), origin.source(record)
    return f"{shown(model, 80)} on {shown(place, 80)}" if model and place else shown(record.name, 80)


def _summary(record: Record, found: dict[str, Any], translates: bool) -> Html:
    scores = found.get("scores")
    inner = [soft(record.without("The final score", "evaluation.json"))]
    if isinstance(scores, dict):
        tiles = _tiles(scores, translates, bool(found.get("hidden")))
        inner = [tiles, tag("p", *_honest(found, scores, translates), cls="note")]
    return tag(
        "section",
        tag("h1", name(_title(record)), id="summary-title"),
        tag("p", _what(record, translates)),
        *inner,
        *(tag("p", said) for said in troubles(record)),
        *(
            [tag("ul", *(tag("li", name(note)) for note in record.events.notes))]
            if record.events.notes
            else []
        ),
        id="summary",
        aria_labelledby="summary-title",
    )


def _what(record: Record, translates: bool) -> Html:
    """What was trained, on what, for how long."""
    events, splits = record.events, origin.splits(record.data)
    size = f" ({events.parameters / 1e6:.1f} million parameters)" if events.parameters else ""
    said = [name(record.recipe.get("model", "A model")), f"{size} was trained"]
    if splits.get("train"):
        said.append(f" on {count(splits['train'], 'sentence pair' if translates else 'character')}")
    sides = record.data.get("sides")
    if isinstance(sides, list) and len(sides) == 2:
        said += [" from ", name(sides[0]), " to ", name(sides[1])]
    if record.epochs:
        said.append(f" for {epochs(record.epochs[-1].epoch)} ({count(events.last_step, 'step')})")
    if events.seconds:
        said.append(f" in {duration(events.seconds)}")
    if math.isfinite(events.began):
        said.append(f", from {moment(events.began)} to {moment(events.last)}")
    return joined([*said, "."])


def epochs(passed: float) -> str:
    """1 epoch, 15 epochs, 0.25 epochs."""
    return count(int(passed), "epoch") if passed == int(passed) else f"{passed:.4g} epochs"


def _tiles(scores: dict[str, Any], translates: bool, hidden: bool) -> Html:
    told = "of those that were hidden" if hidden else "after the true words before"
    tiles = [
        ("Perplexity", number(real(scores.get("perplexity"))), "as unsure as among so many words"),
        ("Words right", percent(real(scores.get("accuracy"))), told),
        ("Loss", number(real(scores.get("loss"))), "nats a word; lower is better"),
    ]
    if translates:
        lower, simple = real(scores.get("bleu_lowercase")), real(scores.get("simple_bleu"))
        tiles = [
            ("BLEU", f"{real(scores.get('bleu')):.2f}", f"{lower:.2f} with capital letters forgiven"),
            *tiles,
            ("Simple BLEU", number(simple), "mean of the sentences, k = 2"),
        ]
    return tag(
        "dl", *(tag("div", tag("dt", t), tag("dd", v, tag("small", s))) for t, v, s in tiles), cls="tiles"
    )


def _honest(found: dict[str, Any], scores: dict[str, Any], translates: bool) -> Iterator[Html | str]:
    """What a careful reader would add."""
    several = whole(scores.get("count"))
    if translates:
        signature = (
            found.get("signatures", {}).get("bleu", "") if isinstance(found.get("signatures"), dict) else ""
        )
        yield f"{count(several, 'unseen sentence')} translated greedily, scored by sacrebleu: "
        yield name(signature)
        yield ". "
    else:
        yield f"Scored on {count(several, 'unseen word')}; a word is an entry of the vocabulary. "
    yield "The best state was chosen on these same texts, so expect slightly less on others."


def _curves(record: Record, drawn: Drawn, translates: bool) -> Iterator[Html]:
    made = [
        figures.loss(record, SMOOTHED),
        *([_measured(record, "val_bleu", "bleu", "BLEU", max)] if translates else []),
        _measured(record, "val_perplexity", "perplexity", "Perplexity", min),
        figures.lr(record),
        figures.pace(record),
    ]
    yield tag("div", *(drawn(plot) for plot in made if isinstance(plot, Plot)), cls="plots")
    yield from (drawn(words) for words in made if isinstance(words, str))


def _measured(
    record: Record,
    column: str,
    file: str,
    title: str,
    best_of: Callable[..., tuple[float, float]],
) -> Plot | str:
    """A score on the text held back, by epoch."""
    rows = [(e.epoch, getattr(e, column)) for e in record.epochs if math.isfinite(getattr(e, column))]
    if not rows:
        return f"No {title} was logged, so there is no curve of it."
    best = best_of(rows, key=lambda row: row[1])

    def draw(axes: Axes, ink: Ink) -> None:
        figures.lines(axes, ink, rows, (title,), "epoch")
        axes.axhline(best[1], color=ink.second, linestyle=":", linewidth=1.2)
        axes.set_ylabel(title)

    return Plot(
        name=file,
        title=f"Validation {title}",
        message=f"{trend(title, [value for _, value in rows])} over {epochs(rows[-1][0])}.",
        note=f"Best: {number(best[1])} at epoch {best[0]:.4g}, the dotted line.",
        columns={"epoch": "number", title: "number"},
        rows=rows,
        draw=draw,
    )


def _numbers(found: Any) -> list[float]:
    return [real(value) for value in found] if isinstance(found, list) else []


def _exposed(found: dict[str, Any], drawn: Drawn, translates: bool) -> Iterator[Html]:
    """Teacher forcing against free running."""
    told = found.get("exposure")
    columns = (
        [_numbers(told.get(key)) for key in ("places", "forced", "free")] if isinstance(told, dict) else []
    )
    rows = [row for row in zip(*columns, strict=False) if all(map(math.isfinite, row))]
    if not rows:
        yield soft("A model that fills holes does not read its own words, so it has no such mistakes.")
        return
    yield tag(
        "p",
        "In training a model is always given the true words before; in use it is given its own. What it "
        "loses by that is called exposure bias (Bengio et al. 2015). ",
        "A translation that is right but worded differently counts as wrong here, word by word."
        if translates
        else "Here it goes on by itself from the middle of a window; another good text counts as wrong.",
    )
    yield drawn(_places(rows))


def _places(rows: Sequence[tuple[float, ...]]) -> Plot:
    forced, free = (sum(row[i] for row in rows) / len(rows) for i in (1, 2))

    def draw(axes: Axes, ink: Ink) -> None:
        shares = [(row[0], 100 * row[1], 100 * row[2]) for row in rows]
        figures.lines(axes, ink, shares, ("after true words", "after its own words"), "place in the text")
        axes.set_ylabel("words right, %")
        axes.set_ylim(0, 100)

    return Plot(
        name="exposure",
        title="Right words by place",
        message=(
            f"On average over the places {percent(forced)} of the words are right after true words, and "
            f"{percent(free)} after the model's own."
        ),
        note="Teacher forcing against free running; the gap is the exposure bias.",
        columns={"place": "count", "after true words": "percent", "after its own words": "percent"},
        rows=[(int(row[0]), row[1], row[2]) for row in rows],
        draw=draw,
    )


def _samples(found: dict[str, Any], translates: bool) -> Iterator[Html]:
    listed = found.get("samples")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    if not rows:
        yield soft("There are no samples: evaluation.json holds none.")
        return
    keys = [key for key in ("source", "wanted", "written") if any(key in row for row in rows)]
    heads = {"source": "source" if translates else "given", "wanted": "wanted", "written": "written"}
    cells = [[(_line(row.get(key, "")),) * 2 for key in keys] for row in rows]
    yield tag("p", "Evenly from the text that was held back, not chosen.")
    yield table("read", "What the model writes", [heads[key] for key in keys], cells)


def _line(text: object) -> str:
    """A sample on one line; where it had several, a sign shows it."""
    return shown(str(text).replace("\n", " \N{DOWNWARDS ARROW WITH CORNER LEFTWARDS} "), LONGEST)
