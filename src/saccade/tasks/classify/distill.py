"""Losses of a pruned model besides its task: keep the wanted share, and stay close to the dense model.

Rao et al. 2021, section 3.4: cross-entropy + `LOGITS` `logits_loss` + `TOKENS` `tokens_loss` + `RATIO`
`ratio_loss`, the teacher being the dense model.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from saccade.tokens.prune import Decision, Patches

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
