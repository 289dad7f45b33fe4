"""Language losses: the next word of a text, or its hidden words (Devlin et al. 2019, section 3.1).

Shapes: b windows, n words, v vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.data.randomness import uniforms
from saccade.errors import UsageError, check_number
from saccade.metrics.text import NOWHERE, Exposure, by_position, perplexity
from saccade.models.modules import device_of, evaluating
from saccade.models.text.bert import BERT
from saccade.models.text.decoding import Marks, NextToken, greedy
from saccade.task import Batch
from saccade.text.vocabulary import Vocabulary

HIDDEN = 0.15
"""The share of words to predict."""


class LanguageTally(NamedTuple):
    """Counts of an evaluation; the tallies of parts add up to that of the whole."""

    loss: float = 0.0
    right: float = 0.0
    words: float = 0.0

    def plus(self, other: "LanguageTally") -> "LanguageTally":
        return LanguageTally(*(a + b for a, b in zip(self, other, strict=True)))


def _counted(
    logits: Float[Tensor, "n v"], wanted: Int[Tensor, "n"], smoothing: float = 0.0
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return the summed cross-entropy and the number of correct words."""
    loss = F.cross_entropy(logits, wanted, reduction="sum", label_smoothing=smoothing)
    return loss, (logits.detach().argmax(-1) == wanted).sum().float()


class LanguageLoss(ABC):
    """The base of next-word and hidden-word losses; batches are those of `Windows`."""

    def __init__(self, module: nn.Module, *, smoothing: float = 0.0, seed: int = 0) -> None:
        check_number("smoothing", smoothing, 0, 0.99)
        self._module, self.smoothing, self.seed = module, smoothing, seed

    @property
    def module(self) -> nn.Module:
        """The language model."""
        return self._module

    @abstractmethod
    def answers(self, module: nn.Module, batch: Batch) -> tuple[Float[Tensor, "n v"], Int[Tensor, "n"]]:
        """Return the logits of the words to predict, and the words."""

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return the mean cross-entropy and accuracy per word."""
        logits, wanted = self.answers(self._module, batch)
        loss, right = _counted(logits, wanted, self.smoothing)
        return {"loss": loss / wanted.shape[0], "accuracy": right / wanted.shape[0]}

    def tally(self, module: nn.Module, batches: Iterable[Batch]) -> LanguageTally:
        """Sum losses and correct words, in evaluation mode."""
        total = LanguageTally()
        device = device_of(module)
        with evaluating(module):
            for given in batches:
                batch = {name: value.to(device) for name, value in given.items()}
                logits, wanted = self.answers(module, batch)
                loss, right = _counted(logits, wanted)
                total = total.plus(LanguageTally(loss.item(), right.item(), float(wanted.shape[0])))
        return total

    def scores(self, tally: LanguageTally) -> dict[str, float]:
        """Return accuracy, and loss and perplexity per word, without smoothing."""
        words = max(tally.words, 1)
        loss = tally.loss / words
        found = {"accuracy": tally.right / words, "loss": loss}
        return {**found, "perplexity": perplexity(loss), "count": tally.words}

    def score(self, module: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """Evaluate a module on a text."""
        return self.scores(self.tally(module, batches))


class NextWord(LanguageLoss):
    """Every word from those before it, all positions at once; for a `saccade.models.text.decoding.Writer`."""

    def answers(self, module: nn.Module, batch: Batch) -> tuple[Float[Tensor, "n v"], Int[Tensor, "n"]]:
        logits = module(batch["tokens"][:, :-1])
        return rearrange(logits, "b n v -> (b n) v"), batch["tokens"][:, 1:].flatten()


class Hidden(NamedTuple):
    """A text with some of its words hidden."""

    shown: Int[Tensor, "b n"]
    places: Bool[Tensor, "b n"]
    """Positions of the words to predict: 15% of each row, at least one."""


def hide(
    tokens: Int[Tensor, "b n"],
    index: Int[Tensor, "b"],
    epoch: int,
    words: Int[Tensor, "w"],
    mask: int,
    seed: int,
) -> Hidden:
    """Hide words: of those chosen, 80% become `mask`, 10% one of `words`, 10% stay (appendix A.1).

    The draws for a window depend only on its index and the epoch.
    """
    count = max(1, round(HIDDEN * tokens.shape[1]))
    chance, fate, word = (
        torch.from_numpy(uniforms(name, seed, epoch, index.tolist(), tokens.shape[1])).to(tokens.device)
        for name in ("hidden words", "fates of hidden words", "words in their place")
    )
    chosen = chance.argsort(dim=1, stable=True)[:, :count]
    places = torch.zeros_like(tokens, dtype=torch.bool).scatter_(1, chosen, True)
    other = words.to(tokens.device)[(word * len(words)).long().clamp_max(len(words) - 1)]
    shown = torch.where(places & (fate < 0.8), mask, tokens)
    shown = torch.where(places & (fate >= 0.8) & (fate < 0.9), other, shown)
    return Hidden(shown, places)


class HiddenWord(LanguageLoss):
    """Hidden words from the rest of the text; for a `saccade.models.text.decoding.Filler`.

    The vocabulary's marks frame each window and replace its last words.
    """

    def __init__(
        self, module: nn.Module, vocabulary: Vocabulary, *, smoothing: float = 0.0, seed: int = 0
    ) -> None:
        super().__init__(module, smoothing=smoothing, seed=seed)
        self.before, self.after = vocabulary.frame
        self.mask = vocabulary.mask
        if self.mask < 0:
            raise UsageError("the vocabulary has no mark for a hidden word; expected one, such as [MASK]")
        self.words = torch.tensor(sorted({*range(len(vocabulary))} - {*vocabulary.marks}))

    def answers(self, module: nn.Module, batch: Batch) -> tuple[Float[Tensor, "n v"], Int[Tensor, "n"]]:
        framed = len(self.before) + len(self.after)
        tokens = batch["tokens"][:, : max(1, batch["tokens"].shape[1] - 1 - framed)]
        found = hide(tokens, batch["index"], int(batch["epoch"]), self.words, self.mask, self.seed)
        before, after = (
            tokens.new_tensor(marks).expand(tokens.shape[0], -1) for marks in (self.before, self.after)
        )
        shown = torch.cat([before, found.shown, after], dim=1)
        places = F.pad(found.places, (len(self.before), len(self.after)))
        if isinstance(module, BERT):  # only the hidden positions go through the wide last layer
            return module.read(module.encode(shown)[places]), tokens[found.places]
        return module(shown)[places], tokens[found.places]


def exposure(module: nn.Module, batches: Iterable[Batch]) -> Exposure:
    """Return the accuracy at each position of a window's second half: teacher-forced and free-running.

    Free running starts from the true first half.
    """
    forced = free = NOWHERE
    device = device_of(module)
    with evaluating(module):
        for given in batches:
            tokens = given["tokens"].to(device)
            half = max(1, tokens.shape[1] // 2)
            wanted = tokens[:, half:]
            guesses = module(tokens[:, :-1]).argmax(-1)[:, half - 1 :]
            written = greedy(cast(NextToken, module), tokens[:, :half], None, Marks(), wanted.shape[1])
            answer = np.array([sentence.tokens for sentence in written])
            true, where = wanted.cpu().numpy(), np.ones(wanted.shape, bool)
            forced += by_position(guesses.cpu().numpy(), true, where)
            free += by_position(answer, true, where)
    return Exposure(forced, free)
