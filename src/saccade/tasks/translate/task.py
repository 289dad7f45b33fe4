"""Sentence pairs to learn to translate from: opened, numbered, in batches, scored by BLEU."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from torch import nn

from saccade.data.splits import spread
from saccade.errors import DataError
from saccade.metrics.text import signature
from saccade.models.text.names import Text
from saccade.processes import Team, current
from saccade.recipe import Training, override
from saccade.tasks.classify.evaluate import write_json
from saccade.tasks.task import Batch, Task
from saccade.tasks.translate.batches import Buckets, Limit, Pairs, Shuffled, once, stream
from saccade.tasks.translate.corpus import open_pairs
from saccade.tasks.translate.data import Corpus, Sentences, hold_out
from saccade.tasks.translate.loss import Tally, Translate
from saccade.text import build as speaker
from saccade.text.build import Tongue
from saccade.text.evaluation import judge
from saccade.text.recipe import TextRecipe, for_pairs
from saccade.text.sections import report
from saccade.train import sinks
from saccade.train.material import Say
from saccade.train.run import Run
from saccade.train.subject import Asked, Opened, Subject, check_same
from saccade.weights.load_text import Spoken, load, write

NOUN = "sentence pairs"
DEFAULT = "seq2seq_attention"
SCORED = 2000
"""Pairs that are translated after each epoch; more would take longer and say little more."""


@dataclass(frozen=True, slots=True, eq=False)
class Translation:
    """What a run on sentence pairs works with; see `saccade.train.material.Material`."""

    recipe: TextRecipe
    spoken: Spoken
    shuffled: Shuffled
    held: Pairs
    found: Corpus
    team: Team
    choose: bool = True
    nouns: tuple[str, str] = (NOUN, "words")
    scored: tuple[str, ...] = ("loss", "bleu", "perplexity", "accuracy")

    @property
    def module(self) -> nn.Module:
        return self.spoken.module

    @property
    def per_epoch(self) -> int:
        return max(1, len(self.shuffled) // self.recipe.budget.accumulate)

    def task(self, module: nn.Module, done: Callable[[], float]) -> Task:
        r = self.recipe
        return Translate(
            module, self.spoken.vocabulary, smoothing=r.smoothing, own=r.own, seed=r.seed, done=done
        )

    def batches(self, first: int, last: int) -> Iterator[Batch]:
        return stream(self.shuffled, first, last, self.recipe.workers)

    def amount(self, batch: Batch) -> float:
        return float(batch["words"])

    def note(self, failed: set[int], batch: Batch, say: Say) -> None:
        """All was read before the run began."""

    def name(self, number: int) -> str:
        return f"number {number + 1:,}"

    def score(self, task: Task, module: nn.Module, failed: set[int], say: Say) -> dict[str, float]:
        assert isinstance(task, Translate)
        some = self.held.take(spread(len(self.held), SCORED))
        mine = task.tally(module, once(some, Limit(), self.team.part))
        return task.scores(Tally.of(self.team.sum(mine.numbers())))

    def merit(self, scores: dict[str, float]) -> float:
        """BLEU; while there is none yet, the probability of a word breaks the tie."""
        return scores["bleu"] + min(1 / scores["perplexity"], 1) * 1e-6

    def tell(self, scores: dict[str, float]) -> str:
        return f"BLEU {scores['bleu']:.1f}  perplexity {scores['perplexity']:.2f}"

    def blank(self) -> nn.Module:
        return speaker.blank(self.spoken.module)

    def keep(self, folder: Path, module: nn.Module) -> None:
        write(folder, replace(self.spoken, module=cast(Text, module)))


def numbered(part: Sentences, tongue: Tongue) -> Pairs:
    """The pairs of a split as numbers."""
    sources = tongue.reads.number(pair.source for pair in part)
    return Pairs(sources, tongue.target.number(pair.target for pair in part))


def _whole(data: str) -> str:
    """Where the pairs are, told so that a run may go on from another folder; two files have a comma."""
    if Path(data).exists() or "," not in data:
        return str(Path(data).resolve())
    return ",".join(str(Path(part.strip()).resolve()) for part in data.split(","))


def described(data: str, recipe: TextRecipe, found: Corpus) -> dict[str, Any]:
    """What data.json holds."""
    return {
        "source": _whole(data),
        "kind": "auto",
        "task": recipe.task,
        "sides": list(found.sides),
        "told": found.told,
        "warnings": list(found.warnings),
        **{
            name: {"pairs": len(part), "fingerprint": part.fingerprint()}
            for name, part in found.splits.items()
        },
    }


def gather(
    recipe: TextRecipe, found: Corpus, data: dict[str, Any], tongue: Tongue | None = None
) -> tuple[Opened, list[str]]:
    """What the run works with; `tongue` is what a run that goes on began with. Also notes worth telling."""
    assert found.val is not None
    team = current()
    team.device(recipe.device)  # one that is not there is refused before a folder is made
    sinks.check(recipe.track)

    def learnt() -> Tongue:
        targets, sources = (
            (lambda: (p.target for p in found.train)),
            (lambda: (p.source for p in found.train)),
        )
        return speaker.learnt(recipe, team, targets, sources)

    spoken, told = speaker.begin(recipe, tongue, learnt)
    spoken = replace(spoken, sides=found.sides)
    tongue = Tongue(spoken.vocabulary, spoken.source)
    train, val, notes = numbered(found.train, tongue), numbered(found.val, tongue), list[str]()
    short = train.within(recipe.tokens)
    if not len(short):
        raise DataError(
            f"every pair is longer than tokens={recipe.tokens:,}, which a batch holds; set tokens higher"
        )
    if len(short) < len(train):
        notes.append(
            f"{len(train) - len(short):,} pairs have more than tokens={recipe.tokens:,}; they are left out"
        )
        train = train.take(short)
    limit = Limit(tokens=recipe.tokens, sentences=recipe.budget.batch)
    shuffled = Shuffled(train, Buckets(train.lengths, limit, recipe.seed), team.part)
    material = Translation(recipe, spoken, shuffled, val, found, team)
    return Opened(material, data, told, files=tongue.files), notes


def begin(asked: Asked) -> Opened:
    """Open sentence pairs, choose the recipe, make the model and its words."""
    named = [text.partition("=")[2].strip() for text in asked.changes if text.startswith("model=")]
    model = asked.model or (named[-1] if named else DEFAULT)
    first = override(TextRecipe(), [text for text in asked.changes if text.startswith(("pair=", "bad="))])
    found = open_pairs(asked.data, first.pair, first.bad)
    recipe, why = for_pairs(model, len(found.train))
    recipe = override(recipe, [*asked.changes, f"model={model}"])
    found = hold_out(found, recipe.val, recipe.seed)
    assert found.val is not None
    opened, notes = gather(recipe, found, described(asked.data, recipe, found))
    told = f"{len(found.train):,} pairs to learn from, {len(found.val):,} to be scored on"
    more = (f"note: {words}" for words in (*found.warnings, *notes))
    return replace(opened, told=(found.told, told, opened.model, why, *more))


def again(folder: Path, recipe: Training, data: dict[str, Any]) -> Opened:
    """The sentence pairs of a run folder, if they are still the same."""
    assert isinstance(recipe, TextRecipe)
    place = data.get("source")
    found = hold_out(open_pairs(str(place), recipe.pair, recipe.bad), recipe.val, recipe.seed)
    now = described(str(place), recipe, found)
    check_same(folder, data, now, NOUN)
    return gather(recipe, found, now, speaker.kept(folder))[0]


def conclude(run: Run) -> tuple[str, Path]:
    """Score the model that was kept on all pairs held back, and write the report."""
    material, folder = run.material, run.folder
    assert isinstance(material, Translation)
    assert material.found.val is not None
    spoken = load(folder)
    told = judge(spoken, material.found.val, "val")
    write_json(folder / "evaluation.json", told)
    found = told["scores"]
    line = (
        f"BLEU {found['bleu']:.2f}, perplexity {found['perplexity']:.2f} on {found['count']:,} unseen pairs"
    )
    return f"{line} ({signature()})", report(folder)


TRANSLATE = Subject(TextRecipe, begin, again, conclude)
