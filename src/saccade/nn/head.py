"""From features to classes; heads start at zero, so the first loss is exactly ln(classes)."""

from jaxtyping import Float
from torch import Tensor, nn


def linear_head(width: int, classes: int) -> nn.Module:
    """Build a linear layer of zeros (Dosovitskiy et al. 2021, section 3.2), or none for 0 classes."""
    if classes == 0:
        return nn.Identity()
    head = nn.Linear(width, classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


class PairHead(nn.Module):
    """A head for the class token and one for the distillation token; the output is their mean (DeiT)."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.token, self.teacher = linear_head(width, classes), linear_head(width, classes)

    def forward(self, y: Float[Tensor, "b 2 d"]) -> Float[Tensor, "b classes"]:
        return (self.token(y[:, 0]) + self.teacher(y[:, 1])) / 2
