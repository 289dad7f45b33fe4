"""Classification: soft cross-entropy, optionally with the answers of a larger model (Hinton et al. 2015)."""

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.tasks.task import Batch


def soft_cross_entropy(
    logits: Float[Tensor, "b classes"], target: Float[Tensor, "b classes"]
) -> Float[Tensor, ""]:
    """Cross-entropy against probabilities, as mixing and smoothing make them."""
    return -(target * logits.log_softmax(-1)).sum(-1).mean()


class Classify:
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
        """Cross-entropy; with a teacher, a share of it is the distance to the teacher's softened answer.

        A batch without a picture, because none could be read, has no loss and moves nothing.
        """
        if not batch["image"].shape[0]:  # several processes must all go through the module, with or without
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

    def score(self, module: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """Accuracy and mean loss on unseen pictures, and how many there were."""
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
    """Logits and labels, batch by batch, in evaluation mode; the module is left as it was."""
    training, device = module.training, next(module.parameters()).device
    module.eval()
    with torch.inference_mode():
        for batch in batches:
            yield module(batch["image"].to(device)), batch["label"].to(device)
    module.train(training)
