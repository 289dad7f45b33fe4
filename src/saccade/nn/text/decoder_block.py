"""Blocks for text: with ReLU, with cross-attention, and word by word with cached keys and values.

The decoder block is that of Vaswani et al. 2017, section 3.1.
Shapes: b batch, h heads, n words, m words of the source, d width, k width of a head.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import check_word
from saccade.nn.attention import Attention, Tokens, Weight, attend
from saccade.nn.block import Add, Block, BlockStyle
from saccade.nn.mlp import MLP
from saccade.nn.norm import norm

BENDS = ("relu", "gelu")
Pair = tuple[Float[Tensor, "b h _ k"], Float[Tensor, "b h _ k"]]
"""Keys and values of an attention layer."""
Past = Float[Tensor, "#b #h #n _"]
"""A `Weight` over the words so far, which are not as many as the source's."""


class ReluMLP(MLP):
    """Widen, ReLU, narrow (Vaswani et al. 2017, Eq. 2)."""

    def bend(self, x: Float[Tensor, "*n hidden"]) -> Float[Tensor, "*n hidden"]:
        return F.relu(x, inplace=not torch.is_grad_enabled())


def mlp(width: int, hidden: int, style: BlockStyle, bend: str) -> MLP:
    """Build the MLP of a block by the name of its nonlinearity; `style.gelu` says which GELU.

    No dropout inside: the Transformer, GPT-2 and BERT drop only what is added to the stream.
    """
    check_word("bend", bend, BENDS)
    return (ReluMLP if bend == "relu" else MLP)(width, hidden, style.gelu)


def encoder_block(width: int, heads: int, hidden: int, style: BlockStyle, bend: str) -> Block:
    """Build a ViT `Block` with either nonlinearity."""
    block = Block(width, heads, hidden, style)
    block.mlp = mlp(width, hidden, style, bend)
    return block


class DecoderBlock(nn.Module):
    """Self-attention, cross-attention, MLP, each with a residual connection; open like `Block`."""

    def __init__(self, width: int, heads: int, hidden: int, style: BlockStyle, bend: str = "relu") -> None:
        super().__init__()
        pre = style.placement == "pre"
        self.norm1, self.norm2, self.norm3 = (
            norm(style.norm, width, style.eps) if pre else nn.Identity() for _ in range(3)
        )
        self.attention, self.cross = Attention(width, heads), Attention(width, heads)
        self.mlp = mlp(width, hidden, style, bend)
        self.add1, self.add2, self.add3 = (Add(width, style) for _ in range(3))

    def forward(
        self,
        z: Tokens,
        memory: Float[Tensor, "b m d"],
        weight: Past | None = None,
        memory_weight: Weight | None = None,
    ) -> Tokens:
        """`weight` is over the words so far, `memory_weight` over the source's."""
        z = self.add1(z, self.attention(self.norm1(z), None, weight))
        z = self.add2(z, self.cross(self.norm2(z), memory, memory_weight))
        return self.add3(z, self.mlp(self.norm3(z)))

    def look(self, memory: Float[Tensor, "b m d"]) -> Pair:
        """Return keys and values of the source: the same for every word, so computed once."""
        _, k, v = self.cross.split(memory[:, :1], memory)
        return k, v

    def step(
        self, z: Tokens, before: Pair | None, source: Pair, source_weight: Weight | None
    ) -> tuple[Tokens, Pair]:
        """Run `forward` for new words after those `before`, whose keys and values are cached."""
        y, kept = remember(self.attention, self.norm1(z), before)
        z = self.add1(z, y)
        q = self.cross.q(self.norm2(z)).unflatten(-1, (self.cross.heads, -1)).transpose(1, 2)
        z = self.add2(z, self.cross.join(attend(q, *source, source_weight)))
        return self.add3(z, self.mlp(self.norm3(z))), kept


def rows(pairs: Iterable[tuple[Tensor, Tensor]], index: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return the keys and values of some sentences of a batch, in any order."""
    return tuple((k[index], v[index]) for k, v in pairs)


def remember(
    attention: Attention, z: Tokens, before: Pair | None, weight: Weight | None = None
) -> tuple[Tokens, Pair]:
    """Attend from new words to themselves and those before; also return the keys and values of all."""
    q, k, v = attention.split(z)
    if before is not None:
        k, v = (torch.cat(pair, dim=2) for pair in zip(before, (k, v), strict=True))
    return attention.join(attend(q, k, v, weight)), (k, v)


def block_step(block: Block, z: Tokens, before: Pair | None, weight: Weight | None) -> tuple[Tokens, Pair]:
    """Run a `Block` for new words after those `before`."""
    y, kept = remember(block.attention, block.norm1(z), before, weight)
    z = block.add1(z, y)
    return block.add2(z, block.mlp(block.norm2(z))), kept


def draw(module: nn.Module) -> None:
    """Initialise linear layers: Xavier uniform (Glorot and Bengio 2010), biases 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
