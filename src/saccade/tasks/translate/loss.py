"""Translation: cross-entropy of each next word, given the true words before it or the model's own.

Teacher forcing (Williams and Zipser 1989), scheduled sampling (Bengio et al. 2015, arXiv 1506.03099), label
smoothing (Szegedy et al. 2016). Shapes: b sentences, m words of the source, n of the target, v vocabulary.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.data.randomness import uniforms
from saccade.errors import check_number
from saccade.metrics.text import NOWHERE, BleuCounts, Exposure, by_position, corpus_bleu, perplexity
from saccade.models.modules import bare, device_of, evaluating
from saccade.models.text.decoding import Marks, NextToken, Sentence, greedy
from saccade.task import Batch
from saccade.text.recipe import Own
from saccade.text.vocabulary import BOS, EOS, PAD, Vocabulary

MARKS = Marks(bos=BOS, eos=EOS, pad=PAD)


def smoothed_loss(
    logits: Float[Tensor, "b n v"],
    target: Int[Tensor, "b n"],
    mask: Bool[Tensor, "b n"],
    smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return the summed cross-entropy of the words under the mask, and the number of correct ones.

    Other positions are removed first, so that their content has no effect at all.
    """
    logits, target = logits[mask], target[mask]
    loss = F.cross_entropy(logits, target, reduction="sum", label_smoothing=smoothing)
    return loss, (logits.detach().argmax(-1) == target).sum().float()


def own_words(writer: NextToken, batch: Batch, share: float, seed: int) -> Int[Tensor, "b n"]:
    """Return `target_in` with a share of its words replaced by what the model would have written there.

    The model writes word by word, its own words included, in evaluation mode: without dropout, and
    norms do not count these words. The choice of a word has no gradient, so training on the result in one
    pass equals training word by word.
    """
    given, mask = batch["target_in"], batch["target_mask"]
    drawn = uniforms("own words", seed, int(batch["epoch"]), batch["index"].tolist(), given.shape[1])
    own = (torch.from_numpy(drawn).to(given.device) < share) & mask
    columns = [given[:, 0]]
    # no_grad, not inference mode: the words are inputs of the step that is trained next
    with evaluating(cast(nn.Module, writer), gradients=True), torch.no_grad():
        state, _ = writer.start(batch["source"], batch.get("source_mask"), BOS)
        for t in range(1, given.shape[1]):
            log_p, state = writer.step(state, columns[-1])
            columns.append(torch.where(own[:, t], log_p.argmax(-1), given[:, t]))
    return torch.stack(columns, dim=1)


class TranslationTally(NamedTuple):
    """Counts of an evaluation; the tallies of parts add up to that of the whole."""

    loss: float = 0.0
    right: float = 0.0
    words: float = 0.0
    sentences: float = 0.0
    bleu: BleuCounts = BleuCounts()

    def numbers(self) -> list[float]:
        """Return the counts as one row, to be summed over processes."""
        return [*self[:4], *map(float, self.bleu.numbers())]

    @classmethod
    def of(cls, numbers: Sequence[int | float]) -> "TranslationTally":
        """Read what `numbers` returned."""
        loss, right, words, sentences, *counts = numbers
        return cls(loss, right, words, sentences, BleuCounts.of(counts))

    def plus(self, other: "TranslationTally") -> "TranslationTally":
        return TranslationTally.of([a + b for a, b in zip(self.numbers(), other.numbers(), strict=True)])


class TranslationLoss:
    """The loss of batches from `Pairs`; a captioner's `source` is a batch of images."""

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
        """`vocabulary` is that of the target; `done` returns the share of the training that is done."""
        check_number("smoothing", smoothing, 0, 0.99)
        self._module, self.vocabulary, self.smoothing = module, vocabulary, smoothing
        self.own, self.seed, self.done = own or Own(), seed, done

    @property
    def module(self) -> nn.Module:
        """The translator."""
        return self._module

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return the mean cross-entropy and accuracy per target word."""
        share, given, mask = self.own.share(self.done()), batch["target_in"], batch["target_mask"]
        if share > 0:
            given = own_words(cast(NextToken, bare(self._module)), batch, share, self.seed)
        logits = self._module(batch["source"], batch.get("source_mask"), given)
        words = batch["words"].clamp_min(1)
        loss, right = smoothed_loss(logits, batch["target_out"], mask, self.smoothing)
        return {"loss": loss / words, "accuracy": right / words}

    def tally(self, module: nn.Module, batches: Iterable[Batch], write: bool = True) -> TranslationTally:
        """Sum the teacher-forced losses, and count the n-grams of the model's own translations."""
        total = TranslationTally()
        device = device_of(module)
        with evaluating(module):
            for given in batches:
                batch = {name: value.to(device) for name, value in given.items()}
                mask = batch["target_mask"]
                logits = module(batch["source"], batch.get("source_mask"), batch["target_in"])
                loss, right = smoothed_loss(logits, batch["target_out"], mask)
                found = TranslationTally(loss.item(), right.item(), float(mask.sum()), float(mask.shape[0]))
                if write:
                    texts = [self.texts(text, batch) for text in (self.write(module, batch), None)]
                    found = found._replace(bleu=corpus_bleu(*texts).counts)
                total = total.plus(found)
        return total

    def write(self, module: nn.Module, batch: Batch) -> list[Sentence]:
        """Translate each source greedily, to at most about twice the longest source."""
        source, mask = batch["source"], batch.get("source_mask")
        most = 2 * source.shape[1] + 10 if mask is not None else batch["target_in"].shape[1] + 10
        return greedy(cast(NextToken, module), source, mask, MARKS, most)

    def texts(self, written: Sequence[Sentence] | None, batch: Batch) -> list[str]:
        """Return the decoded translations; without `written`, the references."""
        if written is not None:
            return [self.vocabulary.decode(sentence.tokens) for sentence in written]
        return [self.vocabulary.decode(row) for row in batch["target_out"].tolist()]

    def scores(self, tally: TranslationTally) -> dict[str, float]:
        """Return BLEU, and loss and perplexity per word, without smoothing."""
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
        """Evaluate a module on sentence pairs with greedy translations."""
        return self.scores(self.tally(module, batches))


def exposure(module: nn.Module, batches: Iterable[Batch]) -> Exposure:
    """Compare teacher forcing with free running, position by position, the end mark included."""
    forced = free = NOWHERE
    device = device_of(module)
    with evaluating(module):
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
            forced += by_position(logits.argmax(-1).cpu().numpy(), true, where)
            free += by_position(answer, true, where)
    return Exposure(forced, free)
