"""Fit a linear probe: a logistic regression on a frozen model's features, as its head."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import ClassVar

import numpy as np

from saccade.data.pictures import Pictures
from saccade.errors import DataError, UsageError
from saccade.models.build import Vision
from saccade.models.modules import evaluating
from saccade.processes import Team, current
from saccade.recipe import override
from saccade.tasks.classify.evaluate import evaluate_answers
from saccade.tasks.classify.job import ClassifyJob, samples
from saccade.tasks.classify.recipe import ClassifyRecipe
from saccade.tasks.classify.task import Classify
from saccade.train.log import Log, StoppableLog
from saccade.train.selection import Selection
from saccade.train.start import check_out, new_run_folder, write_results
from saccade.values import one_of, validate, within
from saccade.vision.backbone import is_name, prepare_frozen, usual_weights
from saccade.vision.batches import check_unreadable
from saccade.vision.features import FOLDER, Extract, Features, Teller, answer_by_head, set_head
from saccade.vision.logistic import Line, parts, path, trials

STRENGTHS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
COARSE = (1e-3, 1e-2, 0.1, 1.0)
"""Enough where the head is only the start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """The settings of a probe, except its data."""

    subject: ClassVar[str] = "a linear probe"
    method: str = one_of("probe", default="probe")
    """Marks the run as a probe."""
    model: str = ""
    """The weights whose features are read."""
    image: int = within(0, 2**14, default=0)
    """Side of the images in pixels; 0: the model's own."""
    strengths: tuple[float, ...] = within(1e-9, 1e9, default=STRENGTHS)
    """The values of scikit-learn's C (the inverse of the penalty) to try."""
    folds: int = within(2, 100, default=5)
    """Cross-validation folds of the training images, to choose a strength."""
    batch: int = within(1, 10**6, default=32)
    """Images whose features are computed together."""
    seed: int = within(0, 2**31, default=0)
    """Decides the split and the folds."""
    val: float = within(0.01, 0.9, default=0.2)
    """The share of images held out for validation, where the data has no split of its own."""
    bad: float = within(0, 0.99, default=0.01)
    """The largest allowed share of unreadable images."""
    workers: int = within(0, 256, default=1)
    """Processes that load images; 0: the main process does it."""

    def __post_init__(self) -> None:
        validate(self)


@dataclass(kw_only=True)
class ProbeJob(ClassifyJob):
    """A frozen model and its data."""

    probe: Probe

    @property
    def held_out(self) -> Pictures:
        """The images to validate on; a probe always has some."""
        images: Pictures = self.splits.val
        return images

    @property
    def batch_counts(self) -> tuple[int, int]:
        """The number of training and of validation batches."""
        train, val = (ceil(len(images) / self.probe.batch) for images in (self.splits.train, self.held_out))
        return train, val

    def examples(self) -> list[dict[str, str]]:
        return samples(self.splits.train, self.preprocess, None, self.probe.seed)  # nothing is augmented


def probe(
    data: str,
    model: str,
    out: Path | None = None,
    changes: Sequence[str] = (),
    kind: str = "auto",
    quiet: bool = False,
) -> Path:
    """Fit a head on the features of `model`; return the run folder, which is an ordinary model folder."""
    check_out(out)
    selection = Selection(data=data, format=kind)
    job = start_probe(selection, model, changes)
    folder = new_run_folder(selection, out, Classify(), job, job.probe, "probe")
    log = Log(folder, sum(job.batch_counts), quiet)
    try:
        _greet(log, job)
        log.open("features")
        held = fit(job, folder, log)
        log.event("end", 0, reason="done")
        finish(job, folder, held, log)
    finally:
        log.close()
    return folder


def start_probe(selection: Selection, model: str, changes: Sequence[str] = ()) -> ProbeJob:
    """Read and check everything before anything is written."""
    probe = override(Probe(model=model), changes)
    if not probe.model:
        probe = replace(probe, model=_usual_weights())
    check_weights(probe.model)
    recipe = ClassifyRecipe(model=probe.model, val=probe.val, seed=probe.seed)
    splits = selection.open(Classify(), recipe)
    classes = list(splits.train.classes)
    start = prepare_frozen(probe.model, probe.image, len(classes))
    return ProbeJob(
        recipe=recipe,
        splits=splits,
        module=start.module,
        preprocess=start.preprocess,
        summary=start.summary,
        facts={"classes": classes},
        lineage=start.lineage,
        probe=probe,
    )


