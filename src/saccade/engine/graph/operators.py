"""torch's operations in terms of ONNX's; each reads the ranks and types of a trace, never its sizes."""

from typing import Any

import torch

from saccade.engine.graph import layers, places
from saccade.engine.graph.drawing import LONG, Drawing, Given, Made, Operator, Ref

END = 2**63 - 1
BOOL, FLOAT = torch.bool, torch.float32


def _binary(op: str) -> Operator:
    return lambda d, a, out: d.one(op, d.name(a[0], out[0][0]), d.name(a[1], out[0][0]))


def _swapped(op: str) -> Operator:
    return lambda d, a, out: d.one(op, d.name(a[1], out[0][0]), d.name(a[0], out[0][0]))


def _unary(op: str) -> Operator:
    return lambda d, a, out: d.one(op, d.name(a[0], out[0][0]))


def _type(value: Any) -> torch.dtype:
    dtype = value.dtype if isinstance(value, Ref | torch.Tensor) else torch.tensor(value).dtype
    return FLOAT if dtype == torch.float64 else dtype


def _compare(op: str) -> Operator:
    def made(d: Drawing, a: list[Any], out: Given) -> Made:
        dtype = torch.promote_types(_type(a[0]), _type(a[1]))
        return d.one(op, d.name(a[0], dtype), d.name(a[1], dtype))

    return made


def _reduced(op: str) -> Operator:
    def made(d: Drawing, a: list[Any], out: Given) -> Made:
        axes = list(range(a[0].rank)) if a[1] is None else a[1]
        return d.one(op, d.name(a[0], out[0][0]), d.vector(axes), keepdims=int(bool(a[2])))

    return made


def _clamp(d: Drawing, a: list[Any], out: Given) -> Made:
    x, dtype = d.name(a[0]), out[0][0]
    x = x if a[1] is None else d.one("Max", x, d.name(a[1], dtype))
    return x if len(a) < 3 or a[2] is None else d.one("Min", x, d.name(a[2], dtype))


def _size(d: Drawing, a: list[Any], out: Given) -> Made:
    axis = a[1] % a[0].rank
    shape = d.one("Shape", a[0].name, start=axis, end=axis + 1)
    return Ref(d.one("Reshape", shape, d.tensor(torch.zeros(0, dtype=LONG))), LONG, 0)


def _slice(d: Drawing, a: list[Any], out: Given) -> Made:
    x, axis, start, end, step = a
    start, end = 0 if start is None else start, END if end is None else end
    if isinstance(start, int) and start == 0 and isinstance(end, int) and end == END and step == 1:
        return x
    axis = axis % x.rank
    return d.one("Slice", x.name, d.vector(start), d.vector(end), d.vector(axis), d.vector(step))


def _select(d: Drawing, a: list[Any], out: Given) -> Made:
    return d.one("Gather", d.name(a[0]), d.name(a[2], LONG), axis=a[1] % out[0][1] if a[1] < 0 else a[1])


def _unbind(d: Drawing, a: list[Any], out: Given) -> Made:
    x, axis = a  # two of them: pairs of channels (nn/rotary.py), cosines and sines
    names = [d.one("Gather", x.name, d.name(i, LONG), axis=axis % x.rank) for i in range(2)]
    return [Ref(name, x.dtype, x.rank - 1) for name in names]


def _transpose(d: Drawing, a: list[Any], out: Given) -> Made:
    order = list(range(a[0].rank))
    order[a[1]], order[a[2]] = order[a[2]], order[a[1]]
    return d.transposed(d.name(a[0]), order)


def _permute(d: Drawing, a: list[Any], out: Given) -> Made:
    return d.transposed(d.name(a[0]), [i % a[0].rank for i in a[1]])


def _unflatten(d: Drawing, a: list[Any], out: Given) -> Made:
    x, axis, sizes = a
    axis = axis % x.rank
    assert axis == x.rank - 1
    return d.one("Reshape", x.name, d.vector([0] * axis + sizes))


def _flatten(d: Drawing, a: list[Any], out: Given) -> Made:
    x, start, end = a[0], a[1] % a[0].rank, a[2] % a[0].rank
    shape = d.vector([0] * start + [-1])
    if end < x.rank - 1:
        shape = d.one("Concat", shape, d.one("Shape", x.name, start=end + 1), axis=0)
    return d.one("Reshape", x.name, shape)


def _expand(d: Drawing, a: list[Any], out: Given) -> Made:
    if isinstance(a[0], torch.Tensor) and a[0].numel() == 0:  # no token stands before the patches
        return (a[0],)
    sizes = [1 if not isinstance(size, Ref) and int(size) == -1 else size for size in a[1]]
    return d.one("Expand", d.name(a[0]), d.vector(sizes))


def _filled(value: float | None) -> Operator:
    """Of a size asked for (new_full, new_ones, new_zeros), or like another (zeros_like)."""

    def made(d: Drawing, a: list[Any], out: Given) -> Made:
        shape = d.vector(a[1]) if isinstance(a[1], list) else d.one("Shape", d.name(a[0]))
        number = a[2] if value is None else value
        return d.one("Expand", d.tensor(torch.tensor(number, dtype=out[0][0])), shape)

    return made


