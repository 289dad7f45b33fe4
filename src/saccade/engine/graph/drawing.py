"""Draw a traced model as an ONNX graph, operation by operation, with none of the example's sizes in it.

torch's own exporters either bake sizes in (the old one folds the shapes of traced tensors) or need a minute
for a merged model (the new one reasons about every size). A trace knows the type and rank of each value, and
engine/graph/operators.py needs no more. What depends on weights alone is computed here, once.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import Parameter, signature
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from saccade.engine.graph.trace import Argument, TracedValue, TraceStep, trace
from saccade.errors import ModelError

OPSET = 20
IR = 9
"""The oldest file version with this opset, so that older runtimes read it too."""
KINDS = {
    torch.float32: TensorProto.FLOAT,
    torch.int64: TensorProto.INT64,
    torch.bool: TensorProto.BOOL,
    torch.uint8: TensorProto.UINT8,
    torch.int32: TensorProto.INT32,
}
SAME = {"prim::NumToTensor", "aten::Int", "aten::ScalarImplicit", "aten::detach", "aten::contiguous"}
SAME |= {"aten::clone", "aten::alias", "aten::FloatImplicit", "aten::IntImplicit"}
IGNORED = {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "copy", "implicit"}
IGNORED |= {"benchmark", "deterministic", "cudnn_enable", "cudnn_enabled", "allow_tf32", "sparse_grad"}
"""Arguments that change no number of a graph: results have the type that the trace says."""
_Weights = dict[str, TensorProto]


class Refusal(Exception):  # noqa: N818
    """Something that no graph here can hold, as the rest of a sentence: "with alpha=2; expected 1"."""


def _kind(dtype: torch.dtype) -> int:
    if dtype not in KINDS:
        raise Refusal(f"in {str(dtype).removeprefix('torch.')}; expected float32 or integers")
    return KINDS[dtype]


@dataclass
class Drawing:
    """A graph in the making; equal operations on equal values are drawn once."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    makers: dict[str, onnx.NodeProto] = field(default_factory=dict)
    """The node behind each value."""
    weights: _Weights = field(default_factory=dict)
    known: dict[Any, tuple[str, ...]] = field(default_factory=dict)
    """Names by what they stand for: an operation with its inputs, or a constant."""
    kept: list[Tensor] = field(default_factory=list)
    """All weights drawn so far; `known` holds their ids, which are unique only among living objects."""
    turned: dict[str, tuple[str, list[int]]] = field(default_factory=dict)
    """For each transposed value: what it was made from, and the order of axes."""

    def tensor(self, value: Tensor) -> str:
        """Return the name of a constant."""
        value = value.detach().contiguous().cpu()
        # small constants are compared by content, weights by identity: hashing them would take seconds
        content = value.numpy().tobytes() if value.numel() < 64 else id(value)
        key = "constant", value.dtype, tuple(value.shape), content
        if key not in self.known:
            name = f"c{len(self.weights)}"
            self.weights[name] = numpy_helper.from_array(value.numpy(), name)
            self.known[key] = (name,)
            self.kept.append(value)
        return self.known[key][0]

    def emit(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> tuple[str, ...]:
        """Draw an operation, unless the same one exists, and return the names of its results."""
        key = op, inputs, tuple(sorted((name, str(value)) for name, value in attributes.items()))
        if key not in self.known:
            names = tuple(f"v{len(self.nodes)}_{i}" for i in range(outputs))
            self.nodes.append(
                helper.make_node(op, list(inputs), list(names), f"{op}_{len(self.nodes)}", **attributes)
            )
            self.known[key] = names
            self.makers |= dict.fromkeys(names, self.nodes[-1])
        return self.known[key]

    def one(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Draw an operation with one result."""
        return self.emit(op, *inputs, **attributes)[0]

    def transpose(self, name: str, order: list[int]) -> str:
        """Reorder axes; undoing an earlier transposition returns its input."""
        before, turned = self.turned.get(name, (name, []))
        if [turned[i] for i in order if turned] == list(range(len(order))):
            return before
        made = self.one("Transpose", name, perm=order)
        self.turned[made] = name, order
        return made

    def name(self, value: Any, dtype: torch.dtype | None = None) -> str:
        """Return the name of a value, cast to `dtype` if one is given."""
        if not isinstance(value, TracedValue):
            tensor = value if isinstance(value, Tensor) else torch.tensor(value)
            tensor = tensor.float() if tensor.dtype == torch.float64 else tensor
            return self.tensor(tensor if dtype is None else tensor.to(dtype))
        if dtype is None or dtype == value.dtype:
            return value.name
        return self.one("Cast", value.name, to=_kind(dtype))

    def vector(self, values: list[Any] | Any) -> str:
        """Return the name of a vector of integers, some of which are known only when the graph runs."""
        values = values if isinstance(values, list) else [values]
        if not any(isinstance(value, TracedValue) for value in values):
            return self.tensor(torch.tensor([int(value) for value in values]))
        flat = self.tensor(torch.tensor([1]))
        parts = [self.one("Reshape", self.name(value, torch.int64), flat) for value in values]
        return parts[0] if len(parts) == 1 else self.one("Concat", *parts, axis=0)


Made = str | TracedValue | Tensor | tuple[Any, ...] | list[Any]
"""What an operator returns: a name, several, or values that exist already."""
Results = Sequence[TracedValue]
Operator = Callable[..., Made]
"""Takes the drawing, the results as the trace describes them, and by name the arguments that it handles."""


def _usual(argument: Argument, value: Any) -> bool:
    """Return whether an argument has its default, or is false, none or zero if it has no default."""
    if isinstance(value, TracedValue | Tensor):
        return False
    if argument.optional:
        return bool(value == argument.default)
    return not any(value) if isinstance(value, list) else not value


@cache
def _parameters(operator: Operator) -> Mapping[str, Parameter]:
    return dict(list(signature(operator).parameters.items())[2:])


def _bind(operator: Operator, step: TraceStep, inputs: Sequence[Any]) -> dict[str, Any]:
    """Return the arguments that an operator handles; refuse any other that is not at its default."""
    handled, given = _parameters(operator), dict[str, Any]()
    every = any(each.kind == Parameter.VAR_KEYWORD for each in handled.values())
    for argument, value in zip(step.arguments, inputs, strict=True):
        if argument.name in handled or every:
            given[argument.name] = value
        elif argument.name not in IGNORED and not _usual(argument, value):
            if isinstance(value, TracedValue | Tensor):
                raise Refusal(f"with {argument.name}")
            zero = type(value)() if isinstance(value, bool | int | float) else None
            expected = argument.default if argument.optional else zero
            raise Refusal(f"with {argument.name}={value!r}; expected {expected!r}")
    if "parts" in handled:
        given["parts"] = step.parts
    for name, each in handled.items():
        if each.default is Parameter.empty and each.kind != Parameter.VAR_KEYWORD and given.get(name) is None:
            raise Refusal(f"without {name}")
    return given


def _known(value: Any) -> bool:
    return all(map(_known, value)) if isinstance(value, list) else not isinstance(value, TracedValue)


def _results(drawing: Drawing, step: TraceStep, inputs: list[Any]) -> Sequence[Any]:
    """Draw one step, or compute it if all its inputs are known; return its results."""
    from saccade.engine.graph.operators import OPERATORS

    match step.kind:
        case "prim::Constant":
            return (step.constant,)
        case "prim::ListConstruct":
            return (inputs,)
        case "prim::ListUnpack":
            return inputs[0]
        case "aten::size" if isinstance(inputs[0], Tensor):
            return (int(inputs[0].shape[inputs[1]]),)
    if step.kind in SAME:
        return (inputs[0],)
    if all(map(_known, inputs)):
        return step.compute(inputs)
    if step.kind not in OPERATORS:
        raise ModelError(f"the model computes {step.kind}, which saccade cannot export; please report it")
    operator = OPERATORS[step.kind]
    try:
        made = operator(drawing, step.outputs, **_bind(operator, step, inputs))
    except Refusal as refusal:
        raise ModelError(f"the model computes {step.kind} {refusal}; please report it") from refusal
    if isinstance(made, list):
        return (made,)
    names = made if isinstance(made, tuple) else (made,)
    return [
        replace(value, name=name) if isinstance(name, str) else name
        for name, value in zip(names, step.outputs, strict=True)
    ]


def draw(
    module: nn.Module, example: Tensor, takes: str, axes: list[str | int], gives: Sequence[str]
) -> onnx.ModelProto:
    """Return an ONNX graph of a module.

    Args:
        takes: Name of the graph's input.
        axes: Of the input: names of free sizes, numbers of fixed ones.
        gives: Names of the graph's outputs, in the order in which the module returns them.
    """
    # A trace is a list of torch operations in order. Each is computed now, if all it needs is known (weights,
    # constants), or drawn as ONNX, if it depends on the input; sizes of the input are values like any other,
    # which is what keeps batch, height and width free.
    found = trace(module, example)
    drawing = Drawing()
    values: dict[str, Any] = {found.input: TracedValue(takes, example.dtype, example.ndim), **found.weights}
    for step in found.steps:
        made = _results(drawing, step, [values[name] for name in step.inputs])
        values |= {value.name: each for value, each in zip(step.outputs, made, strict=True)}
    outputs = []
    for i, (name, output) in enumerate(zip(gives, found.outputs, strict=True)):
        value = values[output]
        # runtimes report outputs by name, so each gets the name it was asked for
        label = f"answer_{i}" if i else "answer"
        drawing.nodes.append(helper.make_node("Identity", [drawing.name(value)], [name], label))
        rank = value.rank if isinstance(value, TracedValue) else torch.as_tensor(value).ndim
        shape = [axes[0], *[None] * (rank - 1)][:rank]
        outputs.append(helper.make_tensor_value_info(name, _kind(value.dtype), shape))
    return _model(drawing, helper.make_tensor_value_info(takes, _kind(example.dtype), axes), outputs)


def _model(drawing: Drawing, takes: Any, gives: list[Any]) -> onnx.ModelProto:
    nodes = fold(drawing.nodes, drawing.weights)
    used = {name for node in nodes for name in node.input}
    weights = [weight for name, weight in drawing.weights.items() if name in used]
    graph = helper.make_graph(nodes, "saccade", [takes], gives, weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="saccade")
    made.ir_version = IR
    return made


def fold(nodes: list[onnx.NodeProto], weights: _Weights) -> list[onnx.NodeProto]:
    """Return the nodes, with products by a constant folded into the weights of the layer before.

    Attention divides its queries by the root of their width. An engine pays for that with a pass over them,
    or with a slower product that does both; in the weights it costs nothing.
    """
    makers = {name: node for node in nodes for name in node.output}
    readers = Counter(name for node in nodes for name in node.input)
    renamed: dict[str, str] = {}
    left = []
    for node in nodes:
        for i, name in enumerate(node.input):
            node.input[i] = renamed.get(name, name)
        factor = weights.get(node.input[1]) if node.op_type == "Mul" else None
        layer = _layer(node.input[0], makers, readers, weights) if factor is not None else []
        if factor is None or factor.data_type != TensorProto.FLOAT or list(factor.dims) or not layer:
            left.append(node)
            continue
        for part in layer:
            part.input[1] = _scale(part.input[1], node.input[1], weights)
        # the product is gone: its readers now read the layer, which may absorb the next factor too
        renamed[node.output[0]] = node.input[0]
        readers[node.input[0]] = readers[node.output[0]]
    return left


def _layer(
    name: str, makers: dict[str, onnx.NodeProto], readers: Counter[str], weights: _Weights
) -> list[onnx.NodeProto]:
    """Return the MatMul and Adds with weights behind a value that nobody else reads, or nothing."""
    found = []
    while readers[name] == 1 and name in makers:
        node = makers[name]
        if node.op_type in ("MatMul", "Add") and node.input[1] in weights:
            found.append(node)
            if node.op_type == "MatMul":
                return found
        elif node.op_type not in ("Reshape", "Transpose"):  # these move numbers and change none
            break
        name = node.input[0]
    return []


def _scale(name: str, factor: str, weights: _Weights) -> str:
    """Return the name of scaled weights; the original stays, as others may read it."""
    made = f"{name}_{factor}"
    if made not in weights:
        value = numpy_helper.to_array(weights[name]) * numpy_helper.to_array(weights[factor])
        weights[made] = numpy_helper.from_array(value, made)
    return made
