"""Turn matrix products of a graph into int8, calibrated on the user's images.

Weights are rounded per output channel to 7 bits: without VNNI, a processor adds pairs of products of u8 and
s8 in 16 bits, where 8 bits would saturate. Activations are rounded as they come, each batch by its own range.
The few channels that reach much further than the others are first shrunk, and their weights grown, by factors
measured on the images (Xiao et al. 2023, SmoothQuant, Eq. 4); a product that stays inexact stays in float32.
The first and the last product, from pixels and to classes, stay as they are.

Shapes: t tokens, k channels that a product reads, n channels that it gives.
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
from saccade.libraries import import_runtime
from saccade.progress import track

LEVELS = 63
"""The largest integer of a weight: 7 bits with a sign."""
SKIPPED = 2
"""Estimate the rounding error on every second token; take the range from all of them."""
DAMP, BLOCK = 0.01, 32
"""Of GPTQ: the damping that keeps the inverse small, and the channels rounded at once."""
ALPHAS = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
"""How much of an activation's reach its weights may take over (0 none, 1 all)."""
TOKENS = 8192
"""Estimate products of channels on about this many tokens; on all of them it takes longer than the model."""
LIMITS = (0.05, 0.03, 0.025, 0.02, 0.017)
"""A product that rounding changes by more than this share stays in float32; the first limit that keeps the
answers is taken."""
NOISE = 0.045
"""How far the logits of the user's images may move, as a share of their spread (root mean squares)."""
_Weights = Float[np.ndarray, "k n"]
_Scale = Float[np.ndarray, "n"]
Rounded = tuple[np.ndarray, np.ndarray]
"""Integers, and a factor per output channel."""


def smoothing(reach: Float[np.ndarray, "k"], weight: _Weights, alpha: float) -> Float[np.ndarray, "k"]:
    """Return SmoothQuant's factors (Xiao et al. 2023, Eq. 4), with a geometric mean of 1."""
    factor = np.maximum(reach, 1e-5) ** alpha / np.maximum(np.abs(weight).max(1), 1e-5) ** (1 - alpha)
    return (factor / np.exp(np.log(factor).mean())).astype(np.float32)


def round_weights(weight: _Weights) -> tuple[np.ndarray, _Scale]:
    """Return integers of 7 bits and the factor of each output channel."""
    scale = np.maximum(np.abs(weight).max(0), 1e-12) / LEVELS
    return np.rint(weight / scale).clip(-LEVELS, LEVELS).astype(np.int8), scale.astype(np.float32)


def losses(x: Float[np.ndarray, "t k"], weight: _Weights, factors: Sequence[np.ndarray]) -> list[float]:
    """Return the error of the product in int8, as an engine will compute it, for each set of factors."""
    reach = np.stack([x.min(0), x.max(0)])
    x = np.ascontiguousarray(x[::SKIPPED])
    exact = x @ weight
    # token by token: a few tokens with huge activations (Sun et al. 2024) would hide what all others lose
    lengths = np.maximum(np.linalg.norm(exact, axis=1), 1e-12)
    found = []
    for factor in factors:
        low, high = min(float((reach / factor).min()), 0.0), max(float((reach / factor).max()), 0.0)
        step = max((high - low) / 255, 1e-12)
        seen = x / (factor * np.float32(step))
        np.rint(seen, out=seen)
        seen = seen.clip(round(low / step), round(low / step) + 255, out=seen)
        whole, scale = round_weights(weight * factor[:, None])
        made = (seen @ whole.astype(np.float32)) * (scale * np.float32(step))
        found.append(float(np.mean(np.linalg.norm(made - exact, axis=1) / lengths)))
    return found


def inverse(upper: Float[np.ndarray, "k k"]) -> Float[np.ndarray, "k k"]:
    """Invert a triangular matrix by halves: a few large products instead of many small steps."""
    half = len(upper) // 2
    if half < BLOCK:
        return np.linalg.inv(upper)
    made = np.zeros_like(upper)
    made[:half, :half], made[half:, half:] = inverse(upper[:half, :half]), inverse(upper[half:, half:])
    made[:half, half:] = -(made[:half, :half] @ (upper[:half, half:] @ made[half:, half:]))
    return made


