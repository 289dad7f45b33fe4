"""Norms by name: LayerNorm (Ba et al. 2016), RMSNorm (Zhang, Sennrich 2019), PowerNorm (Shen et al. 2020)."""

from torch import nn

from saccade.errors import check_word
from saccade.nn.variants.power_norm import PowerNorm

KINDS = ("layer", "rms", "power")


def norm(kind: str, width: int, eps: float = 1e-6) -> nn.Module:
    """Build a normalisation over the last dimension."""
    match kind:
        case "layer":
            return nn.LayerNorm(width, eps=eps)
        case "rms":
            return nn.RMSNorm(width, eps=eps)
        case _:
            check_word("norm", kind, KINDS)
            return PowerNorm(width, eps=eps)
