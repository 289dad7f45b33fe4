"""What each patch contributes to a class: relevance propagated down to the attention of every block.

`relevance` is the method of Chefer, Gur, Wolf 2021a (https://arxiv.org/abs/2012.09838): the relevance R of
each matrix of attention, by layer-wise propagation from the target's logit, times the gradient G of that
logit by the matrix. Each block becomes I + (G x R)+, mean over the heads, and the product of the blocks is
read like attention rollout's. `generic` is the rule of Chefer, Gur, Wolf 2021b
(https://arxiv.org/abs/2103.15679, Eq. 5 and 6) for self-attention, with attention itself in the place of R.

Of the product only the row of the tokens that the answer reads is wanted, so it is multiplied from the top
down, a vector at a time. What the identities alone would put there is left out: it says which tokens are
read, and that is no news of the picture.

Where the answer reads a token or two, what comes down to the others touches the map only on its way back to
those; so the rule of linear layers is exact for the tokens that are read, and nearly so for the rest
(lrp.py). With ViT-Ti/16 on photographs of pets that moves a map by 0.2 % of its length at most, and halves
the cost.

Shapes: b batch, t tokens that the answer reads, r queries, n tokens, d width, e width of the features.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn

from saccade.explain.ask import Maps, Target, chosen, still
from saccade.explain.methods import lrp
from saccade.explain.methods.attention import readers
from saccade.explain.methods.backward import (
    Look,
    Matrix,
    Pair,
    Relation,
    ascend,
    descend,
    plus,
    through_add,
    through_mlp,
    through_norm,
)
from saccade.explain.replay import grid_of
from saccade.models.build import Vision
from saccade.models.vit import ViT
from saccade.nn.attention import Tokens
from saccade.nn.head import PairHead
from saccade.nn.patch import Image
from saccade.nn.pool import AttentionPool
from saccade.tokens import unfold
from saccade.tokens.unfold import Counted, Means

AT_ONCE = 2**20
"""Numbers of the widest tensor of a block that are held at a time: pictures are explained in groups."""
READ = {"token": 1, "pair": 2}
"""Pools that read a few tokens, the first ones, and how many."""

Row = Float[Tensor, "b n"]
T = TypeVar("T")


def head(vit: ViT, features: Float[Tensor, "b t e"], target: Target) -> Pair:
    """Relevance and gradient of the features: all relevance begins as 1 at the target's logit (Eq. 6)."""
    with torch.enable_grad():
        f = features.detach().requires_grad_()
        inner = vit.prelogits(f)
        logits = vit.head(inner if isinstance(vit.head, PairHead) else inner[:, 0])
        (g,) = torch.autograd.grad(chosen(logits, target).sum(), f)
    inner = inner.detach()
    layers = (vit.head.token, vit.head.teacher) if isinstance(vit.head, PairHead) else (vit.head,)
    weight = torch.stack([layer.weight[target] for layer in layers if isinstance(layer, nn.Linear)], dim=1)
    r = lrp.share((inner * weight).flatten(1), features.new_ones(features.shape[0])).reshape(inner.shape)
    for layer in vit.prelogits:
        if isinstance(layer, nn.Linear):
            r = lrp.linear(features, layer.weight, r, exact=features.shape[1])
    return Pair(r, g)


def averaged(x: Tokens, shares: Float[Tensor, "b n"], pair: Pair) -> Pair:
    """From the pair of a mean of tokens to that of each: a linear layer of which they are the inputs."""
    each = shares[..., None]
    r = lrp.share(rearrange(x * each, "b n d -> b d n"), pair.relevance[:, 0])
    return Pair(rearrange(r, "b d n -> b n d"), pair.gradient * each)


def pool(vit: ViT, z: Tokens, shares: Float[Tensor, "b n"], pair: Pair) -> Pair:
    """From the pair of the features to that of the tokens, the patches of which are read by their shares."""
    kind, front = vit.config.pool, vit.config.front
    if kind in READ:
        return through_norm(vit.norm, z, pair)
    shares = shares[:, front:] / shares[:, front:].sum(1, keepdim=True)
    if kind == "mean_norm":
        mean = shares[:, None] @ z[:, front:]
        return _behind(front, averaged(z[:, front:], shares, through_norm(vit.norm, mean, pair)))
    parts = [Pair(*both) for both in zip(*(torch.split(t, z.shape[-1], -1) for t in pair), strict=True)]
    found = _behind(front, averaged(vit.norm(z)[:, front:], shares, parts[-1]))
    if kind == "token+mean":
        plus(found, parts[0])
    return through_norm(vit.norm, z, found)


def _behind(front: int, pair: Pair) -> Pair:
    """With zeros for the tokens in front."""
    return Pair(*(F.pad(t, (0, 0, front, 0)) for t in pair))


