"""Gathering, sorting and scattering in terms of ONNX's operations; see engine/graph/operators.py."""

from typing import Any

import torch

from saccade.engine.graph.drawing import Drawing, Made, Operator, Refusal, Results
from saccade.engine.graph.trace import TracedValue

LONG = torch.int64


def index(d: Drawing, out: Results, self: Any, indices: Any) -> Made:
    """Elements at positions given by one tensor, or by several for adjacent axes."""
    at = [i for i, each in enumerate(indices) if each is not None]
    found = [indices[i] for i in at]
    rank = self.rank if isinstance(self, TracedValue) else self.ndim
    if len(at) == 1:
        return d.one("Gather", d.name(self), d.name(found[0], LONG), axis=at[0])
    if at != list(range(at[0], at[0] + len(at))):
        raise Refusal(f"with indices for axes {at}; expected adjacent ones")
    rest = [i for i in range(rank) if i not in at]
    table = d.one("Transpose", d.name(self), perm=at + rest)
    # GatherND takes one tensor of index tuples: broadcast the indices to one shape, then stack them
    whole = d.name(found[0], LONG)
    for other in found[1:]:
        whole = d.one("Add", whole, d.one("Mul", d.name(other, LONG), d.name(0, LONG)))
    shape = d.one("Shape", whole)
    stacked = [d.one("Unsqueeze", d.one("Expand", d.name(each, LONG), shape), d.vector(-1)) for each in found]
    got = d.one("GatherND", table, d.one("Concat", *stacked, axis=-1))
    inner = out[0].rank - len(rest)
    order = list(range(inner, inner + at[0])) + list(range(inner)) + list(range(inner + at[0], out[0].rank))
    return d.one("Transpose", got, perm=order)


def top(d: Drawing, out: Results, self: Any, k: Any, dim: int, largest: bool, sorted: bool) -> Made:
    """The largest or smallest elements, and their positions."""
    flags = {"largest": int(largest), "sorted": int(sorted)}
    return d.emit("TopK", d.name(self), d.vector(k), outputs=2, axis=dim, **flags)


def largest(d: Drawing, out: Results, self: Any, dim: int) -> Made:
    """The largest element along an axis, and its position."""
    found = d.emit("TopK", d.name(self), d.vector(1), outputs=2, axis=dim, largest=1, sorted=1)
    return tuple(d.one("Squeeze", name, d.vector(dim)) for name in found)


def sort(d: Drawing, out: Results, self: Any, dim: int, descending: bool, stable: Any = None) -> Made:
    """All elements in order, and where they were; among equals TopK takes the first, so it is stable."""
    axis = dim % self.rank
    count = d.one("Shape", self.name, start=axis, end=axis + 1)
    return d.emit("TopK", self.name, count, outputs=2, axis=axis, largest=int(descending), sorted=1)


def argsort(d: Drawing, out: Results, self: Any, dim: int, descending: bool, stable: Any = None) -> Made:
    """Where the sorted elements were."""
    found = sort(d, out, self, dim, descending)
    assert isinstance(found, tuple)
    return found[1]


def index_add(d: Drawing, out: Results, self: Any, dim: int, index: Any, source: Any) -> Made:
    """Rows added to others."""
    if dim:
        raise Refusal(f"with dim={dim}; expected 0")
    rows = d.one("Unsqueeze", d.name(index, LONG), d.vector(-1))
    return d.one("ScatterND", d.name(self), rows, d.name(source), reduction="add")


def scatter(reduction: str) -> Operator:
    """Elements written, or added, to positions."""

    def made(d: Drawing, out: Results, self: Any, dim: int, index: Any, src: Any) -> Made:
        names = d.name(self), d.name(index, LONG), d.name(src, out[0].dtype)
        return d.one("ScatterElements", *names, axis=dim, reduction=reduction)

    return made
