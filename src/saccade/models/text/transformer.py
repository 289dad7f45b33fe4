"""The Transformer (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762), and a captioner with its decoder.

Post-norm is the paper's; pre-norm (Xiong et al. 2020) ends each stack with a norm. With PowerNorm all words
of a batch share statistics in training, padding and later words included; in evaluation they do not.
Shapes: b sentences, n words of the target, m of the source, d width, v vocabulary.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.models.vit import ViT, ViTConfig
from saccade.nn.attention import Tokens, Weight, causal
from saccade.nn.block import Block, BlockStyle
from saccade.nn.norm import norm
from saccade.nn.stack import Stack
from saccade.nn.text.decoder_block import BENDS, DecoderBlock, Pair, draw, encoder_block, rows
from saccade.nn.text.words import POSITIONS, Mask, Numbers, SourceMask, Unembedding, WordEmbedding, weight_of
from saccade.values import one_of, validate, within


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerConfig:
    """The defaults are the paper's base model (table 3)."""

    source: int = within(0, 2**24, default=37_000)
    """Size of the source's vocabulary; 0 if the source is not text."""
    vocabulary: int = within(1, 2**24, default=37_000)
    """Size of the target's vocabulary."""
    context: int = within(1, 2**20, default=512)
    """Longest text that learnt positions cover."""
    width: int = within(1, 2**16, default=512)
    depth: int = within(1, 1024, default=6)
    """Blocks of the encoder, and as many of the decoder."""
    heads: int = within(1, 1024, default=8)
    hidden: int = within(1, 2**18, default=2048)
    bend: str = one_of(*BENDS, default="relu")
    position: str = one_of(*POSITIONS, default="sinusoidal")
    tie: str = one_of("none", "target", "all", default="all")
    """What shares a word table: none, target (the decoder's input and output), all (the encoder too; 3.4)."""
    block: BlockStyle = BlockStyle(placement="post", eps=1e-5, dropout=0.1)

    def __post_init__(self) -> None:
        validate(self)
        if self.tie == "all" and self.source not in (0, self.vocabulary):
            raise UsageError(
                f"tie is 'all', but the source has {self.source} words and the target {self.vocabulary}; "
                "use one vocabulary for both, or tie 'target'"
            )


@dataclass(frozen=True, slots=True)
class DecodedSoFar:
    """What a decoder keeps of a source and of the words so far."""

    source: tuple[Pair, ...]
    """Keys and values of the source in each block."""
    weight: Weight | None
    before: tuple[Pair, ...]
    """Keys and values of the words so far in each block; empty before the first word."""
    length: int

    def reorder(self, index: Int[Tensor, "r"]) -> "DecodedSoFar":
        weight = None if self.weight is None else self.weight[index]
        return replace(self, source=rows(self.source, index), weight=weight, before=rows(self.before, index))


