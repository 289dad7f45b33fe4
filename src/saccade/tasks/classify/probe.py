"""Fit a linear probe: a logistic regression on a frozen model's features, as its head."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Float32
from torch import Tensor, nn

from saccade.data.image.preprocess import Preprocess
from saccade.data.pictures import Pictures
from saccade.data.readers.open import open_images
from saccade.data.splits import Splits, hold_out
from saccade.errors import DataError, UsageError, check_number, check_word
from saccade.files.atomic import new_folder
from saccade.files.strict_json import write_json
from saccade.models.build import Known, Vision, build, config_of
from saccade.models.looped import vit_of, with_vit
from saccade.models.modules import device_of
from saccade.models.resnet import ResNetConfig
from saccade.nn.head import PairHead
from saccade.recipe import override
from saccade.report.run_page import write_report
from saccade.tasks.classify.evaluate import evaluate_answers
from saccade.tasks.classify.job import ClassifyJob, samples
from saccade.tasks.classify.recipe import ClassifyRecipe
from saccade.tasks.classify.task import Classify
from saccade.train.log import Log
from saccade.train.selection import Selection
from saccade.train.start import describe, run_path
from saccade.vision.backbone import is_name
from saccade.vision.batches import Unreadable
from saccade.vision.features import FOLDER, Extract, Features
from saccade.vision.logistic import Line, parts, path, trials
from saccade.weights.identify import locate
from saccade.weights.load import load
from saccade.weights.save import save_folder


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """The settings of a probe, except its data."""

    method: str = "probe"
    model: str = ""
    """The weights whose features are read."""
    image: int = 0
    """Side of the images in pixels; 0: the model's own."""
    strengths: tuple[float, ...] = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    """The values of scikit-learn's C (the inverse of the penalty) to try."""
    folds: int = 5
    """Cross-validation folds of the training images, to choose a strength."""
    batch: int = 32
    seed: int = 0
    val: float = 0.2
    """The share of images held out for validation, where the data has no split of its own."""
    bad: float = 0.01
    """The largest allowed share of unreadable images."""
    workers: int = 1

    def __post_init__(self) -> None:
        check_word("method", self.method, ("probe",))
        check_number("image", self.image, 0, 2**14)
        for strength in self.strengths:
            check_number("strengths", strength, 1e-9, 1e9)
        check_number("folds", self.folds, 2, 100)
        check_number("batch", self.batch, 1, 10**6)
        check_number("seed", self.seed, 0, 2**31)
        check_number("val", self.val, 0.01, 0.9)
        check_number("bad", self.bad, 0, 0.99)
        check_number("workers", self.workers, 0, 256)


@dataclass(frozen=True, slots=True)
class Probing:
    """A frozen model and its data."""

    recipe: Probe
    found: Splits[Pictures]
    module: Vision
    preprocess: Preprocess


def probe(
    data: str,
    model: str,
    out: Path | None = None,
    changes: Sequence[str] = (),
    kind: str = "auto",
    quiet: bool = False,
) -> Path:
    """Fit a head on the features of `model`; return the run folder, which is an ordinary model folder."""
    probing = gather(data, model, changes, kind)
    folder = new_folder(run_path(data, out))
    describe(folder, probing.recipe, _facts(probing, Selection(data=data, format=kind)))
    log = Log(folder, sum(_batches(probing)), quiet)
    try:
        _greet(log, probing)
        held = fit(probing, folder, log)
        log.event("end", 0, reason="done")
        conclude(probing, folder, held, log)
    finally:
        log.close()
    return folder


def _facts(probing: Probing, selection: Selection) -> dict[str, object]:
    job = ClassifyJob(
        recipe=ClassifyRecipe(), splits=probing.found, module=probing.module, preprocess=probing.preprocess
    )
    job.facts = {"classes": list(probing.found.train.classes)}
    return selection.facts(Classify(), job)


def gather(data: str, model: str, changes: Sequence[str] = (), kind: str = "auto") -> Probing:
    """Read and check everything before anything is written."""
    recipe = override(Probe(model=model), changes)
    check_weights(recipe.model)
    found = hold_out(open_images(data, kind), recipe.val, recipe.seed)
    return Probing(recipe, found, *frozen(recipe, len(found.train.classes)))


def fit(probing: Probing, folder: Path, log: Log) -> Features:
    """Compute or load the features, fit the head, write the model; return the validation features."""
    recipe, found, module = probing.recipe, probing.found, probing.module
    assert found.val is not None
    log.event("start", 0, parameters=sum(p.numel() for p in module.parameters()))
    place = folder.parent / FOLDER
    extract = Extract(module, probing.preprocess, place, recipe.batch, recipe.workers, log)
    (train, known), (val, _) = extract(found.train), extract(found.val, _batches(probing)[0])
    if log.panel is not None:
        log.move(log.steps, "features")  # with all features cached the bar would stay at 0 %
    if place.is_dir():
        log.say(f"features {'read from' if known else 'cached in'} {place}")
    put(module.head, solve(recipe, found, train, log))
    save_folder(folder, module, probing.preprocess, list(found.train.classes))
    return val


