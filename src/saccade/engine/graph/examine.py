"""Examine graph files before a runtime reads them: only what `saccade export` writes passes.

A runtime follows a graph wherever it leads: endless loops, operators of other libraries, weights in other
files. Our own graphs need none of that, so the list of what they do need is short.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import BufferedReader
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NoReturn
from xml.parsers import expat

from saccade.files.digest import digest_contents
from saccade.files.paths import Flaw, open_file, refusal
from saccade.wording import printable

REMEDY = "export the model again"
_INPUTS: dict[tuple[int, int], tuple[str, ...]] = {
    (1, 1): (
        "Abs", "Cast", "Cos", "DynamicQuantizeLinear", "Exp", "Floor", "Gelu", "Identity", "Log",
        "MaxPool", "Neg", "Reciprocal", "Relu", "Round", "Shape", "Sin", "Softmax", "Sqrt", "Tanh",
        "Transpose",
    ),
    (1, 2): (
        "ReduceL2", "ReduceMax", "ReduceMean", "ReduceSum", "Squeeze",
    ),
    (1, 64): (
        "Concat", "Max", "Min",
    ),
    (2, 2): (
        "Add", "Div", "Equal", "Expand", "Gather", "GatherElements", "GatherND", "Greater",
        "GreaterOrEqual", "Less", "LessOrEqual", "MatMul", "Mul", "Pow", "Reshape", "Sub", "TopK",
        "Unsqueeze",
    ),
    (2, 3): (
        "Conv", "LayerNormalization",
    ),
    (2, 4): (
        "MatMulInteger", "Pad",
    ),
    (3, 3): (
        "InstanceNormalization", "Range", "ScatterElements", "ScatterND", "Where",
    ),
    (3, 5): (
        "Slice",
    ),
    (5, 5): (
        "BatchNormalization",
    ),
}  # fmt: skip
OPERATORS = {name: sides for sides, names in _INPUTS.items() for name in names}
"""The operations that engine/graph/drawing.py and engine/int8.py write, with their fewest and most inputs:
OpenVINO reads past the end of the list if one is missing."""
OUTPUTS = {"DynamicQuantizeLinear": 3, "TopK": 2}
"""Operations with more than one result."""
SIZES = {1: 4, 2: 1, 3: 1, 6: 4, 7: 8, 9: 1}
"""Bytes per number of each ONNX type that weights may have: float, uint8, int8, int32, int64, bool."""
LAYERS = {
    "Abs", "Add", "BatchNormInference", "Broadcast", "Clamp", "Concat", "Const", "Convert",
    "Convolution", "Cos", "Divide", "Equal", "Exp", "Floor", "Gather", "GatherElements", "GatherND",
    "Gelu", "Greater", "GreaterEqual", "Identity", "Less", "LessEqual", "Log", "MVN", "MatMul",
    "MaxPool", "Maximum", "Minimum", "Multiply", "Negative", "Pad", "Parameter", "Power", "Range",
    "ReLU", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Reshape", "Result",
    "Round", "ScatterElementsUpdate", "ScatterNDUpdate", "Select", "ShapeOf", "Sin", "Slice", "SoftMax",
    "Sqrt", "Squeeze", "Subtract", "Tanh", "TopK", "Transpose", "Unsqueeze",
}  # fmt: skip
"""The layers that OpenVINO makes of our graphs."""
XML_BYTES, XML_DEPTH = 64_000_000, 32
NODES, WEIGHTS = 200_000, 100_000
TEXT, NOTES = 4096, 100_000_000
"""Bytes of a name in a graph, and of the labels and the preprocessing in its metadata."""

Schema = dict[int, "str | Schema"]
_SHAPE: Schema = {1: {1: "int", 2: "text", 3: "text"}}
_VALUE: Schema = {1: "text", 2: {1: {1: "int", 2: _SHAPE}, 6: "text"}, 3: "text"}
_NODE: Schema = {
    3: "text",
    5: {1: "text", 2: "float", 3: "int", 4: "text", 8: "ints", 20: "int"},
    6: "text",
    7: "domain",
}
_GRAPH: Schema = {1: _NODE, 2: "text", 5: "weight", 10: "text", 11: _VALUE, 12: _VALUE, 13: _VALUE}
_MODEL: Schema = {
    1: "int",
    2: "text",
    3: "text",
    4: "text",
    5: "int",
    6: "note",
    7: _GRAPH,
    8: {1: "domain", 2: "int"},
    14: {1: "note", 2: "note"},
}
"""The fields of onnx.proto that our graphs use, by number: no functions, no graphs inside operations, no
sparse weights, no weights in other files."""
NAMES = {
    ("weight", 13): "weights in another file",
    ("weight", 14): "weights in another file",
    (5, 6): "a graph inside an operation",
    (5, 11): "a graph inside an operation",
    (0, 25): "functions of its own",
    (0, 20): "instructions for training",
    (7, 15): "sparse weights",
}
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def _varint(data: mmap, at: int, end: int) -> tuple[int, int]:
    """Return a protobuf number and the position after it."""
    value = shift = 0
    while True:
        if at >= end or shift > 63:
            raise Flaw("is cut short or damaged", REMEDY)
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _fields(data: mmap, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, kind, and start and end (or the value twice) of each field of a message."""
    while at < end:
        key, at = _varint(data, at, end)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = _varint(data, at, end)
            yield number, kind, value, value
            continue
        if kind == BYTES:
            size, at = _varint(data, at, end)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise Flaw("is not an ONNX graph", REMEDY)
        if size > end - at:
            raise Flaw("is cut short or damaged", REMEDY)
        yield number, kind, at, at + size
        at += size


