"""What a model has learnt: positions, first filters, heads, the answer by depth, and token norms."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from saccade import values
from saccade.data.image.preprocess import PictureSource, Preprocess
from saccade.data.splits import evenly
from saccade.errors import UsageError
from saccade.explain.inside import filters, head_plots, heads, lens, norms, positions
from saccade.explain.inside import page as inside_page
from saccade.explain.inside.filters import Filters
from saccade.explain.inside.heads import HeadStatistics
from saccade.explain.inside.lens import Lens
from saccade.explain.inside.norms import Norms
from saccade.explain.inside.page import InsidePictures
from saccade.explain.inside.positions import Positions
from saccade.explain.target import held
from saccade.files.atomic import write_text
from saccade.files.paths import shown
from saccade.models.build import Vision
from saccade.models.resnet import ResNet
from saccade.models.vit import ViT
from saccade.nn.patch import Image
from saccade.report.plots import Plot
from saccade.types import Prediction
from saccade.wording import count

MOST = 32
"""Most images used; of more, this many are chosen, evenly spread."""
NEEDS = "This needs images, and none were given."
CNN = "A ResNet has no tokens and no attention, so there is nothing to show here."
SHORTENED = (
    "This model drops or merges tokens, and this section follows every token through every block; inspect "
    "the dense model that it was made from."
)
HEADLESS = "The model has no classification head, so there is no answer to read."


@dataclass(frozen=True, kw_only=True, slots=True)
class Inside:
    """All measurements; a sentence in place of one says why it does not apply."""

    model: str
    pictures: tuple[str, ...]
    answers: tuple[Prediction, ...]
    """One per image; none without a head."""
    positions: Positions | str
    filters: Filters
    heads: HeadStatistics | str
    lens: tuple[Lens, ...] | str
    norms: Norms | str

    def to_json(self) -> dict[str, Any]:
        """Return numbers, words and lists; what is not finite is null."""
        found: dict[str, Any] = _finite(values.to_json(self))
        return found


def _finite(value: Any) -> Any:
    match value:
        case dict():
            return {key: _finite(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_finite(inner) for inner in value]
        case float() if not math.isfinite(value):
            return None
    return value


def describe_model(module: Vision) -> str:
    """Describe a model in one sentence."""
    size = f"{sum(p.numel() for p in module.parameters()) / 1e6:.1f} million parameters"
    if isinstance(module, ResNet):
        return f"A ResNet of {count(sum(module.config.layers), 'unit')} with {size}."
    config = module.config
    return (
        f"A {type(module).__name__} of {count(config.depth, 'block')} with {count(config.heads, 'head')} "
        f"each, patches of {config.patch} pixels, tokens of width {config.width}, and {size}."
    )


def inside(
    module: Vision, image: Image | None = None, names: Sequence[str] = (), labels: Sequence[str] = ()
) -> Inside:
    """Measure a model, and its behaviour on some images (normalised)."""
    why = _unfit(module)
    heads_: HeadStatistics | str = why or NEEDS
    lens_: tuple[Lens, ...] | str = why or NEEDS
    norms_: Norms | str = why or NEEDS
    answers: tuple[Prediction, ...] = ()

    def label(index: int) -> str:
        return labels[index] if labels else f"class {index}"

    if image is not None and image.shape[0]:
        with held(module), torch.no_grad():
            image = image.detach().clone()
            target, answers = _answers(module, image, label)
            if isinstance(module, ViT) and why is None:
                heads_ = heads.measure(module, image, target)
                norms_ = norms.measure(module, image, names)
                lens_ = lens.measure(module, image, target, names, label) if answers else HEADLESS
    return Inside(
        model=describe_model(module),
        pictures=tuple(names),
        answers=answers,
        positions=positions.positions(module),
        filters=filters.filters(module),
        heads=heads_,
        lens=lens_,
        norms=norms_,
    )


def _unfit(module: Vision) -> str | None:
    """Say why a model's tokens cannot be followed through its blocks; return None if they can."""
    if isinstance(module, ResNet):
        return CNN
    return None if type(module).encode is ViT.encode else SHORTENED


def _answers(
    module: Vision, image: Image, label: Callable[[int], str]
) -> tuple[Int[Tensor, "b"], tuple[Prediction, ...]]:
    """Return the predicted class of each image as an index and in words; no words without a head."""
    if not module.config.classes:
        return torch.zeros(image.shape[0], dtype=torch.long, device=image.device), ()
    p = torch.cat([module(one) for one in torch.split(image, 1)]).softmax(-1)
    score, target = p.max(-1)
    pairs = zip(target.tolist(), score.tolist(), strict=True)
    return target, tuple(
        Prediction(label=label(index), score=confidence, index=index) for index, confidence in pairs
    )


def plots(found: Inside) -> dict[str, list[Plot | str]]:
    """Return every plot, or why there is none, by section of the page."""
    return {
        "positions": _or(found.positions, positions.plots),
        "filters": [*filters.plots(found.filters)],
        "heads": _or(found.heads, head_plots.plots),
        "lens": _or(found.lens, lens.plots),
        "norms": _or(found.norms, norms.plots),
    }


def _or(found: Any, make: Any) -> list[Plot | str]:
    return [found] if isinstance(found, str) else list(make(found))


def write_inside(
    folder: Path,
    module: Vision,
    preprocess: Preprocess,
    labels: Sequence[str],
    pictures: Sequence[PictureSource],
) -> list[Path]:
    """Write inside.html, inside.json and each plot as PNG and JSON; return their paths, the page first.

    Without images, only what needs none is measured, and the page says so.
    """
    chosen = [pictures[i] for i in evenly(len(pictures), MOST)]
    names = [picture_name(picture, i) for i, picture in enumerate(chosen, 1)]
    seen = [preprocess.pixels(picture) for picture in chosen]
    found = inside(module, _batch(seen, preprocess, module), names, labels)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{shown(folder)} cannot be made ({error.strerror}); choose another folder"
        ) from error
    images = InsidePictures(seen, names, found.answers, len(pictures))
    page = inside_page.write_page(folder, found.model, plots(found), images)
    write_text(folder / "inside.json", json.dumps(found.to_json(), allow_nan=False) + "\n")
    return [page, folder / "inside.json", *sorted((folder / inside_page.PLOTS).iterdir())]


def _batch(
    seen: Sequence[UInt8[np.ndarray, "height width 3"]], preprocess: Preprocess, module: Vision
) -> Float[Tensor, "b 3 height width"] | None:
    if not seen:
        return None
    made = np.stack([preprocess.normalise(pixels) for pixels in seen])
    return torch.from_numpy(made).to(next(module.parameters()).device)


def picture_name(picture: PictureSource, number: int) -> str:
    """Return the file name of an image, or its number."""
    name = picture if isinstance(picture, str | Path) else getattr(picture, "name", None)
    return Path(name).name if isinstance(name, str | Path) else f"image {number}"
