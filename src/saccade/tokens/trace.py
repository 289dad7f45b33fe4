"""Which patches of the image a token stands for, so that values of tokens can be shown on the image.

Shapes: b batch, p patches, t tokens of patches (without class tokens and registers).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Trace:
    """Every patch belongs to one token or, if it was dropped, to none."""

    owner: Int[Tensor, "b p"]
    """Index of each patch's token; -1 for a dropped patch."""
    tokens: int

    def kept(self, places: Int[Tensor, "b k"]) -> "Trace":
        """Return the trace after only the tokens at `places` are kept, in that order."""
        into = places.new_full((places.shape[0], self.tokens), -1)
        rank = torch.arange(places.shape[1], device=places.device).expand_as(places)
        return self.moved(into.scatter(1, places, rank), places.shape[1])

    def moved(self, into: Int[Tensor, "b t"], tokens: int) -> "Trace":
        """Return the trace after token i becomes part of token `into[i]` of `tokens`, or is dropped (-1)."""
        after = into.gather(1, self.owner.clamp_min(0))
        return Trace(torch.where(self.owner < 0, self.owner, after), tokens)

    def matrix(self) -> Float[Tensor, "b t p"]:
        """Return 1 where a token (row) stands for a patch (column), 0 elsewhere."""
        places = torch.arange(self.tokens, device=self.owner.device)
        return (self.owner[:, None] == places[:, None]).float()

    def sizes(self) -> Float[Tensor, "b t"]:
        """Return how many patches each token stands for."""
        return self.matrix().sum(-1)

    def paint(self, values: Float[Tensor, "b t"], dropped: float = 0.0) -> Float[Tensor, "b p"]:
        """Give each patch the value of its token: for values such as scores."""
        return values.gather(1, self.owner.clamp_min(0)).masked_fill(self.owner < 0, dropped)

    def share(self, values: Float[Tensor, "b t"]) -> Float[Tensor, "b p"]:
        """Divide the value of each token among its patches: for values that sum, such as attention."""
        return self.paint(values / self.sizes())


def whole(batch: int, patches: int, device: torch.device | None = None) -> Trace:
    """Return the trace where each patch is its own token."""
    return Trace(torch.arange(patches, device=device).expand(batch, patches), patches)
