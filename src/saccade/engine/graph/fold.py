"""A number that multiplies what a layer gives becomes a part of the layer's weights.

Attention divides its queries by the root of their width. An engine pays for that with a pass over them, or
with a slower product that does both; in the weights it costs nothing.
"""

from collections import Counter

import onnx
from onnx import TensorProto, numpy_helper

THROUGH = ("Reshape", "Transpose")
"""Steps that leave numbers as they are."""

Weights = dict[str, TensorProto]


def fold(nodes: list[onnx.NodeProto], weights: Weights) -> list[onnx.NodeProto]:
    """The steps of a graph, in their order, without products that a layer before them can do."""
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
            part.input[1] = _times(part.input[1], node.input[1], weights)
        renamed[node.output[0]] = node.input[0]
        readers[node.input[0]] = readers[node.output[0]]
    return left


def _layer(
    name: str, makers: dict[str, onnx.NodeProto], readers: Counter[str], weights: Weights
) -> list[onnx.NodeProto]:
    """The product and the sums with weights that made a value which nobody else reads; none if others do."""
    found = []
    while readers[name] == 1 and name in makers:
        node = makers[name]
        if node.op_type in ("MatMul", "Add") and node.input[1] in weights:
            found.append(node)
            if node.op_type == "MatMul":
                return found
        elif node.op_type not in THROUGH:
            break
        name = node.input[0]
    return []


def _times(name: str, factor: str, weights: Weights) -> str:
    """Weights times a number, under a name of their own: others may read the weights as they are."""
    made = f"{name}_{factor}"
    if made not in weights:
        value = numpy_helper.to_array(weights[name]) * numpy_helper.to_array(weights[factor])
        weights[made] = numpy_helper.from_array(value, made)
    return made
