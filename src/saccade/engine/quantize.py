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

from saccade.errors import UsageError

LEVELS = 63
"""The largest whole number of a weight: 7 bits with a sign."""
ALPHAS = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
"""How much of the reach of an activation its weights may take over (0 none, 1 all)."""
DAMP, BLOCK = 0.01, 128
"""Of the compensation for rounding: what keeps its inverse small, and the inputs that are rounded at once."""
LIMITS = (0.05, 0.03, 0.025, 0.02, 0.017)
"""A product that rounding would change by more than this share stays in float32; the first limit that keeps
the answers is taken."""
NOISE = 0.045
"""How far the logits of the user's pictures may move, as a share of their spread (root mean squares)."""


Rounded = tuple[np.ndarray, np.ndarray]
"""Whole numbers, and a factor for each output channel."""


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
        """Put operations in front of another."""
        place = next(i for i, each in enumerate(self.graph.node) if each is node or each == node)
        for step, each in enumerate(made):
            self.graph.node.insert(place + step, each)


def activations(
    model: onnx.ModelProto, names: Sequence[str], batches: Sequence[np.ndarray]
) -> Iterator[dict[str, Float[np.ndarray, "n k"]]]:
    """What some products read, token by token, batch by batch."""
    import onnxruntime

    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    for name in names:
        probe.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session: Any = onnxruntime.InferenceSession(
        probe.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
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


def even(reach: Float[np.ndarray, "k"], weight: Float[np.ndarray, "k n"], alpha: float) -> np.ndarray:
    """SmoothQuant's factors (Eq. 4), 1 on average."""
    factor = np.maximum(reach, 1e-5) ** alpha / np.maximum(np.abs(weight).max(1), 1e-5) ** (1 - alpha)
    return (factor / np.exp(np.log(factor).mean())).astype(np.float32)


def loss(x: Float[np.ndarray, "n k"], weight: Float[np.ndarray, "k n2"], factor: np.ndarray) -> float:
    """The error of a rounded product, as the engine will compute it."""
    x = x / factor
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    step = max((high - low) / 255, 1e-12)
    rounded = (np.rint(x / step).clip(round(low / step), round(low / step) + 255)) * step
    whole, scale = round_weights(weight * factor[:, None])
    exact = (x * factor) @ weight
    # token by token: a few tokens with huge activations (Sun et al. 2024) would hide what all others lose
    lengths = np.linalg.norm(exact, axis=1)
    return float(
        np.mean(np.linalg.norm(rounded @ (whole * scale) - exact, axis=1) / np.maximum(lengths, 1e-12))
    )


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
            most = np.abs(x).max(0)
            reach[name] = np.maximum(reach[name], most) if name in reach else most
            sample.setdefault(name, x)
            total[name] = total.get(name, 0) + x.mean(0) / len(small)
            alike = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-6)
            pairs[name] = pairs.get(name, 0) + alike.T @ (alike / (len(x) * len(small)))
    made: dict[str, Plan] = {}
    for name, nodes in groups.items():
        weight = np.concatenate([work.array(node.input[1]) for node in nodes], axis=1)
        tried = [even(reach[name], weight, alpha) for alpha in ALPHAS]
        errors = [loss(sample[name], weight, factor) for factor in tried]
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


def round_weights(weight: Float[np.ndarray, "k n"]) -> tuple[np.ndarray, Float[np.ndarray, "n"]]:
    """Whole numbers of 7 bits and the factor of each output channel."""
    scale = np.maximum(np.abs(weight).max(0), 1e-12) / LEVELS
    return np.rint(weight / scale).clip(-LEVELS, LEVELS).astype(np.int8), scale.astype(np.float32)


def compensated(
    weight: Float[np.ndarray, "k n"], pairs: Float[np.ndarray, "k k"]
) -> tuple[np.ndarray, Float[np.ndarray, "n"]]:
    """As `round_weights`; what the rounding of an input changes, the inputs after it make up for.

    Frantar et al. 2023 (GPTQ), Eq. 2 with the Cholesky factor of their section 3.3, in blocks.
    """
    _, scale = round_weights(weight)
    left, count = weight.astype(np.float64), len(weight)
    damp = DAMP * np.trace(pairs) / count + 1e-12
    upper = np.linalg.cholesky(np.linalg.inv(pairs.astype(np.float64) + damp * np.eye(count))).T
    whole = np.zeros(weight.shape, dtype=np.int8)
    for start in range(0, count, BLOCK):
        end = min(start + BLOCK, count)
        errors = np.zeros((end - start, weight.shape[1]))
        for i in range(start, end):
            whole[i] = np.rint(left[i] / scale).clip(-LEVELS, LEVELS)
            errors[i - start] = (left[i] - whole[i] * scale) / upper[i, i]
            left[i + 1 : end] -= np.outer(upper[i, i + 1 : end], errors[i - start])
        left[end:] -= upper[start:end, end:].T @ errors
    return whole, scale


def mend(work: Surgery, node: onnx.NodeProto, shift: Float[np.ndarray, "n"]) -> None:
    """Take what rounding adds to a product on average off its bias (Nagel et al. 2019, section 4.2)."""
    readers = work.readers.get(node.output[0], [])
    if len(readers) == 1 and readers[0].op_type == "Add" and readers[0].input[1] in work.weights:
        bias = readers[0].input[1]
        readers[0].input[1] = work.put(f"{bias}_{node.name}", work.array(bias) - shift.astype(np.float32))


def products_in_int8(work: Surgery, chosen: Mapping[str, Plan], done: dict[str, Rounded]) -> None:
    """Replace each chosen product by one of whole numbers; `done` remembers weights rounded before."""
    for name, nodes in work.products().items():
        if name.removesuffix("_even") not in chosen:
            continue
        whole, scale, zero = f"{name}_u8", f"{name}_scale", f"{name}_zero"
        work.before(
            nodes[0],
            helper.make_node("DynamicQuantizeLinear", [name], [whole, scale, zero], f"{name}_quantize"),
        )
        for node in nodes:
            weight, y = node.input[1], node.output[0]
            plan = chosen[name.removesuffix("_even")]
            alike = plan.pairs / np.outer(plan.factor, plan.factor)
            if weight not in done:
                done[weight] = compensated(work.array(weight), alike)
            whole_weight, factor = done[weight]
            mend(work, node, plan.mean / plan.factor @ (whole_weight * factor - work.array(weight)))
            work.put(f"{weight}_s8", whole_weight)
            work.put(f"{weight}_factor", factor)
            steps = [
                helper.make_node("MatMulInteger", [whole, f"{weight}_s8", zero], [f"{y}_i32"], f"{y}_i32"),
                helper.make_node("Cast", [f"{y}_i32"], [f"{y}_f32"], f"{y}_f32", to=TensorProto.FLOAT),
                helper.make_node("Mul", [scale, f"{weight}_factor"], [f"{y}_factor"], f"{y}_factor"),
                helper.make_node("Mul", [f"{y}_f32", f"{y}_factor"], [y], f"{y}_scaled"),
            ]
            work.before(node, *steps)
            work.graph.node.remove(node)
    used = {name for node in work.graph.node for name in node.input}
    for each in [each for each in work.graph.initializer if each.name not in used]:
        work.graph.initializer.remove(each)


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
    for limit in LIMITS:
        made = rounded(model, {name: plan for name, plan in found.items() if plan.error <= limit}, done)
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
    import onnxruntime

    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session: Any = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    takes = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {takes: batch})[0] for batch in batches])
