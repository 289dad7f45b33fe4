"""Classification, ready to train: batches of images, soft cross-entropy, accuracy.

With a teacher, its answers are learnt too (Hinton et al. 2015, https://arxiv.org/abs/1503.02531).
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from saccade.data.image.augment import Augment
from saccade.data.image.preprocess import Preprocess
from saccade.data.loader import steps_in
from saccade.data.pictures import Pictures
from saccade.data.randomness import Draws
from saccade.errors import DataError
from saccade.models.build import Vision
from saccade.models.modules import bare, device_of, evaluating
from saccade.processes import Team
from saccade.progress import track
from saccade.report.thumbnails import enlarged
from saccade.task import Batch, Job
from saccade.tasks.classify.prune_loss import Loss, pruning
from saccade.tasks.classify.recipe import ClassifyRecipe
from saccade.vision.backbone import Teacher
from saccade.vision.batches import flaw, note_seen, scoring, training
from saccade.weights.identify import LINEAGE
from saccade.weights.save import save_folder


def soft_cross_entropy(
    logits: Float[Tensor, "b classes"], target: Float[Tensor, "b classes"]
) -> Float[Tensor, ""]:
    """Return the cross-entropy against probabilities, as mixup and smoothing make them."""
    return -(target * logits.log_softmax(-1)).sum(-1).mean()


class ClassificationLoss:
    """Batches hold `image` (b 3 h w) and `target` (b classes, summing to 1), and for scoring `label` (b)."""

    def __init__(
        self,
        module: nn.Module,
        teacher: nn.Module | None = None,
        share: float = 0.5,
        temperature: float = 1.0,
    ) -> None:
        self._module = module
        self.teacher = None if teacher is None else teacher.eval().requires_grad_(False)
        self.share, self.temperature = share, temperature

    @property
    def module(self) -> nn.Module:
        """The classifier."""
        return self._module

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return the cross-entropy; with a teacher, `share` of it is the distance to the teacher's answer.

        A batch in which no image could be read has no loss and changes no weight.
        """
        if not batch["image"].shape[0]:  # with several processes, all of them must run the module
            nothing = self._module(batch["image"].new_zeros(1, *batch["image"].shape[1:])).sum() * 0
            return {"loss": nothing, "accuracy": torch.zeros(())}
        logits, target = self._module(batch["image"]), batch["target"]
        loss = soft_cross_entropy(logits, target)
        right = (logits.argmax(-1) == target.argmax(-1)).float().mean()
        if self.teacher is None:
            return {"loss": loss, "accuracy": right}
        with torch.no_grad():
            wanted = (self.teacher(batch["image"]) / self.temperature).softmax(-1)
        distance = soft_cross_entropy(logits / self.temperature, wanted) * self.temperature**2
        return {"loss": (1 - self.share) * loss + self.share * distance, "accuracy": right}


