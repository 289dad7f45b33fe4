"""Translation: cross-entropy of each next word, given the true words before it or the model's own.

Teacher forcing (Williams and Zipser 1989), scheduled sampling (Bengio et al. 2015, arXiv 1506.03099), label
smoothing (Szegedy et al. 2016). Shapes: b sentences, m words of the source, n of the target, v vocabulary.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.data.draw import uniform
from saccade.errors import check_number, check_word
from saccade.metrics.text import NOWHERE, BleuCounts, Exposure, by_place, corpus_bleu, perplexity
from saccade.models.modules import bare, resting
from saccade.models.text.decoding import Marks, Sentence, at_rest, greedy
from saccade.models.text.sequence import NextToken
from saccade.tasks.task import Batch
from saccade.text.vocabulary import BOS, EOS, PAD, Vocabulary

MARKS = Marks(bos=BOS, eos=EOS, pad=PAD)
SCHEDULES: dict[str, Callable[[float], float]] = {
    "linear": lambda done: done,
    "exponential": lambda done: (1 - 0.01**done) / 0.99,
    "sigmoid": lambda done: 1 / (1 + float(np.exp(-12 * (done - 0.5)))),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Own:
    """Scheduled sampling: the share of the words before that are the model's own, by the training done."""

    most: float = 0.0
    """The share at the end; 0 is teacher forcing."""
    schedule: str = "linear"
    """linear, exponential or sigmoid, as in section 2.4 of the paper."""

    def __post_init__(self) -> None:
        check_number("own.most", self.most, 0, 1)
        check_word("own.schedule", self.schedule, SCHEDULES)

    def share(self, done: float) -> float:
        """At a point of the training."""
        return self.most * SCHEDULES[self.schedule](done)


