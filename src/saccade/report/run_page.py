"""report.html: one file that tells what was trained, on what, how well, and how to do it again."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

from saccade.files.atomic import write_text
from saccade.files.paths import shown
from saccade.metrics.classify import Scores
from saccade.metrics.interval import wilson
from saccade.report import curves as figures
from saccade.report import folds_section as spread
from saccade.report import origin
from saccade.report.html import Html, figure, gallery, joined, name, page, section, soft, table, tag
from saccade.report.plots import DARK, Plot, cells, render, save
from saccade.report.run_record import Record, read
from saccade.tasks.classify import matrix
from saccade.wording import count, duration, moment, number, percent

PICTURES = 24
"""Thumbnails of one kind; more would not be looked at."""
WIDE = 0.1
"""An interval wider than this is told as a warning."""
NOTES = 50
CAUTION = {
    "val": "The best epoch was chosen on these same pictures, so expect slightly less on others. ",
    "train": "The model has learnt from these same pictures, so this says little about others. ",
}
PARTS = {
    "summary": "Summary",
    "curves": "Curves",
    "confusions": "Confusion",
    "by-class": "Classes",
    "reliability": "Calibration",
    "mistakes": "Worst mistakes",
    "shown": "What the model was shown",
    "data": "Data",
    "repeat": "How to repeat it",
}

Drawn = Callable[[Plot | str], Html]


def report(folder: Path) -> Path:
    """Write plots/*.png, plots/*.json and report.html from what the run folder records; return the page.

    The same record gives the same bytes. A missing or damaged piece is left out and said so.
    """
    record = read(folder)

    def drawn(made: Plot | str) -> Html:
        if isinstance(made, str):
            return soft(made)
        return figure(made, save(made, folder / "plots"), render(made, DARK))

    parts = [
        _summary(record),
        _curves(record, drawn),
        _scored(record, "confusions", lambda scores: _confused(record, scores, drawn)),
        _scored(record, "by-class", lambda scores: iter([drawn(figures.classes(record, scores))])),
        _scored(record, "reliability", lambda scores: iter([drawn(figures.calibration(scores))])),
        section("mistakes", PARTS["mistakes"], *_mistakes(record)),
        section("shown", PARTS["shown"], *_samples(record)),
        section("data", PARTS["data"], *origin.described(record)),
        section("repeat", PARTS["repeat"], *origin.repeated(record)),
    ]
    links = dict(PARTS)
    if (folder / spread.FILE).is_file():
        parts.insert(1, section("spread", spread.TITLE, *spread.folds(folder, drawn)))
        links = {"summary": links.pop("summary"), "spread": spread.TITLE, **links}
    if (folder / "pruning.json").is_file():
        from saccade.vision import slim_told  # it needs torch, which other reports do without

        parts.insert(1, section("patches", slim_told.TITLE, *slim_told.told(folder)))
        links = {"summary": links.pop("summary"), "patches": slim_told.TITLE, **links}
    title = _title(record)
    write_text(folder / "report.html", page(f"{title}: report", joined(parts), links))
    return folder / "report.html"


def _title(record: Record) -> str:
    model, place = record.recipe.get("model"), origin.source(record)
    return f"{shown(model, 80)} on {shown(place, 80)}" if model and place else shown(record.name, 80)


def _summary(record: Record) -> Html:
    scores = record.scores
    if scores is None:
        result = [soft(record.without("The final score", "evaluation.json"))]
    else:
        result = [_tiles(scores), tag("p", _honest(scores, record), cls="note")]
    notes = [tag("li", name(note)) for note in record.events.notes[:NOTES]]
    return tag(
        "section",
        tag("h1", name(_title(record)), id="summary-title"),
        tag("p", _what(record)),
        *result,
        *(tag("p", said) for said in troubles(record)),
        *([tag("ul", *notes)] if notes else []),
        id="summary",
        aria_labelledby="summary-title",
    )


def troubles(record: Record) -> Iterator[Html | str]:
    events = record.events
    if "events.jsonl" not in record.gaps and not events.ended:
        yield f"The log has no end: the run was killed or still goes on. Its last step: {events.last_step:,}."
    elif events.ended not in ("", "done"):
        yield joined(["The run ended before its time: ", name(events.ended), "."])
    if events.resumes:
        yield f"It was interrupted and resumed {count(events.resumes, 'time')}; the pauses are not counted."
    if events.dropped:
        yield f"events.jsonl holds {count(events.dropped, 'line')} that could not be read."


def _what(record: Record) -> Html:
    """What was trained, on what, for how long."""
    events, splits = record.events, origin.splits(record.data)
    size = f" ({events.parameters / 1e6:.1f} million parameters)" if events.parameters else ""
    what = "was frozen and a linear head trained" if record.recipe.get("method") == "probe" else "was trained"
    said = [name(record.recipe.get("model", "A model")), f"{size} {what}"]
    if splits.get("train"):
        said.append(f" on {count(splits['train'], 'picture')}")
        said.append(f" of {count(len(record.labels), 'class')}" if record.labels else "")
    if record.epochs:
        said.append(f" for {count(len(record.epochs), 'epoch')}")
        said.append(f" ({count(events.last_step, 'step')})" if events.last_step else "")
    if events.seconds:
        said.append(f" in {duration(events.seconds)}")
    if math.isfinite(events.began):
        said.append(f", from {moment(events.began)} to {moment(events.last)}")
    return joined([*said, "."])


def _tiles(scores: Scores) -> Html:
    low, high = wilson(scores.correct, scores.count)
    tiles = [
        ("Accuracy", percent(scores.accuracy), f"95 % interval: {percent(low)} to {percent(high)}"),
        ("Balanced accuracy", percent(scores.balanced_accuracy), "mean recall of the classes"),
        ("Macro F1", percent(scores.macro_f1), "mean of the classes"),
        ("Loss", number(scores.loss), "nats; lower is better"),
        ("Calibration error", percent(scores.ece), "0 % is honest"),
    ]
    if scores.classes > 5:
        tiles.insert(1, ("Top 5", percent(scores.top5), "label among five answers"))
    return tag(
        "dl", *(tag("div", tag("dt", t), tag("dd", v, tag("small", s))) for t, v, s in tiles), cls="tiles"
    )


def _honest(scores: Scores, record: Record) -> Html:
    """The score with what a careful reader would add."""
    low, high = wilson(scores.correct, scores.count)
    split = {"val": "validation", "train": "training"}.get(record.split, record.split)
    often = int(scores.support.argmax())
    said = [
        f"{scores.correct:,} of {scores.count:,} ",
        name(split),
        " pictures were named correctly. On new pictures of the same kind, expect an accuracy between ",
        f"{percent(low)} and {percent(high)} (95 % Wilson interval). ",
    ]
    if high - low > WIDE:
        said.append(
            f"That is wide, because {count(scores.count, 'picture')} are few: a model that scores a little "
            "better or worse here may be no different. "
        )
    said.append(CAUTION.get(record.split, ""))
    share = percent(float(scores.support[often] / scores.count))
    return joined([*said, "Always answering ", name(record.label(often)), f" would be right in {share}."])


def _curves(record: Record, drawn: Drawn) -> Html:
    if record.recipe.get("method") == "probe":
        none = "A linear probe has none: its head is the one solution of a convex problem."
        return section("curves", PARTS["curves"], tag("p", none))
    made = (figures.loss(record), figures.accuracy(record), figures.lr(record), figures.pace(record))
    plots = [drawn(plot) for plot in made if isinstance(plot, Plot)]
    words = [drawn(plot) for plot in made if isinstance(plot, str)]
    files = [file for file in ("events.jsonl", "results.csv") if file in record.gaps]
    why = [soft(f"{file} {record.gaps[file]}.") for file in files]
    return section("curves", PARTS["curves"], tag("div", *plots, cls="plots"), *words, *why)


def _scored(record: Record, part: str, make: Callable[[Scores], Iterator[Html]]) -> Html:
    if record.scores is None:
        return section(part, PARTS[part], soft(record.without(PARTS[part], "evaluation.json")))
    return section(part, PARTS[part], *make(record.scores))


def _confused(record: Record, scores: Scores, drawn: Drawn) -> Iterator[Html]:
    yield drawn(matrix.confusion(record, scores))
    if scores.classes > matrix.LABELLED:  # then the plot's own table is the list of pairs
        return
    if found := matrix.pairs(record, scores):
        rows = cells(matrix.PAIR, found)
        yield table("pairs", "The pairs that are most often confused", list(matrix.PAIR), rows)


def _mistakes(record: Record) -> Iterator[Html]:
    scores = record.scores
    if record.mistakes:
        yield tag(
            "p",
            "Here the model was most sure and still wrong. "
            "Look at the label first: it may be the label that is wrong.",
        )
        yield gallery(record.mistakes[:PICTURES])
    elif scores is not None and scores.correct == scores.count:
        yield tag("p", "There are none: every picture was named correctly.")
    else:
        yield soft(record.without("The list of mistakes", "evaluation.json"))


def _samples(record: Record) -> Iterator[Html]:
    if not record.samples:
        yield soft(record.without("A sample of the training pictures", "samples.json"))
        return
    how = "cropping" if record.recipe.get("method") == "probe" else "cropping and augmentation"
    yield tag(
        "p",
        f"Training pictures as they went into the model, after {how}. "
        "What a person could not name here, a model can hardly learn.",
    )
    yield gallery(record.samples[:PICTURES])