def conclude(probing: Probing, folder: Path, held: Features, log: Log) -> None:
    """Evaluate the head on the validation images, and write the report."""
    images, recipe = probing.found.val, probing.recipe
    assert images is not None
    p = answer(probing.module, held.vectors).softmax(-1).double().numpy()
    found = evaluate_answers(images, p, images.labels[held.places], held.places, split="held-out")
    write_json(folder / "evaluation.json", found.details, indent=1)
    shown = samples(probing.found.train, probing.preprocess, None, recipe.seed)
    write_json(folder / "samples.json", shown, indent=1)
    page = write_report(folder, Classify())
    log.say(Classify().summary(found))
    log.say(f"report: {page}")


def _batches(probing: Probing) -> list[int]:
    """Return the number of training and of validation batches."""
    assert probing.found.val is not None
    sets = probing.found.train, probing.found.val
    return [ceil(len(images) / probing.recipe.batch) for images in sets]


def check_weights(model: str) -> None:
    """Refuse a model without weights."""
    expected = "expected weights, as a model folder, a .safetensors or .npz file, or a hub id"
    if not model:
        raise UsageError(f"--probe was given without --model; {expected}")
    if is_name(model):
        raise UsageError(
            f"--probe was given {model}, a name without weights, whose features are random; {expected}"
        )


def frozen(recipe: Probe, classes: int) -> tuple[Vision, Preprocess]:
    """Return the model with a head of zeros for these classes; the rest, pre-logits too, is unchanged."""
    image = (recipe.image, recipe.image) if recipe.image else None
    loaded = load(locate(recipe.model), image)
    preprocess = replace(loaded.preprocess, size=image) if image else loaded.preprocess
    module = build(_with_classes(config_of(loaded.module), classes))
    kept = {n: t for n, t in loaded.module.state_dict().items() if not n.startswith("head.")}
    missing, unexpected = module.load_state_dict(kept, strict=False)
    assert not unexpected
    assert all(name.startswith("head.") for name in missing)
    module.requires_grad_(False)
    return module.eval(), preprocess


def _with_classes(config: Known, classes: int) -> Known:
    if isinstance(config, ResNetConfig):
        return replace(config, classes=classes)
    return with_vit(config, replace(vit_of(config), classes=classes))


def _greet(log: Log, probing: Probing) -> None:
    recipe, found, config = probing.recipe, probing.found, probing.module.config
    assert found.val is not None
    size = "x".join(map(str, probing.preprocess.size))
    for words in (
        found.summary,
        f"{len(found.train):,} images to train on, {len(found.val):,} to validate on",
        f"{recipe.model} at {size} pixels, frozen, with a linear head for {config.classes} classes",
        *(f"note: {words}" for words in found.warnings),
    ):
        log.say(words)


def solve(recipe: Probe, found: Splits[Pictures], read: Features, log: Log) -> Line:
    """Fit the head; the penalty is chosen by cross-validation on the training images."""
    images, strengths = found.train, sorted(set(recipe.strengths))
    _check_read(recipe, images, read, log)
    x, y = read.vectors.astype(np.float64), images.labels[read.places]
    groups = None if found.train.groups is None else found.train.groups[read.places]
    made = parts(y, recipe.folds, recipe.seed, groups)
    tried = trials(x, y, len(images.classes), made, strengths) if len(strengths) > 1 else []
    if tried:
        best = min(tried, key=lambda trial: trial.loss)
        for trial in tried:
            log.event("trial", 0, **trial._asdict())
        strength = best.strength
        _note(
            log,
            f"penalty: C = {strength:g}, chosen by cross-validation "
            f"({len(made)} folds, {len(tried)} values: loss {best.loss:.3f}, accuracy {best.accuracy:.1%})",
        )
    else:
        strength = strengths[len(strengths) // 2]
        why = "the only one given" if len(strengths) == 1 else "too few images to choose another"
        _note(log, f"penalty: C = {strength:g}, {why}")
    [line] = path(x, y, len(images.classes), [strength])
    if not line.settled:
        _note(log, "the head did not converge; set smaller strengths")
    return line


def _check_read(recipe: Probe, images: Pictures, read: Features, log: Log) -> None:
    """Name the images that could not be read, and refuse too many of them."""
    lost = np.setdiff1d(np.arange(len(images)), read.places)
    for i in lost[:10].tolist():
        log.say(f"left out: {images.name(i)} cannot be read")
    log.event("skip", 0, skipped=len(lost))
    Unreadable(images, recipe.bad, set(), log.say).check(len(lost))
    if len(np.unique(images.labels[read.places])) < 2:
        raise DataError("only one class has images that can be read; expected two or more classes")


def _note(log: Log, words: str) -> None:
    log.say(words)
    log.event("note", 0, text=words)


def put(head: nn.Module, line: Line) -> None:
    """Copy the fit into a head; the two heads of a pair each read their half."""
    layers = [head.token, head.teacher] if isinstance(head, PairHead) else [head]
    weight, bias = (torch.from_numpy(numbers).float() for numbers in (line.weight, line.bias))
    for layer, part in zip(layers, weight.chunk(len(layers), dim=1), strict=True):
        assert isinstance(layer, nn.Linear)
        with torch.no_grad():
            layer.weight.copy_(part * len(layers))  # the answer of a pair is the mean of its heads
            layer.bias.copy_(bias)


def answer(module: Vision, vectors: Float32[np.ndarray, "n e"]) -> Float[Tensor, "n classes"]:
    """Return the logits of features from `read_by_head`."""
    y = torch.from_numpy(vectors)
    if isinstance(module.head, PairHead):
        y = rearrange(y, "n (pair e) -> n pair e", pair=2)
    with torch.inference_mode():
        return module.head(y.to(device_of(module))).float().cpu()
