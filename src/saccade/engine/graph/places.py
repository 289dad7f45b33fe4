"""Choosing, sorting and scattering in terms of ONNX's operations; see engine/operators.py."""

from typing import Any

from saccade.engine.graph.drawing import LONG, Drawing, Given, Made, Operator, Ref


def index(d: Drawing, a: list[Any], out: Given) -> Made:
    """Elements at places given by one or several adjacent lists of them."""
    x, places = a[0], a[1]
    at = [i for i, place in enumerate(places) if place is not None]
    found = [places[i] for i in at]
    rank = x.rank if isinstance(x, Ref) else x.ndim
    if len(at) == 1:
        return d.one("Gather", d.name(x), d.name(found[0], LONG), axis=at[0])
    assert at == list(range(at[0], at[0] + len(at)))
    rest = [i for i in range(rank) if i not in at]
    table = d.one("Transpose", d.name(x), perm=at + rest)
    some = d.name(found[0], LONG)
    for other in found[1:]:
        some = d.one("Add", some, d.one("Mul", d.name(other, LONG), d.name(0, LONG)))
    shape = d.one("Shape", some)
    stacked = [
        d.one("Unsqueeze", d.one("Expand", d.name(place, LONG), shape), d.vector(-1)) for place in found
    ]
    got = d.one("GatherND", table, d.one("Concat", *stacked, axis=-1))
    inner = out[0][1] - len(rest)
    order = list(range(inner, inner + at[0])) + list(range(inner)) + list(range(inner + at[0], out[0][1]))
    return d.one("Transpose", got, perm=order)


def top(d: Drawing, a: list[Any], out: Given) -> Made:
    """The largest, or smallest, and where they are."""
    x, count, axis, largest, ordered = a
    return d.emit(
        "TopK", d.name(x), d.vector(count), outputs=2, axis=axis, largest=int(largest), sorted=int(ordered)
    )


def most(d: Drawing, a: list[Any], out: Given) -> Made:
    """The largest along an axis, and where it is."""
    x, axis, kept = a
    assert not kept
    found = d.emit("TopK", d.name(x), d.vector(1), outputs=2, axis=axis, largest=1, sorted=1)
    return tuple(d.one("Squeeze", name, d.vector(axis)) for name in found)


def sort(d: Drawing, a: list[Any], out: Given) -> Made:
    """All of them in order, and where they were."""
    x, axis, largest = a[0], a[-2], a[-1]
    count = d.one("Shape", x.name, start=axis % x.rank, end=axis % x.rank + 1)
    return d.emit("TopK", x.name, count, outputs=2, axis=axis % x.rank, largest=int(largest), sorted=1)


def argsort(d: Drawing, a: list[Any], out: Given) -> Made:
    """Where the sorted ones were."""
    found = sort(d, a, out)
    assert isinstance(found, tuple)
    return found[1]


def added_rows(d: Drawing, a: list[Any], out: Given) -> Made:
    """Rows added to others."""
    x, axis, places, source, _ = a
    assert axis == 0
    rows = d.one("Unsqueeze", d.name(places, LONG), d.vector(-1))
    return d.one("ScatterND", d.name(x), rows, d.name(source), reduction="add")


def scatter(reduction: str) -> Operator:
    """Elements written, or added, to places."""

    def made(d: Drawing, a: list[Any], out: Given) -> Made:
        x, axis, places, source = a
        names = d.name(x), d.name(places, LONG), d.name(source, out[0][0])
        return d.one("ScatterElements", *names, axis=axis, reduction=reduction)

    return made
