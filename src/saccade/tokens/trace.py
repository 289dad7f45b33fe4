"""Which patches of the picture a token stands for, so that what is known of tokens can be painted on it.

Shapes: b batch, p patches, t tokens of patches (what stands before them, class tokens and
registers, is left out).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Trace:
    """Every patch belongs to one token or, where it was dropped, to none."""

    owner: Int[Tensor, "b p"]
    """The place of each patch's token among the t tokens; -1 for a patch that was dropped."""
    tokens: int

    def kept(self, places: Int[Tensor, "b k"]) -> "Trace":
        """After all tokens but those at `places` were dropped; they stand in the order given."""
        into = places.new_full((places.shape[0], self.tokens), -1)
        rank = torch.arange(places.shape[1], device=places.device).expand_as(places)
        return self.moved(into.scatter(1, places, rank), places.shape[1])

    def moved(self, into: Int[Tensor, "b t"], tokens: int) -> "Trace":
        """After token i became part of token `into[i]` of `tokens`, or was dropped (-1)."""
        after = into.gather(1, self.owner.clamp_min(0))
        return Trace(torch.where(self.owner < 0, self.owner, after), tokens)

    def matrix(self) -> Float[Tensor, "b t p"]:
        """1 where a token stands for a patch, 0 elsewhere; the patches of a token are a row."""
        places = torch.arange(self.tokens, device=self.owner.device)
        return (self.owner[:, None] == places[:, None]).float()

    def sizes(self) -> Float[Tensor, "b t"]:
        """How many patches each token stands for."""
        return self.matrix().sum(-1)

    def paint(self, values: Float[Tensor, "b t"], dropped: float = 0.0) -> Float[Tensor, "b p"]:
        """Give each patch the value of its token: for what is the same all over it, such as a score."""
        return values.gather(1, self.owner.clamp_min(0)).masked_fill(self.owner < 0, dropped)

    def share(self, values: Float[Tensor, "b t"]) -> Float[Tensor, "b p"]:
        """Divide the value of each token among its patches: for what sums up, such as attention."""
        return self.paint(values / self.sizes())


def whole(batch: int, patches: int, device: torch.device | None = None) -> Trace:
    """Each patch is its own token."""
    return Trace(torch.arange(patches, device=device).expand(batch, patches), patches)
