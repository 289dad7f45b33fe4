"""The plots of heads.py: distance and entropy of attention by depth, and what depends on each head."""

import numpy as np
from jaxtyping import Float

from saccade.explain.inside.heads import HeadStatistics, Table, widest
from saccade.report.plots import Axes, Ink, Plot
from saccade.wording import count, number

COUNTED = 16
"""With more heads, numbers do not fit into the squares."""
REPLACED = {"zero": "by zero", "mean": "by its mean over the images"}


def plots(found: HeadStatistics) -> list[Plot | str]:
    """Plot distance, entropy, direct contribution and ablation; a sentence for what was not measured."""
    made: list[Plot | str] = [_distance(found), _entropy(found)]
    made += [_direct(found)] if found.direct else []
    made += [_ablation(found)] if found.ablation else []
    return [*made, found.why] if found.why else made


def _rows(table: Table) -> list[tuple[int, int, float]]:
    return [(b + 1, h + 1, value) for b, row in enumerate(table) for h, value in enumerate(row)]


def _head(row: tuple[int, int, float]) -> str:
    return f"head {row[1]} of block {row[0]}"


def _means(table: Table) -> list[float]:
    return [sum(row) / len(row) for row in table]


def _ends(table: Table, unit: str) -> str:
    first, last = (f"{number(value)}{unit}" for value in (_means(table)[0], _means(table)[-1]))
    return f"from {first} in block 1 to {last} in block {len(table)}"


def _distance(found: HeadStatistics) -> Plot:
    rows = _rows(found.distance)
    near, far = min(rows, key=lambda row: row[2]), max(rows, key=lambda row: row[2])
    return Plot(
        name="attention-distance",
        title="Mean attention distance of each head",
        message=(
            f"The mean distance goes {_ends(found.distance, ' pixels')}; {_head(near)} attends nearest "
            f"({number(near[2])}), {_head(far)} farthest ({number(far[2])}). "
            f"Uniform attention would have {number(found.uniform)}."
        ),
        note=f"Over {count(found.pictures, 'image')}. A point is a head, the line their mean, the dotted "
        "line uniform attention. Tokens that are not patches are left out.",
        columns={"block": "count", "head": "count", "distance in pixels": "number"},
        rows=rows,
        draw=lambda axes, ink: _points(found.distance, found.uniform, "pixels", axes, ink),
        extra={"uniform": found.uniform},
    )


def _entropy(found: HeadStatistics) -> Plot:
    rows = _rows(found.entropy)
    sharp, wide = min(rows, key=lambda row: row[2]), max(rows, key=lambda row: row[2])
    return Plot(
        name="attention-entropy",
        title="Mean attention entropy of each head",
        message=(
            f"The mean entropy goes {_ends(found.entropy, ' nats')}; {_head(sharp)} is the sharpest (as if "
            f"over {number(float(np.exp(sharp[2])))} tokens), {_head(wide)} the widest (as if over "
            f"{number(float(np.exp(wide[2])))} of {found.tokens:,})."
        ),
        note="The dotted line is the entropy of uniform attention.",
        columns={"block": "count", "head": "count", "entropy in nats": "number"},
        rows=rows,
        draw=lambda axes, ink: _points(found.entropy, widest(found), "nats", axes, ink),
        extra={"uniform": widest(found)},
    )


def _direct(found: HeadStatistics) -> Plot:
    rows = _rows(found.direct)
    most = max(rows, key=lambda row: abs(row[2]))
    side = "for" if most[2] > 0 else "against"
    late = sum(abs(row[2]) for row in rows if row[0] > len(found.direct) / 2)
    share = late / (sum(abs(row[2]) for row in rows) or 1)
    return Plot(
        name="head-contribution",
        title="Direct contribution of each head to the answer",
        message=(
            f"By its direct path {_head(most)} contributes most, {side} the answer ({most[2]:+.3g} on its "
            f"logit); {share:.0%} of all contributions come from the second half of the blocks."
        ),
        note=f"Over {count(found.effects, 'image')}: what the logit of the answer loses when the head's "
        "own output is removed from the last stream, later blocks unchanged.",
        columns={"block": "count", "head": "count", "logit": "number"},
        rows=rows,
        draw=lambda axes, ink: _squares(found.direct, axes, ink),
        width=_width(found.direct),
        height=_height(found.direct),
    )


def _ablation(found: HeadStatistics) -> Plot:
    rows = _rows(found.ablation)
    most, least = max(rows, key=lambda row: row[2]), min(rows, key=lambda row: row[2])
    idle = sum(abs(row[2]) < 0.1 * max(abs(most[2]), abs(least[2])) for row in rows)
    harm = f"; without {_head(least)} it rises by {-least[2]:.3g}" if least[2] < 0 else ""
    return Plot(
        name="head-ablation",
        title="Ablation of each head",
        message=(
            f"Ablating {_head(most)} costs the answer most ({most[2]:.3g} of its logit){harm}; "
            f"{idle} of {count(len(rows), 'head')} change it by less than a tenth of the strongest."
        ),
        note=f"Over {count(found.effects, 'image')}: one head at a time is replaced "
        f"{REPLACED[found.instead]}, and all later blocks run on the result.",
        columns={"block": "count", "head": "count", "logit lost": "number"},
        rows=rows,
        draw=lambda axes, ink: _squares(found.ablation, axes, ink),
        width=_width(found.ablation),
        height=_height(found.ablation),
    )


def _width(table: Table) -> float:
    return max(4.4, 1.6 + 0.44 * len(table[0]))


def _height(table: Table) -> float:
    return max(2.6, 0.9 + 0.26 * len(table))


def _points(table: Table, most: float, unit: str, axes: Axes, ink: Ink) -> None:
    blocks = range(1, len(table) + 1)
    for block, row in zip(blocks, table, strict=True):
        axes.plot([block] * len(row), row, "o", color=ink.first, markersize=4, alpha=0.75)
    axes.plot(blocks, _means(table), color=ink.second, linewidth=1.4)
    axes.axhline(most, color=ink.text, linestyle=":", linewidth=1.2)
    axes.set(xlabel="block", ylabel=unit)
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)


def _squares(table: Table, axes: Axes, ink: Ink) -> None:
    """Draw squares by block and head: blue for the answer, orange against it, and the number in each."""
    values = np.array(table)
    top = float(np.abs(values).max()) or 1.0
    axes.imshow(_colours(values / top, ink), interpolation="nearest", aspect="auto")
    axes.grid(False)
    axes.tick_params(length=0)
    axes.set(xlabel="head", ylabel="block")
    axes.set_xticks(range(values.shape[1]), range(1, values.shape[1] + 1))
    axes.set_yticks(range(values.shape[0]), range(1, values.shape[0] + 1))
    for (b, h), value in np.ndenumerate(values if values.shape[1] <= COUNTED else values[:0]):
        colour = ink.paper if abs(value) > 0.55 * top else ink.text
        axes.text(h, b, f"{value:+.2f}", ha="center", va="center", fontsize=7, color=colour)


def _colours(share: Float[np.ndarray, "l h"], ink: Ink) -> Float[np.ndarray, "l h 3"]:
    from matplotlib.colors import to_rgb

    paper, first, second = (np.array(to_rgb(colour)) for colour in (ink.paper, ink.first, ink.second))
    ends = np.where((share > 0)[..., None], first, second)
    return paper + (ends - paper) * np.abs(share)[..., None]