def smoothed_loss(
    logits: Float[Tensor, "b n v"],
    target: Int[Tensor, "b n"],
    mask: Bool[Tensor, "b n"],
    smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Summed cross-entropy of the words under the mask, and how many of them are the likeliest.

    Other places are taken out before anything is computed, so whatever stands there changes no bit.
    """
    logits, target = logits[mask], target[mask]
    loss = F.cross_entropy(logits, target, reduction="sum", label_smoothing=smoothing)
    return loss, (logits.detach().argmax(-1) == target).sum().float()


def own_words(writer: NextToken, batch: Batch, share: float, seed: int) -> Int[Tensor, "b n"]:
    """`target_in` with a share of its words replaced by what the model itself would have written there.

    The model writes word by word on what it has been given, its own words included, as it does in use:
    without dropout, and no norm counts these words. The choice of a word has no gradient, so training on the
    result in one pass is training word by word.
    """
    given, mask = batch["target_in"], batch["target_mask"]
    drawn = uniform("own words", seed, int(batch["epoch"]), batch["index"], given.shape[1])
    own = (drawn.to(given.device) < share) & mask
    columns = [given[:, 0]]
    with at_rest(writer):
        state, _ = writer.start(batch["source"], batch.get("source_mask"), BOS)
        for t in range(1, given.shape[1]):
            log_p, state = writer.step(state, columns[-1])
            columns.append(torch.where(own[:, t], log_p.argmax(-1), given[:, t]))
    return torch.stack(columns, dim=1)


class Tally(NamedTuple):
    """What scoring counts; the tallies of parts add up to that of the whole."""

    loss: float = 0.0
    right: float = 0.0
    words: float = 0.0
    sentences: float = 0.0
    bleu: BleuCounts = BleuCounts()

    def numbers(self) -> list[float]:
        """In one row, to be summed over processes."""
        return [*self[:4], *map(float, self.bleu.numbers())]

    @classmethod
    def of(cls, numbers: Sequence[int | float]) -> "Tally":
        """What `numbers` gave."""
        loss, right, words, sentences, *counts = numbers
        return cls(loss, right, words, sentences, BleuCounts.of(counts))

    def plus(self, other: "Tally") -> "Tally":
        return Tally.of([a + b for a, b in zip(self.numbers(), other.numbers(), strict=True)])


class Translate:
    """Batches are those of `batches.Pairs`; a captioner's `source` is a batch of pictures."""

    def __init__(
        self,
        module: nn.Module,
        vocabulary: Vocabulary,
        *,
        smoothing: float = 0.1,
        own: Own | None = None,
        seed: int = 0,
        done: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`vocabulary` is that of the target; `done` tells the share of the training that lies behind."""
        check_number("smoothing", smoothing, 0, 0.99)
        self._module, self.vocabulary, self.smoothing = module, vocabulary, smoothing
        self.own, self.seed, self.done = own or Own(), seed, done

    @property
    def module(self) -> nn.Module:
        """The translator."""
        return self._module

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Mean cross-entropy of a target's word, and how many are right."""
        share, given, mask = self.own.share(self.done()), batch["target_in"], batch["target_mask"]
        if share > 0:
            given = own_words(cast(NextToken, bare(self._module)), batch, share, self.seed)
        logits = self._module(batch["source"], batch.get("source_mask"), given)
        words = batch["words"].clamp_min(1)
        loss, right = smoothed_loss(logits, batch["target_out"], mask, self.smoothing)
        return {"loss": loss / words, "accuracy": right / words}

    def tally(self, module: nn.Module, batches: Iterable[Batch], write: bool = True) -> Tally:
        """Count losses on the true words before, and the n-grams of what the model writes by itself."""
        total = Tally()
        with resting(module) as device:
            for given in batches:
                batch = {name: value.to(device) for name, value in given.items()}
                mask = batch["target_mask"]
                logits = module(batch["source"], batch.get("source_mask"), batch["target_in"])
                loss, right = smoothed_loss(logits, batch["target_out"], mask)
                found = Tally(loss.item(), right.item(), float(mask.sum()), float(mask.shape[0]))
                if write:
                    texts = [self.texts(text, batch) for text in (self.write(module, batch), None)]
                    found = found._replace(bleu=corpus_bleu(*texts).counts)
                total = total.plus(found)
        return total

    def write(self, module: nn.Module, batch: Batch) -> list[Sentence]:
        """The greedy translation of each source, at most twice as long as the longest of them."""
        source, mask = batch["source"], batch.get("source_mask")
        most = 2 * source.shape[1] + 10 if mask is not None else batch["target_in"].shape[1] + 10
        return greedy(cast(NextToken, module), source, mask, MARKS, most)

    def texts(self, written: Sequence[Sentence] | None, batch: Batch) -> list[str]:
        """As people read them; without `written`, those of the references."""
        if written is not None:
            return [self.vocabulary.decode(sentence.tokens) for sentence in written]
        return [self.vocabulary.decode(row) for row in batch["target_out"].tolist()]

    def scores(self, tally: Tally) -> dict[str, float]:
        """BLEU first; loss and perplexity are those of a word, without smoothing."""
        words = max(tally.words, 1)
        loss = tally.loss / words
        return {
            "bleu": tally.bleu.score(),
            "loss": loss,
            "perplexity": perplexity(loss),
            "accuracy": tally.right / words,
            "count": tally.sentences,
        }

    def score(self, module: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """How good a module is on unseen pairs, by greedy BLEU first."""
        return self.scores(self.tally(module, batches))


def exposure(module: nn.Module, batches: Iterable[Batch]) -> Exposure:
    """Compare teacher forcing with free running, place by place, the end mark included."""
    forced = free = NOWHERE
    with resting(module) as device:
        for given in batches:
            batch = {name: value.to(device) for name, value in given.items()}
            source, mask, wanted = batch["source"], batch.get("source_mask"), batch["target_out"]
            logits = module(source, mask, batch["target_in"])
            written = greedy(cast(NextToken, module), source, mask, MARKS, wanted.shape[1])
            answer = np.full(wanted.shape, -1)
            for row, sentence in zip(answer, written, strict=True):
                words = [*sentence.tokens, EOS][: len(row)]
                row[: len(words)] = words
            true, where = wanted.cpu().numpy(), batch["target_mask"].cpu().numpy()
            forced += by_place(logits.argmax(-1).cpu().numpy(), true, where)
            free += by_place(answer, true, where)
    return Exposure(forced, free)
