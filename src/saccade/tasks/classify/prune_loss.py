"""The loss for learning to drop patches (Rao et al. 2021, section 3.4).

The task's cross-entropy + `RATIO` `ratio_loss`, to keep the wanted share, + `LOGITS` `logits_loss` + `TOKENS`
`tokens_loss`, to stay close to the teacher, which is the dense model.
"""

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
from saccade.tokens.prune import Decision, Looking, Masked, Patches, Pruned
from saccade.tokens.walk import run
from saccade.vision.backbone import Teacher

LOGITS, TOKENS, RATIO = 0.5, 0.5, 2.0
"""The paper's weights for the three losses."""
LOOKS = 1.0
"""The weight of `looks_loss`, which is not in the paper."""


def ratio_loss(decisions: Sequence[Decision], ratios: Sequence[float]) -> Float[Tensor, ""]:
    """Return the mean squared difference between the share kept after each stage and the wanted share."""
    gaps = [(kept.mean(1) - ratio).square().mean() for kept, ratio in zip(decisions, ratios, strict=True)]
    return torch.stack(gaps).mean() if gaps else torch.zeros(())


def logits_loss(logits: Float[Tensor, "b classes"], teacher: Float[Tensor, "b classes"]) -> Float[Tensor, ""]:
    """Return the Kullback-Leibler divergence from the teacher's answer."""
    wanted = teacher.detach().log_softmax(-1)
    return F.kl_div(logits.log_softmax(-1), wanted, reduction="batchmean", log_target=True)


def tokens_loss(patches: Patches, teacher: Patches, kept: Decision) -> Float[Tensor, ""]:
    """Return the mean squared distance to the teacher's patches, over those kept to the end."""
    far = (patches - teacher.detach()).square().mean(-1)
    count = kept.detach()
    return (far * count).sum() / count.sum().clamp_min(1)


def looks_loss(
    scores: Sequence[Float[Tensor, "b n"]], looks: Sequence[Float[Tensor, "b n"]], ratios: Sequence[float]
) -> Float[Tensor, ""]:
    """Return the cross-entropy of keeping the patches that the teacher attends to most.

    With it predictors learn in a few steps what takes epochs with the task alone.
    """
    losses = []
    for score, look, ratio in zip(scores, looks, ratios, strict=True):
        best = look.topk(max(1, round(ratio * look.shape[1])), sorted=False).indices
        wanted = torch.zeros_like(score).scatter(1, best, 1.0)
        losses.append(F.binary_cross_entropy_with_logits(score, wanted))
    return torch.stack(losses).mean() if losses else torch.zeros(())


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
            loss = loss + RATIO * ratio_loss(seen.decisions, self.pruned.plan.ratios)
            kept = seen.decisions[-1].detach().mean()
        if self.teacher is not None:
            loss = loss + self._distance(image, logits, seen)
        right = (logits.argmax(-1) == target.argmax(-1)).float().mean()
        return {"loss": loss, "accuracy": right, "kept": kept}

    def _distance(self, image: Image, logits: Float[Tensor, "b classes"], seen: Masked) -> Float[Tensor, ""]:
        assert self.teacher is not None
        wanted, tokens, looks = taught(self.teacher, image, self.pruned.plan.places)
        loss = LOGITS * logits_loss(logits, wanted)
        if tokens is None or tokens.shape != seen.patches.shape:
            return loss
        if len(looks) == len(seen.scores):
            loss = loss + LOOKS * looks_loss(seen.scores, looks, self.pruned.plan.ratios)
        last = seen.decisions[-1] if seen.decisions else tokens.new_ones(tokens.shape[:2])
        return loss + TOKENS * tokens_loss(seen.patches, tokens, last)


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