def probe(
    vit: ViT, z: Tokens, counted: Counted | None, pair: Pair, exact: int
) -> tuple[Matrix, Matrix, Pair]:
    """The same for an attention pool, whose probe looks at all tokens: with the matrices of that look."""
    assert isinstance(vit.pool, AttentionPool)
    layers, x = vit.pool, vit.norm(z)
    told = Relation(None if counted is None else counted[:, None, None])
    look = Look(layers.attention, told, repeat(layers.probe, "d -> b 1 d", b=z.shape[0]), x, given=True)
    y = look.answer()
    skip, pair = through_add(None, y, layers.mlp(layers.norm(y)), pair)
    pair = through_norm(layers.norm, y, through_mlp(layers.mlp, layers.norm(y), pair, exact))
    seen, found = look.through(plus(pair, skip), exact)
    assert found is not None
    return *seen, through_norm(vit.norm, z, found[1])


class Level(NamedTuple):
    """The answer, or a block, on the way down."""

    relevance: Matrix
    """(Gradient x relevance)+ of its attention; of the answer, one row: how much it reads from each token."""
    attention: Matrix
    """The same with attention in the place of relevance."""
    pair: Pair
    """Relevance and gradient of the tokens that enter it; of block 0 only if they were asked for."""
    means: Means | None = None
    """What its attention's tokens are replaced by behind it, if some are merged there."""


@torch.no_grad()
def levels(
    vit: ViT,
    image: Image,
    target: Target,
    look: Callable[[Level], T],
    exact: bool = False,
    bottom: bool = False,
) -> list[T]:
    """Go down by the answer, then each block, the last first; return what `look` returned for each.

    Args:
        exact: for all tokens, and not only those that are read.
        bottom: down to what enters block 0, which no map wants.
    """
    read = READ.get(vit.config.pool, 0)
    steps, z, counted = ascend(vit, image, read)
    few = read if read and not exact else steps[-1].z.shape[1]
    features = unfold.features(vit, z, counted)
    pair = head(vit, features if features.ndim == 3 else features[:, None], target)
    if vit.config.pool == "map":
        level = Level(*probe(vit, z, counted, pair, few))
    else:
        shares = readers(vit, z, None if counted is None else counted[:, : z.shape[1]])
        row = rearrange(shares, "b r -> b 1 r")
        level = Level(row, row, pool(vit, z, shares, pair))
    seen = [look(level)]
    while steps:
        step = steps.pop()
        level = Level(*descend(step, z, level.pair, few, bottom or bool(steps)), step.means)
        seen.append(look(level))
        z = step.z
    return seen


def sums(vit: ViT, image: Image, target: Target, exact: bool = False) -> Float[Tensor, "levels b"]:
    """Relevance summed over tokens: as the answer gives it to them, then below each block; 1 everywhere."""
    return torch.stack(
        levels(vit, image, target, lambda at: lrp.total(at.pair.relevance), exact, bottom=True)
    )


def rolled(
    levels: Sequence[tuple[Float[Tensor, "b _ _"], Float[Tensor, "b _ _"] | None]], probed: bool
) -> Row:
    """The row of rollout without what the identities alone put there; a probe's own look is part of it."""
    row, _ = levels[0]
    found = row if probed else torch.zeros_like(row)
    for matrix, means in levels[1:]:
        if means is not None:
            row, found = row @ means, found @ means
        more = row @ matrix
        grown = more.shape[-1] - row.shape[-1]
        row, found = F.pad(row, (0, grown)) + more, F.pad(found, (0, grown)) + more
    return found[:, 0]


def _maps(
    vit: ViT, image: Image, target: Target, look: Callable[[Level], tuple[Matrix, Means | None]]
) -> Maps:
    rows, columns = grid_of(vit, image)
    count = max(1, AT_ONCE // ((rows * columns + vit.config.front) * vit.config.hidden))
    groups = zip(torch.split(image, count), torch.split(target, count), strict=True)
    found = [rolled(levels(vit, *group, look), vit.config.pool == "map") for group in groups]
    return rearrange(torch.cat(found)[:, vit.config.front :], "b (r c) -> b r c", r=rows)


@still
def relevance(module: Vision, image: Image, target: Target) -> Maps:
    """Relevance propagation: rollout of (gradient x relevance)+ of each block's attention (Eq. 13 and 14)."""
    assert isinstance(module, ViT)
    return _maps(module, image, target, lambda level: (level.relevance, level.means))


@still
def generic(module: Vision, image: Image, target: Target) -> Maps:
    """The same with attention for its relevance: R + mean((gradient x attention)+) R, block after block."""
    assert isinstance(module, ViT)
    return _maps(module, image, target, lambda level: (level.attention, level.means))
