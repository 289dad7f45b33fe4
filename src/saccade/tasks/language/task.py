"""A text to learn a language from: opened, numbered, in windows, scored by perplexity."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import nn

from saccade.errors import DataError
from saccade.models.text.names import Text
from saccade.processes import Team, current
from saccade.recipe import Training, override
from saccade.tasks.classify.evaluate import write_json
from saccade.tasks.language.batches import Windows, once
from saccade.tasks.language.data import Library, hold_out, open_text
from saccade.tasks.language.loss import Language as Words
from saccade.tasks.language.loss import Tally
from saccade.tasks.task import Batch, Task
from saccade.tasks.translate.batches import stream
from saccade.text import build as speaker
from saccade.text.build import Tongue
from saccade.text.evaluation import FEWEST, context_of, judge, task_for
from saccade.text.recipe import TextRecipe, for_text
from saccade.text.sections import report
from saccade.train import sinks
from saccade.train.material import Say
from saccade.train.run import Run
from saccade.train.subject import Asked, Opened, Subject, check_same
from saccade.weights.load_text import Spoken, load, write

NOUN = "texts"
DEFAULT = "gpt_mini"
BATCH = 64
"""Windows that are scored at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What a run on a text works with; see `saccade.train.material.Material`."""

    recipe: TextRecipe
    spoken: Spoken
    windows: Windows
    held: np.ndarray
    found: Library
    team: Team
    choose: bool = True
    nouns: tuple[str, str] = ("windows of text", "words")
    scored: tuple[str, ...] = ("loss", "perplexity", "accuracy")

    @property
    def module(self) -> nn.Module:
        return self.spoken.module

    @property
    def per_epoch(self) -> int:
        return max(1, len(self.windows) // self.recipe.budget.accumulate)

    def task(self, module: nn.Module, done: Callable[[], float]) -> Task:
        return task_for(self.spoken, module, self.recipe.smoothing, self.recipe.seed)

    def batches(self, first: int, last: int) -> Iterator[Batch]:
        return stream(self.windows, first, last, self.recipe.workers)

    def amount(self, batch: Batch) -> float:
        return float(batch["tokens"].shape[0] * (batch["tokens"].shape[1] - 1))

    def note(self, failed: set[int], batch: Batch, say: Say) -> None:
        """All was read before the run began."""

    def name(self, number: int) -> str:
        return f"number {number + 1:,}"

    def score(self, task: Task, module: nn.Module, failed: set[int], say: Say) -> dict[str, float]:
        assert isinstance(task, Words)
        mine = task.tally(module, once(self.held, context_of(self.spoken), BATCH, self.team.part))
        return task.scores(Tally(*self.team.sum(list(mine))))

    def merit(self, scores: dict[str, float]) -> float:
        """The probability of a word, as the geometric mean: 1 over the perplexity."""
        return math.exp(-scores["loss"])

    def tell(self, scores: dict[str, float]) -> str:
        return f"unseen loss {scores['loss']:.4f}  perplexity {scores['perplexity']:.2f}"

    def blank(self) -> nn.Module:
        return speaker.blank(self.spoken.module)

    def keep(self, folder: Path, module: nn.Module) -> None:
        write(folder, replace(self.spoken, module=cast(Text, module)))


def described(data: str, recipe: TextRecipe, found: Library) -> dict[str, Any]:
    """What data.json holds."""
    return {
        "source": str(Path(data).resolve()),
        "kind": "auto",
        "task": recipe.task,
        "told": found.told,
        "warnings": list(found.warnings),
        **{
            name: {"characters": len(part), "fingerprint": part.fingerprint()}
            for name, part in found.splits.items()
        },
    }


def gather(recipe: TextRecipe, found: Library, data: dict[str, Any], tongue: Tongue | None = None) -> Opened:
    """What the run works with; `tongue` is what a run that goes on began with."""
    assert found.val is not None
    team = current()
    team.device(recipe.device)  # one that is not there is refused before a folder is made
    sinks.check(recipe.track)
    spoken, told = speaker.begin(recipe, tongue, lambda: speaker.learnt(recipe, team, lambda: found.train))
    train, held = (spoken.vocabulary.running(part) for part in (found.train, found.val))
    if len(held) < FEWEST:
        raise DataError(f"the text to validate on has {len(held)} tokens; expected {FEWEST} or more")
    windows = Windows(train, context_of(spoken), recipe.budget.batch, recipe.seed, team.part)
    material = Reading(recipe, spoken, windows, held, found, team)
    return Opened(material, data, told, files=Tongue(spoken.vocabulary).files)


def begin(asked: Asked) -> Opened:
    """Open a text, choose the recipe, make the model and its words."""
    named = [text.partition("=")[2].strip() for text in asked.changes if text.startswith("model=")]
    model = asked.model or (named[-1] if named else DEFAULT)
    found = open_text(asked.data)
    recipe, why = for_text(model, len(found.train))
    chosen = recipe.words.kind
    recipe = override(recipe, [*asked.changes, f"model={model}"])
    if recipe.words.kind != chosen:
        why = "read letter by letter" if recipe.words.kind == "characters" else "read in pieces of words"
    found = hold_out(found, recipe.val)
    assert found.val is not None
    opened = gather(recipe, found, described(asked.data, recipe, found))
    notes = (f"note: {words}" for words in found.warnings)
    return replace(opened, told=(found.told, opened.model, why, *notes))


def again(folder: Path, recipe: Training, data: dict[str, Any]) -> Opened:
    """The text of a run folder, if it is still the same."""
    assert isinstance(recipe, TextRecipe)
    place = str(data.get("source"))
    found = hold_out(open_text(place), recipe.val)
    now = described(place, recipe, found)
    check_same(folder, data, now, NOUN)
    return gather(recipe, found, now, speaker.kept(folder))


def conclude(run: Run) -> tuple[str, Path]:
    """Score the model that was kept on all of the text held back, and write the report."""
    material, folder = run.material, run.folder
    assert isinstance(material, Reading)
    assert material.found.val is not None
    told = judge(load(folder), material.found.val, "val")
    write_json(folder / "evaluation.json", told)
    found = told["scores"]
    line = f"perplexity {found['perplexity']:.2f} (loss {found['loss']:.4f}, {found['accuracy']:.1%} right)"
    return f"{line} on {found['count']:,} unseen words", report(folder)


LANGUAGE = Subject(TextRecipe, begin, again, conclude)
