"""The model as a graph, exported with free sizes or compiled whole: the same numbers.

In processes of their own, as the shape checker of the tests and the compiler do not go together.
"""

import subprocess
import sys
import textwrap

import pytest

START = """
import torch
from dataclasses import replace
from saccade.models.build import build
from saccade.models.hybrid import HybridConfig
from saccade.models.resnet import ResNetConfig
from saccade.models.vit import ViTConfig
from saccade.nn.block import BlockStyle

torch.set_num_threads(1)
torch.manual_seed(0)
small = ViTConfig(image=(32, 32), patch=8, width=24, depth=2, heads=3, hidden=48, classes=5)
MODELS = {
    "vit": small,
    "tanh, google": replace(small, resample="bilinear", block=BlockStyle(gelu="tanh"), pool="mean"),
    "registers": replace(small, registers=2, pool="token+mean", block=BlockStyle(layerscale=0.1)),
    "distilled": replace(small, pool="pair", prelogits=0),
    "map": replace(small, pool="map", position="sincos2d"),
    "relative": replace(small, position="relative"),
    "rotary": replace(small, position="rope2d"),
    "post-norm": replace(small, position="learned2d", block=BlockStyle(norm="rms", placement="post")),
    "hybrid": HybridConfig(layers=(1, 1), vit=replace(small, image=(32, 32))),
    "resnet": ResNetConfig(layers=(1, 1), bottleneck=False, width=16, classes=5, image=(32, 32)),
}

def make(name):
    module = build(MODELS[name]).eval()
    with torch.no_grad():
        for p in module.parameters():
            p.normal_(std=0.2)
    return module
"""

EXPORT = """
b, r, c = (torch.export.Dim(n, min=2, max=64) for n in "brc")
for name in NAMES:
    module = make(name)
    example = torch.randn(2, 3, 48, 40)
    sizes = {"image": {0: b, 2: 8 * r, 3: 8 * c}}
    with torch.no_grad():
        graph = torch.export.export(module, (example,), dynamic_shapes=sizes).module()
        for shape in ((3, 3, 32, 32), (2, 3, 16, 80), (5, 3, 72, 24)):
            image = torch.randn(shape)
            far = (graph(image) - module(image)).abs().max().item()
            assert far < 1e-5, (name, shape, far)
"""

COMPILE = """
for name in NAMES:
    module, image = make(name), torch.randn(2, 3, 32, 32)
    torch._dynamo.reset()
    with torch.no_grad():
        fast = torch.compile(module, fullgraph=True, backend=BACKEND)
        for size in ((32, 32), (48, 16)):
            image = torch.randn(2, 3, *size)
            far = (fast(image) - module(image)).abs().max().item()
            assert far < 1e-4, (name, size, far)
"""

NAMES = [
    "vit",
    "tanh, google",
    "registers",
    "distilled",
    "map",
    "relative",
    "rotary",
    "post-norm",
    "hybrid",
    "resnet",
]


def run(program):
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(START) + program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    "names", [NAMES[:5], pytest.param(NAMES[5:], marks=pytest.mark.slow)], ids=["plain", "other"]
)
def test_exported_with_free_batch_height_and_width_every_model_gives_the_same_numbers(names):
    run(f"NAMES = {names}\n" + EXPORT)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_as_one_graph_every_model_gives_the_same_numbers(backend):
    run(f"NAMES, BACKEND = {NAMES}, {backend!r}\n" + COMPILE)
