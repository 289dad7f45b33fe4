"""Write the report of a comparison: the accuracy of each model, what it costs, how far it looks."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from saccade.compare.plan import BATCH, Comparison, Cost, Row
from saccade.files.atomic import write_text
from saccade.models.receptive_field import SHARES
from saccade.report.html import Html, figure, joined, name, page, pre, section, settings, table, tag
from saccade.report.plots import DARK, Axes, Cell, Ink, Plot, cells, drawable, render, save
from saccade.wording import count, duration, percent, printable

PARTS = {
    "summary": "Summary",
    "learning": "Accuracy and data",
    "cost": "Accuracy and cost",
    "reach": "How far each model looks",
    "repeat": "How to repeat it",
}
STYLES = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"))
MEGA = 2**20
INTERVAL = dict.fromkeys(("accuracy", "from", "to"), "percent")


def verdict(folder: Path, made: Comparison, rows: Sequence[Row], costs: Sequence[Cost]) -> Path:
    """Write plots/*.png, plots/*.json and report.html; return the page."""

    def drawn(plot: Plot) -> Html:
        return figure(plot, save(plot, folder / "plots"), render(plot, DARK))

    reach = far(rows)
    parts = [
        _summary(made, rows),
        section("learning", PARTS["learning"], drawn(learning(rows))),
        section("cost", PARTS["cost"], drawn(speed(rows, costs)), *_cost_table(costs)),
        section("reach", PARTS["reach"], *([drawn(reach)] if reach else []), *_reach_table(rows, costs)),
        section("repeat", PARTS["repeat"], *_repeat(folder, made)),
    ]
    write_text(folder / "report.html", page(f"{title(made)}: report", joined(parts), PARTS))
    return folder / "report.html"


def title(made: Comparison) -> str:
    """Return the heading: the models and the data."""
    return f"{' against '.join(made.models)} on {printable(Path(made.data).name, 80)}"


def _summary(made: Comparison, rows: Sequence[Row]) -> Html:
    last = [row for row in rows if row.fraction == made.fractions[-1]]
    what = (
        f"{count(len(made.models), 'model')}, each trained {count(len(made.fractions), 'time')} with one "
        f"recipe and one seed, and evaluated on the same {count(last[0].held_out, 'held-out image')}."
    )
    columns = dict.fromkeys(("model", "data"), "text") | {"images": "count"}
    columns |= INTERVAL | {"epochs": "number", "trained": "text"}
    lines = [
        (
            row.model,
            f"{row.fraction * 100:g}%",
            row.pictures,
            row.accuracy,
            row.low,
            row.high,
            row.epochs,
            duration(row.seconds),
        )
        for row in rows
    ]
    caption = "All training runs; from and to are the 95% Wilson interval of the accuracy"
    return tag(
        "section",
        tag("h1", name(title(made)), id="summary-title"),
        tag("p", what),
        tag("p", conclusion(last), cls="note"),
        tag("ul", *(tag("li", name(note)) for note in made.notes)),
        table("trainings", caption, list(columns), cells(columns, lines)),
        id="summary",
        aria_labelledby="summary-title",
    )


def conclusion(rows: Sequence[Row]) -> str:
    """Rank the models trained on one fraction of the data, and say whether the order may be chance."""
    ranked = sorted(rows, key=lambda row: -row.accuracy)
    best, start = ranked[0], f"Trained on {count(rows[0].pictures, 'image')}, "
    if warnings := doubts(rows):
        return f"{start}no ranking is possible: {_accuracies(ranked)}. {' '.join(warnings)}"
    if len(ranked) == 1:
        return f"{start}{best.model} reaches an accuracy of {percent(best.accuracy)}."
    ranking = (
        f"{start}{best.model} reaches an accuracy of {percent(best.accuracy)}, {_accuracies(ranked[1:])}."
    )
    if best.low <= ranked[1].high:
        return f"{ranking} The 95% intervals of the first two overlap, so their order may be chance."
    return f"{ranking} The 95% intervals of the first two do not overlap."


def _accuracies(ranked: Sequence[Row]) -> str:
    """Return each model with its accuracy."""
    return ", ".join(f"{row.model} {percent(row.accuracy)}" for row in ranked)


def doubts(rows: Sequence[Row]) -> list[str]:
    """Return a warning for each model that may not have started to learn: comparing it says nothing."""
    return [
        f"{row.model} may not have started to learn after {row.epochs:.2g} epochs on "
        f"{count(row.pictures, 'image')}: its accuracy of {percent(row.accuracy)} is not clearly above that "
        f"of always answering the largest class ({percent(row.largest)}); give it more time or epochs."
        for row in rows
        if not row.learnt
    ]


def _style(ink: Ink, number: int) -> dict[str, object]:
    dash, mark = STYLES[number % len(STYLES)]
    colour = (ink.first, ink.second, ink.text)[number % 3]
    return {"linestyle": dash, "marker": mark, "color": colour, "markersize": 5}


def _models(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.model for row in rows))


def _bars(rows: Sequence[Row]) -> tuple[list[float], tuple[list[float], list[float]]]:
    """Return accuracies in per cent, and how far their intervals reach down and up."""
    down = [100 * max(0.0, row.accuracy - row.low) for row in rows]
    up = [100 * max(0.0, row.high - row.accuracy) for row in rows]
    return [100 * row.accuracy for row in rows], (down, up)


def learning(rows: Sequence[Row]) -> Plot:
    """Plot accuracy against the number of training images."""
    counts = sorted({row.pictures for row in rows})

    def draw(axes: Axes, ink: Ink) -> None:
        from matplotlib.ticker import NullLocator

        for number, model in enumerate(_models(rows)):
            own = [row for row in rows if row.model == model]
            x = [row.pictures * 1.012**number for row in own]  # apart, so that no bar hides another
            label = drawable(model, f"model {number + 1}", 40)
            axes.errorbar(x, *_bars(own), capsize=3, label=label, **_style(ink, number))
        axes.set_xscale("log")
        axes.set_xticks(counts, [f"{n:,}" for n in counts])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set(xlabel="training images", ylabel="accuracy, %")
        axes.legend()

    shares = sorted({row.fraction for row in rows})
    few, many = ([row for row in rows if row.fraction == share] for share in (shares[0], shares[-1]))
    return Plot(
        name="learning",
        title="Accuracy and data",
        message=conclusion(few) + (f" {conclusion(many)}" if len(shares) > 1 else ""),
        note="Vertical lines are 95% intervals. They show the uncertainty from the number of evaluated "
        "images, not from the seed.",
        columns={"model": "text", "pictures": "count", **INTERVAL},
        rows=[(row.model, row.pictures, row.accuracy, row.low, row.high) for row in rows],
        draw=draw,
        height=3.4,
    )


def speed(rows: Sequence[Row], costs: Sequence[Cost]) -> Plot:
    """Plot accuracy, trained on all of the data, against the time for one image."""
    most = max(row.fraction for row in rows)
    last = {row.model: row for row in rows if row.fraction == most}
    points = [(each.model, 1000 * each.latency, last[each.model]) for each in costs]

    def draw(axes: Axes, ink: Ink) -> None:
        for number, (model, x, row) in enumerate(points):
            label = drawable(model, f"model {number + 1}", 40)
            style = _style(ink, number) | {"linestyle": "none", "markersize": 7}
            axes.errorbar([x], *_bars([row]), capsize=3, label=label, **style)
        axes.set(xlabel="milliseconds per image (median)", ylabel="accuracy, %")
        axes.set_xlim(0, max(x for _, x, _ in points) * 1.15)
        axes.legend()

    quick = min(points, key=lambda point: point[1])
    slow = max(points, key=lambda point: point[1])
    said = f"{quick[0]} needs {quick[1]:.3g} ms per image"
    if len(points) > 1:
        said += f", {slow[0]} {slow[1]:.3g} ms: {slow[1] / quick[1]:.2g} times as long"
    return Plot(
        name="speed",
        title="Accuracy and time per image",
        message=f"{said}.",
        note="Up and to the left is better.",
        columns={"model": "text", "ms": "number", **INTERVAL},
        rows=[(model, x, row.accuracy, row.low, row.high) for model, x, row in points],
        draw=draw,
    )


def _cost_table(costs: Sequence[Cost]) -> Iterator[Html]:
    columns = {"model": "text", "parameters": "count", "million MACs": "number", "ms, one image": "number"}
    columns |= {f"images/s, batch {BATCH}": "number"}
    columns |= dict.fromkeys(("MiB, forward", "MiB, training step"), "number")
    lines = [
        (
            each.model,
            each.parameters,
            each.macs / 1e6,
            1000 * each.latency,
            each.throughput,
            each.forward / MEGA,
            each.step / MEGA,
        )
        for each in costs
    ]
    yield table("costs", "The cost of each model", list(columns), cells(columns, lines))
    yield tag(
        "p",
        f"Times are medians on this machine. Memory is the peak for a batch of {BATCH} images: of a forward "
        "pass, and of a training step with its activations, gradients and AdamW's two moments. "
        "The weights themselves, 4 bytes per parameter, come on top.",
    )


def far(rows: Sequence[Row]) -> Plot | None:
    """Plot each block's mean attention distance and the CNNs' effective radius; None without a ViT."""
    most = max(row.fraction for row in rows)
    last = [row for row in rows if row.fraction == most]
    vits, others = [row for row in last if row.attention], [row for row in last if not row.attention]
    if not vits:
        return None
    lines: list[tuple[Cell, ...]] = [
        (row.model, block, head, distance)
        for row in vits
        for block, heads in enumerate(row.attention, 1)
        for head, distance in enumerate(heads, 1)
    ]

    def draw(axes: Axes, ink: Ink) -> None:
        for number, row in enumerate(last):
            label, style = drawable(row.model, f"model {number + 1}", 40), _style(ink, number)
            if row in others:
                line = {"color": style["color"], "linestyle": style["linestyle"]}
                axes.axhline(row.effective[0], label=f"{label}: half of the gradient", **line)
                continue
            places = range(1, len(row.attention) + 1)
            for block, heads in zip(places, row.attention, strict=True):
                axes.plot([block] * len(heads), heads, "o", color=style["color"], markersize=3, alpha=0.5)
            axes.plot(places, row.blocks, label=f"{label}: attention", **style)
        axes.set(xlabel="block", ylabel="pixels")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_ylim(bottom=0)
        axes.legend()

    said = [
        f"The attention of {row.model} reaches {row.blocks[0]:.3g} px in its first block and "
        f"{row.blocks[-1]:.3g} px in its last, on average"
        for row in vits
    ]
    said += [
        f"half of the gradient of {row.model}'s middle unit lies within {row.effective[0]:.3g} px"
        for row in others
    ]
    return Plot(
        name="reach",
        title="How far each model looks",
        message="; ".join(said) + ".",
        note="A small dot is a head, the line their mean (Dosovitskiy et al. 2021, figure 7).",
        columns={"model": "text", "block": "count", "head": "count", "pixels": "number"},
        rows=lines,
        draw=draw,
        height=3.4,
    )


def _reach_table(rows: Sequence[Row], costs: Sequence[Cost]) -> Iterator[Html]:
    fields = {each.model: each.field for each in costs}
    half, most = (f"radius of {share * 100:.4g}%" for share in SHARES)
    columns = {"model": "text", "data": "text", "can see": "text"}
    columns |= dict.fromkeys((half, most, "attention, first block", "last block"), "number")
    lines: list[tuple[Cell, ...]] = [
        (
            row.model,
            f"{row.fraction * 100:g}%",
            f"{fields[row.model]} px" if fields[row.model] else "everything",
            *row.effective,
            row.blocks[0] if row.attention else None,
            row.blocks[-1] if row.attention else None,
        )
        for row in rows
    ]
    caption = "Receptive field of the middle unit of the last feature map, in pixels"
    yield table("fields", caption, list(columns), cells(columns, lines))
    yield tag(
        "p",
        "What a unit can see follows from kernels and strides (Araujo et al. 2019), and may exceed the whole "
        "image. What it really looks at follows from its gradient with respect to the pixels (Luo et al. "
        "2016): the radius around it that holds this share of the gradient's absolute sum. Attention is the "
        "mean distance between a patch and those it attends to, weighted by attention.",
    )


def _repeat(folder: Path, made: Comparison) -> Iterator[Html]:
    command = folder / "command.txt"
    if command.is_file():
        yield pre(command.read_text(encoding="utf-8", errors="replace"))
    yield tag("p", "Each training run has its own folder here, with its recipe and its report.")
    facts: dict[str, object] = {
        "data": made.data,
        "models": list(made.models),
        "fractions": list(made.fractions),
    }
    facts |= {"equal": list(made.equal), "minutes": made.minutes, "set": list(made.changes)}
    yield settings(facts, "What was compared")