class _Graph:
    """A walk over the messages of a graph."""

    def __init__(self, data: mmap) -> None:
        self.data, self.nodes, self.weights = data, 0, 0

    def message(self, schema: Schema, at: int, end: int, inside: int = 0) -> None:
        for number, kind, begin, stop in _fields(self.data, at, end):
            if number not in schema:
                raise _strange(inside, number)
            self.entry(schema[number], number, kind, begin, stop)

    def entry(self, wanted: "str | Schema", number: int, kind: int, begin: int, stop: int) -> None:
        if not isinstance(wanted, dict):
            self.field(wanted, kind, begin, stop)
        elif kind != BYTES:
            raise Flaw("is not an ONNX graph", REMEDY)
        elif wanted is _NODE:
            self.node(begin, stop)
        else:
            self.message(wanted, begin, stop, number)

    def node(self, at: int, end: int) -> None:
        """Refuse an unknown operation, or one with the wrong number of inputs or results."""
        self.nodes += 1
        named, operator = [0, 0], ""
        for number, kind, begin, stop in _fields(self.data, at, end):
            if number in (1, 2, 4) and kind == BYTES:
                word = self.text("text", begin, stop)
                if number == 4:
                    operator = word
                elif word:
                    named[number - 1] += 1
                else:
                    raise Flaw("has an operation without an input or a result", REMEDY)
            elif number in _NODE:
                self.entry(_NODE[number], number, kind, begin, stop)
            else:
                raise _strange(1, number)
        if operator not in OPERATORS:
            found = f"uses the operation '{printable(operator, 60)}', which `saccade export` never writes"
            raise Flaw(found, REMEDY)
        least, most = OPERATORS[operator]
        if not least <= named[0] <= most or named[1] != OUTPUTS.get(operator, 1):
            raise Flaw(f"has a {operator} of {named[0]} inputs and {named[1]} results", REMEDY)

    def field(self, wanted: str, kind: int, begin: int, stop: int) -> None:
        if wanted in ("int", "ints") and kind == VARINT:
            return
        if wanted == "float" and kind == FIXED32:
            return
        if wanted in ("int", "float") or kind != BYTES:
            raise Flaw("is not an ONNX graph", REMEDY)
        if wanted == "weight":
            self.weight(begin, stop)
        elif wanted == "note":
            if stop - begin > NOTES:
                raise Flaw(f"has metadata of {stop - begin:,} bytes; expected at most {NOTES:,}", REMEDY)
        elif wanted != "ints":
            self.text(wanted, begin, stop)
        if self.nodes > NODES or self.weights > WEIGHTS:
            raise Flaw(f"has more than {NODES:,} operations or {WEIGHTS:,} weights", REMEDY)

    def text(self, wanted: str, begin: int, stop: int) -> str:
        """Check a name: a runtime prints it when it fails."""
        data = self.data[begin : min(stop, begin + TEXT + 1)]
        try:
            word = data.decode()
        except UnicodeDecodeError:
            word = "\0"
        if len(data) > TEXT or not word.isprintable():
            found = f"has the name '{printable(word, 60)}'; expected at most {TEXT:,} printable characters"
            raise Flaw(found, REMEDY)
        if wanted == "domain" and word not in ("", "ai.onnx"):
            raise Flaw(f"uses operations of '{printable(word, 60)}'; expected only those of ONNX", REMEDY)
        return word

    def weight(self, at: int, end: int) -> None:
        """Check that a tensor lies entirely inside the file."""
        self.weights += 1
        shape: list[int] = []
        dtype, held = 0, 0
        for number, kind, begin, stop in _fields(self.data, at, end):
            match number, kind:
                case 1, 0:
                    shape.append(begin)
                case 1, 2:
                    while begin < stop:
                        side, begin = _varint(self.data, begin, stop)
                        shape.append(side)
                case 2, 0:
                    dtype = begin
                case 8, 2:
                    self.text("text", begin, stop)
                case 9, 2:
                    held = stop - begin
                case _:
                    raise _strange("weight", number)
        if dtype not in SIZES or len(shape) > 8 or math.prod(shape) * SIZES[dtype] != held:
            raise Flaw(
                f"has a weight of type {dtype}, shape {printable(shape, 60)} and {held:,} bytes", REMEDY
            )


