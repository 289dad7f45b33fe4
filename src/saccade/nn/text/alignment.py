"""Attention of a recurrent decoder to its source, before the Transformer.

Additive: Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473, section 3.1. Dot and general: Luong et al.
2015, https://arxiv.org/abs/1508.04025, Eq. 8.
Shapes: b sentences, n states, m words of the source, h width of a state, e of a value, a of a key, g gates.
"""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Memory:
    """The source as the decoder attends to it, computed once per sentence."""

    values: Float[Tensor, "b m e"]
    keys: Float[Tensor, "b m a"]
    heard: Float[Tensor, "b m g"]
    """What each value feeds into the first cell's gates, so that attending is one average of these."""
    hidden: Float[Tensor, "b m"]
    """0 at a word and minus infinity at padding, to be added to scores."""

    def reorder(self, index: Int[Tensor, "r"]) -> "Memory":
        return Memory(self.values[index], self.keys[index], self.heard[index], self.hidden[index])


class Alignment(nn.Module):
    """Scores the source's words for a state of the decoder: additive, dot or general."""

    def __init__(self, kind: str, memory: int, hidden: int) -> None:
        super().__init__()
        additive = kind == "additive"
        self.key = nn.Identity() if kind == "dot" else nn.Linear(memory, hidden, bias=additive)
        self.query = nn.Linear(hidden, hidden, bias=False) if additive else nn.Identity()
        self.score = nn.Linear(hidden, 1, bias=False) if additive else None

    def forward(self, h: Float[Tensor, "b n h"], memory: Memory) -> Float[Tensor, "b n m"]:
        """Return probabilities over the source's words, for each state."""
        q = self.query(h)
        if self.score is None:
            scores = q @ memory.keys.mT  # not divided by the root of the width: Luong et al. do not
        else:
            scores = self.score((q[:, :, None] + memory.keys[:, None]).tanh())[..., 0]
        return (scores + memory.hidden[:, None]).softmax(-1)
