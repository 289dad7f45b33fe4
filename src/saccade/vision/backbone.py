"""Build the model that training starts from: new, pretrained with a head for these classes, or frozen."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.data.image.decode import header
from saccade.data.image.preprocess import Preprocess
from saccade.data.pictures import Pictures
from saccade.data.splits import Splits
from saccade.errors import DataError, ModelError, UsageError
from saccade.models import names
from saccade.models.build import Known, Vision, build, config_of, from_json, to_json
from saccade.models.looped import vit_of, with_vit
from saccade.models.modules import depth_of
from saccade.models.resnet import ResNetConfig
from saccade.models.vit import ViT
from saccade.nn.block import BlockStyle
from saccade.nn.patch import Image
from saccade.processes import Team
from saccade.task import read_start
from saccade.vision.recipe import VisionRecipe
from saccade.weights.identify import identify, locate
from saccade.weights.load import Loaded, load


class Teacher(nn.Module):
    """A larger model that sees the student's images with its own preprocessing.

    It undoes the student's normalisation, applies its own at its own size, and answers in the student's
    class order.
    """

    def __init__(self, module: nn.Module, own: Preprocess, student: Preprocess, order: list[int]) -> None:
        """`order`: the teacher's index of each of the student's classes."""
        super().__init__()
        self.module, self.size = module, own.size
        mean, std = (torch.tensor([getattr(p, name) for p in (own, student)]) for name in ("mean", "std"))
        self.register_buffer("scale", (std[1] / std[0])[:, None, None])
        self.register_buffer("shift", ((mean[1] - mean[0]) / std[0])[:, None, None])
        self.register_buffer("order", torch.tensor(order))

    def seen(self, image: Image) -> Float[Tensor, "b channels rows columns"]:
        """Return the image as the teacher's own preprocessing would, except for the crop."""
        image = image * self.get_buffer("scale") + self.get_buffer("shift")
        if tuple(image.shape[-2:]) == tuple(self.size):
            return image
        return F.interpolate(image, tuple(self.size), mode="bilinear", antialias=True)

    def forward(self, image: Image) -> Float[Tensor, "b classes"]:
        return self.module(self.seen(image))[:, self.get_buffer("order")]


def is_name(model: str) -> bool:
    """Return whether this names an architecture rather than weights."""
    return bool(names.GRAMMAR.fullmatch(model) or names.RESNET.fullmatch(model))


class Start(NamedTuple):
    """What training starts from."""

    module: Vision
    preprocess: Preprocess
    summary: str
    lineage: Sequence[dict[str, str]] = ()
    """Where the weights come from; empty from scratch."""
    own_head: bool = False
    """Whether the model has these classes already."""


def prepare(recipe: VisionRecipe, labels: list[str]) -> Start:
    """Return the module, its preprocessing, and a summary of the two."""
    torch.manual_seed(recipe.seed)
    if is_name(recipe.model):
        module = build(_changed(names.config(recipe.model, len(labels)), recipe))
        size = module.config.image
        summary = f"{recipe.model} from scratch, at {size[0]}x{size[1]} pixels"
        return Start(module, Preprocess(size=size), summary)
    image = (recipe.image, recipe.image) if recipe.image else None
    loaded = load(locate(recipe.model), image)
    config = config_of(loaded.module)
    lineage, named = _descent(loaded), _named(recipe.model)
    if loaded.labels == labels and not recipe.droppath and not recipe.dropout:
        summary = f"{named} with its own head: the classes are the same"
        return Start(loaded.module, loaded.preprocess, summary, lineage, True)
    fresh = build(_changed(_with_classes(config, len(labels)), recipe))
    kept = {n: t for n, t in loaded.module.state_dict().items() if not n.startswith(("head.", "prelogits."))}
    same = loaded.labels == labels
    if same:
        kept = loaded.module.state_dict()
    missing, unexpected = fresh.load_state_dict(kept, strict=False)
    assert not unexpected
    assert same or all(name.startswith(("head.", "prelogits.")) for name in missing)
    before = loaded.module.config.classes
    summary = "its own head" if same else f"a new head for {len(labels)} classes instead of its {before}"
    return Start(fresh, loaded.preprocess, f"{named} with {summary}", lineage, same)


def describe_start(start: Start) -> str:
    """Return the text of start.json, from which `rebuild` makes the same module."""
    config, preprocess = to_json(config_of(start.module)), start.preprocess.to_json()
    return json.dumps({"model": config, "preprocess": preprocess, "own_head": start.own_head}, indent=1)


def rebuild(model: str, run: Path | None) -> Start | None:
    """Return the untrained module of a run that a checkpoint fills; None if the start weights are needed.

    A name has no weights that could be missing: it is built as at the start.
    """
    found = None if is_name(model) else read_start(run)
    if run is None or found is None:
        return None
    from saccade.tokens.kinds import KINDS
    from saccade.weights.lineage import recorded

    try:
        module, preprocess = (
            build(from_json(found["model"], KINDS)),
            Preprocess.from_json(found["preprocess"]),
        )
        return Start(module, preprocess, "", recorded(run), bool(found.get("own_head")))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"start.json of {run} cannot be used ({error}); start a new run") from error


def prepare_frozen(model: str, side: int, classes: int) -> Start:
    """Return a model with a head of zeros for these classes; the rest, pre-logits too, is unchanged.

    Args:
        side: Of the images in pixels; 0: the model's own.
    """
    image = (side, side) if side else None
    loaded = load(locate(model), image)
    preprocess = replace(loaded.preprocess, size=image) if image else loaded.preprocess
    module = build(_with_classes(config_of(loaded.module), classes, keep_prelogits=True))
    kept = {n: t for n, t in loaded.module.state_dict().items() if not n.startswith("head.")}
    missing, unexpected = module.load_state_dict(kept, strict=False)
    assert not unexpected
    assert all(name.startswith("head.") for name in missing)
    module.requires_grad_(False)
    return Start(module.eval(), preprocess, _named(model), _descent(loaded))