def _strange(inside: int | str, number: int) -> Flaw:
    what = NAMES.get((inside, number), f"field {number}")
    return Flaw(f"holds {what}, which `saccade export` never writes", REMEDY)


def _examine_onnx(data: mmap) -> None:
    """Refuse an ONNX file without a graph, or with anything that our graphs do not contain."""
    walk = _Graph(data)
    walk.message(_MODEL, 0, len(data))
    if not walk.nodes:
        raise Flaw("holds no graph", REMEDY)


class _Xml:
    """A walk over the elements of a model.xml."""

    def __init__(self, weights: int) -> None:
        self.weights, self.layers, self.path = weights, 0, list[str]()

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self.path) >= XML_DEPTH or self.layers > NODES:
            raise Flaw(f"has more than {XML_DEPTH} levels or {NODES:,} layers", REMEDY)
        self.path.append(name)
        if "rt_info" in self.path[:-1]:  # metadata that OpenVINO does not run
            return
        if self.path[:1] != ["net"] or name in ("body", "then_body", "else_body", "port_map", "back_edges"):
            raise Flaw(
                f"holds an element '{printable(name, 60)}', which `saccade export` never writes", REMEDY
            )
        if name == "layer":
            self.layers += 1
            if (kind := attributes.get("type", "")) not in LAYERS:
                found = f"uses the layer '{printable(kind, 60)}', which `saccade export` never writes"
                raise Flaw(found, REMEDY)
        if name == "data" and "offset" in attributes:
            self.within(attributes["offset"], attributes.get("size", ""))

    def within(self, offset: str, size: str) -> None:
        numbers = [
            int(word) if word.isascii() and word.isdigit() and len(word) < 16 else -1
            for word in (offset, size)
        ]
        if min(numbers) < 0 or sum(numbers) > self.weights:
            raise Flaw(f"reads weights beyond the {self.weights:,} bytes of model.bin", REMEDY)

    def end(self, _: str) -> None:
        self.path.pop()


def _refuse(*_: Any) -> NoReturn:
    raise Flaw("declares a document type or an entity, which `saccade export` never writes", REMEDY)


def _examine_xml(data: bytes, weights: int) -> None:
    """Refuse a model.xml with anything that our graphs do not contain; `weights` is the size of model.bin."""
    if len(data) > XML_BYTES:
        raise Flaw(f"has {len(data):,} bytes; expected at most {XML_BYTES:,}", REMEDY)
    walk, parser = _Xml(weights), expat.ParserCreate("utf-8")
    parser.StartElementHandler, parser.EndElementHandler = walk.start, walk.end
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = _refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise Flaw(f"is not XML ({printable(error, 100)})", REMEDY) from error
    if not walk.layers:
        raise Flaw("holds no graph", REMEDY)


@contextmanager
def examine(graph: Path, digest: str = "") -> Iterator[list[str]]:
    """Verify and examine the files of a graph, and yield paths by which a runtime opens these very files.

    Args:
        digest: Their digest in model.json; empty to skip the check.
    """
    with ExitStack() as stack:
        opened: dict[str, BufferedReader] = {}
        contents: dict[str, mmap] = {}
        for path in (graph, *([graph.with_suffix(".bin")] if graph.suffix == ".xml" else [])):
            file = opened[path.name] = stack.enter_context(open_file(path, links=path.suffix != ".bin"))
            try:
                contents[path.name] = stack.enter_context(mmap(file.fileno(), 0, access=ACCESS_READ))
            except ValueError as error:
                raise refusal(path, Flaw("is empty", REMEDY)) from error
        if digest and digest_contents(contents) != digest:
            found = "is not the file that was exported: its SHA-256 differs from the one in model.json"
            raise refusal(graph, Flaw(found, f"copy the folder again, or {REMEDY}"))
        try:
            if graph.suffix == ".xml":
                _examine_xml(contents[graph.name][:], len(contents[graph.with_suffix(".bin").name]))
            else:
                _examine_onnx(contents[graph.name])
        except Flaw as flaw:
            raise refusal(graph, flaw) from flaw
        yield [f"/dev/fd/{file.fileno()}" for file in opened.values()]