def compensate(weight: _Weights, pairs: Float[np.ndarray, "k k"]) -> tuple[np.ndarray, _Scale]:
    """Round as `round_weights`, but let later channels make up for what rounding the earlier ones changes.

    Frantar et al. 2023 (GPTQ), Eq. 2 with the Cholesky factor of their section 3.3, in blocks. The factor of
    an inverse is the inverse of the matrix's own factor, with the channels taken backwards.
    """
    _, scale = round_weights(weight)
    left, count = weight.astype(np.float32), len(weight)
    damp = DAMP * np.trace(pairs) / count + 1e-12
    damped = pairs.astype(np.float64) + damp * np.eye(count)
    upper = inverse(np.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1]).astype(np.float32)
    whole = np.zeros(weight.shape, dtype=np.int8)
    for start in range(0, count, BLOCK):
        end = min(start + BLOCK, count)
        errors = np.zeros((end - start, weight.shape[1]), dtype=np.float32)
        for i in range(start, end):
            # round channel i, then spread its error over the channels that are still to be rounded
            whole[i] = np.rint(left[i] / scale).clip(-LEVELS, LEVELS)
            errors[i - start] = (left[i] - whole[i] * scale) / upper[i, i]
            left[i + 1 : end] -= np.outer(upper[i, i + 1 : end], errors[i - start])
        left[end:] -= upper[start:end, end:].T @ errors  # once per block, as one large product
    return whole, scale


class Surgery:
    """A graph being edited; nodes are inserted and removed only by `close`, so positions stay valid."""

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
        """Return the products with weights, except the first and the last, by the activation they read."""
        found = [n for n in self.graph.node if n.op_type == "MatMul" and n.input[1] in self.weights]
        groups: dict[str, list[onnx.NodeProto]] = {}
        for node in found[1:-1]:
            if len(self.weights[node.input[1]].dims) == 2:
                groups.setdefault(node.input[0], []).append(node)
        return groups

    def array(self, name: str) -> np.ndarray:
        """Return a weight."""
        return numpy_helper.to_array(self.weights[name])

    def put(self, name: str, value: np.ndarray) -> str:
        """Set or add a weight."""
        made = numpy_helper.from_array(np.ascontiguousarray(value), name)
        if name in self.weights:
            self.weights[name].CopyFrom(made)
        else:
            self.graph.initializer.append(made)
            self.weights[name] = self.graph.initializer[-1]
        return name

    def before(self, node: onnx.NodeProto, *made: onnx.NodeProto) -> None:
        """Insert operations in front of another when the surgery is closed."""
        self.ahead.setdefault(node.name, []).extend(made)

    def close(self) -> None:
        """Insert and remove nodes, and drop weights that nobody reads any more."""
        nodes: list[onnx.NodeProto] = []
        for node in self.graph.node:
            nodes += self.ahead.get(node.name, [])
            nodes += [] if node.name in self.gone else [node]
        used = {name for node in nodes for name in node.input}
        weights = [each for each in self.graph.initializer if each.name in used]
        whole: list[tuple[Any, list[Any]]] = [(self.graph.node, nodes), (self.graph.initializer, weights)]
        for field, kept in whole:
            # clearing a protobuf field frees its messages, so copy those that stay first
            copies = [type(each)() for each in kept]
            for copy, each in zip(copies, kept, strict=True):
                copy.CopyFrom(each)
            del field[:]
            field.extend(copies)


