"""torch's operations in terms of ONNX's; each reads the ranks and types of a trace, never its sizes.

The parameters of an operator after the first two are the arguments of torch's operation that it handles. Any
other argument has to be at its default (see engine/graph/drawing.py): a graph never ignores one silently.
"""

import math
from typing import Any

import torch
from onnx import numpy_helper

from saccade.engine.graph import indexing
from saccade.engine.graph.drawing import Drawing, Made, Operator, Refusal, Results
from saccade.engine.graph.indexing import LONG
from saccade.engine.graph.trace import TracedValue

END = 2**63 - 1
BOOL, FLOAT = torch.bool, torch.float32
UNARY = ("Abs", "Neg", "Log", "Exp", "Sin", "Cos", "Floor", "Relu", "Tanh", "Sqrt", "Reciprocal", "Round")


def _typed(d: Drawing, out: Results, op: str, *values: Any) -> str:
    """Draw an operation on values of the type of its result."""
    return d.one(op, *(d.name(value, out[0].dtype) for value in values))


def _unary(op: str) -> Operator:
    return lambda d, out, self: _typed(d, out, op, self)


def _binary(op: str) -> Operator:
    return lambda d, out, self, other: _typed(d, out, op, self, other)


def _type(value: Any) -> torch.dtype:
    dtype = value.dtype if isinstance(value, TracedValue | torch.Tensor) else torch.tensor(value).dtype
    return FLOAT if dtype == torch.float64 else dtype


def _compare(op: str) -> Operator:
    def made(d: Drawing, out: Results, self: Any, other: Any) -> Made:
        dtype = torch.promote_types(_type(self), _type(other))
        return d.one(op, d.name(self, dtype), d.name(other, dtype))

    return made


def _reduced(op: str) -> Operator:
    def made(d: Drawing, out: Results, self: Any, dim: Any = None, keepdim: Any = False) -> Made:
        axes = list(range(self.rank)) if dim is None else dim
        return d.one(op, d.name(self, out[0].dtype), d.vector(axes), keepdims=int(bool(keepdim)))

    return made


def _natural(d: Drawing, name: str) -> bool:
    """Return whether a value is never negative, because it is a size or made of sizes."""
    if name in d.weights:
        return bool((numpy_helper.to_array(d.weights[name]) >= 0).all())
    node = d.makers.get(name)
    if node is None or node.op_type not in ("Shape", "Reshape", "Add", "Mul", "Div"):
        return False
    parts = {"Shape": [], "Reshape": node.input[:1]}.get(node.op_type, node.input)
    return all(_natural(d, part) for part in parts)


def _floor_divide(d: Drawing, out: Results, self: Any, other: Any) -> Made:
    """ONNX rounds quotients of integers towards zero, so subtract 1 if the remainder has the other sign."""
    a, b = d.name(self, out[0].dtype), d.name(other, out[0].dtype)
    quotient = d.one("Div", a, b)
    if out[0].dtype.is_floating_point:
        return d.one("Floor", quotient)
    if _natural(d, a) and _natural(d, b):
        return quotient
    left = d.one("Sub", a, d.one("Mul", quotient, b))
    below = d.one("Less", d.one("Mul", left, b), d.name(0, out[0].dtype))
    return d.one("Where", below, d.one("Sub", quotient, d.name(1, out[0].dtype)), quotient)


def _and(d: Drawing, out: Results, self: Any, other: Any) -> Made:
    if out[0].dtype != BOOL:
        raise Refusal("of numbers; expected true or false")
    both = d.one("Mul", d.name(self, FLOAT), d.name(other, FLOAT))
    return d.name(TracedValue(both, FLOAT, out[0].rank), BOOL)


def _sinc(d: Drawing, out: Results, self: Any) -> Made:
    y = d.one("Mul", self.name, d.name(math.pi))
    rest = d.one("Div", d.one("Sin", y), y)
    return d.one("Where", d.one("Equal", y, d.name(0.0)), d.name(1.0), rest)


