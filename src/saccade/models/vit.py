"""The Vision Transformer (Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929), equations 1 to 4."""

from dataclasses import dataclass, replace

import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import check_number, check_word
from saccade.nn import conv_stem, init, pool, position_kinds, resample
from saccade.nn.attention import Tokens, Turn, Weight
from saccade.nn.block import Block, BlockStyle
from saccade.nn.head import PairHead, linear_head
from saccade.nn.norm import norm
from saccade.nn.patch import Image, check_size
from saccade.nn.stack import Stack

LIMITS = {"patch": 1024, "width": 2**16, "depth": 1024, "heads": 1024, "hidden": 2**18}


@dataclass(frozen=True, kw_only=True, slots=True)
class ViTConfig:
    """Everything that decides the weights of a ViT and what it computes from them."""

    image: tuple[int, int] = (224, 224)
    """Height and width of the training images; other sizes resample the positions."""
    patch: int = 16
    width: int = 768
    depth: int = 12
    heads: int = 12
    hidden: int = 3072
    classes: int = 1000
    """0 leaves out the head: the model returns its features."""
    pool: str = "token"
    position: str = "learned"
    resample: str = "antialias"
    convs: tuple[int, ...] = ()
    """Widths of 3x3 convolutions instead of the patch projection (nn/conv_stem.py)."""
    prelogits: int = 0
    """Width of a Linear + tanh before the head, as for ImageNet-21k (section 3.1); 0 means none."""
    registers: int = 0
    """Extra tokens that belong to no patch (Darcet et al. 2024)."""
    block: BlockStyle = BlockStyle()

    def __post_init__(self) -> None:
        for name, most in LIMITS.items():
            check_number(name, getattr(self, name), 1, most)
        for name in ("classes", "prelogits", "registers"):
            check_number(name, getattr(self, name), 0, 2**20)
        conv_stem.check(self.patch, self.convs)
        for side in self.image:
            check_number("image", side, self.patch, 2**14)
        check_size(*self.image, self.patch)
        check_word("pool", self.pool, pool.KINDS)
        check_word("position", self.position, position_kinds.KINDS)
        check_word("resample", self.resample, resample.WAYS)

    @property
    def grid(self) -> tuple[int, int]:
        return self.image[0] // self.patch, self.image[1] // self.patch

    @property
    def front(self) -> int:
        """Number of tokens before the patches: class tokens, then registers."""
        return pool.KINDS[self.pool] + self.registers


class ViT(nn.Module):
    """Patches to tokens, blocks, logits; your own loops run over `embed`, `relate`, `blocks`, `read`."""

    def __init__(self, config: ViTConfig, patches: nn.Module | None = None) -> None:
        super().__init__()
        self.config, style = config, config.block
        sizes = config.width, config.heads, config.hidden
        self.patches = patches or conv_stem.patches(config.width, config.patch, config.convs)
        self.front = nn.Parameter(torch.zeros(config.front, config.width))
        nn.init.normal_(self.front[config.front - config.registers :], std=0.02)
        self.position = position_kinds.position(
            config.position, config.grid, config.width, config.heads, config.resample
        )
        self.dropout = nn.Dropout(style.dropout)
        rates = (style.droppath * i / max(config.depth - 1, 1) for i in range(config.depth))
        self.blocks: Stack[Block] = Stack(Block(*sizes, replace(style, droppath=rate)) for rate in rates)
        self.norm = norm(style.norm, config.width, style.eps) if style.placement == "pre" else nn.Identity()
        self.pool = pool.pool(config.pool, *sizes, style)
        width = config.width * 2 if config.pool == "token+mean" else config.width
        layers = (nn.Linear(width, config.prelogits), nn.Tanh()) if config.prelogits else ()
        self.prelogits = nn.Sequential(*layers)
        init.google(self)
        self.head = (PairHead if config.pool == "pair" else linear_head)(
            config.prelogits or width, config.classes
        )

    def embed(self, image: Image) -> Tokens:
        """Eq. 1: cut into patches, project, add positions, put class token and registers in front."""
        x = self.patches(image)
        z, here = rearrange(x, "b r c d -> b (r c) d"), self.position(*x.shape[1:3], x)
        front = repeat(self.front, "f d -> b f d", b=z.shape[0])
        return self.dropout(torch.cat([front, z if here is None else z + here], dim=1))

    def relate(self, image: Image) -> tuple[Weight | None, Turn | None]:
        """Return what relates pairs of tokens in the blocks; only relative and rotary positions do."""
        rows, cols = image.shape[-2] // self.config.patch, image.shape[-1] // self.config.patch
        return self.position.relate(rows, cols, self.config.front, image)

    def features(self, z: Tokens) -> Float[Tensor, "b *pair e"]:
        """Return the normalised class token, or another summary (nn/pool.py)."""
        return self.pool(z, self.norm, self.config.front)

    def read(self, z: Tokens) -> Float[Tensor, "b classes"]:
        """Eq. 4: norm, pool, (pre-logits), head."""
        return self.head(self.prelogits(self.features(z)))

    def encode(self, image: Image) -> Tokens:
        """Eq. 1 to 3: return the tokens after the last block."""
        z = self.embed(image)  # Eq. 1
        weight, turn = self.relate(image)
        for block in self.blocks:
            z = block(z, weight, turn)  # Eq. 2 and 3
        return z

    def forward(self, image: Image) -> Float[Tensor, "b classes"]:
        return self.read(self.encode(image))
