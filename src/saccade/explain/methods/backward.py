"""The backward pass of a score through a ViT's blocks, for its relevance and its gradient at once.

The steps of a block in reverse (nn/block.py): relevance by the rules of lrp.py, the gradient by the chain
rule. autograd cannot do this: LRP is not a derivative, and a graph of the whole model would hold every
attention matrix of every block. So the forward pass keeps only the input of each block (`BlockRecord`), and
the backward pass recomputes the inside of one block at a time, like gradient checkpointing: about one more
forward pass in time, and no more than half a block in memory.

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
from saccade.explain.replay import HeadOutputs
from saccade.models.vit import ViT
from saccade.nn.attention import Attention, Tokens, Turn, Weight, attend, probabilities
from saccade.nn.block import Add, Block
from saccade.nn.mlp import MLP
from saccade.nn.patch import Image
from saccade.nn.rotary import rotate
from saccade.tokens.unfold import Counted, Means, unfold

_Queries = Float[Tensor, "b h r k"]
QueryTokens = Float[Tensor, "b r d"]
QueryMatrix = Float[Tensor, "b r n"]
"""A mean over the heads of a block's attention: a row per query, a column per token."""


class Signal(NamedTuple):
    """What is propagated backwards: relevance and gradient of the same tokens."""

    relevance: Tokens
    gradient: Tokens


def accumulate(signal: Signal, more: Signal) -> Signal:
    """Add, in place, the signal of another branch; it may cover only the first tokens."""
    for whole, part in zip(signal, more, strict=True):
        whole[:, : part.shape[1]] += part
    return signal


@dataclass(frozen=True, eq=False)
class Relation:
    """What attention knows about pairs of tokens besides q and k: key weights and rotary positions."""

    weight: Weight | None = None
    turn: Turn | None = None

    def rows(self, count: int) -> "Relation":
        """Return the relation of the first queries only."""
        weight, turn = self.weight, self.turn
        if weight is not None and weight.shape[2] > 1:
            weight = weight[:, :, :count]
        return Relation(weight, None if turn is None else turn[..., :count, :])

    def rotate(self, x: HeadOutputs) -> HeadOutputs:
        """Rotate queries or keys to their positions."""
        return x if self.turn is None else rotate(x, self.turn)

    def rotate_back(self, gradient: HeadOutputs) -> HeadOutputs:
        """Return the gradient before the rotation from that after it."""
        return gradient if self.turn is None else rotate(gradient, torch.stack([self.turn[0], -self.turn[1]]))


def norm_backward(norm: nn.Module | None, x: Tokens, signal: Signal) -> Signal:
    """Apply the chain rule to the gradient; relevance passes a norm unchanged."""
    if norm is None or isinstance(norm, nn.Identity):
        return signal
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        # The gradient of a number: torch would import a whole algebra system to check a tensor of gradients.
        return Signal(signal.relevance, torch.autograd.grad((norm(x) * signal.gradient).sum(), x)[0])


def means_backward(means: Means | None, x: Tokens, signal: Signal) -> Signal:
    """Propagate from the means of merged tokens to the tokens: a linear layer with them as inputs."""
    if means is None:
        return signal
    parts = x.clamp_min(0)
    whole = means @ parts
    some = whole > 0
    r = parts * (means.mT @ torch.where(some, signal.relevance / whole.clamp_min(lrp.LEAST), 0))
    r += means.mT @ torch.where(some, 0, signal.relevance)
    return Signal(r, means.mT @ signal.gradient)


def add_backward(add: Add | None, z: Tokens, y: Tokens, signal: Signal) -> tuple[Signal, Signal]:
    """Propagate from z + y to z and to the branch before its scale; y is the branch after it."""
    left, right = lrp.add(z, y, signal.relevance)
    branch = signal.gradient if add is None else apply_scale(add, signal.gradient)
    return Signal(left, signal.gradient), Signal(right, branch)


def apply_scale(add: Add, y: Tokens) -> Tokens:
    """Multiply a branch by its scale, if it has one."""
    return y if add.scale is None else y * add.scale


