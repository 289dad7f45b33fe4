"""A linear probe: a frozen model's features, and a logistic regression on them for its head."""

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
from saccade.data.pictures import Images
from saccade.data.readers.listing import Collection
from saccade.data.readers.open import open_images
from saccade.data.splits import hold_out
from saccade.errors import DataError, UsageError, check_number, check_word
from saccade.files.atomic import new_folder
from saccade.metrics.interval import wilson
from saccade.models.build import Known, Vision, build, config_of
from saccade.models.looped import vit_of, with_vit
from saccade.models.resnet import ResNetConfig
from saccade.nn.head import PairHead
from saccade.recipe import override
from saccade.report.run_page import report
from saccade.tasks.classify.evaluate import judge, samples, write_json
from saccade.tasks.classify.job import Source
from saccade.train.log import Log
from saccade.train.subject import describe
from saccade.vision.backbone import is_name
from saccade.vision.features import FOLDER, Extract, Features
from saccade.vision.logistic import Line, parts, path, trials
from saccade.weights.identify import locate
from saccade.weights.load import load, write


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """Everything that decides a probe, the data aside."""

    method: str = "probe"
    model: str = ""
    """The weights whose features are read."""
    image: int = 0
    """Side of the pictures; 0: the model's own."""
    strengths: tuple[float, ...] = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    """What is tried: how little the weights of the head are penalised (scikit-learn's C)."""
    folds: int = 5
    """Parts of the training pictures that are left out in turn to choose a strength."""
    batch: int = 32
    seed: int = 0
    val: float = 0.2
    """The share of the pictures to be scored on, where the data has no split of its own."""
    bad: float = 0.01
    """The share of unreadable pictures that is borne."""
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
class Material:
    """What a probe works with."""

    recipe: Probe
    found: Collection
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
    """Fit a head on the features of the weights `model`; return the run folder, an ordinary model's."""
    material = gather(data, model, changes, kind)
    folder = new_folder(out or Path("runs") / (Path(data).resolve().name or "run"))
    describe(folder, material.recipe, Source(data=data, kind=kind).described(material.found))
    log = Log(folder, sum(_batches(material)), quiet)
    try:
        _greet(log, material)
        held = fit(material, folder, log)
        log.event("end", 0, reason="done")
        conclude(material, folder, held, log)
    finally:
        log.close()
    return folder


def gather(data: str, model: str, changes: Sequence[str] = (), kind: str = "auto") -> Material:
    """Read and check all, before anything is written."""
    recipe = override(Probe(model=model), changes)
    check_weights(recipe.model)
    found = hold_out(open_images(data, kind), recipe.val, recipe.seed)
    return Material(recipe, found, *frozen(recipe, len(found.train.classes)))


def fit(material: Material, folder: Path, log: Log) -> Features:
    """Compute or find the features, solve for the head, write the model; return what it reads of val."""
    recipe, found, module = material.recipe, material.found, material.module
    assert found.val is not None
    log.event("start", 0, parameters=sum(p.numel() for p in module.parameters()))
    place = folder.parent / FOLDER
    extract = Extract(module, material.preprocess, place, recipe.batch, recipe.workers, log)
    (train, known), (val, _) = extract(found.train), extract(found.val, _batches(material)[0])
    if log.panel is not None:
        log.move(log.steps, "features")  # a bar that found all of them kept would stand at 0 %
    if place.is_dir():
        log.say(f"features {'were' if known else 'are'} kept in {place}")
    put(module.head, solve(recipe, found, train, log))
    write(folder, module, material.preprocess, list(found.train.classes))
    return val


def conclude(material: Material, folder: Path, held: Features, log: Log) -> None:
    """Score the head on the pictures held back, and write the report."""
    images, recipe = material.found.val, material.recipe
    assert images is not None
    p = answer(material.module, held.vectors).softmax(-1).double().numpy()
    scores, told = judge(images, p, images.labels[held.places], held.places, split="held-out")
    write_json(folder / "evaluation.json", told)
    shown = samples(material.found.train, material.preprocess, None, recipe.seed)
    write_json(folder / "samples.json", shown)
    page = report(folder)
    low, high = wilson(scores.correct, scores.count)
    log.say(
        f"right {scores.accuracy:.1%} of {scores.count} unseen pictures (95 % sure: {low:.1%} to {high:.1%})"
    )
    log.say(f"report: {page}")


