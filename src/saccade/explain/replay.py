"""The forward pass of a ViT, block by block over the same modules, open to inspection between the steps.

`replay` hands each block's `Moment` to a callback and keeps only what that returns. The fused kernel still
computes the output: attention matrices are formed from the same q and k only where they are read, whole or a
few rows at a time.

A model that drops or merges patches is replayed as its dense equivalent (tokens/unfold.py).

Shapes: b batch, h heads, n tokens, d width, k width of a head.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from saccade.models.vit import ViT
from saccade.nn.attention import Tokens, Weight, attend, probabilities
from saccade.nn.block import Block
from saccade.nn.patch import Image
from saccade.tokens.unfold import Stage, read, unfold

_Matrix = Float[Tensor, "b h n n"]
HeadOutputs = Float[Tensor, "b h n k"]
Grid = tuple[int, int]
T = TypeVar("T")


@dataclass(slots=True)
class AttentionRows:
    """Some rows of a block's attention matrices: the queries from `start` on."""

    start: int
    p: Float[Tensor, "b h rows n"]


@dataclass
class Moment:
    """One block during the forward pass; its properties and methods compute on demand."""

    index: int
    block: Block
    z: Tokens
    """The residual stream that enters the block (of post-norm blocks too)."""
    q: HeadOutputs
    k: HeadOutputs
    v: HeadOutputs
    stage: Stage
    explicit: bool

    @property
    def weight(self) -> Weight | None:
        """The multiplicity of each key."""
        return self.stage.weight

    @cached_property
    def attention(self) -> _Matrix:
        """The whole attention matrices; `attention @ v` is `heads`."""
        return probabilities(self.q, self.k, self.weight)

    def rows(self, count: int) -> Iterator[AttentionRows]:
        """Yield the same matrices `count` queries at a time, for sequences whose matrices would not fit."""
        for start in range(0, self.q.shape[2], count):
            q, weight = self.q[:, :, start : start + count], self.weight
            if weight is not None and weight.shape[2] > 1:
                weight = weight[:, :, start : start + count]
            yield AttentionRows(start, probabilities(q, self.k, weight))

    @cached_property
    def heads(self) -> HeadOutputs:
        """The output of each head, before the heads are mixed."""
        if self.explicit:
            return self.attention @ self.v
        return attend(self.q, self.k, self.v, self.weight)

    @cached_property
    def middle(self) -> Tokens:
        """The residual stream between attention and MLP (Eq. 2)."""
        return self.stage.between(self.block.add1(self.z, self.block.attention.join(self.heads)))

    @cached_property
    def out(self) -> Tokens:
        """The residual stream after the block (Eq. 3)."""
        return self.block.add2(self.middle, self.block.mlp(self.block.norm2(self.middle)))

    def parts(self) -> Float[Tensor, "b h n d"]:
        """Return what each head adds to the stream; they sum to the attention's output less its bias."""
        width = self.v.shape[-1]
        out = rearrange(self.block.attention.out.weight, "d (h k) -> h k d", k=width)
        return self.heads @ out


def moments(vit: ViT, image: Image, explicit: bool = False) -> Iterator[Moment]:
    """Yield a `Moment` for each block in order; each block starts from the `out` of the one before.

    Args:
        explicit: compute the heads from the matrix, so that gradients reach `attention`.
    """
    yield from follow(vit.blocks, vit.embed(image), unfold(vit, image), explicit)


def follow(
    blocks: Iterable[Block], z: Tokens, stages: Iterable[Stage], explicit: bool = False
) -> Iterator[Moment]:
    """Do the same for any list of blocks and their input: GPT and BERT share the blocks of a ViT."""
    for index, (block, stage) in enumerate(zip(blocks, stages, strict=True)):
        q, k, v = block.attention.split(block.norm1(z), turn=stage.turn)
        moment = Moment(index, block, z, q, k, v, stage, explicit)
        yield moment
        z = moment.out


def replay(
    vit: ViT, image: Image, look: Callable[[Moment], T], explicit: bool = False
) -> tuple[Float[Tensor, "b classes"], list[T]]:
    """Run the model as `forward` does; return its logits, and what `look` returned for each block."""
    seen, z, counted = [], torch.empty(0, 0, 0), None
    for moment in moments(vit, image, explicit):
        seen.append(look(moment))
        z, counted = moment.out, moment.stage.counted
    return read(vit, z, counted), seen


def grid_of(vit: ViT, image: Image) -> Grid:
    """Return rows and columns of patches."""
    return image.shape[-2] // vit.config.patch, image.shape[-1] // vit.config.patch
