"""The explanation methods by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from PIL.Image import fromarray

from saccade.data.image.resize import Pixels
from saccade.errors import UsageError, check_word, not_finite
from saccade.explain.faithfulness.controls import random
from saccade.explain.heatmap import Heatmap
from saccade.explain.methods.attention import attention, gradient_rollout, rollout
from saccade.explain.methods.gradcam import gradcam
from saccade.explain.methods.gradients import gradient, integrated
from saccade.explain.methods.occlusion import occlusion
from saccade.explain.methods.relevance import generic, relevance
from saccade.explain.target import MethodFunction, confidence
from saccade.models.build import Vision
from saccade.models.modules import evaluating
from saccade.models.resnet import ResNet
from saccade.nn.patch import Image

DEFAULT = "relevance"


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """An explanation method, and what to know before reading its maps."""

    name: str
    function: MethodFunction
    by_class: bool
    """Whether the map depends on the target."""
    only: Literal["vit", "cnn", ""] = ""
    """The kind of model that it needs, if any."""
    source: str
    """The publication."""


_ALL = (
    Method(
        name="relevance",
        function=relevance,
        by_class=True,
        only="vit",
        source="Chefer, Gur and Wolf 2021, Transformer Interpretability Beyond Attention Visualization, "
        "arXiv 2012.09838",
    ),
    Method(
        name="generic",
        function=generic,
        by_class=True,
        only="vit",
        source="Chefer, Gur and Wolf 2021, Generic Attention-model Explainability, arXiv 2103.15679",
    ),
    Method(
        name="attention",
        function=attention,
        by_class=False,
        only="vit",
        source="Vaswani et al. 2017, arXiv 1706.03762, equation 1; last block, mean over the heads",
    ),
    Method(
        name="rollout",
        function=rollout,
        by_class=False,
        only="vit",
        source="Abnar and Zuidema 2020, Quantifying Attention Flow in Transformers, arXiv 2005.00928",
    ),
    Method(
        name="gradient_rollout",
        function=gradient_rollout,
        by_class=True,
        only="vit",
        source="Gildenblat 2020, Exploring Explainability for Vision Transformers; after Abnar and Zuidema",
    ),
    Method(
        name="gradcam",
        function=gradcam,
        by_class=True,
        source="Selvaraju et al. 2017, Grad-CAM, arXiv 1610.02391, equations 1 and 2",
    ),
    Method(
        name="gradient",
        function=gradient,
        by_class=True,
        source="Shrikumar et al. 2016, Not Just a Black Box, arXiv 1605.01713",
    ),
    Method(
        name="integrated",
        function=integrated,
        by_class=True,
        source="Sundararajan, Taly and Yan 2017, Axiomatic Attribution for Deep Networks, arXiv 1703.01365",
    ),
    Method(
        name="occlusion",
        function=occlusion,
        by_class=True,
        source="Zeiler and Fergus 2014, Visualizing and Understanding Convolutional Networks, "
        "arXiv 1311.2901, section 4.2",
    ),
    Method(name="random", function=random, by_class=False, source="noise; the control"),
)
METHODS = {method.name: method for method in _ALL}
"""Default first, control last."""


def fitting_methods(module: Vision) -> list[str]:
    """Return the names of the methods that work for this kind of model."""
    kind = "cnn" if isinstance(module, ResNet) else "vit"
    return [method.name for method in METHODS.values() if method.only in ("", kind)]


def find_method(name: str, module: Vision) -> Method:
    """Return a method by name, if it works for this model."""
    check_word("the method", name, METHODS)
    able = fitting_methods(module)
    if name not in able:
        what = "a CNN, which has no attention" if isinstance(module, ResNet) else "a ViT"
        raise UsageError(
            f"the method is {name!r}, and this model is {what}; use {', '.join(able[:-1])} or {able[-1]}"
        )
    return METHODS[name]


def heatmaps(
    how: Method,
    module: Vision,
    image: Image,
    pixels: Sequence[Pixels],
    label: Callable[[int], str],
    target: int | None = None,
) -> list[Heatmap]:
    """Return one heat map per image; `pixels` are the images before normalisation, `label` names a class."""
    with torch.no_grad(), evaluating(module, gradients=True):
        logits = module(image)
    if not logits.isfinite().all():
        raise not_finite()
    chosen = logits.argmax(-1) if target is None else logits.new_full(logits.shape[:1], target).long()
    maps = how.function(module, image, chosen).cpu().numpy()
    probabilities = confidence(logits).gather(1, chosen[:, None])[:, 0].tolist()
    single = logits[:, 0].tolist() if logits.shape[1] == 1 else [None] * len(maps)
    parts = zip(maps, chosen.tolist(), probabilities, single, pixels, strict=True)
    return [
        Heatmap(
            grid=grid,
            target=index,
            label=label(index),
            method=how.name,
            probability=p,
            value=value,
            picture=fromarray(seen),
        )
        for grid, index, p, value, seen in parts
    ]
