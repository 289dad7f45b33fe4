"""A ViT whose blocks run in another loop: what `build` and `weights` need to know about `tokens`.

`tokens` drops and merges tokens, in a layer above this one. Its configs are `LoopConfig`s, which build their
own modules, so `build` needs no list of them.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from saccade.models.hybrid import HybridConfig, Stem, start_stem
from saccade.models.vit import ViT, ViTConfig
from saccade.nn.attention import Tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopConfig(ABC):
    """A ViT or a hybrid, and the settings of the loop over its blocks."""

    kind: ClassVar[str]
    """The name in model.json."""
    vit: ViTConfig | HybridConfig

    @abstractmethod
    def build(self) -> ViT:
        """Build an untrained module."""


class Looped(ViT):
    """A ViT run by another loop; its tensors keep the names they have in the ViT."""

    def __init__(self, config: LoopConfig) -> None:
        made = config.vit
        super().__init__(vit_of(made), Stem(made) if isinstance(made, HybridConfig) else None)
        start_stem(self)
        self.loop = config

    def features(self, z: Tokens, weight: Float[Tensor, "b n"] | None = None) -> Float[Tensor, "b *pair e"]:
        """Return a ViT's features; token j counts `weight[j]` times."""
        return self.pool(z, self.norm, self.config.front, weight)

    def read(self, z: Tokens, weight: Float[Tensor, "b n"] | None = None) -> Float[Tensor, "b classes"]:
        """Eq. 4: norm, pool, (pre-logits), head."""
        return self.head(self.prelogits(self.features(z, weight)))


def vit_of(config: ViTConfig | HybridConfig | LoopConfig) -> ViTConfig:
    """The ViT inside a config."""
    return config if isinstance(config, ViTConfig) else vit_of(config.vit)


def with_vit(
    config: ViTConfig | HybridConfig | LoopConfig, vit: ViTConfig
) -> ViTConfig | HybridConfig | LoopConfig:
    """The same config around another ViT."""
    if isinstance(config, ViTConfig):
        return vit
    if isinstance(config, LoopConfig) and isinstance(config.vit, HybridConfig):
        return replace(config, vit=replace(config.vit, vit=vit))
    return replace(config, vit=vit)
