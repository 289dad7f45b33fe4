"""The seams of the sequence models: what training calls, and what writes a text one word at a time.

Masks are True at a word and False at padding, which stands on the right. Numbers of words are whole.
Shapes: b sentences, n words of the target, m words of the source, v vocabulary.
"""

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor


@runtime_checkable
class Translator(Protocol):
    """Seq2Seq, Transformer and captioner: the words of a target, given a source and the words before.

    The source is a batch of sentences (b m), or of pictures (b 3 height width) without a mask.
    `target_in` starts with the beginning mark; the logits at a word are for the one after it.
    """

    def forward(
        self, source: Tensor, mask: Bool[Tensor, "b m"] | None, target_in: Int[Tensor, "b n"]
    ) -> Float[Tensor, "b n v"]: ...


@runtime_checkable
class Writer(Protocol):
    """GPT: the logits at a word are for the one after it."""

    def forward(
        self, tokens: Int[Tensor, "b n"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b n v"]: ...


@runtime_checkable
class Filler(Protocol):
    """BERT: the logits at a word are for the word itself, which was hidden; `segments` number the parts."""

    def forward(
        self,
        tokens: Int[Tensor, "b n"],
        mask: Bool[Tensor, "b n"] | None = None,
        segments: Int[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b n v"]: ...


@runtime_checkable
class State(Protocol):
    """All that a model knows after some words; never changed, a step makes a new one."""

    def reorder(self, index: Int[Tensor, "r"]) -> "State":
        """The state of the rows named, in this order; a row may be left out or come several times."""
        ...


@runtime_checkable
class NextToken(Protocol):
    """Whatever scores a next word can write: greedily, by chance or by beam search (models/decode.py)."""

    def start(
        self, source: Tensor, mask: Bool[Tensor, "b m"] | None, bos: int
    ) -> tuple[Any, Int[Tensor, "b"]]:
        """The state before the first new word, and the word to step from.

        An encoder-decoder steps from `bos`; a GPT's source is the beginning of the text, and it steps from
        its last word (from `bos` where the beginning is empty).
        """
        ...

    def step(self, state: Any, token: Int[Tensor, "b"]) -> tuple[Float[Tensor, "b v"], Any]:
        """Log-probabilities of the word after `token`, and the state that knows `token`."""
        ...
