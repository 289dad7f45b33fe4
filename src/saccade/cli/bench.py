"""`saccade bench`: how fast a model answers here, on every engine."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.arguments import FormatOption
from saccade.errors import DataError, UsageError, check_number, check_word

if TYPE_CHECKING:
    from saccade.data.pictures import Images
    from saccade.engine.bench import Before, Cell
    from saccade.engine.subject import Subject
    from saccade.engine.worker import Worker

DECODED = 32


def bench(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL", help="Model folders, exported ones, or names (vit_s16)."),
    ],
    data: Annotated[
        str,
        typer.Option(metavar="DATA", help="Labelled pictures, to score each engine and draw a plot."),
    ] = "",
    engine: Annotated[
        str, typer.Option(help="all (without compiled), auto, or of eager, compiled, onnx, openvino.")
    ] = "all",
    batch: Annotated[str, typer.Option(help="Pictures at once, with commas.")] = "1,8",
    seconds: Annotated[float, typer.Option(help="For each model, engine and batch.")] = 2.0,
    count: Annotated[int, typer.Option(help="Pictures of DATA to score on.")] = 500,
    out: Annotated[Path | None, typer.Option(help="The plot, a .png; default accuracy-by-speed.png.")] = None,
    kind: FormatOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a model on this machine: `saccade bench runs/pets --data pets` or `saccade bench vit_s16`."""
    batches = _batches(batch)
    check_number("--seconds", seconds, 0.01, 3600)
    check_number("--count", count, 1, 10**7)
    if out is not None and (not data or out.suffix.lower() != ".png"):
        raise UsageError(
            "--out is a .png for the plot, which needs --data to know how often a model is right"
        )
    if out is not None and not out.parent.is_dir():
        raise UsageError(f"--out is {out}, but there is no folder {out.parent}; make it, or choose another")
    from saccade.engine.engine import NAMES

    for word in engine.split(","):
        check_word("--engine", word, ("all", "auto", *NAMES))
    from saccade.cli.table import table
    from saccade.engine import bench as measure
    from saccade.engine import bench_told
    from saccade.engine.select import processor
    from saccade.engine.subject import subject
    from saccade.engine.worker import working

    with TemporaryDirectory() as scratch:
        subjects = [subject(model, Path(scratch) / str(i)) for i, model in enumerate(models)]
        images = _images(data, kind, count, subjects) if data else None
        names = {each.name: _names(each.path, engine) for each in subjects}
        most = measure.peak()
        with working(subjects, names, batches, _say) as workers:
            _say(f"measuring {len(workers)} x {len(batches)} in turns")
            found = measure.cells(workers, batches, seconds, most)
            if images is not None:
                _say(f"scoring on {len(images):,} pictures")
                right = dict(zip(map(_key, workers), measure.scored(workers, images), strict=True))
                found = [replace(cell, right=right[cell.model, cell.engine]) for cell in found]
        some = [] if images is None else _files(images)
        told = f"{len(some)} of {data}" if some else "a JPEG of 500 x 375 pixels"
        before = measure.before(subjects[0].preprocess, some or [measure.photograph()] * DECODED, told)
    if images is not None:
        _draw(found, len(images), out or Path("accuracy-by-speed.png"))
    if as_json:
        typer.echo(_json(found, before, most))
        return
    typer.echo(table(bench_told.rows(found), right=range(2, 10)))
    typer.echo(bench_told.told(before))
    typer.echo(f"{processor()}; a product of matrices reaches {2 * most / 1e9:.0f} GFLOP/s here")


def _batches(text: str) -> list[int]:
    try:
        found = sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise UsageError(f"--batch is {text!r}; expected whole numbers with commas such as 1,8") from None
    for each in found:
        check_number("--batch", each, 1, 4096)
    return found


def _names(path: Path, engine: str) -> list[str]:
    """The engines that are asked for; all are those that need no minutes to start, as a compiler does."""
    from saccade.engine.select import engines

    words = dict.fromkeys(engine.split(","))
    return [name for name in engines(path) if name != "compiled"] if "all" in words else list(words)


def _key(worker: "Worker") -> tuple[str, str]:
    return worker.subject.name, worker.engine


def _images(data: str, kind: str, count: int, subjects: "Sequence[Subject]") -> "Images":
    """Some pictures of the first of test, val and train, of classes that every model knows."""
    from saccade.cli.sample import readable
    from saccade.data.readers.open import open_images
    from saccade.data.splits import spread

    found = open_images(data, kind, least=1).splits
    images = next(found[name] for name in ("test", "val", "train") if name in found)
    for each in subjects:
        unknown = sorted(set(images.classes) - set(each.labels))
        if unknown:
            raise DataError(
                f"{data} has {len(unknown)} classes that {each.name} does not know "
                f"({', '.join(unknown[:3])}); expected folders named like its labels, or no --data"
            )
    some = images.take(spread(len(images), count))
    if not any(readable(some, i) for i in range(len(some))):
        raise DataError(f"none of {len(some):,} pictures of {data} could be read; expected one or more")
    return some


def _files(images: "Images") -> list[bytes]:
    """Pictures as they lie on the disk, spread over all, without those that cannot be read."""
    from saccade.cli.sample import readable
    from saccade.data.splits import spread

    return [images.read(i) for i in spread(len(images), DECODED) if readable(images, i)]


def _draw(cells: "Sequence[Cell]", pictures: int, path: Path) -> None:
    from saccade.engine.bench_told import plot
    from saccade.files.atomic import replacing
    from saccade.report.plots import LIGHT, render

    made = plot(cells, pictures)
    drawn = render(made, LIGHT)
    with replacing(path, len(drawn)) as file:
        file.write(drawn)
    _say(f"{made.message}\nplot: {path}")


def _json(cells: "Sequence[Cell]", before: "Before", most: float) -> str:
    from saccade import values
    from saccade.engine.select import processor

    described = [{k: v for k, v in values.to_json(c).items() if k != "right" or c.right >= 0} for c in cells]
    peak = {"machine": processor(), "peak_macs_per_second": most}
    return json.dumps({**peak, "before": values.to_json(before), "cells": described}, indent=2)


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
