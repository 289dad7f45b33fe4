"""What a graph cannot hold is refused in words: arguments, dtypes, other versions of torch."""

import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import saccade
from saccade.engine.graph import trace
from saccade.engine.graph.drawing import draw
from saccade.errors import ModelError, UsageError

ENGINE = Path(saccade.__file__).parent / "engine"


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def drawn(module, x):
    return draw(module.eval(), x, "x", ["batch", *(f"side{i}" for i in range(x.ndim - 1))], ["y"])


def answer(module, x):
    session = onnxruntime.InferenceSession(drawn(module, x).SerializeToString())
    return session.run(None, {"x": x.numpy()})[0]


IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
REFUSED = [
    (nn.ConvTranspose2d(3, 4, 2, 2), "aten::_convolution with transposed=True; expected False"),
    (lambda x: x.add(x, alpha=2), "aten::add with alpha=2; expected 1"),
    (lambda x: x.sub(x, alpha=3), "aten::sub with alpha=3; expected 1"),
    (
        lambda x: x.div(3 + x * 0, rounding_mode="floor"),
        "aten::div with rounding_mode='floor'; expected None",
    ),
    (lambda x: F.dropout(x, 0.5, True), "aten::dropout with train=True; expected False"),
    (lambda x: torch.linalg.vector_norm(x, 1, -1), "aten::linalg_vector_norm with ord=1; expected 2"),
    (lambda x: x.max(-1, True).values, "aten::max with keepdim=True; expected False"),
    (lambda x: x.max(), "aten::max without dim"),
    (lambda x: torch.max(x, x + 1), "aten::max with other"),
    (lambda x: x.round(decimals=2), "aten::round with decimals=2; expected 0"),
    (lambda x: F.pad(x, (1, 1, 1, 1), "reflect"), "aten::pad with mode='reflect'; expected 'constant'"),
    (lambda x: x.index_add(1, torch.tensor([0]), x[:, :1] + 1), "aten::index_add with dim=1; expected 0"),
    (lambda x: x.unflatten(1, (3, 1)), "aten::unflatten with dim=1; expected the last"),
    (lambda x: F.layer_norm(x, (8,)), "aten::layer_norm without weight"),
    (lambda x: F.batch_norm(x, torch.zeros(3), torch.ones(3), training=True), "aten::batch_norm with"),
    (lambda x: x.half() * 2, "float16; expected float32"),
    (lambda x: x.cumsum(-1), "aten::cumsum, which saccade cannot export"),
]


@pytest.mark.parametrize(("function", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_an_argument_that_no_graph_holds_is_refused(function, words):
    module = function if isinstance(function, nn.Module) else Call(function)
    with pytest.raises(ModelError, match=f"the model computes .*{re.escape(words)}.*please report it"):
        drawn(module, IMAGE)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_a_quotient_is_rounded_down_as_torch_does(dtype):
    x = torch.tensor([-9, -8, -7, -1, 0, 1, 7, 8, 9], dtype=dtype)
    for by in (4, -4):
        found = answer(Call(lambda x, by=by: torch.floor_divide(x, torch.tensor(by))), x)
        assert np.array_equal(found, torch.floor_divide(x, by).numpy())


SAME = [
    nn.Conv2d(3, 4, 3, 2, 1, 1, 1),
    nn.Conv2d(3, 6, 3, 1, 2, 2, 3, bias=False),
    lambda x: x.sum(),
    lambda x: x.mean((1, 2), keepdim=True),
    lambda x: torch.stack(x.unbind(1)[::-1]),
    lambda x: F.rms_norm(x, (8, 8), torch.full((8, 8), 2.0)),
    lambda x: torch.linalg.vector_norm(x, dim=-1),
    lambda x: torch.sinc(x),
    lambda x: torch.where((x > 0) & (x < 1), x, -x),
    lambda x: x.sort(-1, descending=True).values,
    lambda x: F.max_pool2d(x, 3, 2, 1),
]


@pytest.mark.parametrize("function", SAME, ids=range(len(SAME)))
def test_what_is_drawn_computes_what_torch_computes(function):
    module = function if isinstance(function, nn.Module) else Call(function)
    assert np.abs(answer(module, IMAGE) - module(IMAGE).detach().numpy()).max() < 1e-5


def test_another_version_of_torch_that_traces_otherwise_is_named(monkeypatch):
    monkeypatch.delattr(torch.jit, "_get_trace_graph")
    with pytest.raises(AttributeError):
        drawn(nn.ReLU(), IMAGE)
    monkeypatch.setattr(torch, "__version__", "9.9.1+cpu")
    tried = trace.TRIED[-1]
    with pytest.raises(
        UsageError, match=rf"torch 9\.9\.1\+cpu .*; graphs were tested with .*{tried}; install"
    ):
        drawn(nn.ReLU(), IMAGE)


def test_this_version_of_torch_was_tried():
    assert torch.__version__.startswith(trace.TRIED)


def test_one_file_of_the_engines_touches_private_parts_of_torch():
    private = re.compile(r"torch\.(\w+\.)*_[a-z]|\btorch\._C\b|_is_\w+_flag|\.debugName|torch\.jit\b")
    found = {str(p.relative_to(ENGINE)) for p in ENGINE.rglob("*.py") if private.search(p.read_text())}
    assert found == {"graph/trace.py"}
