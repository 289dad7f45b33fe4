"""What the page about one image shows: maps, answers, attention, and how faithful the maps are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32
from PIL import Image as Pillow
from torch import Tensor

from saccade.data.image.resize import Pixels
from saccade.explain.explanation import Explanation, Question, add_verdict, effect_words, measure_methods
from saccade.explain.faithfulness.meter import Faithfulness, Measurement, Verdict
from saccade.explain.faithfulness.ranking import RANDOM
from saccade.explain.heatmap import Heatmap
from saccade.explain.inside.lens import read_depths
from saccade.explain.methods.table import METHODS, fitting_methods
from saccade.explain.page.attention_data import PackedAttention, pack_attention
from saccade.explain.replay import moments
from saccade.explain.target import confidence
from saccade.models.build import Vision
from saccade.models.cost import macs
from saccade.models.modules import evaluating
from saccade.models.resnet import ResNet
from saccade.nn.patch import Image
from saccade.vision.model import Prediction
from saccade.wording import printable

OTHERS = 2
"""Likely classes besides the first that get maps."""
SLOW = ("integrated", "occlusion")
"""Methods that run the model hundreds of times: their maps are for the first class only."""
QUICK = 2 * 10**8
"""Multiply-accumulates of a model that is fast enough for the slow methods by default."""
CNN = "A ResNet has no patches and no attention, so there is nothing to click here; see the maps above."
LONG = "This model has too many tokens: not even one layer of its attention fits into a page."
FIGURES = ("gain", "insertion", "deletion", "positive", "negative")

Label = Callable[[int], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodResult:
    """A method, and what the faithfulness meter says of its map for the first class."""

    name: str
    source: str
    by_class: bool
    figures: dict[str, float]
    """Measured numbers by name."""
    verdict: str = ""
    """In a few words."""
    reason: str = ""
    words: str = ""
    """What deleting the hottest part of the image does."""
    good: bool | None = None
    """Whether it is better than random; None where nothing was measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PageMap:
    """One map; `target` is the index of a class, or None for a map that is the same for all."""

    method: str
    target: int | None
    grid: Float32[np.ndarray, "rows columns"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PageContent:
    """Everything on the page about one answer."""

    name: str
    """Of the image."""
    model: str
    picture: Pillow.Image
    """What the model saw."""
    answers: Sequence[Prediction]
    """The classes with maps; the faithfulness meter measured the first."""
    method: str
    """The one shown first."""
    results: Sequence[MethodResult]
    maps: Sequence[PageMap]
    attention: PackedAttention | None = None
    why: str = ""
    """The reason, if attention is None."""
    lens: Sequence[Sequence[float]] = ()
    """The probability of each answer, read after the embedding, the first block, ..."""
    guesses: Sequence[Prediction] = ()
    """The most likely class at each of these depths."""
    left: Sequence[str] = ()
    """Methods that fit the model but were skipped because they are slow."""

    fill: str = ""
    """What took the place of deleted cells, where the maps were measured."""

    def map(self, method: str, target: int) -> PageMap:
        """Return the map of a method for a class."""
        return next(each for each in self.maps if each.method == method and each.target in (target, None))


def page_methods(module: Vision, wanted: str, every: bool) -> list[str]:
    """Return the methods of a page: all that fit, slow ones only with `every` or for a fast model."""
    cheap = every or macs(module, module.config.image) <= QUICK
    return [name for name in fitting_methods(module) if cheap or name == wanted or name not in SLOW]


def page_answers(module: Vision, image: Image, target: int | None, label: Label) -> tuple[Prediction, ...]:
    """Return the class to explain (by default the predicted one), then the most likely others."""
    with evaluating(module, gradients=True), torch.no_grad():
        p: Tensor = confidence(module(image).float())[0]
    order = p.argsort(descending=True, stable=True).tolist()
    first = order[0] if target is None else target
    classes = [first, *(index for index in order if index != first)][: 1 + OTHERS]
    return tuple(Prediction(label=label(index), score=float(p[index]), index=index) for index in classes)


def answers_by_depth(
    module: Vision, image: Image, classes: Sequence[int], label: Label
) -> tuple[list[list[float]], list[Prediction]]:
    """Return the probabilities of the classes, and the most likely class, at every depth."""
    if isinstance(module, ResNet):
        return [], []
    with evaluating(module, gradients=True), torch.no_grad():
        found: Float[Tensor, "l classes"] = read_depths(module, moments(module, image))[1][:, 0]
    best = [(int(p.argmax()), float(p.max())) for p in found]
    guesses = [Prediction(label=label(index), score=score, index=index) for index, score in best]
    return found[:, list(classes)].tolist(), guesses


def page_maps(
    module: Vision, image: Image, classes: Sequence[int], methods: Sequence[str], found: Measurement | None
) -> list[PageMap]:
    """Return the map of each method for each class that it distinguishes; reuse the measured maps."""
    made = []
    for name in methods:
        method = METHODS[name]
        for index in classes[:1] if name in SLOW or not method.by_class else classes:
            # One by one, like `Model.explain`: a batch rounds differently.
            target = torch.tensor([index], device=image.device)
            known = found.maps.get(name) if found is not None and index == classes[0] else None
            maps = method.function(module, image, target) if known is None else known
            grid = maps[0].cpu().numpy().astype(np.float32)
            made.append(PageMap(method=name, target=index if method.by_class else None, grid=grid))
    return made


def method_results(methods: Sequence[str], found: Measurement | None, label: str = "") -> list[MethodResult]:
    """Return each method with its verdict on the class `label`."""
    results = []
    for name in methods:
        score: Faithfulness | None = None
        short, good, reason, words = "", None, "", ""
        if found is not None and name in found.names:
            (verdict,) = found.verdicts(name, label)
            score, short, good = found.score(name), short_verdict(verdict), verdict.better
            reason = verdict.reason.removeprefix(f"{short}, ")
            words = effect_words(found.effect(name), verdict.fill, label)
        elif found is not None:
            score, short, reason = found.control(), "the control", "the mean of all random maps"
        results.append(
            MethodResult(
                name=name,
                source=METHODS[name].source,
                by_class=METHODS[name].by_class,
                figures={} if score is None else {key: getattr(score, key) for key in FIGURES},
                verdict=short,
                reason=reason,
                words=words,
                good=good,
            )
        )
    return results


def short_verdict(verdict: Verdict) -> str:
    """Return the word, or more of it where the map is not better than random."""
    return "not better than random" if "not better than random" in verdict.reason else verdict.word


def page_content(
    module: Vision,
    image: Image,
    pixels: Pixels,
    label: Label,
    question: Question,
    model: str,
    every: bool = False,
) -> tuple[PageContent, Explanation]:
    """Return everything for the page about one image, and the explanation by the method shown first.

    Args:
        image: what the model sees, a batch of one; `pixels` are the same before normalisation.
        model: its name.
        every: include the slow methods, whatever they cost.
    """
    answers = page_answers(module, image, question.target, label)
    classes, methods = [each.index for each in answers], page_methods(module, question.method, every)
    found = None
    if not question.quick:
        tried = [each for each in methods if each in (question.method, *(set(METHODS) - {RANDOM}))]
        found = measure_methods(module, image, classes[0], tried)
    lens, guesses = answers_by_depth(module, image, classes, label)
    content = PageContent(
        name=question.name,
        model=model,
        picture=Pillow.fromarray(pixels),
        answers=answers,
        method=question.method,
        results=method_results(methods, found, printable(answers[0].label, 60)),
        maps=page_maps(module, image, classes, methods, found),
        attention=None if isinstance(module, ResNet) else pack_attention(module, image),
        why=CNN if isinstance(module, ResNet) else LONG,
        lens=lens,
        guesses=guesses,
        left=[each for each in fitting_methods(module) if each not in methods],
        fill="" if found is None else found.evidence.fill,
    )
    return content, _explanation(content, found)


def _explanation(content: PageContent, found: Measurement | None) -> Explanation:
    """Return the explanation by the map that the page shows first."""
    first = content.answers[0]
    heatmap = Heatmap(
        grid=content.map(content.method, first.index).grid,
        target=first.index,
        label=first.label,
        method=content.method,
        probability=first.score,
        picture=content.picture,
    )
    if found is None:
        return Explanation(name=content.name, heatmap=heatmap)
    return add_verdict(content.name, heatmap, found)
