"""What `saccade bench` has measured, for people: a table, and a plot of accuracy against speed."""

from collections.abc import Sequence

from saccade.engine.bench import Before, Cell
from saccade.report.plots import Axes, Ink, Plot, drawable
from saccade.wording import percent

HEAD = ["model", "engine", "batch", "p50", "p95", "pictures/s", "memory", "MACs", "of peak"]
MARKS = "osD^vPX*"


def rows(cells: Sequence[Cell]) -> list[list[str]]:
    """A line a cell; the accuracy only where it was measured."""
    scored = any(cell.right >= 0 for cell in cells)
    return [[*HEAD, *(["right"] if scored else [])], *(_row(cell, scored) for cell in cells)]


def _row(cell: Cell, scored: bool) -> list[str]:
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


def told(before: Before) -> str:
    """What happens before a model, in a line."""
    return (
        f"before the model, for each picture ({before.told}): decoding {1e3 * before.decode:.2f} ms, "
        f"preprocessing {1e3 * before.preprocess:.2f} ms"
    )


def plot(cells: Sequence[Cell], pictures: int) -> Plot:
    """Accuracy against pictures a second, a point for each model and engine, at its best batch."""
    best: dict[tuple[str, str], Cell] = {}
    for cell in cells:
        key = cell.model, cell.engine
        if cell.right >= 0 and (key not in best or cell.rate > best[key].rate):
            best[key] = cell
    points = list(best.values())
    first, fastest = max(points, key=lambda cell: cell.right), max(points, key=lambda cell: cell.rate)
    message = (
        f"{first.model} on {first.engine} is right most often, {percent(first.right)} of {pictures:,}, "
        f"at {first.rate:.1f} a second; {fastest.model} on {fastest.engine} is the fastest, "
        f"{fastest.rate:.1f} a second, and right {percent(fastest.right)}."
    )
    return Plot(
        name="accuracy-by-speed",
        title="Accuracy against speed",
        message=message,
        note="Each model on each engine at the batch that it is fastest with; up and to the right is better.",
        columns={
            "model": "text",
            "engine": "text",
            "batch": "count",
            "pictures a second": "number",
            "right": "percent",
        },
        rows=[(cell.model, cell.engine, cell.batch, cell.rate, cell.right) for cell in points],
        draw=lambda axes, ink: _draw(axes, ink, points),
    )


def _draw(axes: Axes, ink: Ink, points: Sequence[Cell]) -> None:
    """A colour a model, a shape an engine; many points lie close, so that names stand aside."""
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
    axes.set_xlabel("pictures a second")
    axes.set_ylabel("right")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
