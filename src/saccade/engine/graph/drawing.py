"""A traced model drawn as an ONNX graph, operation by operation, without a single size of the example in it.

torch's own exporters either bake sizes in (the old one folds the shape of a traced tensor) or need a minute
for a merged model (the new one reasons about every size). A trace knows the rank and type of each tensor, all
that the operations in engine/operators.py need. What depends on weights alone is computed here, once.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from saccade.engine.graph.fold import fold
from saccade.engine.graph.trace import free
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
NAMED = {
    "Float": torch.float32,
    "Long": torch.int64,
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Int": torch.int32,
}
SAME = {"prim::NumToTensor", "aten::Int", "aten::ScalarImplicit", "aten::detach", "aten::dropout"}
SAME |= {"aten::contiguous", "aten::clone", "aten::alias", "aten::FloatImplicit", "aten::IntImplicit"}


@dataclass(frozen=True, slots=True)
class Ref:
    """A value of the graph that is known only when it runs."""

    name: str
    dtype: torch.dtype
    rank: int


@dataclass
class Drawing:
    """A graph in the making; equal operations on equal values are drawn once."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, onnx.TensorProto] = field(default_factory=dict)
    known: dict[Any, tuple[str, ...]] = field(default_factory=dict)
    kept: list[Tensor] = field(default_factory=list)
    """All weights drawn: an id is unique only among those that live."""
    turned: dict[str, tuple[str, list[int]]] = field(default_factory=dict)
    """For what was transposed: of what, and how."""

    def tensor(self, value: Tensor) -> str:
        """The name of a number or a tensor that is always the same."""
        value = value.detach().contiguous().cpu()
        key = (
            "constant",
            value.dtype,
            tuple(value.shape),
            value.numpy().tobytes() if value.numel() < 64 else id(value),
        )
        if key not in self.known:
            name = f"c{len(self.weights)}"
            self.weights[name] = numpy_helper.from_array(value.numpy(), name)
            self.known[key] = (name,)
            self.kept.append(value)
        return self.known[key][0]

    def emit(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> tuple[str, ...]:
        """Draw an operation, or find it."""
        key = op, inputs, tuple(sorted((name, str(value)) for name, value in attributes.items()))
        if key not in self.known:
            names = tuple(f"v{len(self.nodes)}_{i}" for i in range(outputs))
            self.nodes.append(
                helper.make_node(op, list(inputs), list(names), f"{op}_{len(self.nodes)}", **attributes)
            )
            self.known[key] = names
        return self.known[key]

    def one(self, op: str, *inputs: str, **attributes: Any) -> str:
        """An operation with one result."""
        return self.emit(op, *inputs, **attributes)[0]

    def transposed(self, name: str, order: list[int]) -> str:
        """Axes in another order; what was turned before and is turned back is the first again."""
        before, turned = self.turned.get(name, (name, []))
        if [turned[i] for i in order if turned] == list(range(len(order))):
            return before
        made = self.one("Transpose", name, perm=order)
        self.turned[made] = name, order
        return made

    def name(self, value: Any, dtype: torch.dtype | None = None) -> str:
        """A value as an input of the type asked for."""
        if not isinstance(value, Ref):
            tensor = value if isinstance(value, Tensor) else torch.tensor(value)
            tensor = tensor.float() if tensor.dtype == torch.float64 else tensor
            return self.tensor(tensor if dtype is None else tensor.to(dtype))
        if dtype is None or dtype == value.dtype:
            return value.name
        return self.one("Cast", value.name, to=KINDS[dtype])

    def vector(self, values: list[Any] | Any) -> str:
        """Whole numbers, known or not, as one list of them."""
        values = values if isinstance(values, list) else [values]
        if not any(isinstance(value, Ref) for value in values):
            return self.tensor(torch.tensor([int(value) for value in values]))
        flat = self.tensor(torch.tensor([1]))
        parts = [self.one("Reshape", self.name(value, torch.int64), flat) for value in values]
        return parts[0] if len(parts) == 1 else self.one("Concat", *parts, axis=0)


LONG = torch.int64
Made = str | Ref | tuple[Any, ...] | list[Any]
"""What an operation gives: a name, several, or values that the graph has already."""
Given = list[tuple[torch.dtype, int]]
"""Type and rank of each result."""
Operator = Callable[[Drawing, list[Any], Given], Made]


def _is_tensor(value: Any) -> bool:
    return value.type().kind() == "TensorType"


def _dtype(value: Any) -> torch.dtype:
    word = value.type().scalarType() if _is_tensor(value) else None
    return NAMED[word] if word else torch.int64 if str(value.type()) == "int" else torch.float32


def _rank(value: Any) -> int:
    return (value.type().dim() or 0) if _is_tensor(value) else 0


def _folded(node: Any, inputs: list[Any]) -> Any:
    """The result of an operation on what is always the same, by torch itself."""
    space, word = node.kind().split("::")
    given = [
        torch.tensor(x) if _is_tensor(value) and not isinstance(x, Tensor) and x is not None else x
        for x, value in zip(inputs, node.inputs(), strict=True)
    ]
    places = torch._C.parse_schema(node.schema()).arguments
    named = {place.name: x for place, x in zip(places, given, strict=True) if place.kwarg_only}
    made = getattr(getattr(torch.ops, space), word)(*given[: len(given) - len(named)], **named)
    return made if node.outputsSize() > 1 else (made,)


def _fixed(value: Any) -> bool:
    return all(map(_fixed, value)) if isinstance(value, list) else not isinstance(value, Ref)


def traced(module: nn.Module, example: Tensor) -> tuple[Any, list[Tensor]]:
    """The operations of a module for an example, and its weights in the order of the graph's inputs."""
    with warnings.catch_warnings(), free():
        warnings.simplefilter("ignore")  # of sizes that become constants: the check of the result finds those
        graph, *_ = torch.jit._get_trace_graph(  # type: ignore[attr-defined, no-untyped-call]
            module, (example,), strict=False, _force_outplace=True, _return_inputs_states=False
        )
    return graph, [tensor.detach() for tensor in module.state_dict(keep_vars=True).values()]


def draw(
    module: nn.Module, example: Tensor, takes: str, axes: list[str | int], gives: str
) -> onnx.ModelProto:
    """An ONNX graph of a module; `axes` are names of free sizes and numbers of fixed ones."""
    from saccade.engine.graph.operators import OPERATORS

    graph, weights = traced(module, example)
    drawing, values = Drawing(), dict[str, Any]()
    first, *rest = graph.inputs()
    values[first.debugName()] = Ref(takes, example.dtype, example.ndim)
    values |= {value.debugName(): weight for value, weight in zip(rest, weights, strict=True)}
    for node in graph.nodes():
        inputs = [values[value.debugName()] for value in node.inputs()]
        outputs = list(node.outputs())
        if node.kind() == "prim::Constant":
            made: Any = (outputs[0].toIValue(),)
        elif node.kind() in SAME:
            made = (inputs[0],)
        elif node.kind() == "prim::ListConstruct":
            made = (inputs,)
        elif node.kind() == "prim::ListUnpack":
            made = inputs[0]
        elif node.kind() == "aten::size" and isinstance(inputs[0], Tensor):
            made = (int(inputs[0].shape[inputs[1]]),)
        elif all(map(_fixed, inputs)):
            made = _folded(node, inputs)
        elif node.kind() in OPERATORS:
            found = OPERATORS[node.kind()](drawing, inputs, [(_dtype(v), _rank(v)) for v in outputs])
            names = (found,) if not isinstance(found, tuple) else found
            if isinstance(found, list):
                made = (found,)
            else:
                made = [
                    name if isinstance(name, Ref | Tensor) else Ref(name, _dtype(v), _rank(v))
                    for name, v in zip(names, outputs, strict=True)
                ]
        else:
            raise ModelError(f"the model computes {node.kind()}, which no graph here knows; please report it")
        values |= {value.debugName(): each for value, each in zip(outputs, made, strict=True)}
    answer = values[next(iter(graph.outputs())).debugName()]
    drawing.nodes.append(helper.make_node("Identity", [answer.name], [gives], "answer"))
    return _model(drawing, takes, KINDS[example.dtype], axes, gives)


def _model(drawing: Drawing, takes: str, kind: int, axes: list[str | int], gives: str) -> onnx.ModelProto:
    asked = helper.make_tensor_value_info(takes, kind, axes)
    given = helper.make_tensor_value_info(gives, TensorProto.FLOAT, [axes[0], None])
    nodes = fold(drawing.nodes, drawing.weights)
    used = {name for node in nodes for name in node.input}
    weights = [weight for name, weight in drawing.weights.items() if name in used]
    graph = helper.make_graph(nodes, "saccade", [asked], [given], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="saccade")
    made.ir_version = IR
    return made
