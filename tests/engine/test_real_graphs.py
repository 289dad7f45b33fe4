"""The real ViT-Ti as one graph: five sizes dense, pruned and merged, and int8 on pictures it has not seen."""

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from saccade.engine import verify
from saccade.engine.export import export_model
from saccade.engine.graph.model import build_graph
from saccade.engine.onnx import Onnx
from saccade.engine.openvino import OpenVino
from saccade.engine.torch import Eager
from saccade.tokens.merge import decreasing, merge
from saccade.tokens.prune import prune
from saccade.weights.load import Loaded, load

SIZES = ((12, 224, 224), (12, 160, 320), (1, 336, 112), (1, 256, 256), (3, 48, 80))
WAYS = {
    "dense": lambda vit: vit,
    "pruned": lambda vit: prune(vit, 0.7),
    "dropped by attention": lambda vit: prune(vit, 0.7, by="attention"),
    "merged": lambda vit: merge(vit, 8),
    "merged, more and more gently": lambda vit: merge(vit, decreasing(12, 13)),
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def real(data):
    return load(data / "vit_tiny_patch16_224.fp16.safetensors")


@pytest.fixture(scope="module")
def pictures(data):
    """A thousand photographs, encoded, and the numbers of their classes."""
    with zipfile.ZipFile(data / "imagenet_val_1000_224.zip") as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        return [(archive.read(name), int(Path(name).parent.name)) for name in names]


def photographs(pictures, preprocess, count, height, width):
    """Some pictures, squashed to a size."""
    found = [
        Image.open(io.BytesIO(data)).convert("RGB").resize((width, height)) for data, _ in pictures[:count]
    ]
    return np.stack([preprocess.normalise(np.asarray(each)) for each in found])


@pytest.mark.parametrize("way", WAYS)
def test_one_graph_of_the_real_model_answers_five_sizes(way, real, pictures, tmp_path):
    module = WAYS[way](real.module)
    onnx.save(build_graph(module, real.preprocess), tmp_path / "model.onnx")
    model, engines = Eager(module), [Onnx(tmp_path / "model.onnx"), OpenVino(tmp_path / "model.onnx", kept=1)]
    for size in SIZES:
        x = photographs(pictures, real.preprocess, *size)
        expected = model.run(x)
        for engine in engines:
            assert np.abs(engine.run(x) - expected).max() < 1e-4, (engine.name, size)


def test_the_real_model_in_int8_keeps_its_answers(real, pictures, tmp_path):
    preprocess = replace(real.preprocess, crop=1.0)  # the pictures were cropped when the set was made
    model = Loaded(real.module, preprocess, real.labels)
    learnt = [data for data, _ in pictures[10::20]]
    others = [pair for i, pair in enumerate(pictures) if i % 20 != 10]
    samples = verify.Samples([data for data, _ in others], [label for _, label in others])
    calibration = verify.graph_inputs(preprocess, "floats", learnt)
    found = export_model(tmp_path / "out", model, "onnx", "floats", samples, calibration)
    print(f"{len(others)} pictures: {found}")
    assert found.agreement >= 0.98
    assert found.right >= found.before - 0.005
