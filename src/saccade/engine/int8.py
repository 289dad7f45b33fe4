"""Matrix products of a graph in int8, calibrated on the user's pictures.

Weights are rounded per output channel to 7 bits: without VNNI, a processor adds pairs of products of u8 and
s8 in 16 bits, where 8 bits would saturate. Activations are rounded as they come, each batch by its own range;
the few channels that reach much further than the others are first shrunk, and their weights grown, by factors
measured on the pictures (Xiao et al. 2023, SmoothQuant, Eq. 4), each product by those that suit it best; a
product that no factors help stays in float32. Where a LayerNorm comes before, its own weights take the
factors. The first and the last product, from pixels and to classes, stay as they are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from jaxtyping import Float
from onnx import TensorProto, helper, numpy_helper

from saccade.engine.rounding import Rounded, compensated, even, losses
from saccade.errors import UsageError

ALPHAS = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
"""How much of the reach of an activation its weights may take over (0 none, 1 all)."""
TOKENS = 8192
"""Products of channels are learnt of so many tokens or more; of all of many pictures, they would take longer
than the model itself."""
LIMITS = (0.05, 0.03, 0.025, 0.02, 0.017)
"""A product that rounding would change by more than this share stays in float32; the first limit that keeps
the answers is taken."""
NOISE = 0.045
"""How far the logits of the user's pictures may move, as a share of their spread (root mean squares)."""


class Surgery:
    """A graph that can be changed in place."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model, self.graph = model, model.graph
        self.weights = {each.name: each for each in model.graph.initializer}
        self.makers = {name: node for node in model.graph.node for name in node.output}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in model.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.ahead: dict[str, list[onnx.NodeProto]] = {}
        self.gone: set[str] = set()

    def products(self) -> dict[str, list[onnx.NodeProto]]:
        """The products with weights by the activation that they read; not the first, not the last."""
        found = [n for n in self.graph.node if n.op_type == "MatMul" and n.input[1] in self.weights]
        groups: dict[str, list[onnx.NodeProto]] = {}
        for node in found[1:-1]:
            if len(self.weights[node.input[1]].dims) == 2:
                groups.setdefault(node.input[0], []).append(node)
        return groups

    def array(self, name: str) -> np.ndarray:
        """A weight."""
        return numpy_helper.to_array(self.weights[name])

    def put(self, name: str, value: np.ndarray) -> str:
        """Set a weight, or add one."""
        made = numpy_helper.from_array(np.ascontiguousarray(value), name)
        if name in self.weights:
            self.weights[name].CopyFrom(made)
        else:
            self.graph.initializer.append(made)
            self.weights[name] = self.graph.initializer[-1]
        return name

    def before(self, node: onnx.NodeProto, *made: onnx.NodeProto) -> None:
        """Put operations in front of another, when all is done."""
        self.ahead.setdefault(node.name, []).extend(made)

    def close(self) -> None:
        """Put in and take out what was asked for, and forget weights that nobody reads any more."""
        nodes: list[onnx.NodeProto] = []
        for node in self.graph.node:
            nodes += self.ahead.get(node.name, [])
            nodes += [] if node.name in self.gone else [node]
        used = {name for node in nodes for name in node.input}
        weights = [each for each in self.graph.initializer if each.name in used]
        whole: list[tuple[Any, list[Any]]] = [(self.graph.node, nodes), (self.graph.initializer, weights)]
        for field, kept in whole:
            copies = [type(each)() for each in kept]
            for copy, each in zip(copies, kept, strict=True):
                copy.CopyFrom(each)
            del field[:]
            field.extend(copies)


def _session(model: onnx.ModelProto) -> Any:
    import onnxruntime

    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def activations(
    model: onnx.ModelProto, names: Sequence[str], batches: Sequence[np.ndarray]
) -> Iterator[dict[str, Float[np.ndarray, "n k"]]]:
    """What some products read, token by token, batch by batch."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    for name in names:
        probe.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    session = _session(probe)
    takes = session.get_inputs()[0].name
    for batch in batches:
        found = session.run(list(names), {takes: batch})
        yield {name: value.reshape(-1, value.shape[-1]) for name, value in zip(names, found, strict=True)}


@dataclass(frozen=True, slots=True)
class Plan:
    """How one activation is rounded."""

    factor: Float[np.ndarray, "k"]
    """By which its channels are divided before."""
    error: float
    """What the rounding costs: the difference of the products as a share of their size."""
    mean: Float[np.ndarray, "k"]
    """Of its channels, over all pictures."""
    pairs: Float[np.ndarray, "k k"]
    """Mean products of its channels, each token as long as any other."""