def _arange(d: Drawing, a: list[Any], out: Given) -> Made:
    start, end, step = {5: (0, a[0], 1), 6: (a[0], a[1], 1), 7: (a[0], a[1], a[2])}[len(a)]
    return d.one("Range", *(d.name(x, out[0][0]) for x in (start, end, step)))


def _where(d: Drawing, a: list[Any], out: Given) -> Made:
    return d.one("Where", d.name(a[0], BOOL), d.name(a[1], out[0][0]), d.name(a[2], out[0][0]))


def _masked(d: Drawing, a: list[Any], out: Given) -> Made:
    return _where(d, [a[1], a[2], a[0]], out)


def _cat(d: Drawing, a: list[Any], out: Given) -> Made:
    parts = [x for x in a[0] if not isinstance(x, torch.Tensor) or x.numel()]
    return d.one("Concat", *(d.name(x, out[0][0]) for x in parts), axis=a[1] % out[0][1])


def _stack(d: Drawing, a: list[Any], out: Given) -> Made:
    axis = d.vector(a[1] % out[0][1])
    parts = [d.one("Unsqueeze", d.name(x, out[0][0]), axis) for x in a[0]]
    return d.one("Concat", *parts, axis=a[1] % out[0][1])


OPERATORS: dict[str, Operator] = {
    "aten::add": _binary("Add"),
    "aten::sub": _binary("Sub"),
    "aten::rsub": _swapped("Sub"),
    "aten::mul": _binary("Mul"),
    "aten::div": _binary("Div"),
    "aten::floor_divide": _binary("Div"),
    "aten::pow": _binary("Pow"),
    "aten::matmul": _binary("MatMul"),
    "aten::maximum": _binary("Max"),
    "aten::minimum": _binary("Min"),
    "aten::lt": _compare("Less"),
    "aten::le": _compare("LessOrEqual"),
    "aten::gt": _compare("Greater"),
    "aten::ge": _compare("GreaterOrEqual"),
    "aten::eq": _compare("Equal"),
    "aten::clamp": _clamp,
    "aten::clamp_min": lambda d, a, out: _clamp(d, [a[0], a[1], None], out),
    "aten::clamp_max": lambda d, a, out: _clamp(d, [a[0], None, a[1]], out),
    **{
        f"aten::{word.lower()}": _unary(word)
        for word in (
            "Abs",
            "Neg",
            "Log",
            "Exp",
            "Sin",
            "Cos",
            "Floor",
            "Relu",
            "Tanh",
            "Sqrt",
            "Reciprocal",
            "Round",
        )
    },
    "aten::to": lambda d, a, out: d.name(a[0], out[0][0]),
    "aten::gelu": lambda d, a, out: d.one("Gelu", d.name(a[0]), approximate=a[1]),
    "aten::softmax": lambda d, a, out: d.one("Softmax", d.name(a[0]), axis=a[1]),
    "aten::sum": _reduced("ReduceSum"),
    "aten::mean": _reduced("ReduceMean"),
    "aten::amax": _reduced("ReduceMax"),
    "aten::linalg_vector_norm": lambda d, a, out: _reduced("ReduceL2")(d, [a[0], a[2], a[3]], out),
    "aten::max": places.most,
    "aten::topk": places.top,
    "aten::sort": places.sort,
    "aten::argsort": places.argsort,
    "aten::linear": layers.linear,
    "aten::size": _size,
    "aten::slice": _slice,
    "aten::select": _select,
    "aten::unbind": _unbind,
    "aten::index_select": lambda d, a, out: d.one("Gather", d.name(a[0]), d.name(a[2], LONG), axis=a[1]),
    "aten::gather": lambda d, a, out: d.one("GatherElements", d.name(a[0]), d.name(a[2], LONG), axis=a[1]),
    "aten::index": places.index,
    "aten::index_add": places.added_rows,
    "aten::scatter": places.scatter("none"),
    "aten::scatter_add": places.scatter("add"),
    "aten::where": _where,
    "aten::masked_fill": _masked,
    "aten::cat": _cat,
    "aten::stack": _stack,
    "aten::transpose": _transpose,
    "aten::permute": _permute,
    "aten::reshape": lambda d, a, out: d.one("Reshape", d.name(a[0]), d.vector(a[1])),
    "aten::view": lambda d, a, out: d.one("Reshape", d.name(a[0]), d.vector(a[1])),
    "aten::unflatten": _unflatten,
    "aten::flatten": _flatten,
    "aten::unsqueeze": lambda d, a, out: d.one("Unsqueeze", d.name(a[0]), d.vector(a[1] % out[0][1])),
    "aten::expand": _expand,
    "aten::new_full": _filled(None),
    "aten::new_ones": _filled(1.0),
    "aten::new_zeros": _filled(0.0),
    "aten::zeros_like": _filled(0.0),
    "aten::arange": _arange,
    "aten::layer_norm": layers.layer_norm,
    "aten::rms_norm": layers.rms_norm,
    "aten::group_norm": layers.group_norm,
    "aten::batch_norm": layers.batch_norm,
    "aten::_convolution": layers.convolution,
    "aten::max_pool2d": layers.max_pool,
    "aten::pad": layers.pad,
}