def linear_backward(layer: nn.Linear, x: Tokens, signal: Signal, exact: int) -> Signal:
    """Propagate from `layer(x)` to x; relevance is exact for the first tokens (lrp.linear)."""
    return Signal(lrp.linear(x, layer.weight, signal.relevance, exact), signal.gradient @ layer.weight)


def mlp_backward(mlp: MLP, x: Tokens, signal: Signal, exact: int) -> Signal:
    """Propagate from `mlp(x)` to x."""
    u = mlp.up(x)
    g = torch.ops.aten.gelu_backward(signal.gradient @ mlp.down.weight, u, approximate=mlp.gelu)
    r = lrp.linear(mlp.bend(u), mlp.down.weight, signal.relevance, exact)
    del u  # the widest tensor of a block
    return linear_backward(mlp.up, x, Signal(r, g), exact)


def _positive(both: Float[Tensor, "b h r n"]) -> QueryMatrix:
    return reduce(both.relu_(), "b h r n -> b r n", "mean")


@dataclass(frozen=True, eq=False)
class AttentionBackward:
    """One attention, recomputed: queries come from x, keys and values from `context`."""

    attention: Attention
    relation: Relation
    x: QueryTokens
    context: Tokens
    fixed: bool = False
    """Whether x is a parameter: like a bias it is not an operand, and takes no relevance."""

    @cached_property
    def query_relation(self) -> Relation:
        """The relation of the queries of x."""
        return self.relation.rows(self.x.shape[1])

    @cached_property
    def qkv(self) -> tuple[_Queries, HeadOutputs, HeadOutputs]:
        """Queries and keys after rotation, and values."""
        q, k, v = self.attention.split(self.x, context=self.context)
        return self.query_relation.rotate(q), self.relation.rotate(k), v

    @cached_property
    def heads(self) -> _Queries:
        """The output of each head."""
        return attend(*self.qkv, self.query_relation.weight)

    def output(self) -> QueryTokens:
        """Return the heads, mixed."""
        return self.attention.join(self.heads)

    def backward(
        self, signal: Signal, exact: int, onward: bool = True
    ) -> tuple[tuple[QueryMatrix, QueryMatrix], tuple[Signal, Signal] | None]:
        """Propagate from the output to x and `context`, unless the pass ends here (`onward` is False).

        Returns first (gradient x relevance)+ and (gradient x attention)+, which the maps are made of.
        """
        (q, k, v), heads = self.qkv, rearrange(self.heads, "b h r k -> b r (h k)")
        joined = linear_backward(self.attention.out, heads, signal, exact)
        r, g = (rearrange(t, "b r (h k) -> b h r k", h=self.attention.heads) for t in joined)
        p = probabilities(q, k, self.query_relation.weight)
        # heads = p v: relevance is shared among both factors, the gradient follows the chain rule
        rp, rv = lrp.product(p, v, self.heads, r)
        gp = g @ v.mT
        seen = _positive(gp * rp), _positive(gp * p)
        if not onward:
            return seen, None
        # of the values, and of the logits q k^T / sqrt(k)
        gv, gl = p.mT @ g, torch._softmax_backward_data(gp, p, -1, p.dtype).mul_(q.shape[-1] ** -0.5)
        del p, gp  # matrices of all heads: at most three are alive at a time
        gq, gk = self.query_relation.rotate_back(gl @ k), self.relation.rotate_back(gl.mT @ q)
        del gl
        rq, rk = self._logits_backward(rp)
        context = accumulate(
            self._project_backward(self.attention.k, self.context, rk, gk, exact),
            self._project_backward(self.attention.v, self.context, rv, gv, exact),
        )
        return seen, (self._project_backward(self.attention.q, self.x, rq, gq, exact), context)

    def _logits_backward(self, r: Float[Tensor, "b h r n"]) -> tuple[_Queries, HeadOutputs]:
        """Share the relevance of the logits (softmax passes it unchanged) among queries and keys."""
        q, k, _ = self.qkv
        rq, rk = lrp.product(q, k.mT, q @ k.mT, r)
        if self.fixed:  # all of it to the keys
            lrp.normalise(rq.zero_(), rk, r)
        return rq, rk.mT

    def _project_backward(
        self, layer: nn.Linear, x: Tokens, r: HeadOutputs, g: HeadOutputs, exact: int
    ) -> Signal:
        signal = Signal(*(rearrange(t, "b h n k -> b n (h k)") for t in (r, g)))
        return linear_backward(layer, x, signal, exact)