def _clamp(d: Drawing, out: Results, self: Any, min: Any = None, max: Any = None) -> Made:
    x = d.name(self)
    x = x if min is None else d.one("Max", x, d.name(min, out[0].dtype))
    return x if max is None else d.one("Min", x, d.name(max, out[0].dtype))


def _size(d: Drawing, out: Results, self: Any, dim: int) -> Made:
    axis = dim % self.rank
    shape = d.one("Shape", self.name, start=axis, end=axis + 1)
    return TracedValue(d.one("Reshape", shape, d.tensor(torch.zeros(0, dtype=LONG))), LONG, 0)


def _slice(
    d: Drawing, out: Results, self: Any, dim: int, step: Any, start: Any = None, end: Any = None
) -> Made:
    start, end = 0 if start is None else start, END if end is None else end
    if isinstance(start, int) and start == 0 and isinstance(end, int) and end == END and step == 1:
        return self
    return d.one(
        "Slice", self.name, d.vector(start), d.vector(end), d.vector(dim % self.rank), d.vector(step)
    )


def _select(d: Drawing, out: Results, self: Any, dim: int, index: Any) -> Made:
    return d.one("Gather", d.name(self), d.name(index, LONG), axis=dim % out[0].rank if dim < 0 else dim)


def _unbind(d: Drawing, out: Results, self: Any, dim: int, parts: int) -> Made:
    names = [d.one("Gather", self.name, d.name(i, LONG), axis=dim % self.rank) for i in range(parts)]
    return [TracedValue(name, self.dtype, self.rank - 1) for name in names]


def _transpose(d: Drawing, out: Results, self: Any, dim0: int, dim1: int) -> Made:
    order = list(range(self.rank))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return d.transpose(d.name(self), order)


def _unflatten(d: Drawing, out: Results, self: Any, dim: int, sizes: Any) -> Made:
    axis = dim % self.rank
    if axis != self.rank - 1:
        raise Refusal(f"with dim={dim}; expected the last")
    return d.one("Reshape", self.name, d.vector([0] * axis + sizes))


def _flatten(d: Drawing, out: Results, self: Any, start_dim: int, end_dim: int) -> Made:
    start, end = start_dim % self.rank, end_dim % self.rank
    shape = d.vector([0] * start + [-1])
    if end < self.rank - 1:
        shape = d.one("Concat", shape, d.one("Shape", self.name, start=end + 1), axis=0)
    return d.one("Reshape", self.name, shape)


def _expand(d: Drawing, out: Results, self: Any, size: Any) -> Made:
    if isinstance(self, torch.Tensor) and self.numel() == 0:  # a model without a class token
        return (self,)
    sizes = [1 if not isinstance(each, TracedValue) and int(each) == -1 else each for each in size]
    return d.one("Expand", d.name(self), d.vector(sizes))


def _fill(d: Drawing, out: Results, shape: str, value: Any) -> str:
    return d.one("Expand", d.tensor(torch.tensor(value, dtype=out[0].dtype)), shape)


def _arange(d: Drawing, out: Results, end: Any, start: Any = 0, step: Any = 1) -> Made:
    return _typed(d, out, "Range", start, end, step)


def _where(d: Drawing, out: Results, condition: Any, self: Any, other: Any) -> Made:
    return d.one("Where", d.name(condition, BOOL), d.name(self, out[0].dtype), d.name(other, out[0].dtype))


def _cat(d: Drawing, out: Results, tensors: Any, dim: int) -> Made:
    parts = [x for x in tensors if not isinstance(x, torch.Tensor) or x.numel()]
    return d.one("Concat", *(d.name(x, out[0].dtype) for x in parts), axis=dim % out[0].rank)


def _stack(d: Drawing, out: Results, tensors: Any, dim: int) -> Made:
    axis = d.vector(dim % out[0].rank)
    parts = [d.one("Unsqueeze", d.name(x, out[0].dtype), axis) for x in tensors]
    return d.one("Concat", *parts, axis=dim % out[0].rank)


