"""Relevance and gradient of a score on their way down a ViT, from the answer to the tokens at its bottom.

The steps of a block in reverse (nn/block.py), by the rules of lrp.py for the relevance and the chain rule
for the gradient. On the way up nothing is kept but what enters each block; what lies inside is computed again
when the descent comes through, so that no more than half of one block is held at a time.

Shapes: b batch, r queries (all tokens, or those that the answer reads), n tokens, d width, h heads, k width
of a head.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn

from saccade.explain.methods import lrp
from saccade.models.vit import ViT
from saccade.nn.attention import Attention, Tokens, Turn, Weight, attend, probabilities
from saccade.nn.block import Add, Block
from saccade.nn.mlp import MLP
from saccade.nn.patch import Image
from saccade.nn.rotary import rotate
from saccade.tokens.unfold import Counted, Means, unfold

Heads = Float[Tensor, "b h n k"]
Queries = Float[Tensor, "b h r k"]
Asking = Float[Tensor, "b r d"]
Matrix = Float[Tensor, "b r n"]
"""The mean over the heads of something about a block's attention: a row a query, a column a token."""


class Pair(NamedTuple):
    """Of the same tokens."""

    relevance: Tokens
    gradient: Tokens


def plus(pair: Pair, more: Pair) -> Pair:
    """Add, in place, what came down another way, be it for the first tokens only."""
    for whole, part in zip(pair, more, strict=True):
        whole[:, : part.shape[1]] += part
    return pair


@dataclass(frozen=True, eq=False)
class Relation:
    """What attention is told about pairs of tokens."""

    weight: Weight | None = None
    turn: Turn | None = None

    def rows(self, count: int) -> "Relation":
        """The same for the first queries only."""
        weight, turn = self.weight, self.turn
        if weight is not None and weight.shape[2] > 1:
            weight = weight[:, :, :count]
        return Relation(weight, None if turn is None else turn[..., :count, :])

    def turned(self, x: Heads) -> Heads:
        """Queries or keys at their places."""
        return x if self.turn is None else rotate(x, self.turn)

    def back(self, gradient: Heads) -> Heads:
        """The gradient before the turn, from that after it."""
        return gradient if self.turn is None else rotate(gradient, torch.stack([self.turn[0], -self.turn[1]]))


def through_norm(norm: nn.Module | None, x: Tokens, pair: Pair) -> Pair:
    """The gradient by the chain rule, the relevance as it is."""
    if norm is None or isinstance(norm, nn.Identity):
        return pair
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        # of a number, since torch would import a whole algebra system to check a tensor of gradients
        return Pair(pair.relevance, torch.autograd.grad((norm(x) * pair.gradient).sum(), x)[0])


def through_means(means: Means | None, x: Tokens, pair: Pair) -> Pair:
    """From the pair of the means of merged tokens to that of each: a linear layer with them as inputs."""
    if means is None:
        return pair
    parts = x.clamp_min(0)
    whole = means @ parts
    some = whole > 0
    r = parts * (means.mT @ torch.where(some, pair.relevance / whole.clamp_min(lrp.LEAST), 0))
    r += means.mT @ torch.where(some, 0, pair.relevance)
    return Pair(r, means.mT @ pair.gradient)


def through_add(add: Add | None, z: Tokens, y: Tokens, pair: Pair) -> tuple[Pair, Pair]:
    """From the pair of z + y to that of z, and that of the branch before its factor; y is behind it."""
    left, right = lrp.add(z, y, pair.relevance)
    return Pair(left, pair.gradient), Pair(
        right, pair.gradient if add is None else scaled(add, pair.gradient)
    )


def scaled(add: Add, y: Tokens) -> Tokens:
    """A branch behind its factor, if it has one."""
    return y if add.scale is None else y * add.scale


def through_linear(layer: nn.Linear, x: Tokens, pair: Pair, exact: int) -> Pair:
    """From the pair of `layer(x)` to that of x; relevance exactly for the first tokens, nearly for others."""
    return Pair(lrp.linear(x, layer.weight, pair.relevance, exact), pair.gradient @ layer.weight)


def through_mlp(mlp: MLP, x: Tokens, pair: Pair, exact: int) -> Pair:
    """From the pair of `mlp(x)` to that of x."""
    u = mlp.up(x)
    g = torch.ops.aten.gelu_backward(pair.gradient @ mlp.down.weight, u, approximate=mlp.gelu)
    r = lrp.linear(mlp.bend(u), mlp.down.weight, pair.relevance, exact)
    del u
    return through_linear(mlp.up, x, Pair(r, g), exact)


def _positive(both: Float[Tensor, "b h r n"]) -> Matrix:
    return reduce(both.relu_(), "b h r n -> b r n", "mean")


