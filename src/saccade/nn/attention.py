"""Multi-head attention (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, equations 1 and 4).

Shapes: b batch, h heads, n queries, m keys, d width, k width of a query and a key, e width of a value.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.nn.rotary import rotate

Tokens = Float[Tensor, "b n d"]
Weight = Float[Tensor, "#b #h #n m"]
Turn = Float[Tensor, "2 *each n k"]


def probabilities(
    q: Float[Tensor, "b h n k"], k: Float[Tensor, "b h m k"], weight: Weight | None = None
) -> Float[Tensor, "b h n m"]:
    """Return the matrix that `attend` never forms: `probabilities(q, k) @ v == attend(q, k, v)`.

    Key j counts `weight[j]` times: 0/1 is a mask, a lower triangle is causality (`causal`), a number of
    patches is token merging. A query that may attend to no key gets zeros.
    """
    logits = q @ k.mT * q.shape[-1] ** -0.5
    if weight is None:
        return logits.softmax(-1)
    seen = logits.detach().masked_fill(weight == 0, torch.finfo(logits.dtype).min)
    p = (logits - seen.amax(-1, keepdim=True)).clamp_max(10).exp()
    p = p * weight.to(p.dtype)  # a product, not a sum of logs: its gradient at 0 is finite
    total = p.sum(-1, keepdim=True)
    return p / total.masked_fill(total == 0, 1)


def attend(
    q: Float[Tensor, "b h n k"],
    k: Float[Tensor, "b h m k"],
    v: Float[Tensor, "b h m e"],
    weight: Weight | None = None,
) -> Float[Tensor, "b h n e"]:
    """Return `probabilities(q, k, weight) @ v` (Eq. 1), from a fused kernel wherever one exists."""
    # log(0) has no gradient, so a learnt decision stays a product
    if weight is not None and weight.requires_grad:
        return probabilities(q, k, weight) @ v
    return F.scaled_dot_product_attention(q, k, v, None if weight is None else weight.log().to(q.dtype))


def causal(n: int, device: torch.device | None = None) -> Float[Tensor, "1 1 n n"]:
    """Return the weight under which a query sees itself and the past: a lower triangle (rows are queries)."""
    return torch.ones(1, 1, n, n, device=device).tril()


class Attention(nn.Module):
    """Project to heads, attend, project back (Eq. 4). Cross-attention when `context` is given.

    The reshapes are torch's own: einops would add about 1% to a ViT-Ti at batch 1.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise UsageError(f"width {width} does not split into {heads} heads; use a multiple of {heads}")
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def split(
        self, z: Tokens, context: Float[Tensor, "b m d"] | None = None, turn: Turn | None = None
    ) -> tuple[Float[Tensor, "b h n k"], Float[Tensor, "b h m k"], Float[Tensor, "b h m k"]]:
        """Return queries of z, keys and values of z or `context`; `turn` rotates both (nn/rotary.py)."""
        source = z if context is None else context
        pairs = ((self.q, z), (self.k, source), (self.v, source))
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f, x in pairs)
        return (q, k, v) if turn is None else (rotate(q, turn), rotate(k, turn), v)

    def join(self, heads: Float[Tensor, "b h n k"]) -> Tokens:
        """Concatenate the heads and mix them."""
        return self.out(heads.transpose(1, 2).flatten(2))

    def forward(
        self,
        z: Tokens,
        context: Float[Tensor, "b m d"] | None = None,
        weight: Weight | None = None,
        turn: Turn | None = None,
    ) -> Tokens:
        return self.join(attend(*self.split(z, context, turn), weight))