@dataclass(frozen=True, eq=False)
class BlockRecord:
    """All that the forward pass keeps of a block: its input, and what decides how it is recomputed."""

    block: Block
    relation: Relation
    z: Tokens
    """The input."""
    rows: int
    """How many of the first tokens of its output are wanted."""
    means: Means | None
    """The matrix that merges patches between attention and MLP, if some are merged there."""

    def attention(self) -> AttentionBackward:
        """Recompute the attention."""
        x = self.block.norm1(self.z)
        return AttentionBackward(self.block.attention, self.relation, x[:, : self.rows], x)

    def merge(self, z: QueryTokens) -> QueryTokens:
        """Return the input of the MLP from the output of the attention."""
        return z if self.means is None else self.means @ z

    def mlp_branch(self, middle: QueryTokens, out: QueryTokens) -> QueryTokens:
        """Return what the MLP adds: a difference where the sum is not normed, which saves running the MLP."""
        if self.block.add2.norm is None:
            return out - middle
        return apply_scale(self.block.add2, self.block.mlp(self.block.norm2(middle)))


@torch.no_grad()
def record_blocks(
    vit: ViT, image: Image, rows: int = 0
) -> tuple[list[BlockRecord], QueryTokens, Counted | None]:
    """Run the blocks; the last one only for its first `rows` tokens (0: all), which are never merged.

    Returns the records, the output of the last block, and which of its tokens still count.
    """
    z, records, stages = vit.embed(image), list[BlockRecord](), unfold(vit, image)
    # One allocation for all records: scattered among temporaries, they would keep those blocks of memory too.
    kept = z.new_empty(len(vit.blocks), *z.shape)
    for block, place, stage in zip(vit.blocks, kept, stages, strict=True):
        z = place.copy_(z)
        few = bool(rows) and len(records) == len(vit.blocks) - 1
        record = BlockRecord(
            block=block,
            relation=Relation(stage.weight, stage.turn),
            z=z,
            rows=rows if few else z.shape[1],
            means=None if few else stage.means,
        )
        records.append(record)
        z = record.merge(block.add1(z[:, : record.rows], record.attention().output()))
        z = block.add2(z, block.mlp(block.norm2(z)))
    return records, z, stages[-1].counted


def block_backward(
    record: BlockRecord, out: QueryTokens, signal: Signal, exact: int, onward: bool
) -> tuple[QueryMatrix, QueryMatrix, Signal]:
    """Propagate from the output of a block to its attention matrices, and if `onward` to its input.

    Args:
        out: its output, which the caller still has: the input of the block above.
        exact: first tokens whose relevance is exact; four matrix products for each layer instead of none
            for the others (lrp.linear).
    """
    # forwards once more: z -> y (attention) -> apart -> middle (merged) -> more (MLP) -> out
    block, z, attention = record.block, record.z[:, : record.rows], record.attention()
    y = apply_scale(block.add1, attention.output())
    apart = z + y if block.add1.norm is None else block.add1.norm(z + y)
    middle = record.merge(apart)
    more = record.mlp_branch(middle, out)
    # backwards: each `add` splits the signal into its skip connection and its branch, which meet again below
    signal = norm_backward(block.add2.norm, middle + more, signal)
    skip, signal = add_backward(block.add2, middle, more, signal)
    signal = norm_backward(block.norm2, middle, mlp_backward(block.mlp, block.norm2(middle), signal, exact))
    signal = means_backward(record.means, apart, accumulate(signal, skip))
    signal = norm_backward(block.add1.norm, z + y, signal)
    skip, signal = add_backward(block.add1, z, y, signal)
    del apart, middle, more, y
    seen, found = attention.backward(signal, exact, onward)
    if found is None:
        return *seen, skip
    queries, context = found
    return *seen, accumulate(norm_backward(block.norm1, record.z, accumulate(context, queries)), skip)
