"""`saccade embed`: which pictures are alike to a model, and which labels does that put in doubt?"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.arguments import ChangesOption, FormatOption, ModelArgument
from saccade.errors import SaccadeError, UsageError, check_number

if TYPE_CHECKING:
    from saccade.embedding.embedded import Embedded, Pictures
    from saccade.embedding.query import Answers
    from saccade.embedding.survey import Look, Survey
    from saccade.weights.load import Loaded

LISTED = 10
FEW = 4
"""Batches that are read sooner than a worker process has started."""


def embed(
    model: ModelArgument,
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help="As for train; a model of text needs none: it maps its words."),
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Where to put vectors and map; default: runs/embed-NAME.")
    ] = None,
    way: Annotated[str, typer.Option("--map", help="pca, tsne, or umap if it is installed.")] = "tsne",
    split: Annotated[
        str, typer.Option(help="Only train, val or test; of a translator: source or target.")
    ] = "",
    query: Annotated[
        list[str] | None,
        typer.Option(metavar="PICTURE", help="Only list the pictures, or words, nearest to this one."),
    ] = None,
    analogy: Annotated[
        tuple[str, str, str] | None,
        typer.Option(
            metavar="A B C", help="Only list what is to C as B is to A (pictures of DATA, or files)."
        ),
    ] = None,
    top: Annotated[int, typer.Option(help="How many --query and --analogy list.")] = 5,
    index: Annotated[str, typer.Option(help="exact, or faiss if it is installed.")] = "exact",
    changes: ChangesOption = None,
    kind: FormatOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Map pictures by what a model sees in them: `saccade embed runs/pets photos --map tsne`."""
    from saccade.cli.note import looked
    from saccade.weights.identify import locate

    check_number("top", top, 1, 10**6)
    asks = bool(query) or analogy is not None
    if asks and out is not None:
        raise UsageError("--query and --analogy only list pictures and write no folder; leave out --out")
    path = locate(model)
    if (known := looked(path, "any")).text:  # a damaged file is refused before torch is imported
        from saccade.cli.embed_text import embed_text

        given = {"--index": index != "exact", "--set": changes, "--format": kind != "auto"}
        if others := [name for name, value in given.items() if value]:
            raise UsageError(
                f"given was {', '.join(others)}, which only pictures have; the model is one of text"
            )
        embed_text(known, data, split, way, query or [], analogy, top, out, as_json)
        return
    if not data:
        raise UsageError("no DATA was given; expected pictures to embed: class folders, a manifest or shards")
    from saccade.embedding.embedded import open_pictures
    from saccade.embedding.survey import Look
    from saccade.recipe import override

    look = override(Look(way=way, index=index), changes or [])
    pictures = open_pictures(data, kind)
    for words in (pictures.told, *(f"note: {words}" for words in pictures.warnings)):
        print(words, file=sys.stderr)
    from saccade.weights.load import load

    if not asks:
        pictures = _as_trained(path, pictures)
    pictures = pictures.only(split) if split else pictures
    loaded, place = load(path), out or Path("runs") / f"embed-{Path(data).resolve().name or 'data'}"
    found = _embedded(loaded, pictures, place, look)
    if asks:
        from saccade.embedding.query import answers

        _show_answers(answers(loaded, found, query or [], analogy, top, look.metric), as_json)
    else:
        title = f"{Path(data).resolve().name or data} as {Path(model).resolve().name or model} sees it"
        told = f"The pictures of {data}, embedded by {model}."
        _survey(found, look, place, (title, told), min(*loaded.preprocess.size, 32), as_json)
    if found.unread:
        from saccade.data.readers.listing import plural, some

        lost = plural(len(found.unread), "picture")
        print(f"{lost} could not be read: {some(found.unread)}", file=sys.stderr)
        raise typer.Exit(1)


def _as_trained(run: Path, pictures: "Pictures") -> "Pictures":
    """Part pictures as the run that learnt from them did, so that they are scored on what it never saw."""
    from dataclasses import replace

    from saccade import values
    from saccade.recipe import Recipe
    from saccade.tasks.classify.job import Source
    from saccade.weights.formats.tensors import read_json

    found = pictures.collection
    if found is None or not (run / "recipe.json").is_file() or not (run / "data.json").is_file():
        return pictures
    try:
        recipe, described = read_json(run / "recipe.json"), read_json(run / "data.json")
        kept = values.from_json(Recipe, {name: recipe[name] for name in ("seed", "val") if name in recipe})
        parted = Source.of(described).part(found, kept)
    except (SaccadeError, ValueError):  # not the run's pictures: they cannot be parted as those were
        return pictures
    learnt = described.get("train")
    if not isinstance(learnt, dict) or parted.train.fingerprint() != learnt.get("fingerprint"):
        return pictures
    if parted.val is None and parted.test is None:
        print(
            "note: the model learnt from all of these pictures, so its scores are too good", file=sys.stderr
        )
    elif parted.splits.keys() != pictures.splits.keys():
        print("note: parted into train and val as the run was", file=sys.stderr)
    return replace(pictures, splits=parted.splits, collection=parted)


