"""Trace a module into plain steps whose sizes stay free; the only file that uses torch's private API.

torch's tracer follows the sizes of an image as values of the graph, as long as nobody turns them into Python
numbers. While `free` is active, the few functions that would do so, or that graphs do not know, are replaced
by equal ones: the smaller of two sizes, a resampled table, attention in its plain form.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from saccade.engine.engine import first_line
from saccade.engine.graph.resizing import resample
from saccade.errors import UsageError

TRIED = ("2.13",)
"""Versions of torch on which all tests of graphs pass."""
TYPES = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}


@dataclass(frozen=True, slots=True)
class TracedValue:
    """A result of a step; a trace knows its type and rank, which is all that a graph may rely on."""

    name: str
    dtype: torch.dtype
    rank: int


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter of one of torch's operations."""

    name: str
    keyword: bool
    optional: bool
    default: Any


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One operation of a trace."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[TracedValue, ...]
    arguments: tuple[Argument, ...] = ()
    """One per input; empty for the tracer's own operations."""
    tensors: tuple[bool, ...] = ()
    """Whether torch passes each input as a tensor."""
    parts: int = 1
    """Tensors in the result, if it is a list that the next step unpacks."""
    constant: Any = None

    def compute(self, inputs: Sequence[Any]) -> Any:
        """Return the results on known values, computed by torch itself."""
        space, word = self.kind.split("::")
        given = [
            torch.tensor(x) if tensor and not isinstance(x, Tensor) and x is not None else x
            for x, tensor in zip(inputs, self.tensors, strict=True)
        ]
        named = {each.name: x for each, x in zip(self.arguments, given, strict=True) if each.keyword}
        made = getattr(getattr(torch.ops, space), word)(*given[: len(given) - len(named)], **named)
        return made if len(self.outputs) > 1 else (made,)


@dataclass(frozen=True, slots=True)
class ModuleTrace:
    """The operations of a module in order, and its weights by the names they have in the trace."""

    input: str
    weights: dict[str, Tensor]
    steps: list[TraceStep]
    outputs: tuple[str, ...]


def _extreme(choose: Callable[[Tensor, Tensor], Tensor], a: Any, b: Any) -> Any:
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        return int(choose(torch.tensor(a), torch.tensor(b)))
    a, b = (x if isinstance(x, Tensor) else torch.tensor(x) for x in (a, b))
    return choose(a, b)


def _interpolate(
    x: Tensor, size: Any, *, mode: str, antialias: bool, align_corners: bool, **_: Any
) -> Tensor:
    assert align_corners == (mode == "bilinear")
    rows, cols = size
    return resample(x, rows, cols, mode, antialias)


def _attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    logits = (q * int(q.shape[-1]) ** -0.5) @ k.transpose(-2, -1)
    return (logits if bias is None else logits + bias).softmax(-1) @ v


REPLACED: dict[Any, Callable[..., Any]] = {
    torch.sym_min: lambda a, b: _extreme(torch.minimum, a, b),
    torch.sym_max: lambda a, b: _extreme(torch.maximum, a, b),
    F.interpolate: _interpolate,
    F.scaled_dot_product_attention: _attention,
    Tensor.mT.__get__: lambda x: x.transpose(-2, -1),  # type: ignore[attr-defined]
}


class Free(TorchFunctionMode):
    """Equal functions in place of those that a graph with free sizes does not know."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return REPLACED.get(func, func)(*args, **(kwargs or {}))


@contextmanager
def free() -> Iterator[None]:
    """Keep sizes free: the model takes the branches that it takes under `torch.export`."""
    flags: Any = torch.compiler
    before = flags._is_compiling_flag, flags._is_exporting_flag
    flags._is_compiling_flag = flags._is_exporting_flag = True
    try:
        with Free(), torch.no_grad():
            yield
    finally:
        flags._is_compiling_flag, flags._is_exporting_flag = before


@contextmanager
def _fence() -> Iterator[None]:
    """Name the versions that were tested if the private API of another one differs."""
    try:
        yield
    except (AttributeError, TypeError, RuntimeError) as error:
        if torch.__version__.startswith(TRIED):
            raise
        raise UsageError(
            f"torch {torch.__version__} cannot trace this model ({first_line(error)}); graphs were tested "
            f"with torch {', '.join(TRIED)}; install one of these"
        ) from error


def _is_tensor(value: Any) -> bool:
    return value.type().kind() == "TensorType"


def _value(value: Any) -> TracedValue:
    word, rank = None, 0
    if _is_tensor(value):
        word, rank = value.type().scalarType(), value.type().dim() or 0
    usual = torch.int64 if str(value.type()) == "int" else torch.float32
    return TracedValue(value.debugName(), TYPES.get(word, usual) if word else usual, rank)


@cache
def _arguments(schema: str) -> tuple[Argument, ...]:
    if "::" not in schema:
        return ()
    return tuple(
        Argument(each.name, each.kwarg_only, each.has_default_value(), each.default_value)
        for each in torch._C.parse_schema(schema).arguments
    )


def _step(node: Any) -> TraceStep:
    inputs, outputs = list(node.inputs()), list(node.outputs())
    readers = [use.user for use in outputs[0].uses()] if outputs else []
    unpacked = [reader for reader in readers if reader.kind() == "prim::ListUnpack"]
    return TraceStep(
        node.kind(),
        tuple(value.debugName() for value in inputs),
        tuple(map(_value, outputs)),
        _arguments(node.schema()),
        tuple(map(_is_tensor, inputs)),
        unpacked[0].outputsSize() if unpacked else 1,
        outputs[0].toIValue() if node.kind() == "prim::Constant" else None,
    )


def trace(module: nn.Module, example: Tensor) -> ModuleTrace:
    """Return the operations of a module on an example."""
    with _fence():
        with warnings.catch_warnings(), free():
            warnings.simplefilter("ignore")  # sizes that become constants: the export's check finds them
            graph, *_ = torch.jit._get_trace_graph(  # type: ignore[attr-defined, no-untyped-call]
                module, (example,), strict=False, _force_outplace=True, _return_inputs_states=False
            )
        first, *rest = (value.debugName() for value in graph.inputs())
        weights = [tensor.detach() for tensor in module.state_dict(keep_vars=True).values()]
        steps = [_step(node) for node in graph.nodes()]
        outputs = tuple(value.debugName() for value in graph.outputs())
        if steps[-1].kind == "prim::TupleConstruct":  # several outputs
            outputs = steps.pop().inputs
        return ModuleTrace(first, dict(zip(rest, weights, strict=True)), steps, outputs)
