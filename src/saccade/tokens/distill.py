"""What a pruned model learns beside its task: to drop enough, and to stay close to the model it came from.

Rao et al. 2021, section 3.4: cross-entropy + `LOGITS` `logits_loss` + `TOKENS` `tokens_loss` + `RATIO`
`ratio_loss`, the teacher being the dense model.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from saccade.tokens.predictor import Decision, Patches

LOGITS, TOKENS, RATIO = 0.5, 0.5, 2.0
"""The paper's weights of the three losses."""


def ratio_loss(decisions: Sequence[Decision], ratios: Sequence[float]) -> Float[Tensor, ""]:
    """How far the share that was kept after each place is from the share wanted, squared."""
    gaps = [(kept.mean(1) - ratio).square().mean() for kept, ratio in zip(decisions, ratios, strict=True)]
    return torch.stack(gaps).mean() if gaps else torch.zeros(())


def logits_loss(logits: Float[Tensor, "b classes"], teacher: Float[Tensor, "b classes"]) -> Float[Tensor, ""]:
    """The Kullback-Leibler divergence from the teacher's answer."""
    wanted = teacher.detach().log_softmax(-1)
    return F.kl_div(logits.log_softmax(-1), wanted, reduction="batchmean", log_target=True)


def tokens_loss(patches: Patches, teacher: Patches, kept: Decision) -> Float[Tensor, ""]:
    """The mean squared distance to the teacher's patches, over those that were kept to the end."""
    far = (patches - teacher.detach()).square().mean(-1)
    count = kept.detach()
    return (far * count).sum() / count.sum().clamp_min(1)
