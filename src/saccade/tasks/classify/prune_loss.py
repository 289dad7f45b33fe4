"""The loss for learning to drop patches: the task's own and three more (Rao et al. 2021, section 3.4)."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.models.looped import Looped
from saccade.models.vit import ViT
from saccade.nn.attention import Tokens
from saccade.nn.patch import Image
from saccade.task import Batch
from saccade.tasks.classify import distill
from saccade.tokens.prune import Looking, Masked, Pruned
from saccade.tokens.walk import run
from saccade.vision.teacher import Teacher


@runtime_checkable
class Loss(Protocol):
    """A module with its loss."""

    @property
    def module(self) -> nn.Module: ...

    def loss(self, batch: Batch) -> Batch: ...


class PruningLoss:
    """Cross-entropy, the share of patches kept, and the distance to a teacher's answers and patches.

    The teacher is usually the dense original. One with other patches teaches by its answers alone; without
    a teacher, only the classes and the share are learnt.
    """

    def __init__(self, task: Loss, pruned: Pruned, teacher: nn.Module | None = None) -> None:
        """`task` is the plain loss of the same module; it also handles empty batches."""
        self.task, self.pruned = task, pruned
        self.teacher = None if teacher is None else teacher.eval().requires_grad_(False)

    @property
    def module(self) -> nn.Module:
        """The module that trains, as DDP or torch.compile wrapped it."""
        return self.task.module

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return the sum of all losses; `kept` is the share of patches left at the end."""
        image, target = batch["image"], batch["target"]
        if not image.shape[0]:
            return {**self.task.loss(batch), "kept": torch.ones(())}
        logits = self.module(image)
        seen = self.pruned.taken()
        loss, kept = F.cross_entropy(logits, target), torch.ones(())
        if seen.decisions:
            loss = loss + distill.RATIO * distill.ratio_loss(seen.decisions, self.pruned.plan.ratios)
            kept = seen.decisions[-1].detach().mean()
        if self.teacher is not None:
            loss = loss + self._distance(image, logits, seen)
        right = (logits.argmax(-1) == target.argmax(-1)).float().mean()
        return {"loss": loss, "accuracy": right, "kept": kept}

    def _distance(self, image: Image, logits: Float[Tensor, "b classes"], seen: Masked) -> Float[Tensor, ""]:
        assert self.teacher is not None
        wanted, tokens, looks = taught(self.teacher, image, self.pruned.plan.places)
        loss = distill.LOGITS * distill.logits_loss(logits, wanted)
        if tokens is None or tokens.shape != seen.patches.shape:
            return loss
        if len(looks) == len(seen.scores):
            loss = loss + distill.LOOKS * distill.looks_loss(seen.scores, looks, self.pruned.plan.ratios)
        last = seen.decisions[-1] if seen.decisions else tokens.new_ones(tokens.shape[:2])
        return loss + distill.TOKENS * distill.tokens_loss(seen.patches, tokens, last)


@torch.no_grad()
def taught(
    teacher: nn.Module, image: Image, places: Sequence[int] = ()
) -> tuple[Float[Tensor, "b classes"], Tokens | None, list[Float[Tensor, "b n"]]]:
    """Return a teacher's answers, its patches after the last norm, and their attention before `places`.

    All in one pass; answers alone if the teacher is not a plain ViT.
    """
    if not isinstance(teacher, Teacher) or not isinstance(teacher.module, ViT):
        return teacher(image), None, []
    vit, shown = teacher.module, teacher.seen(image)
    walk = Looking(vit, shown, places)
    z = vit.encode(shown) if isinstance(vit, Looped) else run(vit, walk, vit.embed(shown))
    logits = vit.read(z)[:, teacher.get_buffer("order")]
    return logits, vit.norm(z)[:, vit.config.front :], walk.attention


def pruning(task: Loss, module: nn.Module, teacher: nn.Module | None = None) -> Loss:
    """Return the task's loss, wrapped in `PruningLoss` if the module has predictors to train."""
    return (
        PruningLoss(task, module, teacher) if isinstance(module, Pruned) and len(module.predictors) else task
    )
