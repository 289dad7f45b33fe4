"""A larger model as a teacher: it sees the student's images with its own preprocessing."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.data.image.preprocess import Preprocess
from saccade.nn.patch import Image


class Teacher(nn.Module):
    """Undo the student's normalisation, apply the teacher's, at its size; answer in the student's order."""

    def __init__(self, module: nn.Module, own: Preprocess, student: Preprocess, order: list[int]) -> None:
        """`order`: the teacher's index of each of the student's classes."""
        super().__init__()
        self.module, self.size = module, own.size
        mean, std = (torch.tensor([getattr(p, name) for p in (own, student)]) for name in ("mean", "std"))
        self.register_buffer("scale", (std[1] / std[0])[:, None, None])
        self.register_buffer("shift", ((mean[1] - mean[0]) / std[0])[:, None, None])
        self.register_buffer("order", torch.tensor(order))

    def seen(self, image: Image) -> Float[Tensor, "b channels rows columns"]:
        """Return the image as the teacher's own preprocessing would, except for the crop."""
        image = image * self.get_buffer("scale") + self.get_buffer("shift")
        if tuple(image.shape[-2:]) == tuple(self.size):
            return image
        return F.interpolate(image, tuple(self.size), mode="bilinear", antialias=True)

    def forward(self, image: Image) -> Float[Tensor, "b classes"]:
        return self.module(self.seen(image))[:, self.get_buffer("order")]