def _linear(d: Drawing, out: Results, input: Any, weight: Any, bias: Any = None) -> Made:
    """A product with the weights, which stand transposed in the graph, and a bias."""
    if isinstance(weight, torch.Tensor):
        key = "turned", id(weight)
        if key not in d.known:
            d.known[key] = (d.tensor(weight.t().contiguous()),)
        turned = d.known[key][0]
    else:
        turned = d.one("Transpose", weight.name, perm=[1, 0])
    y = d.one("MatMul", d.name(input), turned)
    return y if bias is None else d.one("Add", y, d.name(bias))


def _layer_norm(
    d: Drawing, out: Results, input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float
) -> Made:
    names = input.name, d.name(weight), d.name(bias)
    return d.one("LayerNormalization", *names, axis=-len(normalized_shape), epsilon=eps)


def _rms_norm(
    d: Drawing, out: Results, input: Any, normalized_shape: Any, weight: Any, eps: float | None = None
) -> Made:
    """In plain steps, as old runtimes have no operation for it."""
    eps, axes = torch.finfo(FLOAT).eps if eps is None else eps, list(range(-len(normalized_shape), 0))
    square = d.one("ReduceMean", d.one("Mul", input.name, input.name), d.vector(axes), keepdims=1)
    length = d.one("Sqrt", d.one("Add", square, d.name(eps, FLOAT)))
    return d.one("Mul", d.one("Div", input.name, length), d.name(weight))


def _group_norm(
    d: Drawing, out: Results, input: Any, num_groups: int, weight: Any, bias: Any, eps: float
) -> Made:
    """As InstanceNormalization, which every runtime has."""
    ones, zeros = torch.ones(num_groups), torch.zeros(num_groups)
    split = d.one("Reshape", input.name, d.vector([0, num_groups, -1]))
    even = d.one("InstanceNormalization", split, d.tensor(ones), d.tensor(zeros), epsilon=eps)
    y = d.one("Reshape", even, d.one("Shape", input.name))
    across = (-1, *[1] * (input.rank - 2))
    return d.one("Add", d.one("Mul", y, d.tensor(weight.view(across))), d.tensor(bias.view(across)))


def _batch_norm(
    d: Drawing,
    out: Results,
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    momentum: float,
    eps: float,
) -> Made:
    """With the statistics of training, which `momentum` no longer changes."""
    numbers = weight, bias, running_mean, running_var
    return d.one("BatchNormalization", input.name, *map(d.name, numbers), epsilon=eps)


def _convolution(
    d: Drawing,
    out: Results,
    input: Any,
    weight: Any,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    bias: Any = None,
) -> Made:
    inputs = [d.name(input), d.name(weight)] + ([] if bias is None else [d.name(bias)])
    return d.one("Conv", *inputs, strides=stride, pads=padding * 2, dilations=dilation, group=groups)


def _max_pool(
    d: Drawing,
    out: Results,
    self: Any,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
) -> Made:
    strides = stride or kernel_size
    sizes = {"kernel_shape": kernel_size, "strides": strides, "pads": padding * 2, "dilations": dilation}
    return d.one("MaxPool", d.name(self), ceil_mode=int(ceil_mode), **sizes)


def _pad(d: Drawing, out: Results, self: Any, pad: list[Any], value: Any = None) -> Made:
    """With a constant; torch counts from the last axis, ONNX from the first."""
    before, after = pad[::2][::-1], pad[1::2][::-1]
    still = [0] * (self.rank - len(before))
    number = d.name(0.0 if value is None else value, out[0].dtype)
    return d.one("Pad", self.name, d.vector([*still, *before, *still, *after]), number)