def _batches(material: Material) -> list[int]:
    """Batches of train and of val."""
    assert material.found.val is not None
    sets = material.found.train, material.found.val
    return [ceil(len(images) / material.recipe.batch) for images in sets]


def check_weights(model: str) -> None:
    """Refuse what has learnt nothing yet."""
    expected = "expected weights, as a model folder, a .safetensors or .npz file, or a hub id"
    if not model:
        raise UsageError(f"--probe was given without --model; {expected}")
    if is_name(model):
        raise UsageError(
            f"--probe was given {model}, a name without weights, and a random body has no features worth "
            f"reading; {expected}"
        )


def frozen(recipe: Probe, classes: int) -> tuple[Vision, Preprocess]:
    """The model with a head of zeros for these classes; all else, the pre-logits too, is as it was."""
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


def _greet(log: Log, material: Material) -> None:
    recipe, found, config = material.recipe, material.found, material.module.config
    assert found.val is not None
    size = "x".join(map(str, material.preprocess.size))
    for words in (
        found.told,
        f"{len(found.train):,} pictures to learn from, {len(found.val):,} to be scored on",
        f"{recipe.model} at {size} pixels, frozen, with a linear head for {config.classes} classes",
        *(f"note: {words}" for words in found.warnings),
    ):
        log.say(words)


def solve(recipe: Probe, found: Collection, read: Features, log: Log) -> Line:
    """The head for these features; how much it is penalised is decided without a look at val."""
    images, strengths = found.train, sorted(set(recipe.strengths))
    _check_read(recipe, images, read, log)
    x, y = read.vectors.astype(np.float64), images.labels[read.places]
    groups = None if found.groups is None else found.groups[read.places]
    made = parts(y, recipe.folds, recipe.seed, groups)
    tried = trials(x, y, len(images.classes), made, strengths) if len(strengths) > 1 else []
    if tried:
        best = min(tried, key=lambda trial: trial.loss)
        for trial in tried:
            log.event("trial", 0, **trial._asdict())
        strength = best.strength
        _note(
            log,
            f"penalty: C = {strength:g} does best on training pictures left out in turn "
            f"({len(made)} folds, {len(tried)} values: loss {best.loss:.3f}, right {best.accuracy:.1%})",
        )
    else:
        strength = strengths[len(strengths) // 2]
        why = "no other was to be tried" if len(strengths) == 1 else "too few pictures to choose another"
        _note(log, f"penalty: C = {strength:g}, {why}")
    [line] = path(x, y, len(images.classes), [strength])
    if not line.settled:
        _note(log, "the head was still changing when its steps were used up; set strengths smaller")
    return line


def _check_read(recipe: Probe, images: Images, read: Features, log: Log) -> None:
    """Name the pictures that could not be read, and refuse too many of them."""
    lost = np.setdiff1d(np.arange(len(images)), read.places)
    for i in lost[:10].tolist():
        log.say(f"left out: {images.name(i)} cannot be read")
    log.event("skip", 0, skipped=len(lost))
    if len(lost) > max(recipe.bad * len(images), 1):
        raise DataError(
            f"{len(lost)} of {len(images)} pictures cannot be read, more than the {recipe.bad:.0%} that is "
            f"borne; run `saccade check`, or set bad higher"
        )
    if len(np.unique(images.labels[read.places])) < 2:
        raise DataError("only one class has a picture that can be read; expected two or more to tell apart")


def _note(log: Log, words: str) -> None:
    log.say(words)
    log.event("note", 0, text=words)


def put(head: nn.Module, line: Line) -> None:
    """Make a head answer with these logits; the two heads of a pair each read their half."""
    layers = [head.token, head.teacher] if isinstance(head, PairHead) else [head]
    weight, bias = (torch.from_numpy(numbers).float() for numbers in (line.weight, line.bias))
    for layer, part in zip(layers, weight.chunk(len(layers), dim=1), strict=True):
        assert isinstance(layer, nn.Linear)
        with torch.no_grad():
            layer.weight.copy_(part * len(layers))  # the answer of a pair is the mean of its heads
            layer.bias.copy_(bias)


def answer(module: Vision, vectors: Float32[np.ndarray, "n e"]) -> Float[Tensor, "n classes"]:
    """The logits for features that `read_by_head` gave."""
    y = torch.from_numpy(vectors)
    if isinstance(module.head, PairHead):
        y = rearrange(y, "n (pair e) -> n pair e", pair=2)
    with torch.inference_mode():
        return module.head(y.to(next(module.parameters()).device)).float().cpu()