def plans(work: Surgery, batches: Sequence[np.ndarray]) -> dict[str, Plan]:
    """For each activation the factors that cost the least, on the user's pictures."""
    groups = work.products()
    reach: dict[str, np.ndarray] = {}
    sample: dict[str, np.ndarray] = {}
    total: dict[str, Any] = {}
    pairs: dict[str, Any] = {}
    small = [part[i : i + 4] for part in batches for i in range(0, len(part), 4)]
    for found in activations(work.model, list(groups), small):
        for name, x in found.items():
            most = np.maximum(x.max(0), -x.min(0))
            reach[name] = np.maximum(reach[name], most) if name in reach else most
            sample.setdefault(name, x)
            total[name] = total.get(name, 0) + x.mean(0) / len(small)
            some = x[:: max(1, len(x) * len(small) // TOKENS)]
            alike = some / np.maximum(np.linalg.norm(some, axis=1, keepdims=True), 1e-6)
            # of one array with itself: numpy then computes half of it
            pairs[name] = pairs.get(name, 0) + alike.T @ alike / (len(alike) * len(small))
    made: dict[str, Plan] = {}
    for name, nodes in groups.items():
        weight = np.concatenate([work.array(node.input[1]) for node in nodes], axis=1)
        tried = [even(reach[name], weight, alpha) for alpha in ALPHAS]
        errors = losses(sample[name], weight, tried)
        best = int(np.argmin(errors))
        made[name] = Plan(tried[best], errors[best], total[name], pairs[name])
    return made


def smooth(work: Surgery, chosen: Mapping[str, Plan]) -> None:
    """Move the reach of activations into the weights that read them; the answers stay as they were."""
    for name, nodes in work.products().items():
        if name not in chosen:
            continue
        factor = chosen[name].factor
        for node in nodes:
            work.put(node.input[1], work.array(node.input[1]) * factor[:, None])
        maker = work.makers.get(name)
        alone = len(work.readers[name]) == len(nodes)
        if maker is not None and maker.op_type == "LayerNormalization" and alone:
            for place in (1, 2):
                shared = len(work.readers[maker.input[place]]) > 1
                told = f"{maker.input[place]}_{maker.name}" if shared else maker.input[place]
                maker.input[place] = work.put(told, work.array(maker.input[place]) / factor)
        else:
            shrink = work.put(f"{name}_shrink", 1 / factor)
            work.before(nodes[0], helper.make_node("Mul", [name, shrink], [f"{name}_even"], f"{name}_even"))
            for node in nodes:
                node.input[0] = f"{name}_even"
    work.close()


def mend(work: Surgery, node: onnx.NodeProto, shift: Float[np.ndarray, "n"]) -> None:
    """Take what rounding adds to a product on average off its bias (Nagel et al. 2019, section 4.2)."""
    readers = work.readers.get(node.output[0], [])
    if len(readers) == 1 and readers[0].op_type == "Add" and readers[0].input[1] in work.weights:
        bias = readers[0].input[1]
        readers[0].input[1] = work.put(f"{bias}_{node.name}", work.array(bias) - shift.astype(np.float32))


def products_in_int8(work: Surgery, chosen: Mapping[str, Plan], done: dict[str, Rounded]) -> None:
    """Replace each chosen product by one of whole numbers; `done` remembers weights rounded before."""
    for name, nodes in work.products().items():
        plan = chosen.get(name.removesuffix("_even"))
        if plan is None:
            continue
        whole, scale, zero = f"{name}_u8", f"{name}_scale", f"{name}_zero"
        work.before(
            nodes[0],
            helper.make_node("DynamicQuantizeLinear", [name], [whole, scale, zero], f"{name}_quantize"),
        )
        _round(work, nodes, plan, done)
        for node in nodes:
            weight, y = node.input[1], node.output[0]
            whole_weight, factor = done[weight]
            mend(work, node, plan.mean / plan.factor @ (whole_weight * factor - work.array(weight)))
            work.put(f"{weight}_s8", whole_weight)
            work.put(f"{weight}_factor", factor)
            work.before(
                node,
                helper.make_node("MatMulInteger", [whole, f"{weight}_s8", zero], [f"{y}_i32"], f"{y}_i32"),
                helper.make_node("Cast", [f"{y}_i32"], [f"{y}_f32"], f"{y}_f32", to=TensorProto.FLOAT),
                helper.make_node("Mul", [scale, f"{weight}_factor"], [f"{y}_factor"], f"{y}_factor"),
                helper.make_node("Mul", [f"{y}_f32", f"{y}_factor"], [y], f"{y}_scaled"),
            )
            work.gone.add(node.name)
    work.close()


def _round(work: Surgery, nodes: Sequence[onnx.NodeProto], plan: Plan, done: dict[str, Rounded]) -> None:
    """Round the weights of products that read the same, side by side, unless it was done before."""
    names = [node.input[1] for node in nodes]
    if all(name in done for name in names):
        return
    parts = [work.array(name) for name in names]
    whole, scale = compensated(np.concatenate(parts, 1), plan.pairs / np.outer(plan.factor, plan.factor))
    ends = np.cumsum([part.shape[1] for part in parts])[:-1]
    done |= zip(names, zip(np.split(whole, ends, 1), np.split(scale, ends), strict=True), strict=True)


def quantize(path: Path, batches: Sequence[np.ndarray]) -> None:
    """Rewrite an ONNX file of ours with its products in int8."""
    if not batches:
        raise UsageError("int8 needs pictures to calibrate on; give them with --data")
    model = onnx.load(path)
    work = Surgery(model)
    if not work.products():
        raise UsageError("this model has no matrix product to round; export it without --int8")
    apart = len(batches) // 4  # the limit is chosen on pictures that the factors have not seen
    some = batches[len(batches) - max(apart, 1) :]
    found = plans(work, batches[: len(batches) - apart])
    expected, done = _answers(model, some), dict[str, Rounded]()
    tried: dict[str, Plan] | None = None
    for limit in LIMITS:
        chosen = {name: plan for name, plan in found.items() if plan.error <= limit}
        if tried is not None and len(chosen) == len(tried):
            continue
        tried, made = chosen, rounded(model, chosen, done)
        noise = float(np.sqrt(np.mean((_answers(made, some) - expected) ** 2)) / max(expected.std(), 1e-9))
        if noise <= NOISE:
            break
    onnx.save(made, path)


def rounded(model: onnx.ModelProto, chosen: Mapping[str, Plan], done: dict[str, Rounded]) -> onnx.ModelProto:
    """A copy of a graph with the chosen products in int8."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    smooth(Surgery(made), chosen)
    products_in_int8(Surgery(made), chosen, done)
    return made


def _answers(model: onnx.ModelProto, batches: Sequence[np.ndarray]) -> Float[np.ndarray, "b classes"]:
    session = _session(model)
    takes = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {takes: batch})[0] for batch in batches])
