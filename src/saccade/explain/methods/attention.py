"""Where a ViT looks: raw attention, attention rollout, and rollout by the gradient of a class.

The answer reads some tokens (`readers`); a map says how much of what they hold came from each patch. No more
than a few rows of all heads' matrices, and one matrix of their mean, are held at a time.

Shapes: b batch, h heads, n tokens, k width of a head; rows of a matrix are queries.
"""

from collections.abc import Iterator

import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Float
from torch import Tensor

from saccade.explain.ask import Maps, Target, chosen, still
from saccade.explain.replay import Heads, Moment, Rows, grid_of, moments, replay
from saccade.models.build import Vision
from saccade.models.vit import ViT
from saccade.nn.attention import Tokens, probabilities
from saccade.nn.patch import Image
from saccade.nn.pool import KINDS, AttentionPool
from saccade.tokens.unfold import Counted, Stage

AT_ONCE = 2**20
"""Numbers of the matrices of all heads that are formed at a time."""

Mean = Float[Tensor, "b n n"]
Shares = Float[Tensor, "b n"]


def rows_of(moment: Moment) -> Iterator[Rows]:
    """The matrices of a block, as many rows at a time as `AT_ONCE` allows."""
    b, h, n, _ = moment.q.shape
    yield from moment.rows(max(1, AT_ONCE // (b * h * n)))


def means(moment: Moment) -> Iterator[tuple[int, Float[Tensor, "b rows n"]]]:
    """A few rows at a time, the mean over the heads of a block's attention; each row sums to 1."""
    for rows in rows_of(moment):
        yield rows.start, reduce(rows.p, "b h rows n -> b rows n", "mean")


def evidence(moment: Moment, gradient: Heads) -> Iterator[tuple[int, Float[Tensor, "b rows n"]]]:
    """The same for attention times the gradient of a score by it, where positive.

    The gradient by the matrix is that by the heads' output times the values: the matrix itself need not be
    in the graph, so the fused kernel goes on computing the answer.
    """
    for rows in rows_of(moment):
        part = gradient[:, :, rows.start : rows.start + rows.p.shape[2]]
        yield rows.start, reduce((rows.p * (part @ moment.v.mT)).relu_(), "b h rows n -> b rows n", "mean")


def roll(rolled: Mean, matrix: Iterator[tuple[int, Float[Tensor, "b rows n"]]], stage: Stage) -> Mean:
    """One step of rollout: A + I, the residual path beside A, its rows made to sum to 1, times what was.

    Tokens that are merged in the block have the mean of their rows."""
    made = torch.empty_like(rolled)
    for start, a in matrix:
        here = slice(start, start + a.shape[1])
        made[:, here] = (a @ rolled + rolled[:, here]) / (1 + a.sum(-1, keepdim=True))
    return stage.between(made)


def readers(vit: ViT, z: Tokens, counted: Counted | None = None) -> Shares:
    """How much of the answer is read from each token after the last block; the shares sum to 1.

    The class token, both tokens of a pair, all patches alike where the mean is read (whether or not there is
    a class token beside them), half and half for token+mean; a probe reads by its own attention. A dropped
    patch (`counted` is 0) is not read.
    """
    if isinstance(vit.pool, AttentionPool):
        return reduce(_probe(vit, z, counted)[0], "b h 1 n -> b n", "mean")
    shares = z.new_zeros(z.shape[:2])
    kind, front = vit.config.pool, vit.config.front
    tokens = KINDS[kind] if kind in ("token", "pair", "token+mean") else 0
    shares[:, :tokens] = 1 / max(tokens, 1)
    if "mean" in kind:
        there = torch.ones_like(shares)[:, front:] if counted is None else counted[:, front:]
        shares[:, front:] = there / there.sum(1, keepdim=True)
    return shares / shares.sum(1, keepdim=True)


def _probe(
    vit: ViT, z: Tokens, counted: Counted | None
) -> tuple[Float[Tensor, "b h 1 n"], Float[Tensor, "b classes"]]:
    """Attention of the probe of an attention pool, and the answer as computed from that matrix."""
    pool = vit.pool
    assert isinstance(pool, AttentionPool)
    q, k, v = pool.attention.split(repeat(pool.probe, "d -> b 1 d", b=z.shape[0]), context=vit.norm(z))
    p = probabilities(q, k, None if counted is None else counted[:, None, None])
    y = pool.attention.join(p @ v)
    return p, vit.head(vit.prelogits((y + pool.mlp(pool.norm(y)))[:, 0]))


def _on_grid(vit: ViT, image: Image, shares: Shares) -> Maps:
    rows, _ = grid_of(vit, image)
    return rearrange(shares[:, vit.config.front :], "b (r c) -> b r c", r=rows)


@still
@torch.no_grad()
def attention(module: Vision, image: Image, target: Target) -> Maps:  # noqa: ARG001 (as all methods)
    """Raw attention: what the answer's token looks at in the last block, the mean over the heads."""
    assert isinstance(module, ViT)
    for moment in moments(module, image):
        last = moment
    shares = readers(module, last.out, last.stage.counted)
    if isinstance(module.pool, AttentionPool):  # the last attention is the probe's own
        return _on_grid(module, image, shares)
    shares = last.stage.between(shares[..., None])[..., 0]
    looked = sum(shares[:, None, start : start + a.shape[1]] @ a for start, a in means(last))
    assert isinstance(looked, Tensor)
    return _on_grid(module, image, looked[:, 0])


def rolled_out(vit: ViT, image: Image) -> tuple[Mean, Shares]:
    """The whole matrix of attention rollout, each row of which sums to 1, and who is read at the end."""
    rolled, shares = torch.empty(0, 0, 0), torch.empty(0, 0)
    for moment in moments(vit, image):
        rolled = roll(rolled if moment.index else _identity(moment.z), means(moment), moment.stage)
        if moment.index == len(vit.blocks) - 1:
            shares = readers(vit, moment.out, moment.stage.counted)
    return rolled, shares


def _identity(z: Tokens) -> Mean:
    return repeat(torch.eye(z.shape[1], dtype=z.dtype, device=z.device), "n m -> b n m", b=z.shape[0])


@still
@torch.no_grad()
def rollout(module: Vision, image: Image, target: Target) -> Maps:  # noqa: ARG001 (as all methods)
    """Attention rollout: attention through all blocks, half of each step along the residual path."""
    assert isinstance(module, ViT)
    rolled, shares = rolled_out(module, image)
    return _on_grid(module, image, (shares[:, None] @ rolled)[:, 0])


@still
def gradient_rollout(module: Vision, image: Image, target: Target) -> Maps:
    """Rollout of attention times the score's gradient by it, where positive, the mean over the heads."""
    assert isinstance(module, ViT)
    logits, seen = replay(module, image.requires_grad_(), lambda moment: moment)
    kept, probed = [moment.heads for moment in seen], isinstance(module.pool, AttentionPool)
    end, counted = seen[-1].out, seen[-1].stage.counted
    if probed:
        p, logits = _probe(module, end, counted)
        kept.append(p)
    found = list(torch.autograd.grad(chosen(logits, target).sum(), kept))
    with torch.no_grad():
        shares = readers(module, end, counted)
        if probed:
            shares = reduce((p * found.pop()).relu(), "b h 1 n -> b n", "mean")
        rolled = _identity(seen[0].z)
        for moment, gradient in zip(seen, found, strict=True):
            rolled = roll(rolled, evidence(moment, gradient), moment.stage)
        return _on_grid(module, image, (shares[:, None] @ rolled)[:, 0])