class Encoder(nn.Module):
    """Blocks in which every word attends to all others."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        style, sizes = config.block, (config.width, config.heads, config.hidden)
        self.dropout = nn.Dropout(style.dropout)
        self.blocks: Stack[Block] = Stack(
            encoder_block(*sizes, style, config.bend) for _ in range(config.depth)
        )
        self.norm = norm(style.norm, config.width, style.eps) if style.placement == "pre" else nn.Identity()

    def forward(self, z: Tokens, weight: Weight | None = None) -> Tokens:
        z = self.dropout(z)
        for block in self.blocks:
            z = block(z, weight)
        return self.norm(z)


class Decoder(nn.Module):
    """Blocks in which words attend to those before them and to a memory: vectors of a text or an image."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        style, sizes = config.block, (config.width, config.heads, config.hidden)
        tied = config.tie != "none"
        self.words = WordEmbedding(
            config.vocabulary, config.context, config.width, config.position, scaled=True
        )
        self.dropout = nn.Dropout(style.dropout)
        self.blocks: Stack[DecoderBlock] = Stack(
            DecoderBlock(*sizes, style, config.bend) for _ in range(config.depth)
        )
        self.norm = norm(style.norm, config.width, style.eps) if style.placement == "pre" else nn.Identity()
        self.unembed = Unembedding(config.vocabulary, config.width, tied)

    def read(self, z: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        """Return logits of each next word."""
        return self.unembed(self.norm(z), self.words)

    def forward(
        self, memory: Float[Tensor, "b m d"], weight: Weight | None, target_in: Numbers
    ) -> Float[Tensor, "b n v"]:
        z = self.dropout(self.words(target_in))
        before = causal(target_in.shape[1], target_in.device)
        for block in self.blocks:
            z = block(z, memory, before, weight)
        return self.read(z)

    def step(self, state: DecodedSoFar, token: Int[Tensor, "b"]) -> tuple[Float[Tensor, "b v"], DecodedSoFar]:
        """Return the last row of `forward`, from the cached keys and values."""
        z = self.dropout(self.words(token[:, None], torch.full_like(token[:, None], state.length)))
        kept = []
        for i, block in enumerate(self.blocks):
            before = state.before[i] if state.before else None
            z, pair = block.step(z, before, state.source[i], state.weight)
            kept.append(pair)
        log_p = self.read(z[:, 0]).log_softmax(-1)
        return log_p, replace(state, before=tuple(kept), length=state.length + 1)


class EncoderDecoder(nn.Module, ABC):
    """Any encoder that makes vectors, and a decoder that attends to them; a new kind only adds `encode`."""

    decoder: Decoder

    @abstractmethod
    def encode(self, source: Tensor, mask: SourceMask | None = None) -> Float[Tensor, "b m d"]:
        """Return the source as vectors of the decoder's width."""

    def forward(self, source: Tensor, mask: SourceMask | None, target_in: Numbers) -> Float[Tensor, "b n v"]:
        return self.decoder(self.encode(source, mask), weight_of(mask), target_in)

    def start(self, source: Tensor, mask: Mask | None, bos: int) -> tuple[DecodedSoFar, Int[Tensor, "b"]]:
        """See `NextToken`."""
        memory = self.encode(source, mask)
        pairs = tuple(block.look(memory) for block in self.decoder.blocks)
        first = torch.full((source.shape[0],), bos, device=source.device)
        return DecodedSoFar(pairs, weight_of(mask), (), 0), first

    def step(self, state: DecodedSoFar, token: Int[Tensor, "b"]) -> tuple[Float[Tensor, "b v"], DecodedSoFar]:
        return self.decoder.step(state, token)


class Transformer(EncoderDecoder):
    """From sentences to sentences."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        if not config.source:
            raise UsageError(
                "source is 0, but a Transformer reads words; give the size of the source's vocabulary"
            )
        self.config = config
        sizes = config.source, config.context, config.width, config.position
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        self.words = None if config.tie == "all" else WordEmbedding(*sizes, scaled=True)
        draw(self)

    def embed(self, source: Numbers) -> Tokens:
        """Return the source's words with their positions."""
        return (self.words or self.decoder.words)(source)

    def encode(self, source: Tensor, mask: Mask | None = None) -> Tokens:
        return self.encoder(self.embed(source), weight_of(mask))


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptionerConfig:
    """A ViT without a head, and a decoder without an encoder of its own."""

    vit: ViTConfig
    text: TransformerConfig

    def __post_init__(self) -> None:
        for name, found in (("vit.classes", self.vit.classes), ("text.source", self.text.source)):
            if found:
                raise UsageError(f"{name} is {found}, but a captioner does not use it; set it to 0")


class Captioner(EncoderDecoder):
    """From images to sentences (after Vinyals et al. 2015); the decoder attends to the tokens of a ViT."""

    def __init__(self, config: CaptionerConfig) -> None:
        super().__init__()
        self.config = config
        self.decoder = Decoder(config.text)
        draw(self.decoder)
        self.vit = ViT(config.vit)
        same = config.vit.width == config.text.width
        self.bridge = nn.Identity() if same else nn.Linear(config.vit.width, config.text.width)

    def encode(self, source: Tensor, mask: SourceMask | None = None) -> Float[Tensor, "b m d"]:
        if mask is not None:
            raise UsageError("a captioner was given a mask, but an image has no padding; give None")
        return self.bridge(self.vit.norm(self.vit.encode(source)))