@dataclass(frozen=True, eq=False)
class Look:
    """An attention at work: the tokens x ask, those of `context` are asked."""

    attention: Attention
    relation: Relation
    x: Asking
    context: Tokens
    given: bool = False
    """Whether what asks is a parameter: then it is no operand, as a bias is none, and takes no relevance."""

    @cached_property
    def mine(self) -> Relation:
        """What those that ask are told."""
        return self.relation.rows(self.x.shape[1])

    @cached_property
    def qkv(self) -> tuple[Queries, Heads, Heads]:
        """Queries and keys at their places, and values."""
        q, k, v = self.attention.split(self.x, context=self.context)
        return self.mine.turned(q), self.relation.turned(k), v

    @cached_property
    def heads(self) -> Queries:
        """What each head has gathered."""
        return attend(*self.qkv, self.mine.weight)

    def answer(self) -> Asking:
        """The heads, mixed."""
        return self.attention.join(self.heads)

    def through(
        self, pair: Pair, exact: int, onward: bool = True
    ) -> tuple[tuple[Matrix, Matrix], tuple[Pair, Pair] | None]:
        """From the pair of the answer to those of x and of `context`, if it goes on.

        First come (gradient x relevance)+ and (gradient x attention)+.
        """
        (q, k, v), heads = self.qkv, rearrange(self.heads, "b h r k -> b r (h k)")
        joined = through_linear(self.attention.out, heads, pair, exact)
        r, g = (rearrange(t, "b r (h k) -> b h r k", h=self.attention.heads) for t in joined)
        p = probabilities(q, k, self.mine.weight)
        rp, rv = lrp.product(p, v, self.heads, r)
        gp = g @ v.mT
        seen = _positive(gp * rp), _positive(gp * p)
        if not onward:
            return seen, None
        gv, gl = p.mT @ g, torch._softmax_backward_data(gp, p, -1, p.dtype).mul_(q.shape[-1] ** -0.5)
        del p, gp
        gq, gk = self.mine.back(gl @ k), self.relation.back(gl.mT @ q)
        del gl
        rq, rk = self._compared(rp)
        asked = plus(
            self._projected(self.attention.k, self.context, rk, gk, exact),
            self._projected(self.attention.v, self.context, rv, gv, exact),
        )
        return seen, (self._projected(self.attention.q, self.x, rq, gq, exact), asked)

    def _compared(self, r: Float[Tensor, "b h r n"]) -> tuple[Queries, Heads]:
        """From the relevance of the logits to that of queries and keys."""
        q, k, _ = self.qkv
        rq, rk = lrp.product(q, k.mT, q @ k.mT, r)
        if self.given:
            lrp.normalise(rq.zero_(), rk, r)
        return rq, rk.mT

    def _projected(self, layer: nn.Linear, x: Tokens, r: Heads, g: Heads, exact: int) -> Pair:
        return through_linear(layer, x, Pair(*(rearrange(t, "b h n k -> b n (h k)") for t in (r, g))), exact)


@dataclass(frozen=True, eq=False)
class Step:
    """A block at work, of which nothing is kept but what enters it."""

    block: Block
    relation: Relation
    z: Tokens
    rows: int
    """How many tokens, the first ones, are wanted of what leaves it."""
    means: Means | None
    """What the tokens of patches are replaced by between attention and MLP, if some are merged there."""

    def look(self) -> Look:
        """Its attention."""
        x = self.block.norm1(self.z)
        return Look(self.block.attention, self.relation, x[:, : self.rows], x)

    def merged(self, z: Asking) -> Asking:
        """What the MLP is given of what leaves the attention."""
        return z if self.means is None else self.means @ z

    def branch(self, middle: Asking, out: Asking) -> Asking:
        """What the MLP adds to what enters it."""
        if self.block.add2.norm is None:
            return out - middle
        return scaled(self.block.add2, self.block.mlp(self.block.norm2(middle)))


@torch.no_grad()
def ascend(vit: ViT, image: Image, rows: int = 0) -> tuple[list[Step], Asking, Counted | None]:
    """Run the blocks, the last one for the first `rows` tokens only (0: for all), which are never merged.

    Returns the blocks, what leaves the last one, and whether each of that still counts.

    What is kept gets its places at the start: scattered among passing tensors, it would hold theirs as well.
    """
    z, steps, stages = vit.embed(image), list[Step](), unfold(vit, image)
    for block, place, stage in zip(vit.blocks, z.new_empty(len(vit.blocks), *z.shape), stages, strict=True):
        z = place.copy_(z)
        few = bool(rows) and len(steps) == len(vit.blocks) - 1
        step = Step(
            block=block,
            relation=Relation(stage.weight, stage.turn),
            z=z,
            rows=rows if few else z.shape[1],
            means=None if few else stage.means,
        )
        steps.append(step)
        z = step.merged(block.add1(z[:, : step.rows], step.look().answer()))
        z = block.add2(z, block.mlp(block.norm2(z)))
    return steps, z, stages[-1].counted


def descend(step: Step, out: Asking, pair: Pair, exact: int, onward: bool) -> tuple[Matrix, Matrix, Pair]:
    """From the pair of what leaves a block to its matrices, and if it goes on to that of what enters it."""
    block, z, look = step.block, step.z[:, : step.rows], step.look()
    y = scaled(block.add1, look.answer())
    apart = z + y if block.add1.norm is None else block.add1.norm(z + y)
    middle = step.merged(apart)
    more = step.branch(middle, out)
    pair = through_norm(block.add2.norm, middle + more, pair)
    skip, pair = through_add(block.add2, middle, more, pair)
    pair = through_norm(block.norm2, middle, through_mlp(block.mlp, block.norm2(middle), pair, exact))
    pair = through_means(step.means, apart, plus(pair, skip))
    pair = through_norm(block.add1.norm, z + y, pair)
    skip, pair = through_add(block.add1, z, y, pair)
    del apart, middle, more, y
    seen, found = look.through(pair, exact, onward)
    if found is None:
        return *seen, skip
    return *seen, plus(through_norm(block.norm1, step.z, plus(found[1], found[0])), skip)
