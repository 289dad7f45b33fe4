"""The MLP of a block: two linear layers with a GELU (Hendrycks and Gimpel 2016) in between."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

FORMS = {"erf": "none", "tanh": "tanh"}
"""Exact GELU, or the approximation in Google's ViT."""


class MLP(nn.Module):
    """Widen, GELU, narrow."""

    def __init__(self, width: int, hidden: int, gelu: str = "erf", dropout: float = 0.0) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.gelu, self.dropout = FORMS[gelu], dropout

    def bend(self, x: Float[Tensor, "*n hidden"]) -> Float[Tensor, "*n hidden"]:
        """Apply GELU; without gradients it overwrites x, the widest tensor of a block, to save time."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return F.gelu(x, approximate=self.gelu)
        return torch._C._nn.gelu_(x, approximate=self.gelu)  # type: ignore[attr-defined]

    def forward(self, z: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        x = self.bend(self.up(z))
        return self.down(F.dropout(x, self.dropout) if self.training else x)