def _usual_weights() -> str:
    """Return the pretrained weights to probe if none are named; without them there is nothing to probe."""
    name, missing = usual_weights(current())
    if missing:
        raise UsageError(
            f"--probe was given without --model, and the weights {name} cannot be had ({missing}); run "
            f"`saccade pull {name}` on a machine with a network, or give --model FILE"
        )
    return name


def check_weights(model: str) -> None:
    """Refuse a model without weights."""
    expected = "expected weights, as a model folder, a .safetensors or .npz file, or a hub id"
    if is_name(model):
        raise UsageError(
            f"--probe was given {model}, a name without weights, whose features are random; {expected}"
        )


def _greet(log: Log, job: ProbeJob) -> None:
    size, classes = "x".join(map(str, job.preprocess.size)), job.module.config.classes
    for words in (
        job.splits.summary,
        f"{len(job.splits.train):,} images to train on, {len(job.held_out):,} to validate on",
        f"{job.summary} at {size} pixels, frozen, with a linear head for {classes} classes",
        *(f"note: {words}" for words in job.splits.warnings),
    ):
        log.say(words)


def fit(job: ProbeJob, folder: Path, log: Log) -> Features:
    """Compute or load the features, fit the head, write the model; return the validation features."""
    module, settings = job.module, job.probe
    log.event("start", 0, parameters=sum(p.numel() for p in module.parameters()))
    place = folder.parent / FOLDER
    extract = Extract(module, job.preprocess, place, settings.batch, settings.workers, log)
    (train, known), (val, _) = extract(job.splits.train), extract(job.held_out, job.batch_counts[0])
    log.close()
    if place.is_dir():
        log.say(f"features {'read from' if known else 'cached in'} {place}")
    set_head(module.head, solve(settings, job.splits.train, train, log))
    job.save(folder, module)
    return val


def fit_head(job: ClassifyJob, module: Vision, folder: Path, log: StoppableLog, team: Team) -> None:
    """Fit the head that fine-tuning starts from; of several processes the leading one computes it."""
    line: Line | None = None
    if team.leads:
        recipe, images = job.recipe, job.splits.train
        settings = Probe(strengths=COARSE, folds=3, seed=recipe.seed, bad=recipe.bad, workers=recipe.workers)
        inside = (folder.parent / "recipe.json").is_file()  # a fold of a cross-validation
        place = (folder.parent.parent if inside else folder.parent) / FOLDER
        log.expect(ceil(len(images) / settings.batch))
        with evaluating(module):
            read, _ = Extract(module, job.preprocess, place, settings.batch, settings.workers, log)(images)
        line = solve(settings, images, read, log)
    line = team.broadcast(line)
    assert line is not None
    set_head(module.head, line)


def solve(settings: Probe, images: Pictures, read: Features, log: Teller) -> Line:
    """Fit the head; the penalty is chosen by cross-validation on the training images."""
    strengths = sorted(set(settings.strengths))
    _check_read(settings, images, read, log)
    x, y = read.vectors.astype(np.float64), images.labels[read.places]
    groups = None if images.groups is None else images.groups[read.places]
    made = parts(y, settings.folds, settings.seed, groups)
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


def _check_read(settings: Probe, images: Pictures, read: Features, log: Teller) -> None:
    """Name the images that could not be read, and refuse too many of them."""
    lost = np.setdiff1d(np.arange(len(images)), read.places)
    for i in lost[:10].tolist():
        log.say(f"left out: {images.name(i)} cannot be read")
    log.event("skip", 0, skipped=len(lost))
    check_unreadable(len(lost), images, settings.bad)
    if len(np.unique(images.labels[read.places])) < 2:
        raise DataError("only one class has images that can be read; expected two or more classes")


def _note(log: Teller, words: str) -> None:
    log.say(words)
    log.event("note", 0, text=words)


def finish(job: ProbeJob, folder: Path, held: Features, log: Log) -> None:
    """Evaluate the head on the validation images, and write the report."""
    images, task = job.held_out, Classify()
    p = answer_by_head(job.module, held.vectors).softmax(-1).double().numpy()
    found = evaluate_answers(images, p, images.labels[held.places], held.places, split="held-out")
    write_results(folder, task, job, found)
    from saccade.train.summary import closing

    for line in closing(
        task, folder, found, log.seconds, filter(None, [task.doubt(found)]), job.sample_input()
    ):
        log.say(line)
