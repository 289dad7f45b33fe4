"""A number that multiplies a layer's result is in the layer's weights, unless others read the result."""

import numpy as np
import onnxruntime
import torch
from graphs import make
from onnx import numpy_helper
from torch import nn

from saccade.data.image.preprocess import Preprocess
from saccade.engine.graph.drawing import draw
from saccade.engine.graph.model import build_graph


class Scaled(nn.Module):
    """A layer whose result is halved, and read again as it is where `twice` is asked for."""

    def __init__(self, twice: bool) -> None:
        super().__init__()
        self.layer, self.twice = nn.Linear(4, 6), twice

    def forward(self, x):
        y = self.layer(x)
        z = y.unflatten(-1, (2, 3)).transpose(1, 2) * 0.5 * 0.5
        return z.transpose(1, 2).flatten(2) + (y if self.twice else 0.0)


def drawn(twice):
    torch.manual_seed(0)
    module, x = Scaled(twice).eval(), torch.randn(2, 3, 4)
    made = draw(module, x, "x", ["batch", "tokens", 4], ["y"])
    (got,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x.numpy()})
    np.testing.assert_allclose(got, module(x).detach().numpy(), atol=1e-6)
    return made.graph, module


def test_both_numbers_go_into_weights_and_bias():
    made, module = drawn(twice=False)
    assert [node.op_type for node in made.node].count("Mul") == 0
    found = [numpy_helper.to_array(weight) for weight in made.initializer]
    assert any(w.shape == (4, 6) and np.array_equal(w, module.layer.weight.detach().T / 4) for w in found)
    assert sum(w.shape == (4, 6) for w in found) == 1  # the weights as they were are not kept beside them


def test_a_result_that_others_read_stays_as_it_is():
    made, _ = drawn(twice=True)
    assert [node.op_type for node in made.node].count("Mul") == 2


def test_queries_are_scaled_by_their_weights():
    made = build_graph(make("vit"), Preprocess(size=(32, 32))).graph
    readers = {name: node.op_type for node in made.node for name in node.input}
    turned = [node for node in made.node if node.op_type == "Transpose"]
    assert turned
    assert not any(readers[node.output[0]] == "Mul" for node in turned)
