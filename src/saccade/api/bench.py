"""Measure how fast models answer on this machine, on every engine."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from saccade.api.inputs import Say
from saccade.errors import DataError, UsageError, check_number, check_word

if TYPE_CHECKING:
    from saccade.data.pictures import Pictures
    from saccade.engine.bench import BenchCell, ReadingCost
    from saccade.engine.worker import BenchModel, Worker

DECODED = 32
"""Images on which the cost of reading is measured."""


class BenchResult(NamedTuple):
    """What was measured."""

    cells: "list[BenchCell]"
    reading: "ReadingCost"
    peak: float
    """Multiply-accumulates per second that the machine reaches."""
    machine: str
    images: int = 0
    """Labelled images that the accuracy is measured on."""

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, words and numbers."""
        from saccade import values

        cells = [
            {key: value for key, value in values.to_json(cell).items() if key != "right" or cell.right >= 0}
            for cell in self.cells
        ]
        peak = {"machine": self.machine, "peak_macs_per_second": self.peak}
        reading = values.to_json(self.reading)
        reading["told"] = reading.pop("source")  # scripts rely on this key
        return {**peak, "before": reading, "cells": cells}

    @property
    def notes(self) -> str:
        """The cost of reading images, and the machine, in two lines."""
        from saccade.engine.bench import reading_line

        peak = f"{self.machine}; a matrix product reaches {2 * self.peak / 1e9:.0f} GFLOP/s here"
        return f"{reading_line(self.reading)}\n{peak}"

    def _repr_html_(self) -> str:
        from saccade.api.display import html_table
        from saccade.engine.bench import table_rows

        head, *rows = table_rows(self.cells)
        return html_table(head, rows)


def bench(
    models: Sequence[str],
    say: Say,
    data: str = "",
    engine: str = "all",
    batches: Sequence[int] = (1, 8),
    seconds: float = 2.0,
    count: int = 500,
    out: Path | None = None,
    format: str = "auto",
) -> BenchResult:
    """Measure models on engines and batch sizes, interleaved; with `data`, score them and plot to `out`.

    Args:
        models: Model folders, exported ones, or names such as vit_s16.
        engine: all, auto, or comma-separated engines.
        seconds: For each model, engine and batch size.
        count: Images of `data` to score on.
    """
    check_number("--seconds", seconds, 0.01, 3600)
    check_number("--count", count, 1, 10**7)
    for each in batches:
        check_number("--batch", each, 1, 4096)
    if out is not None and (not data or out.suffix.lower() != ".png"):
        raise UsageError("--out is a .png with a plot of accuracy against speed, which needs --data")
    if out is not None and not out.parent.is_dir():
        raise UsageError(f"--out is {out}, but there is no folder {out.parent}; create it, or choose another")
    from saccade.engine.engine import NAMES

    for word in engine.split(","):
        check_word("--engine", word, ("all", "auto", *NAMES))
    from saccade.engine import bench as engines
    from saccade.engine.select import processor
    from saccade.engine.worker import open_workers

    with TemporaryDirectory() as scratch:
        opened = [open_bench_model(model, Path(scratch) / str(i)) for i, model in enumerate(models)]
        images = _images(data, format, count, opened) if data else None
        names = {each.name: _engines(each.path, engine) for each in opened}
        peak = engines.peak()
        with open_workers(opened, names, batches, say) as workers:
            say(f"measuring {len(workers)} x {len(batches)} combinations, interleaved")
            cells = engines.measure(workers, batches, seconds, peak)
            if images is not None:
                say(f"scoring on {len(images):,} images")
                scores = {(each.model.name, each.name): _score(each, images) for each in workers}
                cells = [replace(cell, right=scores[cell.model, cell.engine]) for cell in cells]
        some = [] if images is None else files_of(images)
        source = f"{len(some)} of {data}" if some else "a JPEG of 500 x 375 pixels"
        reading = engines.reading_cost(opened[0].preprocess, some or [engines.photograph()] * DECODED, source)
    if images is not None and out is not None:
        _write_plot(cells, len(images), out, say)
    return BenchResult(cells, reading, peak, processor(), 0 if images is None else len(images))


