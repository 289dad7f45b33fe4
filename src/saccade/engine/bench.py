"""Measure how fast models answer on this machine, for `saccade bench`: cells, their table and their plot.

All engines take turns. The cost of reading images is measured separately.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from statistics import median
from time import perf_counter

import numpy as np
from PIL import Image

from saccade.data.image.decode import decode
from saccade.data.image.preprocess import Preprocess
from saccade.engine.timing import Timing, race, stopwatch
from saccade.engine.worker import Worker
from saccade.errors import DataError
from saccade.report.plots import Axes, Ink, Plot, drawable
from saccade.wording import percent

LEAST, MOST = 7, 300
SIDE = 1024
"""Side of the square matrices whose product shows the machine's peak."""
HEAD = ["model", "engine", "batch", "p50", "p95", "images/s", "memory", "MACs", "% of peak"]
MARKS = "osD^vPX*"


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchCell:
    """One model on one engine at one batch size."""

    model: str
    engine: str
    batch: int
    p50: float
    """Seconds per batch."""
    p95: float
    rate: float
    """Images per second, from the median time."""
    memory: int
    """Peak bytes of the whole process so far."""
    macs: int
    share: float
    """Share of the machine's peak; 0 if the multiply-accumulates are unknown."""
    rounds: int
    right: float = -1.0
    """Accuracy on labelled images; -1 without any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadingCost:
    """Seconds per image before a model sees it."""

    decode: float
    preprocess: float
    pictures: int
    source: str
    """Which images these were."""


def peak(seconds: float = 1.0) -> float:
    """Return the multiply-accumulates per second in the fastest of many large matrix products."""
    a, b = np.random.default_rng(0).random((2, SIDE, SIDE), dtype=np.float32)
    (row,) = race([stopwatch(lambda: a @ b)], seconds, LEAST, most=10**6, warmup=0)
    return SIDE**3 / min(row)


def reading_cost(preprocess: Preprocess, pictures: Sequence[bytes], source: str) -> ReadingCost:
    """Measure decoding and preprocessing, one image after another; skip unreadable ones."""
    decoding, fitting = [], []
    for data in pictures:
        start = perf_counter()
        try:
            picture = decode(data)
        except DataError:
            continue
        middle = perf_counter()
        preprocess(picture)
        decoding.append(middle - start)
        fitting.append(perf_counter() - middle)
    if not decoding:
        raise DataError("none of the images could be read; expected at least one to measure with")
    return ReadingCost(
        decode=median(decoding), preprocess=median(fitting), pictures=len(decoding), source=source
    )


def photograph(height: int = 375, width: int = 500) -> bytes:
    """Return a JPEG of blurred noise, the average size of ImageNet's, for a bench without data."""
    noise = np.random.default_rng(0).integers(0, 256, (height // 8, width // 8, 3)).astype(np.uint8)
    file = BytesIO()
    Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def measure(
    workers: Sequence[Worker], batches: Sequence[int], seconds: float, most: float
) -> list[BenchCell]:
    """Measure all workers, taking turns, at each batch size; `most` is what `peak` returned."""
    made = []
    for batch in batches:
        clocks = [partial(worker.time, batch) for worker in workers]
        rows = race(clocks, seconds * len(workers), LEAST, MOST, warmup=1)
        made += [
            _cell(worker, batch, Timing.of(row), most) for worker, row in zip(workers, rows, strict=True)
        ]
    return made


def _cell(worker: Worker, batch: int, timing: Timing, most: float) -> BenchCell:
    rate = batch / timing.median
    return BenchCell(
        model=worker.model.name,
        engine=worker.name,
        batch=batch,
        p50=timing.median,
        p95=timing.p95,
        rate=rate,
        memory=worker.memory,
        macs=worker.model.macs,
        share=worker.model.macs * rate / most,
        rounds=timing.rounds,
    )


def table_rows(cells: Sequence[BenchCell]) -> list[list[str]]:
    """Return the header and one row per cell, with the accuracy where it was measured."""
    scored = any(cell.right >= 0 for cell in cells)
    return [[*HEAD, *(["accuracy"] if scored else [])], *(_row(cell, scored) for cell in cells)]


def _row(cell: BenchCell, scored: bool) -> list[str]:
    line = [
        cell.model,
        cell.engine,
        f"{cell.batch}",
        f"{1e3 * cell.p50:.2f} ms",
        f"{1e3 * cell.p95:.2f} ms",
        f"{cell.rate:.1f}",
        f"{cell.memory / 2**20:,.0f} MiB",
        f"{cell.macs / 1e6:,.0f} M" if cell.macs else "",
        f"{cell.share:.0%}" if cell.macs else "",
    ]
    return [*line, *([f"{cell.right:.2%}" if cell.right >= 0 else ""] if scored else [])]


def reading_line(cost: ReadingCost) -> str:
    """Return the cost of reading images as one line."""
    return (
        f"before the model, per image ({cost.source}): decoding {1e3 * cost.decode:.2f} ms, "
        f"preprocessing {1e3 * cost.preprocess:.2f} ms"
    )


def plot(cells: Sequence[BenchCell], pictures: int) -> Plot:
    """Plot accuracy against images per second: each model on each engine at its fastest batch size."""
    best: dict[tuple[str, str], BenchCell] = {}
    for cell in cells:
        key = cell.model, cell.engine
        if cell.right >= 0 and (key not in best or cell.rate > best[key].rate):
            best[key] = cell
    points = list(best.values())
    first, fastest = max(points, key=lambda cell: cell.right), max(points, key=lambda cell: cell.rate)
    message = (
        f"{first.model} on {first.engine} is the most accurate, {percent(first.right)} on {pictures:,} "
        f"images, at {first.rate:.1f} images/s; {fastest.model} on {fastest.engine} is the fastest, "
        f"{fastest.rate:.1f} images/s, with an accuracy of {percent(fastest.right)}."
    )
    return Plot(
        name="accuracy-by-speed",
        title="Accuracy against speed",
        message=message,
        note="Each model on each engine at its fastest batch size; up and to the right is better.",
        columns={
            "model": "text",
            "engine": "text",
            "batch": "count",
            "images/s": "number",
            "accuracy": "percent",
        },
        rows=[(cell.model, cell.engine, cell.batch, cell.rate, cell.right) for cell in points],
        draw=lambda axes, ink: _draw(axes, ink, points),
    )


def _draw(axes: Axes, ink: Ink, points: Sequence[BenchCell]) -> None:
    """Draw a colour per model and a shape per engine; points lie close together, so a legend names them."""
    from matplotlib import colormaps
    from matplotlib.ticker import PercentFormatter

    models = list(dict.fromkeys(cell.model for cell in points))
    engines = list(dict.fromkeys(cell.engine for cell in points))
    colours = [ink.first, ink.second, *(colormaps["Dark2"](i) for i in range(8))]
    for cell in points:
        number = models.index(cell.model)
        mark = MARKS[engines.index(cell.engine) % len(MARKS)]
        name = drawable(cell.model.rstrip("/").rsplit("/", 1)[-1], f"model {number + 1}")
        style = {"color": colours[number % len(colours)], "markersize": 8, "alpha": 0.85}
        axes.plot([cell.rate], [cell.right], mark, label=f"{name}, {cell.engine}", **style)
    right = [cell.right for cell in points]
    room = max(0.01, 0.15 * (max(right) - min(right)))
    axes.set_ylim(max(0.0, min(right) - room), min(1.0, max(right)) + room)
    axes.set_xlim(0, 1.08 * max(cell.rate for cell in points))
    axes.set_xlabel("images per second")
    axes.set_ylabel("accuracy")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
