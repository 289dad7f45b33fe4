"""GPT: a Transformer that only looks back (Radford et al. 2018 and 2019).

The blocks are the ViT's, pre-norm; the mask is a lower triangle; the logits at a word predict the next one.
Shapes: b texts, n words, d width, v vocabulary, t cached words.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.nn.attention import Tokens
from saccade.nn.block import Block, BlockStyle
from saccade.nn.norm import norm
from saccade.nn.stack import Stack
from saccade.nn.text.decoder_block import BENDS, Pair, block_step, encoder_block, rows
from saccade.nn.text.words import (
    POSITIONS,
    Mask,
    Numbers,
    Unembedding,
    WordEmbedding,
    past,
    places,
    weight_of,
)
from saccade.values import one_of, validate, within


@dataclass(frozen=True, kw_only=True, slots=True)
class GPTConfig:
    """The defaults are GPT-2 small: 124,439,808 parameters."""

    vocabulary: int = within(1, 2**24, default=50_257)
    context: int = within(2, 2**20, default=1024)
    """The longest text it sees at once."""
    width: int = within(1, 2**16, default=768)
    depth: int = within(1, 1024, default=12)
    heads: int = within(1, 1024, default=12)
    hidden: int = within(1, 2**18, default=3072)
    bend: str = one_of(*BENDS, default="gelu")
    position: str = one_of(*POSITIONS, default="learned")
    tied: bool = True
    """Whether the output layer is the transposed word table."""
    block: BlockStyle = BlockStyle(eps=1e-5, gelu="tanh", dropout=0.1)

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True, slots=True)
class GPTState:
    """The text so far, and the cached keys and values of its words in each block."""

    tokens: Int[Tensor, "b t"]
    mask: Bool[Tensor, "b t"]
    before: tuple[Pair, ...]

    def reorder(self, index: Int[Tensor, "r"]) -> "GPTState":
        return GPTState(self.tokens[index], self.mask[index], rows(self.before, index))


class GPT(nn.Module):
    """Words, blocks, the next word; your own loops run over `embed`, `blocks`, `read`."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config, style = config, config.block
        sizes = config.width, config.heads, config.hidden
        self.words = WordEmbedding(config.vocabulary, config.context, config.width, config.position)
        self.dropout = nn.Dropout(style.dropout)
        self.blocks: Stack[Block] = Stack(
            encoder_block(*sizes, style, config.bend) for _ in range(config.depth)
        )
        self.norm = norm(style.norm, config.width, style.eps) if style.placement == "pre" else nn.Identity()
        self.unembed = Unembedding(config.vocabulary, config.width, config.tied)
        self._draw()

    def _draw(self) -> None:
        """Draw from N(0, 0.02 squared), less where a branch joins the stream (Radford et al. 2019, 2.3)."""
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        for block in self.blocks:
            for last in (block.attention.out, block.mlp.down):
                nn.init.normal_(last.weight, std=0.02 * (2 * self.config.depth) ** -0.5)

    def embed(self, tokens: Numbers, mask: Mask | None = None) -> Tokens:
        """Return words with their positions; padding takes none, on either side."""
        return self.dropout(self.words(tokens, None if mask is None else places(mask)))

    def read(self, z: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        """Return logits of each next word."""
        return self.unembed(self.norm(z), self.words)

    def encode(self, tokens: Numbers, mask: Mask | None = None) -> Tokens:
        """Return the stream after the last block."""
        z, weight = self.embed(tokens, mask), past(tokens, mask)
        for block in self.blocks:
            z = block(z, weight)
        return z

    def forward(self, tokens: Numbers, mask: Mask | None = None) -> Float[Tensor, "b n v"]:
        return self.read(self.encode(tokens, mask))

    def start(self, source: Numbers, mask: Mask | None, bos: int) -> tuple[GPTState, Int[Tensor, "b"]]:
        """See `NextToken`; only the end of a prompt longer than the context is read."""
        mask = torch.ones_like(source, dtype=torch.bool) if mask is None else mask
        lengths = mask.sum(1, keepdim=True)
        if bos < 0 and bool((lengths == 0).any()):
            raise UsageError("the prompt is empty; give at least one word to continue from")
        ends = torch.arange(min(source.shape[1], self.config.context), device=source.device)
        columns = ends + (lengths - self.config.context).clamp_min(0)
        framed = torch.cat([torch.full_like(lengths, bos), source], dim=1)
        first = framed.gather(1, lengths)[:, 0]
        return self._read_text(source.gather(1, columns), columns < lengths - 1), first

    def _read_text(self, tokens: Numbers, mask: Mask) -> GPTState:
        """Return the state after a text, from all of its words at once."""
        kept, z, weight = [], self.embed(tokens, mask), past(tokens, mask)
        for block in self.blocks:
            z, pair = block_step(block, z, None, weight)
            kept.append(pair)
        return GPTState(tokens, mask, tuple(kept))

    def _later(self, state: GPTState) -> tuple[Numbers, Mask]:
        """Return the later half of full texts and all of the others, aligned on the right."""
        count = state.mask.sum(1, keepdim=True)
        kept = torch.where(count < self.config.context, count, self.config.context // 2)
        width = int(kept.max())
        order = state.mask.byte().argsort(dim=1, stable=True)[:, state.mask.shape[1] - width :]
        places = torch.arange(width, device=order.device)
        return state.tokens.gather(1, order), places >= width - kept

    def step(self, state: GPTState, token: Int[Tensor, "b"]) -> tuple[Float[Tensor, "b v"], GPTState]:
        """Return the last row of `forward`, from the cached keys and values.

        A text that fills the context continues from its later half, which is read again as a new text.
        """
        if self.config.position == "learned" and int(state.mask.sum(1).max()) >= self.config.context:
            state = self._read_text(*self._later(state))
        tokens = torch.cat([state.tokens, token[:, None]], dim=1)
        mask = torch.cat([state.mask, torch.ones_like(token[:, None], dtype=torch.bool)], dim=1)
        weight = None if bool(mask.all()) else weight_of(mask)
        z, kept = self.dropout(self.words(token[:, None], state.mask.sum(1, keepdim=True))), []
        for block, before in zip(self.blocks, state.before, strict=True):
            z, pair = block_step(block, z, before, weight)
            kept.append(pair)
        return self.read(z[:, 0]).log_softmax(-1), replace(
            state, tokens=tokens, mask=mask, before=tuple(kept)
        )
