"""Exact attention in chunks: memory grows with the number of tokens, not its square.

Keys are read in chunks, and the running sum is rescaled whenever a larger logit appears (Milakov and
Gimelshein 2018, https://arxiv.org/abs/1805.02867, algorithm 3; over blocks of queries as in Rabe and Staats
2021, https://arxiv.org/abs/2112.05682). torch's fused kernel does the same where there is one; this one is
readable, runs everywhere, and its gradient needs no more memory than its output.

Shapes: b batch, h heads, n queries, m keys, k width of a head, e width of a value.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from saccade.errors import check_number
from saccade.nn.attention import Weight


def chunked(
    q: Float[Tensor, "b h n k"],
    k: Float[Tensor, "b h m k"],
    v: Float[Tensor, "b h m e"],
    weight: Weight | None = None,
    size: int = 256,
) -> Float[Tensor, "b h n e"]:
    """Return `attend(...)`, computed for `size` queries and `size` keys at a time."""
    check_number("size", size, 1, 2**20)
    made = []
    for start in range(0, q.shape[2], size):
        part = slice(start, start + size)
        here = weight if weight is None or weight.shape[2] == 1 else weight[:, :, part]
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
            made.append(checkpoint(_rows, q[:, :, part], k, v, here, size, use_reentrant=False))
        else:
            made.append(_rows(q[:, :, part], k, v, here, size))
    return torch.cat(made, 2)


def _rows(
    q: Float[Tensor, "b h n k"],
    k: Float[Tensor, "b h m k"],
    v: Float[Tensor, "b h m e"],
    weight: Weight | None,
    size: int,
) -> Float[Tensor, "b h n e"]:
    """Attend from a few queries to all keys, chunk by chunk."""
    most = q.new_full((*q.shape[:3], 1), torch.finfo(q.dtype).min)
    total, mean = q.new_zeros(most.shape), q.new_zeros((*q.shape[:3], v.shape[-1]))
    for start in range(0, k.shape[2], size):
        part = slice(start, start + size)
        logits = q @ k[:, :, part].mT * q.shape[-1] ** -0.5
        higher = torch.maximum(most, logits.detach().amax(-1, keepdim=True))
        p, fade = (logits - higher).exp(), (most - higher).exp()
        p = p if weight is None else p * weight[..., part].to(p.dtype)
        total, mean, most = total * fade + p.sum(-1, keepdim=True), mean * fade + p @ v[:, :, part], higher
    return mean / total.masked_fill(total == 0, 1)
