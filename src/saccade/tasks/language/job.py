"""Language modelling, ready to train: windows of running text, cross-entropy, perplexity."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
from torch import nn

from saccade.data.loader import load_batches
from saccade.data.splits import Splits
from saccade.errors import DataError
from saccade.models.text.bert import BERTConfig
from saccade.models.text.gpt import GPTConfig
from saccade.models.text.names import Text
from saccade.processes import Team, current
from saccade.progress import track
from saccade.task import Batch, Job
from saccade.tasks.language.batches import Windows, once
from saccade.tasks.language.data import RunningText
from saccade.tasks.language.evaluate import FEWEST, context_of, loss_for
from saccade.tasks.language.loss import LanguageLoss, LanguageTally
from saccade.text import build
from saccade.text.build import Vocabularies
from saccade.text.model import TextFolder, save_text
from saccade.text.recipe import TextRecipe

BATCH = 64
"""Windows per batch in evaluation."""


@dataclass(kw_only=True)
class LanguageJob(Job):
    """Running text, and a model for it."""

    recipe: TextRecipe
    model: TextFolder
    windows: Windows
    held: np.ndarray
    _loss: LanguageLoss | None = None

    @property
    def steps(self) -> int:
        return max(1, len(self.windows) // self.recipe.budget.accumulate)

    def batches(self, first: int, last: int, part: tuple[int, int]) -> Iterator[Batch]:
        return load_batches(self.windows, first, last, self.recipe.workers)

    def loss(self, module: nn.Module, batch: Batch, progress: float) -> Batch:
        if self._loss is None or self._loss.module is not module:
            self._loss = loss_for(self.model, module, self.recipe.smoothing, self.recipe.seed)
        return self._loss.loss(batch)

    def score(self, module: nn.Module, team: Team) -> dict[str, float]:
        losses = loss_for(self.model, module, seed=self.recipe.seed)
        context = context_of(self.model)
        batches = once(self.held, context, BATCH, team.part)
        total = (len(self.held) - 1) // (context * team.part[1]) or None
        shown = track(batches, total, "validating", "windows", lambda batch: batch["tokens"].shape[0])
        mine = losses.tally(module, shown)
        return losses.scores(LanguageTally(*team.sum(list(mine))))

    def save(self, folder: Path, module: nn.Module) -> None:
        save_text(folder, replace(self.model, module=cast(Text, module)))

    def amount(self, batch: Batch) -> float:
        return float(batch["tokens"].shape[0] * (batch["tokens"].shape[1] - 1))


def start_job(recipe: TextRecipe, splits: Splits[RunningText], resume: Path | None) -> LanguageJob:
    """Return the model, new or resumed, and the text as numbers."""
    assert splits.val is not None
    team = current()

    def learnt() -> Vocabularies:
        return build.learn_vocabularies(recipe.words, team, lambda: splits.train, lead="")

    model, summary = build.start_model(recipe, resume, learnt, (GPTConfig, BERTConfig))
    train, held = (model.vocabulary.running(part) for part in (splits.train, splits.val))
    if len(held) < FEWEST:
        raise DataError(f"the text to validate on has {len(held)} tokens; expected {FEWEST} or more")
    return LanguageJob(
        recipe=recipe,
        splits=splits,
        module=model.module,
        summary=summary,
        files=Vocabularies(model.vocabulary).kept(model),
        model=model,
        windows=Windows(train, context_of(model), recipe.budget.batch, recipe.seed, team.part),
        held=held,
    )
