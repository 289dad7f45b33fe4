"""What a model has learnt: positions, first filters, heads, the answer by depth, and token norms."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from saccade.data.image.preprocess import PictureSource, Preprocess
from saccade.data.splits import evenly
from saccade.errors import UsageError
from saccade.explain.inside import filters, heads, lens, norms, positions
from saccade.explain.inside.page import PLOTS, InsidePictures, write_page
from saccade.explain.inside.sections import Inside
from saccade.explain.target import confidence
from saccade.files.strict_json import write_json
from saccade.models.build import Vision
from saccade.models.modules import device_of, evaluating
from saccade.models.resnet import ResNet
from saccade.models.vit import ViT
from saccade.nn.patch import Image
from saccade.vision.model import Prediction
from saccade.wording import count, printable

MOST = 32
"""Most images used; of more, this many are chosen, evenly spread."""
NEEDS = "This needs images, and none were given."
CNN = "A ResNet has no tokens and no attention, so there is nothing to show here."
SHORTENED = (
    "This model drops or merges tokens, and this section follows every token through every block; inspect "
    "the dense model that it was made from."
)
HEADLESS = "The model has no classification head, so it gives no answer to read."


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
    heads_: heads.HeadStatistics | str = why or NEEDS
    lens_: tuple[lens.Lens, ...] | str = why or NEEDS
    norms_: norms.Norms | str = why or NEEDS
    answers: tuple[Prediction, ...] = ()

    def label(index: int) -> str:
        return labels[index] if labels else f"class {index}"

    if image is not None and image.shape[0]:
        with evaluating(module, gradients=True), torch.no_grad():
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
    p = confidence(torch.cat([module(one) for one in torch.split(image, 1)]))
    score, target = p.max(-1)
    pairs = zip(target.tolist(), score.tolist(), strict=True)
    return target, tuple(
        Prediction(label=label(index), score=confidence, index=index) for index, confidence in pairs
    )


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
            f"{printable(folder)} cannot be created ({error.strerror}); choose another folder"
        ) from error
    images = InsidePictures(seen, names, found.answers, len(pictures))
    page = write_page(folder, found, images)
    write_json(folder / "inside.json", found.to_json(), indent=None, escape=True, finite=True)
    return [page, folder / "inside.json", *sorted((folder / PLOTS).iterdir())]


def _batch(
    seen: Sequence[UInt8[np.ndarray, "height width 3"]], preprocess: Preprocess, module: Vision
) -> Float[Tensor, "b 3 height width"] | None:
    if not seen:
        return None
    made = np.stack([preprocess.normalise(pixels) for pixels in seen])
    return torch.from_numpy(made).to(device_of(module))


def picture_name(picture: PictureSource, number: int) -> str:
    """Return the file name of an image, or its number."""
    name = picture if isinstance(picture, str | Path) else getattr(picture, "name", None)
    return Path(name).name if isinstance(name, str | Path) else f"image {number}"
