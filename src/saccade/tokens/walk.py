"""The one loop over the blocks of a ViT that drops or merges tokens.

A `Walk` follows the tokens of one batch. It may drop some before a block (`before`) or merge some between
attention and MLP (`between`), and knows which patches they stand for (`trace`). The plain walk changes
nothing: its tokens are those of `ViT.encode`, bit for bit.
"""

from abc import abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.models.looped import Looped
from saccade.models.vit import ViT
from saccade.nn import pool
from saccade.nn.attention import Tokens, Turn, Weight, attend
from saccade.nn.block import Block
from saccade.nn.patch import Image
from saccade.tokens.trace import Trace, whole

Heads = Float[Tensor, "b h n k"]
Places = Int[Tensor, "b m"]
Fewer = Float[Tensor, "b m d"]
"""The remaining tokens; as many as before if none is dropped or merged."""


def rows(places: Places, each: int) -> Int[Tensor, "bm"]:
    """Return indices within images of `each` tokens as rows of the flattened batch."""
    if places.shape[0] == 1 and not torch.compiler.is_compiling():  # saves microseconds in a small model
        return places[0]
    starts = torch.arange(places.shape[0], device=places.device)[:, None] * each
    return (places + starts).flatten()


def select(x: Float[Tensor, "b n c"], places: Places) -> Float[Tensor, "b m c"]:
    """Return the tokens of each image at its own `places`; copies whole rows, unlike `gather`."""
    return x.flatten(0, 1).index_select(0, rows(places, x.shape[1])).view(*places.shape, -1)


def gather_pairs(
    weight: Float[Tensor, "1 h t t"] | None, turn: Float[Tensor, "2 t k"] | None, kept: Places
) -> tuple[Float[Tensor, "b h m m"] | None, Float[Tensor, "2 b 1 m k"] | None]:
    """Return the relative weights and angles of the tokens that are kept in each image."""
    pairs = None if weight is None else weight[0][:, kept[:, :, None], kept[:, None, :]].transpose(0, 1)
    return pairs, None if turn is None else turn[:, kept][:, :, None]


class Walk:
    """Follows the tokens of a batch through the blocks."""

    def __init__(self, vit: ViT, image: Image) -> None:
        self.front = vit.config.front
        self.batch = image.shape[0]
        self.grid = image.shape[-2] // vit.config.patch, image.shape[-1] // vit.config.patch
        self.device = image.device
        self.weight: Weight | None
        """How often each remaining key counts."""
        self.turn: Turn | None
        self.weight, self.turn = vit.relate(image)

    def before(self, index: int, z: Tokens) -> Fewer:
        """Return what enters block `index`; called once per block, in order."""
        return z

    def attend(self, q: Heads, k: Heads, v: Heads) -> Heads:
        """Compute the attention of a block."""
        return attend(q, k, v, self.weight)

    def between(self, index: int, z: Tokens, q: Heads, k: Heads) -> Fewer:
        """Return what the MLP of block `index` gets from its attention; called once per block, in order."""
        return z

    def trace(self) -> Trace:
        """Return which patches the remaining tokens stand for."""
        return whole(self.batch, self.grid[0] * self.grid[1], self.device)


def run(vit: ViT, walk: Walk, z: Tokens, asked: int | None = None) -> Fewer:
    """Take tokens through all blocks.

    Args:
        asked: The last block computes only this many first tokens, because the head reads no others.
    """
    last = len(vit.blocks) - 1
    for index, block in enumerate(vit.blocks):
        z = walk.before(index, z)
        if index == last and asked is not None and walk.turn is None:
            return _answer(block, walk, z, asked)
        z = step(block, walk, index, z)
    return z


def step(block: Block, walk: Walk, index: int, z: Tokens) -> Fewer:
    """Take tokens through a block, after `before`."""
    q, k, v = block.attention.split(block.norm1(z), turn=walk.turn)
    z = block.add1(z, block.attention.join(walk.attend(q, k, v)))
    z = walk.between(index, z, q, k)
    return block.add2(z, block.mlp(block.norm2(z)))


def _answer(block: Block, walk: Walk, z: Tokens, asked: int) -> Fewer:
    """Run a block for its first tokens only, which attend to all others."""
    x = block.norm1(z)
    q, k, v = block.attention.split(x[:, :asked], x)
    weight = walk.weight if walk.weight is None else walk.weight[:, :, :asked]
    z = block.add1(z[:, :asked], block.attention.join(attend(q, k, v, weight)))
    return block.add2(z, block.mlp(block.norm2(z)))


class Walker(Looped):
    """A ViT whose tokens go through the blocks in its own walk."""

    @abstractmethod
    def walk(self, image: Image) -> Walk:
        """Return a new walk for a batch of images."""

    def encode(self, image: Image) -> Tokens:
        """Return the tokens after the last block."""
        return run(self, self.walk(image), self.embed(image))

    def asked(self) -> int | None:
        """Return how many first tokens the head reads; None if it reads the patches too."""
        return pool.KINDS[self.config.pool] if self.config.pool in ("token", "pair") else None


def start(vit: ViT, image: Image) -> Walk:
    """Return the walk of any ViT: its own, or the one that changes nothing."""
    return vit.walk(image) if isinstance(vit, Walker) else Walk(vit, image)
