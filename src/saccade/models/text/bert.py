"""BERT: a Transformer that reads both ways and fills in hidden words (Devlin et al. 2019, arXiv 1810.04805).

The blocks are the ViT's, post-norm; only padding is masked.
Shapes: b texts, n words, d width, v vocabulary.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.nn.attention import Tokens
from saccade.nn.block import Block, BlockStyle
from saccade.nn.mlp import FORMS
from saccade.nn.norm import norm
from saccade.nn.stack import Stack
from saccade.nn.text.decoder_block import encoder_block
from saccade.nn.text.words import Mask, Numbers, WordEmbedding, places, weight_of
from saccade.values import validate, within


@dataclass(frozen=True, kw_only=True, slots=True)
class BERTConfig:
    """The defaults are BERT-base, uncased, with its head for hidden words."""

    vocabulary: int = within(1, 2**24, default=30_522)
    context: int = within(1, 2**20, default=512)
    segments: int = within(1, 1024, default=2)
    """Kinds of sentences in a text (section 3: first and second)."""
    width: int = within(1, 2**16, default=768)
    depth: int = within(1, 1024, default=12)
    heads: int = within(1, 1024, default=12)
    hidden: int = within(1, 2**18, default=3072)
    fills: bool = True
    """Whether there is a head that predicts hidden words."""
    pooled: bool = True
    """Whether there is a Linear + tanh that summarises a text from its first token."""
    classes: int = within(0, 2**20, default=0)
    """Classes of the whole text (next sentence: 2); 0 means no such head."""
    block: BlockStyle = BlockStyle(placement="post", eps=1e-12, dropout=0.1)

    def __post_init__(self) -> None:
        validate(self)
        if self.classes and not self.pooled:
            raise UsageError(f"classes is {self.classes}, but pooled is off; classes need the pooled output")


class Fill(nn.Module):
    """The head that predicts hidden words: Linear, GELU, norm, the transposed word table, a bias."""

    def __init__(self, config: BERTConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.width, config.width)
        self.norm = norm(config.block.norm, config.width, config.block.eps)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.gelu = FORMS[config.block.gelu]

    def forward(self, z: Float[Tensor, "*n d"], words: WordEmbedding) -> Float[Tensor, "*n v"]:
        z = self.norm(F.gelu(self.dense(z), approximate=self.gelu))
        return F.linear(z, words.table.weight, self.bias)


class BERT(nn.Module):
    """Words, blocks, logits; your own loops run over `embed`, `blocks`, `read`."""

    def __init__(self, config: BERTConfig) -> None:
        super().__init__()
        self.config, style = config, config.block
        self.words = WordEmbedding(config.vocabulary, config.context, config.width)
        self.segment = nn.Embedding(config.segments, config.width)
        self.norm = norm(style.norm, config.width, style.eps)
        self.dropout = nn.Dropout(style.dropout)
        sizes = config.width, config.heads, config.hidden
        self.blocks: Stack[Block] = Stack(encoder_block(*sizes, style, "gelu") for _ in range(config.depth))
        self.last = norm(style.norm, config.width, style.eps) if style.placement == "pre" else nn.Identity()
        self.pool = nn.Linear(config.width, config.width) if config.pooled else None
        self.fill = Fill(config) if config.fills else None
        self.head = nn.Linear(config.width, config.classes) if config.classes else None
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Embedding):
                nn.init.trunc_normal_(layer.weight, std=0.02)
            if isinstance(layer, nn.Linear):
                nn.init.zeros_(layer.bias)

    def embed(self, tokens: Numbers, mask: Mask | None = None, segments: Numbers | None = None) -> Tokens:
        """Return words, positions and segments, summed and normalised (figure 2)."""
        z = self.words(tokens, None if mask is None else places(mask))
        z = z + (self.segment.weight[0] if segments is None else self.segment(segments))
        return self.dropout(self.norm(z))

    def encode(self, tokens: Numbers, mask: Mask | None = None, segments: Numbers | None = None) -> Tokens:
        """Return the words after the last block."""
        z, weight = self.embed(tokens, mask, segments), weight_of(mask)
        for block in self.blocks:
            z = block(z, weight)
        return self.last(z)

    def read(self, z: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        """Return logits of hidden words; pass only the hidden positions to save time."""
        if self.fill is None:
            raise UsageError("this BERT has no head for hidden words; build it with fills=True")
        return self.fill(z, self.words)

    def summary(self, z: Tokens) -> Float[Tensor, "b d"]:
        """Return the text as one vector: tanh of a linear layer on its first token."""
        if self.pool is None:
            raise UsageError("this BERT has no pooled output; build it with pooled=True")
        return self.pool(z[:, 0]).tanh()

    def classify(self, z: Tokens) -> Float[Tensor, "b classes"]:
        """Return logits of the whole text's class."""
        if self.head is None:
            raise UsageError("this BERT has no classes; build it with classes=2 or more")
        return self.head(self.dropout(self.summary(z)))

    def forward(
        self, tokens: Numbers, mask: Mask | None = None, segments: Numbers | None = None
    ) -> Float[Tensor, "b n v"]:
        return self.read(self.encode(tokens, mask, segments))
