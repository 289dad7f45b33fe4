"""The forward pass of a ViT in slow motion, over the same blocks, so that one can look between their steps.

`replay` walks through the blocks and gives each `Moment` to whoever looks; nothing is kept but what they
return. The fused kernel goes on computing the answer: the matrices of attention are formed from the same q
and k only where somebody reads them, all at once or a few rows at a time.

A model that drops or merges patches is replayed as the dense one that it equals (tokens/unfold.py).

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

Matrix = Float[Tensor, "b h n n"]
Heads = Float[Tensor, "b h n k"]
Grid = tuple[int, int]
T = TypeVar("T")


@dataclass(slots=True)
class Rows:
    """A few rows of a block's attention matrices: the queries from `start` on."""

    start: int
    p: Float[Tensor, "b h rows n"]


@dataclass
class Moment:
    """One block at work. What is a method here has been computed only when it was called."""

    index: int
    block: Block
    z: Tokens
    """What enters the block (post-norm blocks too): the residual stream."""
    q: Heads
    k: Heads
    v: Heads
    stage: Stage
    explicit: bool

    @property
    def weight(self) -> Weight | None:
        """How often each key counts."""
        return self.stage.weight

    @cached_property
    def attention(self) -> Matrix:
        """The matrices of attention, whole; `attention @ v` is `heads`."""
        return probabilities(self.q, self.k, self.weight)

    def rows(self, count: int) -> Iterator[Rows]:
        """The same matrices, `count` queries at a time, for sequences whose matrices would not fit."""
        for start in range(0, self.q.shape[2], count):
            q, weight = self.q[:, :, start : start + count], self.weight
            if weight is not None and weight.shape[2] > 1:
                weight = weight[:, :, start : start + count]
            yield Rows(start, probabilities(q, self.k, weight))

    @cached_property
    def heads(self) -> Heads:
        """What each head has gathered, before the heads are mixed."""
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
        """What each head alone adds to the stream, the bias of the mixing left out; they sum to the rest."""
        width = self.v.shape[-1]
        out = rearrange(self.block.attention.out.weight, "d (h k) -> h k d", k=width)
        return self.heads @ out


def moments(vit: ViT, image: Image, explicit: bool = False) -> Iterator[Moment]:
    """Yield each block at work, the first first; the next one begins from this one's `out`.

    Args:
        explicit: compute the heads from the matrix, so that gradients reach it (`attention`).
    """
    yield from follow(vit.blocks, vit.embed(image), unfold(vit, image), explicit)


def follow(
    blocks: Iterable[Block], z: Tokens, stages: Iterable[Stage], explicit: bool = False
) -> Iterator[Moment]:
    """The same for any row of blocks and what enters the first: a GPT's and a BERT's are those of a ViT."""
    for index, (block, stage) in enumerate(zip(blocks, stages, strict=True)):
        q, k, v = block.attention.split(block.norm1(z), turn=stage.turn)
        moment = Moment(index, block, z, q, k, v, stage, explicit)
        yield moment
        z = moment.out


def replay(
    vit: ViT, image: Image, look: Callable[[Moment], T], explicit: bool = False
) -> tuple[Float[Tensor, "b classes"], list[T]]:
    """Run the model as `forward` does; return its answer, and what `look` returned for each block."""
    seen, z, counted = [], torch.empty(0, 0, 0), None
    for moment in moments(vit, image, explicit):
        seen.append(look(moment))
        z, counted = moment.out, moment.stage.counted
    return read(vit, z, counted), seen


def grid_of(vit: ViT, image: Image) -> Grid:
    """Rows and columns of patches in a picture."""
    return image.shape[-2] // vit.config.patch, image.shape[-1] // vit.config.patch
