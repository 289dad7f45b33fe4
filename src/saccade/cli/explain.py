"""`saccade explain`: why a model answers as it does, and whether the explanation holds."""

import json
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.arguments import DeviceOption, ModelArgument, examples
from saccade.cli.output import print_json, say, table
from saccade.cli.text import check_letters, line, read_texts, word
from saccade.errors import DataError, check_number
from saccade.wording import show_name

if TYPE_CHECKING:
    from saccade.api.explain import NamedExplanation
    from saccade.data.image.formats import Source
    from saccade.explain.faithfulness.ranking import Ranking
    from saccade.explain.text.attention import TextReading

WIDE, NAME, LABEL = 100, 29, 24
"""Columns of the table, and most characters of an image's name and of a label in it."""


@examples(
    "saccade explain runs/pets cat.jpg",
    "saccade explain runs/pets cat.jpg --target dog --html why.html",
    "saccade explain runs/pets photos/ --all --count 4",
)
def explain(
    model: ModelArgument,
    pictures: Annotated[
        list[str] | None,
        typer.Argument(metavar="PICTURE", help="Files, folders, or - for stdin; for a text model: texts."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="Default: relevance, or gradcam for a CNN; --all compares them.")
    ] = "",
    target: Annotated[
        str | None,
        typer.Option(metavar="LABEL", help="Class or translation to explain; default: the model's answer."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write an interactive page; for several images, a folder of them."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write a PNG and a JSON for each image here; default: explained, unless other output is "
            "asked for.",
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Rank all methods that fit the model, on these images.")
    ] = False,
    masks: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Score the maps against masks of the objects, white or as trimaps; one method, or --all.",
        ),
    ] = None,
    inside: Annotated[
        bool,
        typer.Option("--inside", help="Also show what the model has learnt: positions, heads, depth."),
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Skip the faithfulness test.")] = False,
    count: Annotated[int, typer.Option(help="Maximum number of images, evenly spread; 0: all.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: DeviceOption = "auto",
) -> None:
    """Show why a model answers as it does, and test the explanation."""
    from saccade.api.explain import ExplainSettings, ImageResult
    from saccade.api.explain import explain as explain_model
    from saccade.api.inputs import identify_model

    check_number("count", count, 0, 10**6)
    found = identify_model(model, "weights")
    if found.text:
        check_letters(target or "")
    settings = ExplainSettings(
        method=method,
        target=target,
        html=html,
        out=out,
        folder=inside or not (html or as_json or every or masks),
        every=every,
        masks=masks,
        inside=inside,
        quick=quick,
        device=device,
    )
    inputs = read_texts(pictures) if found.text else _images(pictures or [], count)
    result = explain_model(found, inputs, Path(model).name or model, settings, say)
    if not isinstance(result, ImageResult):
        _print_texts(result.readings, as_json)
        return
    if result.ranking is not None:
        _print_ranking(result.ranking, as_json)
    elif result.answers or as_json:
        (_print_json if as_json else _print_table)(result.answers)
    failed = sum(isinstance(answer, DataError) for _, answer in result.answers)
    if failed:
        say(f"{failed} of {len(result.answers)} images could not be read")
        raise typer.Exit(1)


def _images(words: list[str], count: int) -> "list[tuple[str, Source]]":
    """Return at most `count` images, evenly spread; what can be read only once is read now."""
    from saccade.api.predict import find  # imports NumPy and Pillow
    from saccade.data.image.formats import read

    found = list(find(words))
    total = len(found)
    if 0 < count < total:
        found = [found[i * total // count] for i in range(count)]
    return [(name, s if isinstance(s, str | bytes | Path) else read(s)[1]) for name, s in found]


def _print_ranking(ranking: "Ranking", as_json: bool) -> None:
    from saccade import values
    from saccade.explain.faithfulness.ranking import ranking_plot
    from saccade.report.plots import cells

    if as_json:
        print_json(values.to_json(ranking))
        return
    drawn = ranking_plot(ranking)
    left_out = {
        "positive",
        "negative",
        *(("insertion", "deletion", "randomised weights") if ranking.segmentation else ()),
    }
    shown = [i for i, name in enumerate(drawn.columns) if name not in left_out]
    rows = [[text for text, _ in row] for row in cells(drawn.columns, drawn.rows)]
    lines = [[row[i] for i in shown] for row in (list(drawn.columns), *rows)]
    typer.echo(table(lines, right=range(2, len(shown))))
    typer.echo(f"\n{fill(str(ranking), WIDE)}")


def _print_json(answers: "list[NamedExplanation]") -> None:
    """Print a list with one object per image; names are exact, with escapes for what is not ASCII."""
    rows: list[dict[str, object]] = []
    for name, answer in answers:
        if isinstance(answer, DataError):
            rows.append({"picture": name, "error": str(answer)})
        else:
            rows.append({**answer.to_json(), "picture": name})
    typer.echo(json.dumps(rows, indent=2, allow_nan=False))


def _print_table(answers: "list[NamedExplanation]") -> None:
    """Print at most 100 columns; --json has the rest."""
    rows = [("image", "answer", "confidence", "hottest", "faithful?")]
    for name, answer in answers:
        if isinstance(answer, DataError):
            rows.append((show_name(name, NAME), "(not read)", "", "", ""))
            continue
        heat, verdict = answer.heatmap, answer.verdict
        faithful = "not measured" if verdict is None else verdict.word
        rows.append(
            (show_name(name, NAME), show_name(heat.label, LABEL), heat.answer, answer.where, faithful)
        )
    typer.echo(table(rows, right=(2,)))
    if len(answers) == 1 and not isinstance(answers[0][1], DataError) and (words := answers[0][1].words):
        typer.echo(f"\n{fill(words, WIDE)}")


def _print_texts(readings: "list[TextReading]", as_json: bool) -> None:
    if as_json:
        print_json([reading.to_json() for reading in readings], indent=None, escape=False)
    else:
        typer.echo("\n\n".join(map(_text_table, readings)))


def _text_table(reading: "TextReading") -> str:
    from saccade.explain.text.page import strongest

    head = [line(reading.text) + (f" -> {line(reading.answer)}" if reading.answer else "")]
    look = reading.maps[0]
    for guess in reading.guesses:
        where = "next" if guess.place == len(look.rows) else f"word {guess.place + 1}"
        head.append(f"{where}: " + ", ".join(f"{word(said)!r} {p:.1%}" for said, p in guess.words))
    rows = [("word", "looks most at", "share")]
    rows += [(line(said), line(seen), f"{share:.0%}") for said, seen, share in strongest(look)]
    layer = "" if look.p.shape[0] * look.p.shape[1] == 1 else f" (layer {look.layer + 1}, mean of the heads)"
    return "\n".join([*head, f"{look.title}{layer}:", table(rows, right=(2,))])
