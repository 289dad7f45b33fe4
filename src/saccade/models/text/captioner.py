"""A captioner: a ViT that sees and a Transformer's decoder that tells (after Vinyals et al. 2015).

It is an encoder-decoder like any other; only the encoder is one of pictures.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.models.text.transformer import Decoder, EncoderDecoder, TransformerConfig
from saccade.models.vit import ViT, ViTConfig
from saccade.nn.text.decoder_block import draw
from saccade.nn.text.words import SourceMask


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptionerConfig:
    """A ViT without a head, and a decoder without an encoder of its own."""

    vit: ViTConfig
    text: TransformerConfig

    def __post_init__(self) -> None:
        for name, found in (("vit.classes", self.vit.classes), ("text.source", self.text.source)):
            if found:
                raise UsageError(f"{name} is {found}, but a captioner has no use for it; set it to 0")


class Captioner(EncoderDecoder):
    """From pictures to sentences; every patch, and the class token, is a thing to look at."""

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
            raise UsageError("a captioner was given a mask, but a picture has no padding; give None")
        return self.bridge(self.vit.norm(self.vit.encode(source)))
