"""Cheaper attention for large images in a trained ViT: within windows, or exact in chunks."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from saccade.errors import UsageError, check_number, check_word
from saccade.models.hybrid import Hybrid
from saccade.models.looped import LoopConfig, vit_of
from saccade.models.vit import ViT
from saccade.nn.patch import Image
from saccade.nn.variants.chunked import chunked
from saccade.nn.variants.windowed import windowed
from saccade.tokens.walk import Heads, Walk, Walker

WAYS = ("windowed", "chunked")


@dataclass(frozen=True, kw_only=True, slots=True)
class LightConfig(LoopConfig):
    """How the blocks attend."""

    kind: ClassVar[str] = "light"
    attention: str
    """windowed (other logits, unless a window covers the image) or chunked (the same logits)."""
    size: int
    """Side of a window in patches, or tokens per chunk."""

    def __post_init__(self) -> None:
        check_word("attention", self.attention, WAYS)
        check_number("size", self.size, 1, 2**14)
        if self.attention == "windowed" and vit_of(self.vit).position == "relative":
            raise UsageError(
                "windowed attention does not support relative positions; use attention 'chunked'"
            )

    def build(self) -> "Light":
        return Light(self)


class Glancing(Walk):
    """The walk of a light model: only its attention differs."""

    def __init__(self, vit: "Light", image: Image) -> None:
        super().__init__(vit, image)
        self.plan = vit.plan

    def attend(self, q: Heads, k: Heads, v: Heads) -> Heads:
        if self.plan.attention == "chunked":
            return chunked(q, k, v, self.weight, self.plan.size)
        return windowed(q, k, v, self.grid, self.plan.size)


class Light(Walker):
    """A ViT with cheaper attention and the same weights."""

    def __init__(self, config: LightConfig) -> None:
        super().__init__(config)
        self.plan = config

    def walk(self, image: Image) -> Glancing:
        return Glancing(self, image)

    def forward(self, image: Image) -> Float[Tensor, "b classes"]:
        return self.read(self.encode(image))


def lighten(vit: ViT, attention: str, size: int) -> Light:
    """Return a copy of a trained ViT with cheaper attention."""
    base = vit.hybrid if isinstance(vit, Hybrid) else vit.config
    made = Light(LightConfig(vit=base, attention=attention, size=size))
    made.load_state_dict(vit.state_dict())
    return made.to(vit.front.device).train(vit.training)
