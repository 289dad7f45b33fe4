"""Layers with weights, and normalisation, in terms of ONNX's operations; see engine/operators.py."""

from typing import Any

import torch

from saccade.engine.graph.drawing import Drawing, Given, Made


def linear(d: Drawing, a: list[Any], out: Given) -> Made:
    """A product with weights that stand transposed in the graph, and a bias."""
    x, weight, bias = a
    if isinstance(weight, torch.Tensor):
        turned = _turned(d, weight)
    else:
        turned = d.one("Transpose", weight.name, perm=[1, 0])
    y = d.one("MatMul", d.name(x), turned)
    return y if bias is None else d.one("Add", y, d.name(bias))


def _turned(d: Drawing, weight: torch.Tensor) -> str:
    key = "turned", id(weight)
    if key not in d.known:
        d.known[key] = (d.tensor(weight.t().contiguous()),)
    return d.known[key][0]


def layer_norm(d: Drawing, a: list[Any], out: Given) -> Made:
    """Over the last axes."""
    x, sizes, weight, bias, eps, _ = a
    return d.one("LayerNormalization", x.name, d.name(weight), d.name(bias), axis=-len(sizes), epsilon=eps)


def rms_norm(d: Drawing, a: list[Any], out: Given) -> Made:
    """Without a mean; in plain steps, as old runtimes have no operation for it."""
    x, _, weight, eps = a
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    square = d.one("ReduceMean", d.one("Mul", x.name, x.name), d.vector(-1), keepdims=1)
    length = d.one("Sqrt", d.one("Add", square, d.name(eps, torch.float32)))
    return d.one("Mul", d.one("Div", x.name, length), d.name(weight))


def group_norm(d: Drawing, a: list[Any], out: Given) -> Made:
    """As a normalisation of instances, which every runtime has."""
    x, groups, weight, bias, eps, _ = a
    ones, zeros = torch.ones(groups), torch.zeros(groups)
    split = d.one("Reshape", x.name, d.vector([0, groups, -1]))
    even = d.one("InstanceNormalization", split, d.tensor(ones), d.tensor(zeros), epsilon=eps)
    y = d.one("Reshape", even, d.one("Shape", x.name))
    across = (-1, *[1] * (x.rank - 2))
    return d.one("Add", d.one("Mul", y, d.tensor(weight.view(across))), d.tensor(bias.view(across)))


def batch_norm(d: Drawing, a: list[Any], out: Given) -> Made:
    """With the statistics of training."""
    x, *numbers, _, _, eps, _ = a
    return d.one("BatchNormalization", x.name, *map(d.name, numbers), epsilon=eps)


def convolution(d: Drawing, a: list[Any], out: Given) -> Made:
    """Of two dimensions."""
    x, weight, bias, stride, padding, dilation = a[:6]
    inputs = [d.name(x), d.name(weight)] + ([] if bias is None else [d.name(bias)])
    return d.one("Conv", *inputs, strides=stride, pads=padding * 2, dilations=dilation, group=a[8])


def max_pool(d: Drawing, a: list[Any], out: Given) -> Made:
    """Of two dimensions."""
    x, kernel, stride, padding, dilation, ceil = a
    sizes = {"kernel_shape": kernel, "strides": stride or kernel, "pads": padding * 2, "dilations": dilation}
    return d.one("MaxPool", d.name(x), ceil_mode=int(ceil), **sizes)


def pad(d: Drawing, a: list[Any], out: Given) -> Made:
    """With a constant."""
    x, pads, mode, value = a
    assert mode == "constant"
    before, after = pads[::2][::-1], pads[1::2][::-1]
    still = [0] * (x.rank - len(before))
    number = d.name(0.0 if value is None else value, out[0][0])
    return d.one("Pad", x.name, d.vector([*still, *before, *still, *after]), number)
