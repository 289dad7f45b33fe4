"""Which patches matter, from the patch itself and from all of them (Rao et al. 2021, section 3.2).

Shapes: b batch, n tokens of patches, d width.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Patches = Float[Tensor, "b n d"]
Decision = Float[Tensor, "b n"]
"""1 for a patch that is kept, 0 for one that is dropped."""


class Predictor(nn.Module):
    """Two logits for each token, to keep it and to drop it.

    Half of the channels stay with their token, the other half are averaged over the tokens kept so far; an
    MLP reads both side by side.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        half, quarter = max(width // 2, 1), max(width // 4, 1)
        self.norm, self.enter = nn.LayerNorm(width, eps=1e-5), nn.Linear(width, width)
        self.mix = nn.Linear(width, half)
        self.narrow = nn.Linear(half, quarter)
        self.decide = nn.Linear(quarter, 2)

    @torch.no_grad()
    def lean(self, keep: float) -> None:
        """Begin with this chance to keep any patch: a model learns faster from its usual share of them."""
        chance = min(max(keep, 0.01), 0.99)
        self.decide.bias.copy_(torch.tensor([chance, 1 - chance]).log())

    def forward(self, z: Patches, kept: Decision | None = None) -> Float[Tensor, "b n 2"]:
        x = F.gelu(self.enter(self.norm(z)))
        half = self.narrow.in_features
        local, whole = x[..., :half], x[..., half:]
        mean = whole.mean(1, keepdim=True) if kept is None else _mean(whole, kept)
        # The average is the same for all tokens, so its half of the matrix is multiplied once.
        near, far = self.mix.weight[:, :half], self.mix.weight[:, half:]
        x = F.gelu(F.linear(local, near) + F.linear(mean, far, self.mix.bias))
        return self.decide(F.gelu(self.narrow(x)))


def _mean(x: Patches, kept: Decision) -> Float[Tensor, "b 1 d"]:
    counted = kept[..., None]
    return (x * counted).sum(1, keepdim=True) / counted.sum(1, keepdim=True).clamp_min(1e-6)


def score(logits: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n"]:
    """Rises with the chance to be kept: its log-odds."""
    return logits[..., 0] - logits[..., 1]


def sample(logits: Float[Tensor, "b n 2"]) -> Decision:
    """Keep or drop at random with these chances, 0 or 1, and with a gradient (Jang et al. 2017)."""
    return F.gumbel_softmax(logits, hard=True)[..., 0]


def received(p: Float[Tensor, "b h q m"], front: int) -> Float[Tensor, "b n"]:
    """How much attention the patches get from some queries: an untrained score."""
    return torch.mean(p, dim=(1, 2))[:, front:]
