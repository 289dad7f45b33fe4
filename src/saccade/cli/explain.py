"""`saccade explain`: why did it answer so, and is that true?"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.arguments import ModelArgument, check_free
from saccade.cli.place import check_place, made_folder
from saccade.cli.predict import find
from saccade.errors import DataError, UsageError, check_number

if TYPE_CHECKING:
    from saccade.api.models import Model
    from saccade.data.image.formats import Source
    from saccade.data.image.resize import Pixels
    from saccade.explain.explanation import Account
    from saccade.explain.page.content import Story
    from saccade.nn.patch import Image

    Found = tuple[str, Source]
    Answer = tuple[str, Account | DataError]
    Ready = tuple[Source, Account]

OF_PICTURES = ("--method", "--all", "--masks", "--inside", "--quick")


def explain(
    model: ModelArgument,
    pictures: Annotated[
        list[str] | None,
        typer.Argument(metavar="PICTURE", help="Files, folders, or - for stdin; for a model of text: texts."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="How; the default is relevance, for a CNN gradcam. --all compares them.")
    ] = "",
    target: Annotated[
        str | None,
        typer.Option(metavar="LABEL", help="Which class, or translation; default: its own answer."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page to click in; several pictures: a folder of them."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where a PNG and a JSON of each picture go; default: explained, if nothing else is asked.",
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Rank all methods that fit the model, on these pictures.")
    ] = False,
    masks: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="With --all: masks of the objects, white or as a trimap."),
    ] = None,
    inside: Annotated[
        bool,
        typer.Option("--inside", help="Also look at what the model has learnt: positions, heads, depth."),
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Do not measure how true the maps are.")] = False,
    count: Annotated[int, typer.Option(help="At most so many pictures, evenly spread; 0: all.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """See why it answered so, and if that is true: `saccade explain runs/pets cat.jpg --html cat.html`."""
    from saccade.cli.note import looked
    from saccade.weights.identify import locate

    check_number("count", count, 0, 10**6)
    path = locate(model)
    if (found := looked(path, "any")).text:
        from saccade.cli.explain_text import explain_text

        given = zip(OF_PICTURES, (method, every, masks, inside, quick), strict=True)
        others = [name for name, value in given if value]
        explain_text(found, pictures, target, html, out, others, as_json)
        return
    _check(pictures, html, every, masks, inside, quick)
    sources = _some([(name, _whole(source)) for name, source in find(pictures or [])], count)
    check_place(html, len(sources))
    check_free(out)
    from saccade.api.models import load

    network = load(path)
    network.check_classes()
    work = Work(
        network=network,
        model=Path(model).name or model,
        method=_method(network, method),
        target=None if target is None else network.index(target),
        quick=quick,
        every=every,
        html=html,
        out=made_folder(out, inside or not (html or as_json or every)),
    )
    answers = list(_explained(work, sources))
    told = zip(sources, answers, strict=True)
    ready = [(source, answer) for (_, source), (_, answer) in told if not isinstance(answer, DataError)]
    if every:
        _rank(work, ready, masks, as_json)
    elif answers or as_json:
        (show_json if as_json else show_table)(answers)
    if inside:
        _inside(work, ready)
    if work.out is not None and any(work.out.iterdir()):
        print(f"pictures and numbers: {work.out}", file=sys.stderr)
    elif work.out is not None:
        work.out.rmdir()  # no picture could be read
    failed = sum(isinstance(answer, DataError) for _, answer in answers)
    if failed:
        print(f"{failed} of {len(answers)} pictures could not be read", file=sys.stderr)
        raise typer.Exit(1)


def _check(
    pictures: list[str] | None, html: Path | None, every: bool, masks: Path | None, inside: bool, quick: bool
) -> None:
    if masks is not None and not every:
        raise UsageError("--masks was given without --all; masks are for comparing methods")
    if masks is not None and not masks.is_dir():
        raise UsageError(f"there is no folder of masks at {str(masks)!r}; expected one file for each picture")
    if quick and every:
        raise UsageError("--quick and --all were both given; to compare is to measure: choose one")
    if not pictures and (not inside or every or html):
        raise UsageError("no picture was given; expected files, folders or -; only --inside can do without")


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What is to be done for each picture."""

    network: "Model"
    model: str
    method: str
    target: int | None
    quick: bool
    every: bool
    html: Path | None
    out: Path | None