OPERATORS: dict[str, Operator] = {
    **{f"aten::{word.lower()}": _unary(word) for word in UNARY},
    "aten::add": _binary("Add"),
    "aten::sub": _binary("Sub"),
    "aten::rsub": lambda d, out, self, other: _typed(d, out, "Sub", other, self),
    "aten::mul": _binary("Mul"),
    "aten::div": _binary("Div"),
    "aten::floor_divide": _floor_divide,
    "aten::pow": lambda d, out, self, exponent: _typed(d, out, "Pow", self, exponent),
    "aten::matmul": _binary("MatMul"),
    "aten::maximum": _binary("Max"),
    "aten::minimum": _binary("Min"),
    "aten::lt": _compare("Less"),
    "aten::le": _compare("LessOrEqual"),
    "aten::gt": _compare("Greater"),
    "aten::ge": _compare("GreaterOrEqual"),
    "aten::eq": _compare("Equal"),
    "aten::__and__": _and,
    "aten::sinc": _sinc,
    "aten::clamp": _clamp,
    "aten::clamp_min": lambda d, out, self, min: _clamp(d, out, self, min),
    "aten::clamp_max": lambda d, out, self, max: _clamp(d, out, self, None, max),
    "aten::to": lambda d, out, self, **_: d.name(self, out[0].dtype),
    "aten::dropout": lambda d, out, input, p: input,
    "aten::gelu": lambda d, out, self, approximate: d.one("Gelu", d.name(self), approximate=approximate),
    "aten::softmax": lambda d, out, self, dim: d.one("Softmax", d.name(self, out[0].dtype), axis=dim),
    "aten::sum": _reduced("ReduceSum"),
    "aten::mean": _reduced("ReduceMean"),
    "aten::amax": _reduced("ReduceMax"),
    "aten::linalg_vector_norm": _reduced("ReduceL2"),
    "aten::max": indexing.largest,
    "aten::topk": indexing.top,
    "aten::sort": indexing.sort,
    "aten::argsort": indexing.argsort,
    "aten::index_select": lambda d, out, self, dim, index: d.one(
        "Gather", d.name(self), d.name(index, LONG), axis=dim
    ),
    "aten::gather": lambda d, out, self, dim, index: d.one(
        "GatherElements", d.name(self), d.name(index, LONG), axis=dim
    ),
    "aten::index": indexing.index,
    "aten::index_add": indexing.index_add,
    "aten::scatter": indexing.scatter("none"),
    "aten::scatter_add": indexing.scatter("add"),
    "aten::where": _where,
    "aten::masked_fill": lambda d, out, self, mask, value: _where(d, out, mask, value, self),
    "aten::size": _size,
    "aten::slice": _slice,
    "aten::select": _select,
    "aten::unbind": _unbind,
    "aten::cat": _cat,
    "aten::stack": _stack,
    "aten::transpose": _transpose,
    "aten::permute": lambda d, out, self, dims: d.transpose(d.name(self), [i % self.rank for i in dims]),
    "aten::reshape": lambda d, out, self, shape: d.one("Reshape", d.name(self), d.vector(shape)),
    "aten::view": lambda d, out, self, size: d.one("Reshape", d.name(self), d.vector(size)),
    "aten::unflatten": _unflatten,
    "aten::flatten": _flatten,
    "aten::unsqueeze": lambda d, out, self, dim: d.one(
        "Unsqueeze", d.name(self), d.vector(dim % out[0].rank)
    ),
    "aten::expand": _expand,
    "aten::new_full": lambda d, out, self, size, fill_value: _fill(d, out, d.vector(size), fill_value),
    "aten::new_ones": lambda d, out, self, size: _fill(d, out, d.vector(size), 1.0),
    "aten::new_zeros": lambda d, out, self, size: _fill(d, out, d.vector(size), 0.0),
    "aten::zeros_like": lambda d, out, self: _fill(d, out, d.one("Shape", d.name(self)), 0.0),
    "aten::arange": _arange,
    "aten::linear": _linear,
    "aten::layer_norm": _layer_norm,
    "aten::rms_norm": _rms_norm,
    "aten::group_norm": _group_norm,
    "aten::batch_norm": _batch_norm,
    "aten::_convolution": _convolution,
    "aten::max_pool2d": _max_pool,
    "aten::pad": _pad,
}
