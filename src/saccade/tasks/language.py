"""Language: the next word of a text, or words of it that are hidden (Devlin et al. 2019, section 3.1).

Shapes: b windows, n words, v vocabulary.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.data.vocabulary import BOS, EOS, MASK, PAD, Vocabulary
from saccade.data.vocabulary import MARKS as NAMES
from saccade.errors import UsageError, check_number
from saccade.metrics.text import NOWHERE, Exposure, by_place, perplexity
from saccade.models.bert import BERT
from saccade.models.decode import Marks, greedy, sample
from saccade.models.sequence import NextToken
from saccade.tasks.draw import uniform
from saccade.tasks.rest import resting
from saccade.tasks.task import Batch

HIDDEN = 0.15
"""The share of words that are to be named."""
HOLE = "[MASK]"


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


class Language:
    """What the next word and the hidden word share; batches are those of `saccade.data.windows.Windows`."""

    def __init__(self, module: nn.Module, *, smoothing: float = 0.0, seed: int = 0) -> None:
        check_number("smoothing", smoothing, 0, 0.99)
        self._module, self.smoothing, self.seed = module, smoothing, seed

    @property
    def module(self) -> nn.Module:
        """The model of the language."""
        return self._module

    def answers(self, module: nn.Module, batch: Batch) -> tuple[Float[Tensor, "n v"], Int[Tensor, "n"]]:
        """Logits of the words to be named, and the words."""
        raise NotImplementedError

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
    """Every word from those before it, all places at once; for a `saccade.models.sequence.Writer`."""

    def answers(self, module: nn.Module, batch: Batch) -> tuple[Float[Tensor, "n v"], Int[Tensor, "n"]]:
        logits = module(batch["tokens"][:, :-1])
        return rearrange(logits, "b n v -> (b n) v"), batch["tokens"][:, 1:].flatten()


class Hidden(NamedTuple):
    """A text with some of its words hidden."""

    shown: Int[Tensor, "b n"]
    places: Bool[Tensor, "b n"]
    """Where a word is to be named: 15 % of each row, and at least one."""


def hide(
    tokens: Int[Tensor, "b n"], index: Int[Tensor, "b"], epoch: int, vocabulary: int, seed: int
) -> Hidden:
    """Hide words: of those chosen 80 % are masked, 10 % are another word, 10 % stay (appendix A.1).

    The first column is the beginning mark and never hidden. What is drawn for a window depends on its
    number and the epoch alone.
    """
    count = max(1, round(HIDDEN * (tokens.shape[1] - 1)))
    chance = uniform("hidden words", seed, epoch, index, tokens.shape[1] - 1)
    chosen = chance.argsort(dim=1, stable=True)[:, :count] + 1
    places = torch.zeros_like(tokens, dtype=torch.bool)
    places.scatter_(1, chosen.to(tokens.device), True)
    fate, word = (
        uniform(name, seed, epoch, index, tokens.shape[1]).to(tokens.device)
        for name in ("fates of hidden words", "words in their place")
    )
    other = (len(NAMES) + (word * (vocabulary - len(NAMES))).long()).clamp_max(vocabulary - 1)
    shown = torch.where(places & (fate < 0.8), MASK, tokens)
    shown = torch.where(places & (fate >= 0.8) & (fate < 0.9), other, shown)
    return Hidden(shown, places)


class HiddenWord(Language):
    """Hidden words from all the others; for a `saccade.models.sequence.Filler`.

    Each window begins with the beginning mark, in place of its last word.
    """

    def __init__(self, module: nn.Module, vocabulary: int, *, smoothing: float = 0.0, seed: int = 0) -> None:
        super().__init__(module, smoothing=smoothing, seed=seed)
        check_number("vocabulary", vocabulary, len(NAMES) + 1, 2**24)
        self.vocabulary = vocabulary

    def answers(self, module: nn.Module, batch: Batch) -> tuple[Float[Tensor, "n v"], Int[Tensor, "n"]]:
        tokens = F.pad(batch["tokens"][:, :-2], (1, 0), value=BOS)
        found = hide(tokens, batch["index"], int(batch["epoch"]), self.vocabulary, self.seed)
        if isinstance(module, BERT):  # only the hidden places go through the wide last layer
            return module.read(module.encode(found.shown)[found.places]), tokens[found.places]
        return module(found.shown)[found.places], tokens[found.places]


def complete(
    module: nn.Module,
    vocabulary: Vocabulary,
    text: str,
    *,
    most: int = 100,
    temperature: float = 0.8,
    top_k: int = 0,
    seed: int = 0,
) -> str:
    """Go on with a text: greedily at temperature 0, else by chance; gives the new words only."""
    numbers = vocabulary.encode(text)
    marks = Marks(bos=BOS, eos=EOS, pad=PAD)
    with resting(module) as device:
        source = torch.tensor([numbers or [BOS]], device=device)
        writer = cast(NextToken, module)
        if temperature == 0:
            written = greedy(writer, source, None, marks, most)
        else:
            drawn = {"temperature": temperature, "top_k": top_k, "seed": seed}
            written = sample(writer, source, None, marks, most, **drawn)  # type: ignore[arg-type]
    whole = vocabulary.decode([*numbers, *written[0].tokens])
    return whole[len(vocabulary.decode(numbers)) :]


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


class Filling(NamedTuple):
    """A word for a hole, and how sure the model is of it."""

    word: str
    p: float


def fill(module: nn.Module, vocabulary: Vocabulary, text: str, top: int = 5) -> list[list[Filling]]:
    """The likeliest words for each [MASK] in a text."""
    parts = text.split(HOLE)
    if len(parts) < 2:
        raise UsageError(f"{text!r} has no {HOLE}; write {HOLE} in place of each word to be filled in")
    numbers = [BOS, *_around(vocabulary, parts)]
    with resting(module) as device:
        logits = module(torch.tensor([numbers], device=device))[0]
        holes = torch.tensor([i for i, number in enumerate(numbers) if number == MASK], device=device)
        p, words = (
            logits[holes]
            .index_fill(1, torch.arange(len(NAMES), device=device), -torch.inf)
            .softmax(-1)
            .topk(min(top, len(vocabulary) - len(NAMES)), dim=-1)
        )
    return [
        [Filling(vocabulary.word(word).strip(), chance) for word, chance in zip(row, chances, strict=True)]
        for row, chances in zip(words.tolist(), p.tolist(), strict=True)
    ]


def _around(vocabulary: Vocabulary, parts: Sequence[str]) -> list[int]:
    """The numbers of a text with holes; a space before a hole belongs to the word in it."""
    found: list[int] = []
    for i, part in enumerate(parts):
        found += [MASK] if i else []
        words = part if vocabulary.kind == "characters" else part.strip()
        found += vocabulary.encode(words) if words else []
    return found
