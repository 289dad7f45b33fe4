"""A model of ours as one graph that answers alone, for any number and any size of pictures."""

import json
from collections.abc import Sequence

import onnx
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from saccade import __version__
from saccade.data.image.preprocess import Preprocess
from saccade.engine.graph.drawing import draw
from saccade.engine.graph.resizing import fitted
from saccade.errors import UsageError
from saccade.models.build import Vision
from saccade.models.hybrid import Hybrid
from saccade.models.vit import ViT
from saccade.nn import pool
from saccade.tokens.light import Light
from saccade.tokens.merge import Merged
from saccade.tokens.prune import Pruned
from saccade.tokens.walk import Walk, Walker, run

TAKES = ("floats", "bytes")
"""What a graph reads: the numbers that `Preprocess` gives, or the samples of a picture as it was decoded."""


class Answer(nn.Module):
    """What `forward` gives, without what nobody reads of the last block: patches, if a token answers."""

    def __init__(self, module: Vision) -> None:
        super().__init__()
        self.module = module

    def forward(self, image: Float[Tensor, "b 3 height width"]) -> Float[Tensor, "b classes"]:
        module = self.module
        if not isinstance(module, ViT) or (isinstance(module, Walker) and not isinstance(module, Light)):
            return module(image)
        # attention in chunks gives what attention gives; a graph has no use for the chunks
        asked = pool.KINDS[module.config.pool] if module.config.pool in ("token", "pair") else None
        return module.read(run(module, Walk(module, image), module.embed(image), asked))


class Picture(nn.Module):
    """From the samples of decoded pictures to answers: what `Preprocess` does is part of the graph."""

    def __init__(self, module: Vision, preprocess: Preprocess) -> None:
        super().__init__()
        self.answer, self.preprocess = Answer(module), preprocess

    def forward(self, picture: UInt8[Tensor, "b height width 3"]) -> Float[Tensor, "b classes"]:
        return self.answer(fitted(picture, self.preprocess))


def patch_of(module: Vision) -> int:
    """The sides of a picture must be multiples of this."""
    return module.config.patch if isinstance(module, ViT) else 1


def check_exportable(module: Vision) -> None:
    """Refuse, before any work, what no graph can hold."""
    if isinstance(module, Pruned) and module.plan.by == "random":
        raise UsageError(
            "random dropping is drawn anew for each size, so no graph holds it; prune by attention"
        )
    if isinstance(module, Light) and module.plan.attention == "windowed":
        raise UsageError(
            "windowed attention is counted out for one size, so no graph with free sizes holds it"
        )
    if not module.config.classes:
        raise UsageError("this model has no head, so its graph would have no classes to choose from")


def merging(module: Vision) -> tuple[int, ...]:
    """How many patches each block merges away while a model answers; nothing for one that does not merge."""
    if not isinstance(module, Merged):
        return ()
    # where a token answers, the last block merges nobody
    last = module.asked() is not None and module.config.position != "rope2d"
    return module.plan.rates[:-1] if last else module.plan.rates


def fewest(module: Vision) -> int:
    """The patches that a program of `torch.export` needs: two for each that a block merges away, and 3.

    With fewer a block merges half of what is there, for which the program would need other steps.
    """
    rates = merging(module)
    return max((sum(rates[:i]) + 2 * rate + 3 for i, rate in enumerate(rates) if rate), default=1)


def graph(
    module: Vision, preprocess: Preprocess, labels: Sequence[str] = (), takes: str = "floats"
) -> onnx.ModelProto:
    """A model as ONNX with free batch, height and width; labels and preprocessing are in its metadata."""
    check_exportable(module)
    module.eval()
    # a merged model needs as many patches as it is to merge, or there is nothing left to be traced
    small = isinstance(module, ViT) and not isinstance(module, Hybrid | Merged)
    side = 3 * patch_of(module) if small else 0
    if takes == "bytes":
        example = torch.randint(0, 256, (2, 37, 53, 3), dtype=torch.uint8)
        made = draw(
            Picture(module, preprocess), example, "picture", ["batch", "height", "width", 3], "logits"
        )
    else:
        height, width = (side, 4 * patch_of(module)) if side else preprocess.size
        example = torch.randn(2, 3, height, width)
        made = draw(Answer(module), example, "image", ["batch", 3, "height", "width"], "logits")
    facts = {
        "labels": list(labels),
        "preprocess": preprocess.to_json(),
        "pixels": takes,
        "saccade": __version__,
    }
    for name, value in facts.items():
        made.metadata_props.add(key=name, value=value if isinstance(value, str) else json.dumps(value))
    return made