def _session(model: onnx.ModelProto) -> Any:
    onnxruntime: Any = import_runtime("onnxruntime")
    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def activations(
    model: onnx.ModelProto, names: Sequence[str], batches: Sequence[np.ndarray]
) -> Iterator[dict[str, Float[np.ndarray, "t k"]]]:
    """Yield what some products read, token by token, for each batch."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    for name in names:
        probe.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    session = _session(probe)
    takes = session.get_inputs()[0].name
    for batch in track(batches, len(batches), "calibrating", "batches"):
        found = session.run(list(names), {takes: batch})
        yield {name: value.reshape(-1, value.shape[-1]) for name, value in zip(names, found, strict=True)}


@dataclass(frozen=True, slots=True)
class RoundingPlan:
    """How one activation is rounded."""

    factor: Float[np.ndarray, "k"]
    """Its channels are divided by these first."""
    error: float
    """The difference that rounding makes to the products, as a share of their size."""
    mean: Float[np.ndarray, "k"]
    """Of its channels, over all images."""
    pairs: Float[np.ndarray, "k k"]
    """Mean products of its channels, with every token scaled to length 1."""


def plan_rounding(work: Surgery, batches: Sequence[np.ndarray]) -> dict[str, RoundingPlan]:
    """Return the cheapest factors for each activation, measured on the user's images."""
    groups = work.products()
    reach: dict[str, np.ndarray] = {}
    sample: dict[str, np.ndarray] = {}
    total: dict[str, Any] = {}
    pairs: dict[str, Any] = {}
    small = [part[i : i + 4] for part in batches for i in range(0, len(part), 4)]
    for found in activations(work.model, list(groups), small):
        for name, x in found.items():  # running statistics: all activations would not fit into memory
            most = np.maximum(x.max(0), -x.min(0))
            reach[name] = np.maximum(reach[name], most) if name in reach else most
            sample.setdefault(name, x)
            total[name] = total.get(name, 0) + x.mean(0) / len(small)
            some = x[:: max(1, len(x) * len(small) // TOKENS)]
            alike = some / np.maximum(np.linalg.norm(some, axis=1, keepdims=True), 1e-6)
            # an array times itself: numpy then computes only half of it
            pairs[name] = pairs.get(name, 0) + alike.T @ alike / (len(alike) * len(small))
    made: dict[str, RoundingPlan] = {}
    for name, nodes in groups.items():
        weight = np.concatenate([work.array(node.input[1]) for node in nodes], axis=1)
        tried = [smoothing(reach[name], weight, alpha) for alpha in ALPHAS]
        errors = losses(sample[name], weight, tried)
        best = int(np.argmin(errors))
        made[name] = RoundingPlan(tried[best], errors[best], total[name], pairs[name])
    return made


def smooth(work: Surgery, chosen: Mapping[str, RoundingPlan]) -> None:
    """Move the reach of activations into the weights that read them; the answers stay the same.

    Afterwards each chosen activation x is x / factor, and its weights are factor times larger.
    """
    for name, nodes in work.products().items():
        if name not in chosen:
            continue
        factor = chosen[name].factor
        for node in nodes:
            work.put(node.input[1], work.array(node.input[1]) * factor[:, None])
        maker = work.makers.get(name)
        alone = len(work.readers[name]) == len(nodes)
        if maker is not None and maker.op_type == "LayerNormalization" and alone:
            # the norm's own weight and bias divide for free, if nobody else reads its result
            for i in (1, 2):
                shared = len(work.readers[maker.input[i]]) > 1
                own = f"{maker.input[i]}_{maker.name}" if shared else maker.input[i]
                maker.input[i] = work.put(own, work.array(maker.input[i]) / factor)
        else:
            shrink = work.put(f"{name}_shrink", 1 / factor)
            work.before(nodes[0], helper.make_node("Mul", [name, shrink], [f"{name}_even"], f"{name}_even"))
            for node in nodes:
                node.input[0] = f"{name}_even"
    work.close()


def correct_bias(work: Surgery, node: onnx.NodeProto, shift: Float[np.ndarray, "n"]) -> None:
    """Subtract what rounding adds to a product on average from its bias (Nagel et al. 2019, section 4.2)."""
    readers = work.readers.get(node.output[0], [])
    if len(readers) == 1 and readers[0].op_type == "Add" and readers[0].input[1] in work.weights:
        bias = readers[0].input[1]
        # a weight of its own: equal biases are drawn once and may be shared
        readers[0].input[1] = work.put(f"{bias}_{node.name}", work.array(bias) - shift.astype(np.float32))


def quantize_products(work: Surgery, chosen: Mapping[str, RoundingPlan], done: dict[str, Rounded]) -> None:
    """Replace each chosen product with one of integers; `done` remembers weights that were rounded before.

    A MatMul becomes, with one DynamicQuantizeLinear per activation for all products that read it:
    x -> (u8, scale, zero); MatMulInteger(u8, s8, zero) -> i32 -> float32, times scale and weight factor.
    """
    for name, nodes in work.products().items():
        plan = chosen.get(name.removesuffix("_even"))  # `smooth` may have renamed the activation
        if plan is None:
            continue
        whole, scale, zero = f"{name}_u8", f"{name}_scale", f"{name}_zero"
        work.before(
            nodes[0],
            helper.make_node("DynamicQuantizeLinear", [name], [whole, scale, zero], f"{name}_quantize"),
        )
        _round_group(work, nodes, plan, done)
        for node in nodes:
            weight, y = node.input[1], node.output[0]
            whole_weight, factor = done[weight]
            correct_bias(work, node, plan.mean / plan.factor @ (whole_weight * factor - work.array(weight)))
            work.put(f"{weight}_s8", whole_weight)
            work.put(f"{weight}_factor", factor)
            # the last node keeps the product's output name, so its readers need no change
            work.before(
                node,
                helper.make_node("MatMulInteger", [whole, f"{weight}_s8", zero], [f"{y}_i32"], f"{y}_i32"),
                helper.make_node("Cast", [f"{y}_i32"], [f"{y}_f32"], f"{y}_f32", to=TensorProto.FLOAT),
                helper.make_node("Mul", [scale, f"{weight}_factor"], [f"{y}_factor"], f"{y}_factor"),
                helper.make_node("Mul", [f"{y}_f32", f"{y}_factor"], [y], f"{y}_scaled"),
            )
            work.gone.add(node.name)
    work.close()


def _round_group(
    work: Surgery, nodes: Sequence[onnx.NodeProto], plan: RoundingPlan, done: dict[str, Rounded]
) -> None:
    """Round the weights of all products that read one activation side by side, unless done before."""
    names = [node.input[1] for node in nodes]
    if all(name in done for name in names):
        return
    parts = [work.array(name) for name in names]
    whole, scale = compensate(np.concatenate(parts, 1), plan.pairs / np.outer(plan.factor, plan.factor))
    ends = np.cumsum([part.shape[1] for part in parts])[:-1]
    done |= zip(names, zip(np.split(whole, ends, 1), np.split(scale, ends), strict=True), strict=True)


def quantize(path: Path, batches: Sequence[np.ndarray]) -> None:
    """Rewrite an ONNX file of ours with its products in int8."""
    if not batches:
        raise UsageError("int8 needs images to calibrate on; give them with --data")
    model = onnx.load(path)
    work = Surgery(model)
    if not work.products():
        raise UsageError("this model has no matrix product to round; export it without --int8")
    # 1. measure what rounding each activation costs; 2. round those below a limit, from the most generous
    # limit down, until the outputs on unseen images move little enough
    apart = len(batches) // 4  # the limit is chosen on images that the factors have not seen
    some = batches[len(batches) - max(apart, 1) :]
    found = plan_rounding(work, batches[: len(batches) - apart])
    expected, done = _outputs(model, some), dict[str, Rounded]()
    tried: dict[str, RoundingPlan] | None = None
    for limit in LIMITS:
        chosen = {name: plan for name, plan in found.items() if plan.error <= limit}
        if tried is not None and len(chosen) == len(tried):
            continue
        tried, made = chosen, quantized_copy(model, chosen, done)
        noise = max(
            float(np.sqrt(np.mean((here - there) ** 2)) / max(there.std(), 1e-9))
            for here, there in zip(_outputs(made, some), expected, strict=True)
        )
        if noise <= NOISE:
            break
    onnx.save(made, path)


def quantized_copy(
    model: onnx.ModelProto, chosen: Mapping[str, RoundingPlan], done: dict[str, Rounded]
) -> onnx.ModelProto:
    """Return a copy of a graph with the chosen products in int8."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    smooth(Surgery(made), chosen)
    quantize_products(Surgery(made), chosen, done)
    return made


def _outputs(model: onnx.ModelProto, batches: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return each output of a graph over all batches."""
    session = _session(model)
    takes = session.get_inputs()[0].name
    found = [session.run(None, {takes: batch}) for batch in batches]
    return [np.concatenate(parts) for parts in zip(*found, strict=True)]