def _embedded(loaded: "Loaded", pictures: "Pictures", place: Path, look: "Look") -> "Embedded":
    from saccade.embedding.embedded import embed as embedded
    from saccade.train.log import Log
    from saccade.vision.features import FOLDER, Extract

    folder = place.parent / FOLDER
    steps = sum(-(-len(images) // look.batch) for images in pictures.splits.values())
    workers = look.workers if steps > FEW else 0
    log = Log(folder, steps)
    try:
        extract = Extract(loaded.module, loaded.preprocess, folder, look.batch, workers, log)
        return embedded(extract, pictures)
    finally:
        log.close()


def _survey(
    found: "Embedded", look: "Look", place: Path, words: tuple[str, str], side: int, as_json: bool
) -> None:
    from saccade.embedding import folder
    from saccade.embedding import map_page as atlas
    from saccade.embedding.sketch import sketch
    from saccade.embedding.survey import beside, survey
    from saccade.files.atomic import new_folder

    print(f"neighbours, scores and a map of {len(found.vectors):,} pictures ...", file=sys.stderr)
    seen = survey(found, look)
    sketches = sketch(found.images, atlas.pictured(seen), side, max(1, look.workers))
    seen = beside(seen, sketches.pixels)
    made = new_folder(place)
    page = folder.write(made, seen, sketches, *words)
    typer.echo(json.dumps({"folder": str(made), **seen.to_json()}, indent=2) if as_json else _report(seen))
    print(f"map: {page}", file=sys.stderr)


def _report(seen: "Survey") -> str:
    """The scores, and the first of what was found."""
    import math

    from saccade.cli.table import table
    from saccade.embedding.map_page import TOLD, WAYS
    from saccade.wording import count, percent

    found, names = seen.found, seen.found.names
    parts = []
    rows = [
        (TOLD[key][0], percent(value), TOLD[key][1])
        for key in TOLD
        if not math.isnan(value := getattr(seen.scores, key))
    ]
    if rows:
        parts.append(f"{count(len(names), 'picture')}; {seen.way}\n{table(rows, right=(1,))}")
    trust = "" if math.isnan(seen.trust) else f"; its neighbours are to be trusted to {percent(seen.trust)}"
    parts.append(f"map: {WAYS[seen.map.way]} of {count(len(seen.drawn), 'picture')}{trust}")
    parts += [f"note: {note}" for note in seen.notes]
    copies = [
        (f"{pair.cosine:.3f}", names[pair.first], names[pair.second], _across(found.splits, *pair[:2]))
        for pair in seen.twins
    ]
    doubts = [
        (names[each.row], found.label(each.row), found.images.classes[each.answer], f"{each.sure:.0%}")
        for each in seen.suspects
    ]
    heads = {
        f"{count(len(copies), 'pair')} of pictures that may be copies": copies,
        f"{count(len(doubts), 'label')} that the neighbours contradict": doubts,
    }
    columns = [("cosine", "picture", "picture", ""), ("picture", "label", "neighbours say", "share")]
    for (told, lines), head in zip(heads.items(), columns, strict=True):
        if lines:
            more = f"\n... {len(lines) - LISTED:,} more in report.json" if len(lines) > LISTED else ""
            parts.append(f"{told}\n{table([head, *lines[:LISTED]])}{more}")
    return "\n\n".join(parts)


def _across(splits: list[str], first: int, second: int) -> str:
    return "" if splits[first] == splits[second] else f"in {splits[first]} and {splits[second]}"


def _show_answers(answers: "Answers", as_json: bool) -> None:
    from saccade.cli.table import table

    if as_json:
        told = [
            {
                "query": query,
                "nearest": [{"picture": n.name, "row": n.place, "distance": n.distance} for n in near],
            }
            for query, near in answers
        ]
        typer.echo(json.dumps(told, indent=2))
        return
    rows = [("query", "distance", "picture")]
    for query, near in answers:
        rows += [(query * (i == 0), f"{n.distance:.4f}", n.name) for i, n in enumerate(near)]
    typer.echo(table(rows, right=(1,)))
