"""Cut an image into patches and map each to a token (Dosovitskiy et al. 2021, equation 1).

Shapes: r rows and c columns of patches, p side of a patch.
"""

import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import UsageError

Image = Float[Tensor, "b channels height width"]


def patchify(image: Image, patch: int) -> Float[Tensor, "b r c features"]:
    """Flatten each patch into one row of channels, rows and columns, in that order (the kernel's order)."""
    return rearrange(image, "b ch (r p) (c q) -> b r c (ch p q)", p=patch, q=patch)


def unpatchify(patches: Float[Tensor, "b r c features"], patch: int) -> Image:
    """Put the patches back: `unpatchify(patchify(image, p), p) == image`."""
    return rearrange(patches, "b r c (ch p q) -> b ch (r p) (c q)", p=patch, q=patch)


def check_size(height: int, width: int, patch: int) -> None:
    """Refuse an image that is not a whole number of patches."""
    if height % patch or width % patch:
        rows, cols = -(-height // patch), -(-width // patch)
        raise UsageError(
            f"an image of {height}x{width} pixels is not a whole number of {patch}-pixel patches; "
            f"resize or pad it, for example to {rows * patch}x{cols * patch}"
        )


class Patches(nn.Conv2d):
    """The linear map of Eq. 1, stored as a convolution whose kernel and stride are the patch size."""

    def __init__(self, width: int, patch: int, channels: int = 3) -> None:
        super().__init__(channels, width, kernel_size=patch, stride=patch)
        self.patch = patch

    def forward(self, image: Image) -> Float[Tensor, "b r c d"]:
        check_size(image.shape[-2], image.shape[-1], self.patch)
        kernel = rearrange(self.weight, "d ch p q -> d (ch p q)")
        return F.linear(patchify(image, self.patch), kernel, self.bias)
