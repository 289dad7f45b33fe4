"""Word embeddings with positions, and logits from vectors (Vaswani et al. 2017, 3.4 and 3.5).

Shapes: b batch, n words, d width, v vocabulary.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.errors import UsageError, check_word
from saccade.nn.attention import Weight, causal
from saccade.nn.position import sincos

POSITIONS = ("learned", "sinusoidal", "none")
Numbers = Int[Tensor, "b n"]
Mask = Bool[Tensor, "b n"]
"""True at a word, False at padding."""
SourceMask = Bool[Tensor, "b m"]
"""The same for a source, whose length differs from the target's."""


def places(mask: Mask) -> Numbers:
    """Return the position of each word in its sentence, from 0; padding takes none."""
    return (mask.cumsum(1) - 1).clamp_min(0)


def weight_of(mask: Mask | None) -> Weight | None:
    """Return the weight of the keys: padding counts zero times (nn/attention.py)."""
    return None if mask is None else mask.float()[:, None, None]


def past(tokens: Numbers, mask: Mask | None) -> Weight:
    """Return the weight under which a word sees itself and the words before it."""
    before, words = causal(tokens.shape[1], tokens.device), weight_of(mask)
    return before if words is None else before * words


class WordEmbedding(nn.Module):
    """A vector for each word plus a vector for its position.

    Learnt positions end at `context`; sines have no end. `scaled` multiplies the words by the root of the
    width, for tables that are also the output layer and so hold small numbers.
    """

    def __init__(
        self, vocabulary: int, context: int, width: int, position: str = "learned", scaled: bool = False
    ) -> None:
        super().__init__()
        check_word("position", position, POSITIONS)
        self.context, self.kind, self.scale = context, position, width**0.5 if scaled else 1.0
        self.table = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.table.weight, std=width**-0.5 if scaled else 0.02)
        self.position = nn.Embedding(context, width) if position == "learned" else None
        if self.position is not None:
            nn.init.normal_(self.position.weight, std=0.02)
        self.sines = torch.empty(0, width)

    def _sines(self, most: int, like: Float[Tensor, "b n d"]) -> Float[Tensor, "m d"]:
        """Return a table that is computed when first needed and never saved."""
        if self.sines.shape[0] < most or (self.sines.device, self.sines.dtype) != (like.device, like.dtype):
            most = max(most, self.context)
            self.sines = sincos(torch.arange(most, device=like.device).float(), like.shape[-1]).to(like.dtype)
        return self.sines

    def forward(self, tokens: Numbers, places: Numbers | None = None) -> Float[Tensor, "b n d"]:
        """Return vectors of words; without `places` the sentences start in the first column."""
        z = self.table(tokens) if self.scale == 1 else self.table(tokens) * self.scale
        if self.kind == "none" or not tokens.numel():
            return z
        longest = tokens.shape[1] if places is None else int(places.max()) + 1
        if self.position is None:
            table = self._sines(longest, z)
        elif longest > self.context:
            raise UsageError(
                f"the text has {longest} tokens, but this model was built for {self.context}; "
                f"give it at most {self.context} at a time"
            )
        else:
            table = self.position.weight
        return z + (table[:longest] if places is None else F.embedding(places, table))

    def read(self, z: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        """Return logits by the transposed table: tied embeddings (Press and Wolf 2017)."""
        return F.linear(z, self.table.weight)


class Unembedding(nn.Module):
    """Logits of words; if tied, by the table of `WordEmbedding` instead of a matrix of its own."""

    def __init__(self, vocabulary: int, width: int, tied: bool) -> None:
        super().__init__()
        self.own = None if tied else nn.Parameter(torch.randn(vocabulary, width) * 0.02)

    def forward(self, z: Float[Tensor, "*n d"], words: WordEmbedding) -> Float[Tensor, "*n v"]:
        return words.read(z) if self.own is None else F.linear(z, self.own)