def open_bench_model(model: str, scratch: Path) -> "BenchModel":
    """Return the model that a command-line word stands for; a name is written, untrained, to `scratch`."""
    from saccade.engine.worker import BenchModel
    from saccade.tasks import task_of
    from saccade.weights.identify import identify, locate

    if not Path(model).exists() and _is_name(model):
        _write_untrained(model, scratch)
        found = identify(scratch)
    else:
        found = identify(locate(model))
    task = task_of(found)
    given: dict[str, Any] = {"name": model, "path": found.path, "task": task.name, "outputs": task.outputs}
    if found.exported:
        from saccade.engine.exported import read_exported

        made = read_exported(found)
        macs = made.facts["export"].get("macs", 0)
        given |= {"labels": made.labels, "macs": macs if isinstance(macs, int) else 0, "takes": made.takes}
        return BenchModel(preprocess=made.preprocess, **given)
    from saccade.tokens.cost import macs_of
    from saccade.weights.load import load

    loaded = load(found)
    given |= {"labels": tuple(loaded.labels), "macs": macs_of(loaded.module, loaded.preprocess.size)}
    return BenchModel(preprocess=loaded.preprocess, **given)


def _is_name(model: str) -> bool:
    from saccade.models import names

    return bool(names.GRAMMAR.fullmatch(model) or names.RESNET.fullmatch(model))


def _write_untrained(name: str, folder: Path) -> None:
    from saccade.data.image.preprocess import Preprocess
    from saccade.models import names
    from saccade.models.build import build
    from saccade.tasks import find_task
    from saccade.weights.save import save_folder

    module = build(names.config(name)).eval()
    save_folder(folder, module, Preprocess(size=module.config.image), [], task=find_task().name)


def _score(worker: "Worker", images: "Pictures") -> float:
    """Return the headline metric of the model's task, computed by a worker."""
    from saccade.tasks import find_task

    task = find_task(worker.model.task)
    model = task.wrap(worker.model, network=worker)
    return task.evaluate(model, task.align(model, images), "").metrics[task.headline]


def _engines(path: Path, engine: str) -> list[str]:
    """Return the engines to measure."""
    from saccade.engine.select import engines_for

    words = dict.fromkeys(engine.split(","))
    return engines_for(path) if "all" in words else list(words)


def _images(data: str, format: str, count: int, models: "Sequence[BenchModel]") -> "Pictures":
    """Return some images of the first split of test, val and train, with targets that every model knows."""
    from saccade.data.splits import evenly
    from saccade.tasks import find_task
    from saccade.vision.batches import flaw
    from saccade.weights.identify import Identified

    task = find_task(models[0].task)
    if others := {each.task for each in models} - {task.name}:
        raise UsageError(
            f"the models have several tasks ({task.name}, {', '.join(others)}); leave out --data"
        )
    _, images = task.open_for(Identified(models[0].path, {}), data, format).unseen()
    for each in models:
        task.align(each, images, each.name, data)
    some = images.take(evenly(len(images), count))
    if not any(flaw(some, i) is None for i in range(len(some))):
        raise DataError(f"none of the {len(some):,} images of {data} can be read; expected one or more")
    return some


def files_of(images: "Pictures") -> list[bytes]:
    """Return some images as they are on disk, spread over all, without unreadable ones."""
    from saccade.data.splits import evenly
    from saccade.vision.batches import flaw

    return [images.read(i) for i in evenly(len(images), DECODED) if flaw(images, i) is None]


def _write_plot(cells: "Sequence[BenchCell]", images: int, path: Path, say: Say) -> None:
    from saccade.engine.bench import plot
    from saccade.files.atomic import replacing
    from saccade.report.plots import LIGHT, render

    made = plot(cells, images)
    drawn = render(made, LIGHT)
    with replacing(path, len(drawn)) as file:
        file.write(drawn)
    say(f"{made.message}\nplot: {path}")
