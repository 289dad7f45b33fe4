"""Attention maps of a ViT: raw attention, attention rollout, and rollout weighted by a class's gradient.

The head reads some tokens (`read_shares`); a map says how much of their content came from each patch. Only a
few rows of all heads' matrices, and one matrix of their mean, are in memory at a time.

Shapes: b batch, h heads, n tokens, k width of a head; rows of a matrix are queries.
"""

from collections.abc import Iterator

import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Float
from torch import Tensor

from saccade.explain.replay import AttentionRows, HeadOutputs, Moment, grid_of, moments, replay
from saccade.explain.target import Maps, Target, evaluation_mode, target_score
from saccade.models.build import Vision
from saccade.models.vit import ViT
from saccade.nn.attention import Tokens, probabilities
from saccade.nn.patch import Image
from saccade.nn.pool import KINDS, AttentionPool
from saccade.tokens.unfold import Counted, Stage

AT_ONCE = 2**20
"""Elements of all heads' matrices in memory at a time."""

_Mean = Float[Tensor, "b n n"]
_Shares = Float[Tensor, "b n"]


def rows_of(moment: Moment) -> Iterator[AttentionRows]:
    """Yield the matrices of a block, as many rows at a time as `AT_ONCE` allows."""
    b, h, n, _ = moment.q.shape
    yield from moment.rows(max(1, AT_ONCE // (b * h * n)))


def mean_rows(moment: Moment) -> Iterator[tuple[int, Float[Tensor, "b rows n"]]]:
    """Yield rows of a block's attention averaged over the heads; each row sums to 1."""
    for rows in rows_of(moment):
        yield rows.start, reduce(rows.p, "b h rows n -> b rows n", "mean")


def gradient_rows(moment: Moment, gradient: HeadOutputs) -> Iterator[tuple[int, Float[Tensor, "b rows n"]]]:
    """Yield rows of (attention x gradient of a score with respect to it)+ averaged over the heads.

    The matrix's gradient is that of the heads' output times the values, so the matrix need not be in the
    graph and the fused kernel still computes the output.
    """
    for rows in rows_of(moment):
        part = gradient[:, :, rows.start : rows.start + rows.p.shape[2]]
        yield rows.start, reduce((rows.p * (part @ moment.v.mT)).relu_(), "b h rows n -> b rows n", "mean")


def rollout_step(
    rolled: _Mean, matrix: Iterator[tuple[int, Float[Tensor, "b rows n"]]], stage: Stage
) -> _Mean:
    """Multiply a block onto the rollout: A + I (the residual path), rows normalised to 1, times `rolled`.

    Tokens merged in the block get the mean of their rows."""
    made = torch.empty_like(rolled)
    for start, a in matrix:
        here = slice(start, start + a.shape[1])
        made[:, here] = (a @ rolled + rolled[:, here]) / (1 + a.sum(-1, keepdim=True))
    return stage.between(made)


def read_shares(vit: ViT, z: Tokens, counted: Counted | None = None) -> _Shares:
    """Return how much the head reads from each token after the last block; the shares sum to 1.

    The class token; both tokens of a pair; all patches equally where their mean is read (with or without a
    class token); half and half for token+mean; an attention pool by its attention. A dropped patch
    (`counted` is 0) is not read.
    """
    if isinstance(vit.pool, AttentionPool):
        return reduce(_attention_pool(vit, z, counted)[0], "b h 1 n -> b n", "mean")
    shares = z.new_zeros(z.shape[:2])
    kind, front = vit.config.pool, vit.config.front
    tokens = KINDS[kind] if kind in ("token", "pair", "token+mean") else 0
    shares[:, :tokens] = 1 / max(tokens, 1)
    if "mean" in kind:
        there = torch.ones_like(shares)[:, front:] if counted is None else counted[:, front:]
        shares[:, front:] = there / there.sum(1, keepdim=True)
    return shares / shares.sum(1, keepdim=True)


def _attention_pool(
    vit: ViT, z: Tokens, counted: Counted | None
) -> tuple[Float[Tensor, "b h 1 n"], Float[Tensor, "b classes"]]:
    """Return the attention of an attention pool, and the logits computed from that matrix."""
    pool = vit.pool
    assert isinstance(pool, AttentionPool)
    q, k, v = pool.attention.split(repeat(pool.probe, "d -> b 1 d", b=z.shape[0]), context=vit.norm(z))
    p = probabilities(q, k, None if counted is None else counted[:, None, None])
    y = pool.attention.join(p @ v)
    return p, vit.head(vit.prelogits((y + pool.mlp(pool.norm(y)))[:, 0]))


def _on_grid(vit: ViT, image: Image, shares: _Shares) -> Maps:
    rows, _ = grid_of(vit, image)
    return rearrange(shares[:, vit.config.front :], "b (r c) -> b r c", r=rows)


@evaluation_mode
@torch.no_grad()
def attention(module: Vision, image: Image, target: Target) -> Maps:  # noqa: ARG001 (as all methods)
    """Return raw attention: of the tokens that are read, in the last block, averaged over the heads."""
    assert isinstance(module, ViT)
    for moment in moments(module, image):
        last = moment
    shares = read_shares(module, last.out, last.stage.counted)
    if isinstance(module.pool, AttentionPool):  # the last attention is the pool's own
        return _on_grid(module, image, shares)
    shares = last.stage.between(shares[..., None])[..., 0]
    looked = sum(shares[:, None, start : start + a.shape[1]] @ a for start, a in mean_rows(last))
    assert isinstance(looked, Tensor)
    return _on_grid(module, image, looked[:, 0])


def rollout_matrix(vit: ViT, image: Image) -> tuple[_Mean, _Shares]:
    """Return the whole matrix of attention rollout (rows sum to 1), and the shares that are read."""
    rolled, shares = torch.empty(0, 0, 0), torch.empty(0, 0)
    for moment in moments(vit, image):
        rolled = rollout_step(
            rolled if moment.index else _identity(moment.z), mean_rows(moment), moment.stage
        )
        if moment.index == len(vit.blocks) - 1:
            shares = read_shares(vit, moment.out, moment.stage.counted)
    return rolled, shares


def _identity(z: Tokens) -> _Mean:
    return repeat(torch.eye(z.shape[1], dtype=z.dtype, device=z.device), "n m -> b n m", b=z.shape[0])


@evaluation_mode
@torch.no_grad()
def rollout(module: Vision, image: Image, target: Target) -> Maps:  # noqa: ARG001 (as all methods)
    """Return attention rollout: attention multiplied through all blocks, half of each the residual path."""
    assert isinstance(module, ViT)
    rolled, shares = rollout_matrix(module, image)
    return _on_grid(module, image, (shares[:, None] @ rolled)[:, 0])


@evaluation_mode
def gradient_rollout(module: Vision, image: Image, target: Target) -> Maps:
    """Roll out (attention x its gradient)+, averaged over the heads."""
    assert isinstance(module, ViT)
    logits, seen = replay(module, image.requires_grad_(), lambda moment: moment)
    kept, probed = [moment.heads for moment in seen], isinstance(module.pool, AttentionPool)
    end, counted = seen[-1].out, seen[-1].stage.counted
    if probed:
        p, logits = _attention_pool(module, end, counted)
        kept.append(p)
    found = list(torch.autograd.grad(target_score(logits, target).sum(), kept))
    with torch.no_grad():
        shares = read_shares(module, end, counted)
        if probed:
            shares = reduce((p * found.pop()).relu(), "b h 1 n -> b n", "mean")
        rolled = _identity(seen[0].z)
        for moment, gradient in zip(seen, found, strict=True):
            rolled = rollout_step(rolled, gradient_rows(moment, gradient), moment.stage)
        return _on_grid(module, image, (shares[:, None] @ rolled)[:, 0])
