"""Everything that the page about one picture tells, asked of the model once."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image as Pillow
from torch import Tensor

from saccade.data.image.resize import Pixels
from saccade.explain.ask import held
from saccade.explain.explanation import Account, Question, judged, measured
from saccade.explain.faithfulness.meter import Measured, Score, Verdict
from saccade.explain.faithfulness.ranking import RANDOM
from saccade.explain.heatmap import Heatmap
from saccade.explain.inside.lens import read_depths
from saccade.explain.methods.table import METHODS, fitting
from saccade.explain.page.attention_data import gaze
from saccade.explain.page.content import Shown, Story, Way
from saccade.explain.replay import moments
from saccade.models.build import Vision
from saccade.models.cost import macs
from saccade.models.resnet import ResNet
from saccade.nn.patch import Image
from saccade.types import Prediction

OTHERS = 2
"""Likely classes beside the first that there are maps for."""
SLOW = ("integrated", "occlusion")
"""Methods that ask the model hundreds of times: their maps are for the first class only."""
QUICK = 2 * 10**8
"""Multiply-accumulates of a model that is so quick that these are on its page without being asked for."""
CNN = "A ResNet has no patches and no attention, so there is nothing to click here; the maps above are all."
LONG = "This model has too many tokens for one layer of its attention to fit into a page."
FIGURES = ("gain", "insertion", "deletion", "positive", "negative")

Label = Callable[[int], str]


def names(module: Vision, wanted: str, every: bool) -> list[str]:
    """The methods of a page: all that fit the model; slow ones only if `every` one is wanted, or cheap."""
    cheap = every or macs(module, module.config.image) <= QUICK
    return [name for name in fitting(module) if cheap or name == wanted or name not in SLOW]


def answers(module: Vision, image: Image, target: int | None, label: Label) -> tuple[Prediction, ...]:
    """The class to explain (the likeliest if none is wanted), then the likeliest others."""
    with held(module), torch.no_grad():
        p: Tensor = module(image).float().softmax(-1)[0]
    order = p.argsort(descending=True, stable=True).tolist()
    first = order[0] if target is None else target
    chosen = [first, *(index for index in order if index != first)][: 1 + OTHERS]
    return tuple(Prediction(label=label(index), score=float(p[index]), index=index) for index in chosen)


def depths(
    module: Vision, image: Image, classes: Sequence[int], label: Label
) -> tuple[list[list[float]], list[Prediction]]:
    """The probabilities of the classes, and the likeliest of all, read at every depth."""
    if isinstance(module, ResNet):
        return [], []
    with held(module), torch.no_grad():
        found: Float[Tensor, "l classes"] = read_depths(module, moments(module, image))[1][:, 0]
    best = [(int(p.argmax()), float(p.max())) for p in found]
    guesses = [Prediction(label=label(index), score=score, index=index) for index, score in best]
    return found[:, list(classes)].tolist(), guesses


def maps(
    module: Vision, image: Image, classes: Sequence[int], methods: Sequence[str], found: Measured | None
) -> list[Shown]:
    """The map of each method for each class that it tells apart from others; what was measured is taken."""
    made = []
    for name in methods:
        method = METHODS[name]
        for index in classes[:1] if name in SLOW or not method.by_class else classes:
            # one by one, as `Model.explain` does it: a batch would round otherwise
            target = torch.tensor([index], device=image.device)
            known = found.maps.get(name) if found is not None and index == classes[0] else None
            grid = (method.function(module, image, target) if known is None else known)[0]
            made.append(
                Shown(
                    method=name,
                    target=index if method.by_class else None,
                    grid=grid.cpu().numpy().astype(np.float32),
                )
            )
    return made


def ways(methods: Sequence[str], found: Measured | None) -> list[Way]:
    """Each method with its verdict."""
    told = []
    for name in methods:
        score: Score | None = None
        short, good, reason = "", None, ""
        if found is not None and name in found.names:
            (verdict,) = found.verdicts(name)
            score, short, good = found.score(name), brief(verdict), verdict.better
            reason = verdict.reason.removeprefix(f"{short}, ")
        elif found is not None:
            score, short, reason = found.control(), "the control", "the mean of all random maps"
        figures = {} if score is None else {key: getattr(score, key) for key in FIGURES}
        method = METHODS[name]
        told.append(
            Way(
                name=name,
                source=method.source,
                by_class=method.by_class,
                figures=figures,
                verdict=short,
                reason=reason,
                good=good,
            )
        )
    return told


def brief(verdict: Verdict) -> str:
    """A verdict in three words: better than random, not better than random, or uninformative."""
    return "not better than random" if "not better than random" in verdict.reason else verdict.word


def story(
    module: Vision,
    image: Image,
    pixels: Pixels,
    label: Label,
    question: Question,
    model: str,
    every: bool = False,
) -> tuple[Story, Account]:
    """Ask a model about one picture: all for its page, and the account of the method shown first.

    Args:
        image: what the model sees, a batch of one; `pixels` are the same before they were normalised.
        model: its name.
        every: the slow methods too, whatever they cost.
    """
    classes = answers(module, image, question.target, label)
    numbers, methods = [each.index for each in classes], names(module, question.method, every)
    found = None
    if not question.quick:
        tried = [each for each in methods if each in (question.method, *(set(METHODS) - {RANDOM}))]
        found = measured(module, image, numbers[0], tried)
    lens, guesses = depths(module, image, numbers, label)
    told = Story(
        name=question.name,
        model=model,
        picture=Pillow.fromarray(pixels),
        answers=classes,
        method=question.method,
        ways=ways(methods, found),
        maps=maps(module, image, numbers, methods, found),
        gaze=None if isinstance(module, ResNet) else gaze(module, image),
        why=CNN if isinstance(module, ResNet) else LONG,
        lens=lens,
        guesses=guesses,
        left=[each for each in fitting(module) if each not in methods],
    )
    return told, _account(told, found)


def _account(told: Story, found: Measured | None) -> Account:
    """What is said of the map that the page shows first."""
    first = told.answers[0]
    heatmap = Heatmap(
        grid=told.map(told.method, first.index).grid,
        target=first.index,
        label=first.label,
        method=told.method,
        probability=first.score,
        picture=told.picture,
    )
    return Account(name=told.name, heatmap=heatmap) if found is None else judged(told.name, heatmap, found)
