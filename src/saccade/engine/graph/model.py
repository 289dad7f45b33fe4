"""A model as one ONNX graph: its own drawing, or with the preprocessing in front of it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from saccade import __version__
from saccade.data.image.preprocess import Preprocess
from saccade.engine.engine import OUTPUTS
from saccade.engine.graph.drawing import draw
from saccade.engine.graph.resizing import fit_images
from saccade.errors import UsageError
from saccade.files.atomic import write_bytes
from saccade.models.build import Vision
from saccade.models.hybrid import Hybrid
from saccade.models.vit import ViT
from saccade.nn import pool
from saccade.tokens.light import Light
from saccade.tokens.merge import Merged
from saccade.tokens.prune import Pruned
from saccade.tokens.walk import Walk, Walker, run

LARGEST = 2_000_000_000
"""Bytes of weights; an ONNX file is a protobuf message, which has at most 2 GiB."""
_Outputs = Float[Tensor, "b classes"] | tuple[Tensor, ...]


class GraphOutputs(nn.Module):
    """The outputs of a model by name, without what nobody reads of a ViT's last block."""

    def __init__(self, module: Vision, outputs: Sequence[str]) -> None:
        super().__init__()
        self.module, self.outputs = module, tuple(outputs)

    def forward(self, image: Float[Tensor, "b 3 height width"]) -> _Outputs:
        module = self.module
        if len(self.outputs) > 1:
            found: Any = module(image)
            return tuple(found[name] for name in self.outputs)
        if not isinstance(module, ViT) or (isinstance(module, Walker) and not isinstance(module, Light)):
            return module(image)
        # attention in chunks gives what attention gives; a graph has no use for the chunks
        asked = pool.KINDS[module.config.pool] if module.config.pool in ("token", "pair") else None
        return module.read(run(module, Walk(module, image), module.embed(image), asked))


class _BytesIn(nn.Module):
    """A model on decoded images: the preprocessing is part of the graph."""

    def __init__(self, answer: GraphOutputs, preprocess: Preprocess) -> None:
        super().__init__()
        self.answer, self.preprocess = answer, preprocess

    def forward(self, picture: UInt8[Tensor, "b height width 3"]) -> _Outputs:
        return self.answer(fit_images(picture, self.preprocess))


def patch_of(module: Vision) -> int:
    """Return the number that the sides of an image must be multiples of."""
    return module.config.patch if isinstance(module, ViT) else 1


def check_exportable(module: Vision, to: str = "onnx") -> None:
    """Refuse, before any work, a model that no graph can hold."""
    if isinstance(module, Pruned) and module.plan.by == "random":
        raise UsageError(
            "random dropping is drawn anew for each size, so no graph can hold it; prune by attention"
        )
    if isinstance(module, Light) and module.plan.attention == "windowed":
        raise UsageError(
            "windowed attention is laid out for one size, so no graph with free sizes can hold it"
        )
    if isinstance(module, Merged) and to == "torch":
        raise UsageError(
            "this model merges patches, which torch.export cannot hold for free sizes; "
            "choose --to onnx or --to openvino"
        )
    if not module.config.classes:
        raise UsageError("this model has no head, so its graph would have no classes to choose from")


def build_graph(
    module: Vision,
    preprocess: Preprocess,
    labels: Sequence[str] = (),
    takes: str = "floats",
    outputs: Mapping[str, float] = OUTPUTS,
) -> onnx.ModelProto:
    """Return a model as ONNX with free batch, height and width; its metadata has labels and preprocessing.

    Args:
        takes: floats (the output of `Preprocess`) or bytes (decoded images).
        outputs: Names of the outputs; a model with several returns a tensor for each by name.
    """
    check_exportable(module)
    answer, names = GraphOutputs(module.eval(), list(outputs)), list(outputs)
    if takes == "bytes":
        pixels = torch.randint(0, 256, (2, 37, 53, 3), dtype=torch.uint8)
        made = draw(_BytesIn(answer, preprocess), pixels, "picture", ["batch", "height", "width", 3], names)
    else:
        # the example may be small, except that a merged model needs as many patches as it merges away
        small = isinstance(module, ViT) and not isinstance(module, Hybrid | Merged)
        height, width = (3 * patch_of(module), 4 * patch_of(module)) if small else preprocess.size
        image = torch.randn(2, 3, height, width)
        made = draw(answer, image, "image", ["batch", 3, "height", "width"], names)
    notes = notes_of(preprocess, labels, takes) | {"saccade": __version__}
    for name, value in notes.items():
        made.metadata_props.add(key=name, value=value)
    return made


def notes_of(preprocess: Preprocess, labels: Sequence[str], takes: str) -> dict[str, str]:
    """Return what a graph says about itself, for programs that have only the graph."""
    return {
        "labels": json.dumps(list(labels)),
        "preprocess": json.dumps(preprocess.to_json()),
        "pixels": takes,
    }


def write_graph(
    path: Path,
    module: Vision,
    preprocess: Preprocess,
    labels: Sequence[str],
    takes: str = "floats",
    outputs: Mapping[str, float] = OUTPUTS,
) -> None:
    """Write a model as an ONNX file, completely or not at all."""
    drawn = build_graph(module, preprocess, labels, takes, outputs)
    size = sum(len(weight.raw_data) for weight in drawn.graph.initializer)
    if size > LARGEST:
        raise UsageError(
            f"the weights take {size:,} bytes; an ONNX file holds at most {LARGEST:,}; "
            f"choose --to torch or a smaller model"
        )
    write_bytes(path, drawn.SerializeToString())