def _some(sources: "list[Found]", count: int) -> "list[Found]":
    """At most so many, evenly spread."""
    total = len(sources)
    return [sources[i * total // count] for i in range(count)] if 0 < count < total else sources


def _whole(source: "Source") -> "Source":
    """What can be read once only, read."""
    from saccade.data.image.formats import read

    return source if isinstance(source, str | bytes | Path) else read(source)[1]


def _method(network: "Model", name: str) -> str:
    """The method asked for, if it fits the model; else the model's default."""
    from saccade.explain.methods.table import DEFAULT, fitting, method

    able = fitting(network.module)
    return method(name or (DEFAULT if DEFAULT in able else able[0]), network.module).name


def _seen(work: Work, source: "Source") -> "tuple[Pixels, Image]":
    import torch

    preprocess = work.network.preprocess
    pixels = preprocess.pixels(source)
    return pixels, torch.from_numpy(preprocess.normalise(pixels))[None].to(work.network.device)


def _explained(work: Work, sources: "Sequence[Found]") -> "Iterator[Answer]":
    """Each picture with its account; what is asked for is written on the way."""
    from saccade.explain.write import Keeper

    keeper = Keeper(work.model, work.html, work.out)
    if sources:
        _warn(work)
    for name, source in sources:
        try:
            account, story = _one(work, name, source)
        except DataError as error:
            print(f"error: {error}", file=sys.stderr)
            yield name, error
        else:
            keeper.keep(account, story)
            yield name, account
    page = keeper.finish()
    if page is not None:
        print(f"page: {page}", file=sys.stderr)


def _warn(work: Work) -> None:
    """Say why it takes long, where it will."""
    from saccade.explain.page.tell import QUICK
    from saccade.models.cost import macs

    module = work.network.module
    if not work.quick and not work.every and macs(module, module.config.image) > QUICK:
        print("measuring how true the maps are takes a while; --quick leaves it out", file=sys.stderr)


def _one(work: Work, name: str, source: "Source") -> "tuple[Account, Story | None]":
    from saccade.explain.explanation import Question, account
    from saccade.explain.page.tell import story

    pixels, image = _seen(work, source)
    module, label = work.network.module, work.network.label
    quick = work.quick or (work.every and work.html is None)  # the ranking measures anyway
    question = Question(name=Path(name).name, method=work.method, target=work.target, quick=quick)
    if work.html is None:
        return account(module, image, pixels, label, question), None
    told, made = story(module, image, pixels, label, question, work.model, work.every)
    return made, told


def _rank(work: Work, ready: "list[Ready]", masks: Path | None, as_json: bool) -> None:
    """All methods on all pictures that could be read."""
    import torch

    from saccade import values
    from saccade.explain.faithfulness.masks import masks as read_masks
    from saccade.explain.faithfulness.ranking import plot, rank
    from saccade.explain.methods.table import METHODS, fitting
    from saccade.report.plots import save

    if not ready:
        raise DataError("no picture could be read, so that no method could be tried; give some that can")
    module = work.network.module
    found = rank(
        module,
        torch.cat([_seen(work, source)[1] for source, _ in ready]),
        torch.tensor([answer.heatmap.target for _, answer in ready], device=work.network.device),
        {name: METHODS[name].function for name in fitting(module)},
        None if masks is None else read_masks(masks, [_path(s) for s, _ in ready], work.network.preprocess),
        say=lambda done, total: print(f"measured {done} of {total}", file=sys.stderr),
    )
    drawn = plot(found)
    if work.out is not None:
        save(drawn, work.out)
    if as_json:
        typer.echo(json.dumps(values.to_json(found), indent=2))
        return
    from saccade.cli.table import table
    from saccade.report.plots import cells

    rows = [[text for text, _ in row] for row in cells(drawn.columns, drawn.rows)]
    typer.echo(table([list(drawn.columns), *rows], right=range(2, len(drawn.columns))))
    typer.echo(f"\n{found}")


def _path(source: "Source") -> Path:
    if isinstance(source, str | Path):
        return Path(source)
    raise UsageError("a picture on stdin has no name, so no mask can be found for it; give it as a file")


def _inside(work: Work, ready: "list[Ready]") -> None:
    from saccade.explain.inside.inside import write

    assert work.out is not None
    network, pictures = work.network, [source for source, _ in ready]
    page, *_ = write(work.out / "inside", network.module, network.preprocess, network.labels, pictures)
    print(f"inside the model: {page}", file=sys.stderr)


def show_json(answers: "list[Answer]") -> None:
    """A list with one object a picture; names are exact, with escapes for what is not ASCII."""
    shown: list[dict[str, object]] = []
    for name, answer in answers:
        if isinstance(answer, DataError):
            shown.append({"picture": name, "error": str(answer)})
        else:
            shown.append({**answer.to_json(), "picture": name})
    typer.echo(json.dumps(shown, indent=2, allow_nan=False))


def show_table(answers: "list[Answer]") -> None:
    """A table for people."""
    from saccade.cli.table import table
    from saccade.data.image.formats import shown

    rows = [("picture", "answer", "sure", "method", "where", "hottest tenth", "gain", "is this true?")]
    for name, answer in answers:
        if isinstance(answer, DataError):
            rows.append((shown(name), "(not read)", "", "", "", "", "", ""))
            continue
        heat, verdict = answer.heatmap, answer.verdict
        gain = "" if heat.score is None else f"{heat.score:.3f}"
        told = "not measured" if verdict is None else str(verdict)
        rows.append(
            (
                *(shown(name), shown(heat.label), f"{heat.probability:.1%}", heat.method, answer.where),
                *(f"{answer.tenth:.0%}", gain, told),
            )
        )
    typer.echo(table(rows, right=(2, 5, 6)))
