"""Translation, ready to train: batches of sentence pairs by length, teacher forcing, BLEU."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import cast

from torch import nn

from saccade.data.loader import load_batches
from saccade.data.splits import Splits, evenly
from saccade.errors import DataError
from saccade.models.text.names import Text
from saccade.models.text.seq2seq import Seq2SeqConfig
from saccade.models.text.transformer import TransformerConfig
from saccade.processes import Team, current
from saccade.progress import track
from saccade.task import Batch, Job
from saccade.tasks.translate.batches import Buckets, Limit, Pairs, Shuffled, once
from saccade.tasks.translate.data import Sentences
from saccade.tasks.translate.loss import TranslationLoss, TranslationTally
from saccade.text import build
from saccade.text.build import Vocabularies
from saccade.text.model import TextFolder, save_text
from saccade.text.recipe import TextRecipe

SCORED = 2000
"""Pairs translated after each epoch; more would take longer and add little."""


@dataclass(kw_only=True)
class TranslateJob(Job):
    """Sentence pairs, and a model for them."""

    recipe: TextRecipe
    model: TextFolder
    shuffled: Shuffled
    held: Pairs
    _loss: TranslationLoss | None = None
    _progress: float = 0.0

    @property
    def steps(self) -> int:
        return max(1, len(self.shuffled) // self.recipe.budget.accumulate)

    def batches(self, first: int, last: int, part: tuple[int, int]) -> Iterator[Batch]:
        return load_batches(self.shuffled, first, last, self.recipe.workers)

    def loss(self, module: nn.Module, batch: Batch, progress: float) -> Batch:
        self._progress = progress
        if self._loss is None or self._loss.module is not module:
            self._loss = self._losses(module)
        return self._loss.loss(batch)

    def _losses(self, module: nn.Module) -> TranslationLoss:
        r, words = self.recipe, self.model.vocabulary
        return TranslationLoss(
            module, words, smoothing=r.smoothing, own=r.own, seed=r.seed, done=lambda: self._progress
        )

    def score(self, module: nn.Module, team: Team) -> dict[str, float]:
        losses, some = self._losses(module), self.held.take(evenly(len(self.held), SCORED))
        total = len(range(team.part[0], len(some), team.part[1]))
        batches = once(some, Limit(), team.part)
        shown = track(batches, total, "validating", "sentences", lambda batch: batch["source"].shape[0])
        mine = losses.tally(module, shown)
        return losses.scores(TranslationTally.of(team.sum(mine.numbers())))

    def save(self, folder: Path, module: nn.Module) -> None:
        save_text(folder, replace(self.model, module=cast(Text, module)))

    def sample_input(self) -> str:
        assert self.splits.val is not None
        return quote(next(iter(self.splits.val)).source)

    def amount(self, batch: Batch) -> float:
        return float(batch["words"])


def start_job(recipe: TextRecipe, splits: "Splits[Sentences]", resume: Path | None) -> TranslateJob:
    """Return the model, new or resumed, and the pairs as numbers."""
    assert splits.val is not None
    team, train_set = current(), splits.train

    def learnt() -> Vocabularies:
        targets, sources = (
            (lambda: (pair.target for pair in train_set)),
            (lambda: (pair.source for pair in train_set)),
        )
        return build.learn_vocabularies(recipe.words, team, targets, sources)

    model, summary = build.start_model(recipe, resume, learnt, (Seq2SeqConfig, TransformerConfig))
    model = replace(model, sides=splits.train.sides)
    words = Vocabularies(model.vocabulary, model.source)
    train, val, notes = _numbered(splits.train, words), _numbered(splits.val, words), list[str]()
    short = train.within(recipe.tokens)
    if not len(short):
        raise DataError(
            f"every pair is longer than tokens={recipe.tokens:,}, the most that a batch holds; raise tokens"
        )
    if len(short) < len(train):
        notes.append(
            f"{len(train) - len(short):,} pairs are longer than tokens={recipe.tokens:,} and are left out"
        )
        train = train.take(short)
    limit = Limit(tokens=recipe.tokens, sentences=recipe.budget.batch)
    return TranslateJob(
        recipe=recipe,
        splits=splits,
        module=model.module,
        summary=summary,
        notes=tuple(notes),
        facts={"sides": list(splits.train.sides)},
        files=words.kept(model),
        model=model,
        shuffled=Shuffled(train, Buckets(train.lengths, limit, recipe.seed), team.part),
        held=val,
    )


def _numbered(part: Sentences, words: Vocabularies) -> Pairs:
    sources = words.reads.number(pair.source for pair in part)
    return Pairs(sources, words.target.number(pair.target for pair in part))