def _named(model: str) -> str:
    """Return the name of the weights; for published ones, with their licence and size."""
    from saccade.weights.pretrained import PRETRAINED, describe

    return f"{model} ({describe(model)})" if model in PRETRAINED else model


def _descent(loaded: Loaded) -> Sequence[dict[str, str]]:
    from saccade.weights.lineage import descent

    return () if loaded.origin is None else descent(loaded.origin)


def as_known(found: Splits[Pictures], model: str) -> Splits[Pictures]:
    """Return the images with their classes numbered as in the model, which stays unchanged."""
    known: list[str] = []
    if not is_name(model):
        weights = identify(locate(model))
        weights.check_weights()
        known = weights.labels
    if not known:
        raise UsageError(f"{model} names no classes; expected a trained model to prune")
    return found.map(lambda part: part.relabel(known, model))


def prepare_teacher(teacher: str, labels: list[str], preprocess: Preprocess) -> Teacher | None:
    """Load the larger model to distil from; it must have the same classes, in any order."""
    if not teacher:
        return None
    if Path(teacher).is_absolute() and not Path(teacher).exists():
        raise ModelError(
            f"the teacher {teacher} is no longer there; training needs its answers at every step; "
            "move it back, or give its new path as `teacher` in the run's recipe.json"
        )
    loaded = load(locate(teacher))
    if sorted(loaded.labels) != sorted(labels):
        raise UsageError(
            f"the teacher {teacher} does not have the {len(labels)} classes of the data; "
            f"fine-tune it on them first"
        )
    places = map(loaded.labels.index, labels) if loaded.labels != labels else range(len(labels))
    return Teacher(loaded.module, loaded.preprocess, preprocess, list(places))


def freeze(module: Vision, what: str) -> None:
    """Freeze part of the model: `body` is all but the head, a number the patches and that many blocks."""
    blocks = len(module.blocks if isinstance(module, ViT) else module.stages)
    if what.isdecimal() and int(what) > blocks:
        raise UsageError(
            f"freeze is {what}, but the model has {blocks} blocks; expected a number from 0 to {blocks}"
        )
    for name, parameter in module.named_parameters():
        learns = name.startswith("head.") if what == "body" else depth_of(name, blocks) > int(what)
        parameter.requires_grad_(learns)


def typical_side(images: Pictures, most: int = 32) -> int:
    """Return the median of the shorter sides of some images, from their headers; 224 if none can be read."""
    sides = []
    for i in range(0, len(images), max(1, len(images) // most)):
        try:
            sides.append(min(header(images.name(i), images.read(i))[0]))
        except DataError:
            continue
    return round(median(sides)) if sides else 224


SMALLEST = 48
"""Images up to this side start from scratch: at 224 pixels, each would cost a hundred times as much."""


def usual_weights(team: Team) -> tuple[str, str]:
    """Return the published weights to use if nobody names any, and why they cannot be had, if so."""
    from saccade.weights.pretrained import LARGER, SMALL, obtain

    name = LARGER if team.accelerated else SMALL
    return name, team.broadcast(obtain(name) if team.leads else "")


def usual_start(side: int, team: Team) -> tuple[str, str]:
    """Return what to start from if nobody says, and a note if published weights are missing."""
    if side <= SMALLEST:
        return small_name(side), ""
    name, reason = usual_weights(team)
    if not reason:
        return name, ""
    return small_name(side), (
        f"\nnote: no pretrained weights ({reason}), so expect a much lower accuracy: on 3,670 photographs of "
        "flowers 60.6% after 4 minutes from scratch, 94% after 6 minutes from pretrained weights\n"
        f"to get them, run `saccade pull {name}` on a machine with a network and set HF_HOME to a copy of "
        "its cache, or give --model FILE; --scratch starts from scratch without this note"
    )


def small_name(side: int) -> str:
    """Return the default model: a small ViT with a convolutional stem and about 64 tokens.

    The stem brings locality as a prior, so it trains in minutes without an accelerator.
    """
    for size, patch in ((12, 2), (48, 4), (96, 8)):
        if side <= size:
            image = max(patch * 4, round(side / patch) * patch)
            return f"conv_vit_mini{patch}_{image}"
    return "conv_vit_mini16_128"


def _with_classes(config: Known, classes: int, keep_prelogits: bool = False) -> Known:
    if isinstance(config, ResNetConfig):
        return replace(config, classes=classes)
    vit = vit_of(config)
    prelogits = vit.prelogits if keep_prelogits else 0
    return with_vit(config, replace(vit, classes=classes, prelogits=prelogits))


def _changed(config: Known, recipe: VisionRecipe) -> Known:
    """Apply the recipe's image size and regularisation."""
    image = (recipe.image, recipe.image) if recipe.image else None
    if isinstance(config, ResNetConfig):
        return replace(config, image=image or config.image)
    vit = vit_of(config)
    style: BlockStyle = replace(vit.block, dropout=recipe.dropout, droppath=recipe.droppath)
    try:
        vit = replace(vit, image=image or vit.image, block=style)
    except ValueError as error:
        raise UsageError(f"{recipe.model} cannot work at {recipe.image} pixels: {error}") from error
    return with_vit(config, vit)
