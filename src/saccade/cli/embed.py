"""`saccade embed`: which images, or words, look alike to a model, and which labels look wrong."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.arguments import ChangesOption, DeviceOption, FormatOption, ModelArgument, examples
from saccade.cli.output import print_json, say, table
from saccade.errors import check_number
from saccade.wording import count, percent, some

if TYPE_CHECKING:
    from saccade.api.embed import Nearest, WordMap
    from saccade.embedding.survey import Survey

LISTED = 10


@examples(
    "saccade embed runs/pets pets",
    "saccade embed runs/pets pets --query cat.jpg --top 3",
    "saccade embed runs/pets pets --map pca --out map",
)
def embed(
    model: ModelArgument,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="As for train; default: the run's own. A text model maps its words."
        ),
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the vectors and the map; default: runs/embed-NAME.")
    ] = None,
    way: Annotated[str, typer.Option("--map", help="pca, tsne, or umap if it is installed.")] = "tsne",
    split: Annotated[
        str, typer.Option(help="Only train, val or test; for a translation model: source or target.")
    ] = "",
    query: Annotated[
        list[str] | None,
        typer.Option(metavar="PICTURE", help="Only list the images, or words, nearest to this one."),
    ] = None,
    analogy: Annotated[
        tuple[str, str, str] | None,
        typer.Option(metavar="A B C", help="Only list what is to C as B is to A (images of DATA, or files)."),
    ] = None,
    top: Annotated[int, typer.Option(help="Neighbours to list with --query and --analogy.")] = 5,
    index: Annotated[str, typer.Option(help="exact, or faiss if it is installed.")] = "exact",
    changes: ChangesOption = None,
    kind: FormatOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: DeviceOption = "auto",
) -> None:
    """Map images by similarity, or find the nearest ones."""
    from saccade.api.embed import EmbedOptions, ImageMap, Nearest
    from saccade.api.embed import embed as embed_data
    from saccade.api.inputs import identify_model

    check_number("top", top, 1, 10**6)
    options = EmbedOptions(
        data=data,
        out=out,
        way=way,
        split=split,
        query=query or [],
        analogy=analogy,
        top=top,
        index=index,
        changes=changes or [],
        format=kind,
        device=device,
    )
    found = identify_model(model, "weights")  # refuses a damaged file before torch is imported
    result = embed_data(found, model, options, say)
    if isinstance(result, Nearest):
        _print_nearest(result, as_json)
    elif isinstance(result, ImageMap):
        if as_json:
            print_json({"folder": str(result.folder), **result.survey.to_json()})
        else:
            typer.echo(_survey_report(result.survey))
        say(f"map: {result.page}")
    else:
        _print_words(result, as_json)
        say(f"map: {result.page}")
    if result.unread:
        say(f"{count(len(result.unread), 'image')} could not be read: {some(list(result.unread))}")
        raise typer.Exit(1)


def _print_nearest(result: "Nearest", as_json: bool) -> None:
    images = result.noun == "picture"
    if as_json:
        rows = [
            {
                "query": query,
                "nearest": [
                    {result.noun: n.name, **({"row": n.place} if images else {}), "distance": n.distance}
                    for n in near
                ],
            }
            for query, near in result.answers
        ]
        print_json(rows, escape=images)
        return
    lines = [("query", "distance", "image" if images else "word")]
    for query, near in result.answers:
        lines += [(query * (i == 0), f"{n.distance:.4f}", n.name) for i, n in enumerate(near)]
    typer.echo(table(lines, right=(1,)))


def _print_words(result: "WordMap", as_json: bool) -> None:
    words = result.words
    if as_json:
        numbers = {key: asdict(each) for key, each in result.contrast.items()}
        print_json({"folder": str(result.folder), "words": len(words.names), "contrast": numbers})
        return
    rows = [("", "numbers per word", "cosine of two words", "of the nearest")]
    rows += [
        (key, f"{e.numbers:,}", f"{e.alike:.3f}", f"{e.nearest:.3f}") for key, e in result.contrast.items()
    ]
    near = [("word", "nearest words")]
    near += [(word, ", ".join(each.name for each in words.near(word, 4))) for word in words.names[:LISTED]]
    typer.echo(f"{len(words.names):,} whole words\n{table(rows, right=(1, 2, 3))}\n\n{table(near)}")


def _survey_report(seen: "Survey") -> str:
    """Return the scores, and the first of the copies and label errors."""
    from saccade.embedding.map_page import SCORES
    from saccade.embedding.projection import WAYS

    found, names = seen.found, seen.found.names
    parts = []
    rows = [
        (SCORES[key][0], percent(value), SCORES[key][1])
        for key in SCORES
        if not math.isnan(value := getattr(seen.scores, key))
    ]
    if rows:
        parts.append(f"{count(len(names), 'image')}; {seen.scored_by}\n{table(rows, right=(1,))}")
    trust = "" if math.isnan(seen.trust) else f"; trustworthiness {percent(seen.trust)}"
    parts.append(f"map: {WAYS[seen.map.way]} of {count(len(seen.drawn), 'image')}{trust}")
    parts += [f"note: {note}" for note in seen.notes]
    copies = [
        (f"{pair.cosine:.3f}", names[pair.first], names[pair.second], _across(found.splits, *pair[:2]))
        for pair in seen.copies
    ]
    doubts = [
        (names[each.row], found.label(each.row), found.images.classes[each.answer], f"{each.p_answer:.0%}")
        for each in seen.suspects
    ]
    copy_head, doubt_head = ("cosine", "image", "image", ""), ("image", "label", "neighbours say", "share")
    for title, head, lines in (
        (f"{count(len(copies), 'pair')} of images that may be copies", copy_head, copies),
        (f"{count(len(doubts), 'label')} that the neighbours contradict", doubt_head, doubts),
    ):
        if lines:
            more = f"\n... {len(lines) - LISTED:,} more in report.json" if len(lines) > LISTED else ""
            parts.append(f"{title}\n{table([head, *lines[:LISTED]])}{more}")
    return "\n\n".join(parts)


def _across(splits: list[str], first: int, second: int) -> str:
    return "" if splits[first] == splits[second] else f"in {splits[first]} and {splits[second]}"
