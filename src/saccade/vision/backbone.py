"""The model that a recipe starts from: new by name, or somebody's weights with a head for these classes."""

from dataclasses import replace
from io import BytesIO
from statistics import median

import torch
from PIL import Image

from saccade.data.image.preprocess import Preprocess
from saccade.data.pictures import Images
from saccade.data.readers.listing import Collection
from saccade.errors import DataError, UsageError
from saccade.models import names
from saccade.models.build import Known, Vision, build, config_of
from saccade.models.looped import vit_of, with_vit
from saccade.models.resnet import ResNetConfig
from saccade.models.vit import ViT
from saccade.nn.block import BlockStyle
from saccade.recipe import Recipe
from saccade.tokens.plan import prunable
from saccade.tokens.prune import prune
from saccade.train.optim import depth_of
from saccade.vision.teacher import Teacher
from saccade.weights.identify import locate, look
from saccade.weights.load import load


def is_name(model: str) -> bool:
    """Is it an architecture by name, rather than somebody's weights?"""
    return bool(names.GRAMMAR.fullmatch(model) or names.RESNET.fullmatch(model))


def prepare(recipe: Recipe, labels: list[str]) -> tuple[Vision, Preprocess, str]:
    """The module, its preprocessing, and a sentence on what was done."""
    torch.manual_seed(recipe.seed)
    module, preprocess, told = _prepared(recipe, labels)
    if recipe.keep == 1:
        return module, preprocess, told
    made = prune(prunable(module), recipe.keep, recipe.places or None)
    where = ", ".join(str(place + 1) for place in made.plan.places)
    return made, preprocess, f"{told}; it learns to keep {recipe.keep:.0%} of the patches at block {where}"


def _prepared(recipe: Recipe, labels: list[str]) -> tuple[Vision, Preprocess, str]:
    if is_name(recipe.model):
        module = build(_changed(names.config(recipe.model, len(labels)), recipe))
        size = module.config.image
        return module, Preprocess(size=size), f"{recipe.model} from scratch, at {size[0]}x{size[1]} pixels"
    image = (recipe.image, recipe.image) if recipe.image else None
    loaded = load(locate(recipe.model), image)
    config = config_of(loaded.module)
    if loaded.labels == labels and not recipe.droppath and not recipe.dropout:
        return loaded.module, loaded.preprocess, f"{recipe.model} with its own head: the classes are the same"
    fresh = build(_changed(_with_classes(config, len(labels)), recipe))
    kept = {n: t for n, t in loaded.module.state_dict().items() if not n.startswith(("head.", "prelogits."))}
    same = loaded.labels == labels
    if same:
        kept = loaded.module.state_dict()
    missing, unexpected = fresh.load_state_dict(kept, strict=False)
    assert not unexpected
    assert same or all(name.startswith(("head.", "prelogits.")) for name in missing)
    before = loaded.module.config.classes
    told = "its own head" if same else f"a new head for {len(labels)} classes in the place of its {before}"
    return fresh, loaded.preprocess, f"{recipe.model} with {told}"


def as_known(found: Collection, model: str) -> Collection:
    """The pictures with their classes counted as a model counts them, which is to stay as it is."""
    known = [] if is_name(model) else look(locate(model)).labels
    if not known:
        raise UsageError(f"{model} names no classes; patches are dropped from a model that was trained")
    missing = sorted(set(found.train.classes) - set(known))
    if missing:
        raise DataError(
            f"the data has {len(missing)} classes that {model} does not know ({', '.join(missing[:3])}); "
            f"expected folders named like its labels ({', '.join(known[:3])}, ...)"
        )
    train, val, test = (
        None if part is None else part.relabel(known) for part in (found.train, found.val, found.test)
    )
    assert train is not None
    return replace(found, train=train, val=val, test=test)


def prepare_teacher(recipe: Recipe, labels: list[str], preprocess: Preprocess) -> Teacher | None:
    """The larger model whose answers are learnt too; it must know the same classes, in any order."""
    if not recipe.teacher:
        return None
    loaded = load(locate(recipe.teacher))
    if sorted(loaded.labels) != sorted(labels):
        raise UsageError(
            f"the teacher {recipe.teacher} does not have the {len(labels)} classes of the data; "
            f"fine-tune it on them first"
        )
    return Teacher(loaded.module, loaded.preprocess, preprocess, list(map(loaded.labels.index, labels)))


def freeze(module: Vision, what: str) -> None:
    """Let a part learn no more: `body`, all but the head, or the patches and so many blocks."""
    blocks = len(module.blocks if isinstance(module, ViT) else module.stages)
    if what.isdecimal() and int(what) > blocks:
        raise UsageError(f"freeze is {what}, but the model has {blocks} blocks; give a number from 0 to that")
    for name, parameter in module.named_parameters():
        learns = name.startswith("head.") if what == "body" else depth_of(name, blocks) > int(what)
        parameter.requires_grad_(learns)


def typical_side(images: Images, most: int = 32) -> int:
    """The median of the shorter sides of some pictures, from their headers; 224 if none can be read."""
    sides = []
    for i in range(0, len(images), max(1, len(images) // most)):
        try:
            with Image.open(BytesIO(images.read(i))) as picture:
                sides.append(min(picture.size))
        except (OSError, ValueError, DataError, Image.DecompressionBombError):
            continue
    return round(median(sides)) if sides else 224


def small_name(side: int) -> str:
    """The model to begin with where none was named: a small ViT with convolutions before about 64 tokens.

    It knows from the start that neighbours belong together, and learns in minutes without an accelerator.
    """
    for size, patch in ((12, 2), (48, 4), (96, 8)):
        if side <= size:
            image = max(patch * 4, round(side / patch) * patch)
            return f"conv_vit_mini{patch}_{image}"
    return "conv_vit_mini16_128"


def _with_classes(config: Known, classes: int) -> Known:
    if isinstance(config, ResNetConfig):
        return replace(config, classes=classes)
    return with_vit(config, replace(vit_of(config), classes=classes, prelogits=0))


def _changed(config: Known, recipe: Recipe) -> Known:
    """The recipe's picture size and regularisation."""
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
