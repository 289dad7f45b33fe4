"""Language: the next word of a text, or words of it that are hidden (Devlin et al. 2019, section 3.1).

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

from saccade.data.draw import uniform
from saccade.errors import UsageError, check_number
from saccade.metrics.text import NOWHERE, Exposure, by_place, perplexity
from saccade.models.modules import resting
from saccade.models.text.bert import BERT
from saccade.models.text.decoding import Marks, greedy
from saccade.models.text.sequence import NextToken
from saccade.tasks.task import Batch
from saccade.text.vocabulary import Vocabulary

HIDDEN = 0.15
"""The share of words that are to be named."""


class Tally(NamedTuple):
    """What scoring counts; the tallies of parts add up to that of the whole."""

    loss: float = 0.0
    right: float = 0.0
    words: float = 0.0

    def plus(self, other: "Tally") -> "Tally":
        return Tally(*(a + b for a, b in zip(self, other, strict=True)))


def _counted(
    logits: Float[Tensor, "n v"], wanted: Int[Tensor, "n"], smoothing: float = 0.0
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Summed cross-entropy, and how many words are the likeliest."""
    loss = F.cross_entropy(logits, wanted, reduction="sum", label_smoothing=smoothing)
    return loss, (logits.detach().argmax(-1) == wanted).sum().float()


class Language(ABC):
    """What the next word and the hidden word share; batches are those of `batches.Windows`."""

    def __init__(self, module: nn.Module, *, smoothing: float = 0.0, seed: int = 0) -> None:
        check_number("smoothing", smoothing, 0, 0.99)
        self._module, self.smoothing, self.seed = module, smoothing, seed

    @property
    def module(self) -> nn.Module:
        """The model of the language."""
        return self._module

    @abstractmethod
    def answers(self, module: nn.Module, batch: Batch) -> tuple[Float[Tensor, "n v"], Int[Tensor, "n"]]:
        """Logits of the words to be named, and the words."""

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Mean cross-entropy of a word, and how many are right."""
        logits, wanted = self.answers(self._module, batch)
        loss, right = _counted(logits, wanted, self.smoothing)
        return {"loss": loss / wanted.shape[0], "accuracy": right / wanted.shape[0]}

    def tally(self, module: nn.Module, batches: Iterable[Batch]) -> Tally:
        """Count losses and right words, in evaluation mode."""
        total = Tally()
        with resting(module) as device:
            for given in batches:
                batch = {name: value.to(device) for name, value in given.items()}
                logits, wanted = self.answers(module, batch)
                loss, right = _counted(logits, wanted)
                total = total.plus(Tally(loss.item(), right.item(), float(wanted.shape[0])))
        return total

    def scores(self, tally: Tally) -> dict[str, float]:
        """Accuracy first; loss and perplexity are those of a word, without smoothing."""
        words = max(tally.words, 1)
        loss = tally.loss / words
        found = {"accuracy": tally.right / words, "loss": loss}
        return {**found, "perplexity": perplexity(loss), "count": tally.words}

    def score(self, module: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """How well a module names the words of an unseen text."""
        return self.scores(self.tally(module, batches))


class NextWord(Language):
    """Every word from those before it, all places at once; for a `saccade.models.text.sequence.Writer`."""

    def answers(self, module: nn.Module, batch: Batch) -> tuple[Float[Tensor, "n v"], Int[Tensor, "n"]]:
        logits = module(batch["tokens"][:, :-1])
        return rearrange(logits, "b n v -> (b n) v"), batch["tokens"][:, 1:].flatten()


class Hidden(NamedTuple):
    """A text with some of its words hidden."""

    shown: Int[Tensor, "b n"]
    places: Bool[Tensor, "b n"]
    """Where a word is to be named: 15 % of each row, and at least one."""


def hide(
    tokens: Int[Tensor, "b n"],
    index: Int[Tensor, "b"],
    epoch: int,
    words: Int[Tensor, "w"],
    mask: int,
    seed: int,
) -> Hidden:
    """Hide words: of those chosen 80 % become `mask`, 10 % one of `words`, 10 % stay (appendix A.1).

    What is drawn for a window depends on its number and the epoch alone.
    """
    count = max(1, round(HIDDEN * tokens.shape[1]))
    chance, fate, word = (
        uniform(name, seed, epoch, index, tokens.shape[1]).to(tokens.device)
        for name in ("hidden words", "fates of hidden words", "words in their place")
    )
    chosen = chance.argsort(dim=1, stable=True)[:, :count]
    places = torch.zeros_like(tokens, dtype=torch.bool).scatter_(1, chosen, True)
    other = words.to(tokens.device)[(word * len(words)).long().clamp_max(len(words) - 1)]
    shown = torch.where(places & (fate < 0.8), mask, tokens)
    shown = torch.where(places & (fate >= 0.8) & (fate < 0.9), other, shown)
    return Hidden(shown, places)


class HiddenWord(Language):
    """Hidden words from all the others; for a `saccade.models.text.sequence.Filler`.

    Each window is framed by the vocabulary's marks, in place of its last words.
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
        if isinstance(module, BERT):  # only the hidden places go through the wide last layer
            return module.read(module.encode(shown)[places]), tokens[found.places]
        return module(shown)[places], tokens[found.places]


def exposure(module: nn.Module, batches: Iterable[Batch]) -> Exposure:
    """How often each word of a window's later half is right: after the true words, and after its own.

    Free running begins with the true earlier half, and is then left alone.
    """
    forced = free = NOWHERE
    with resting(module) as device:
        for given in batches:
            tokens = given["tokens"].to(device)
            half = max(1, tokens.shape[1] // 2)
            wanted = tokens[:, half:]
            guesses = module(tokens[:, :-1]).argmax(-1)[:, half - 1 :]
            written = greedy(cast(NextToken, module), tokens[:, :half], None, Marks(), wanted.shape[1])
            answer = np.array([sentence.tokens for sentence in written])
            true, where = wanted.cpu().numpy(), np.ones(wanted.shape, bool)
            forced += by_place(guesses.cpu().numpy(), true, where)
            free += by_place(answer, true, where)
    return Exposure(forced, free)