def score_batches(module: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
    """Return accuracy, mean loss and the number of images."""
    right = seen = 0
    loss = 0.0
    for logits, label in answers(module, batches):
        loss += F.cross_entropy(logits, label, reduction="sum").item()
        right += int((logits.argmax(-1) == label).sum())
        seen += label.shape[0]
    return {"accuracy": right / max(seen, 1), "loss": loss / max(seen, 1), "count": float(seen)}


def answers(
    module: nn.Module, batches: Iterable[Batch]
) -> Iterator[tuple[Float[Tensor, "b classes"], Tensor]]:
    """Yield logits and labels batch by batch, in evaluation mode."""
    device = device_of(module)
    with evaluating(module):
        for batch in batches:
            yield module(batch["image"].to(device)), batch["label"].to(device)


def images_in(batch: Batch) -> int:
    """Return the number of images in a batch."""
    return int(batch["index"].shape[0])


def samples(
    images: Pictures, preprocess: Preprocess, augment: Augment | None, seed: int
) -> list[dict[str, str]]:
    """Return thumbnails of training images as the model sees them in the first epoch."""
    shown = []
    for i in np.linspace(0, len(images) - 1, min(16, len(images))).astype(int).tolist():
        try:
            data = images.read(i)
            array = preprocess(data) if augment is None else augment(data, preprocess, Draws(seed, 0, i))
        except DataError:
            continue
        picture = Image.fromarray(preprocess.undo(array))
        shown.append({"thumbnail": enlarged(picture), "label": images.classes[int(images.labels[i])]})
    return shown


@dataclass(kw_only=True)
class ClassifyJob(Job):
    """Labelled images, and a model for them."""

    recipe: ClassifyRecipe
    module: Vision
    preprocess: Preprocess
    teacher: Teacher | None = None
    lineage: Sequence[dict[str, str]] = ()
    """Where the weights come from that it starts from; empty from scratch."""
    own_head: bool = False
    """Whether the model came with a head for these classes."""
    _loss: Loss | None = None

    def __post_init__(self) -> None:
        self.facts |= {LINEAGE: list(self.lineage)} if self.lineage else {}

    @property
    def steps(self) -> int:
        budget = self.recipe.budget
        return steps_in(len(self.splits.train), budget.batch, budget.accumulate)

    def batches(self, first: int, last: int, part: tuple[int, int]) -> Iterator[Batch]:
        r, budget = self.recipe, self.recipe.budget
        order = {"batch": budget.batch, "per_epoch": self.steps * budget.accumulate, "seed": r.seed}
        train = self.splits.train
        return training(
            train,
            self.preprocess,
            r.augment,
            r.mix,
            first=first,
            last=last,
            part=part,
            workers=r.workers,
            **order,
        )

    def loss(self, module: nn.Module, batch: Batch, progress: float) -> Batch:
        if self._loss is None or self._loss.module is not module:
            device = device_of(module)
            teacher = None if self.teacher is None else self.teacher.to(device)
            self._loss = pruning(ClassificationLoss(module, teacher), bare(module), teacher)
        return self._loss.loss(batch)

    def warm_start(self, module: nn.Module, folder: Path, log: Any, team: Team) -> bool:
        """Fit the head to the frozen model's features, unless it has one for these classes already."""
        if not self.recipe.probe_first or self.recipe.keep < 1 or team.sharded:
            return False
        if not self.own_head:
            from saccade.tasks.classify.probe import fit_head

            fit_head(self, cast(Vision, module), folder, log, team)
        return True

    def score(self, module: nn.Module, team: Team) -> dict[str, float]:
        val = self.splits.val
        if val is None:
            return {}
        part = (0, 1) if team.sharded else team.part  # the shards of one model answer together
        batches, seen = scoring(val, self.preprocess, max(self.recipe.budget.batch, 32), 0, part), set[int]()
        shown = track(batches, len(range(part[0], len(val), part[1])), "validating", size=images_in)
        found = score_batches(module, note_seen(shown, seen))
        self.unreadable("val", sorted(set(range(part[0], len(val), part[1])) - seen))
        count, names = found["count"], ("accuracy", "loss")
        sums = [count, *(found[name] * count for name in names)]
        total, *sums = sums if team.sharded else team.sum(sums)
        return {name: value / max(total, 1) for name, value in zip(names, sums, strict=True)}

    def save(self, folder: Path, module: nn.Module) -> None:
        save_folder(
            folder,
            cast(Vision, module),
            self.preprocess,
            list(self.splits.train.classes),
            task="classify",
            lineage=self.lineage,
        )

    def name(self, number: int) -> str:
        return str(self.splits.train.name(number))

    def reason(self, split: str, number: int) -> str:
        found = self.splits.by_name[split]
        return str(flaw(found, number) or f"{found.name(number)} could not be read")

    def sample_input(self) -> str:
        images = self.splits.val or self.splits.train
        path = images.file(0)
        near = os.path.relpath(path) if path else ""
        return quote(path if near.startswith("..") else near) if os.path.isfile(path) else "IMAGE"

    def examples(self) -> list[dict[str, str]]:
        return samples(self.splits.train, self.preprocess, self.recipe.augment, self.recipe.seed)

    def finish(self, folder: Path) -> None:
        if self.recipe.keep < 1:
            from saccade.vision.pruned import compare_with_dense  # imports all ways of pruning

            compare_with_dense(folder, self.recipe.model, self.splits)
        if self.splits.val is not None:
            from saccade.tasks.classify.mistakes import explain_mistakes  # imports all ways of explaining

            explain_mistakes(folder, self.splits.val)
