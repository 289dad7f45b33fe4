"""Cross-validation: a run for each fold of the pictures, then one of all of them, in one folder.

Each fold keeps the weights of its last epoch, as the run of all pictures must, which has none to choose an
epoch by. So the pictures that a fold is scored on have had no part in it.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from saccade.data.readers.listing import Collection
from saccade.data.readers.open import open_images
from saccade.errors import ModelError, UsageError
from saccade.files.atomic import new_folder
from saccade.metrics.classify import Scores
from saccade.metrics.interval import wilson
from saccade.metrics.pool import pool as pool_scores
from saccade.processes import launched
from saccade.recipe import Recipe
from saccade.signals import listening
from saccade.tasks.classify.evaluate import SHOWN, evaluate, write_json
from saccade.tasks.classify.job import NOUN, Source, gather, judged, settle
from saccade.train import folds as parting
from saccade.train import start
from saccade.train.checkpoint import step_of
from saccade.train.folds import PREDICTIONS, Fold
from saccade.train.material import StoppedError
from saccade.train.run import Run
from saccade.train.subject import check_same, describe
from saccade.weights.formats.tensors import read_json, write_text
from saccade.weights.load import load
from saccade.wording import count, percent

RESULT = "crossval.json"


def crossval(
    data: str,
    folds: int,
    model: str = "",
    out: Path | None = None,
    changes: Sequence[str] = (),
    kind: str = "auto",
    quiet: bool = False,
) -> Path:
    """Train and score `folds` times, each time with another part held out, then train on all pictures.

    The folder that is returned is the run of all pictures. A test split is left alone until that run is over.
    """
    _check_alone()
    source = Source(data=data, kind=kind, fold=Fold(0, folds))
    pooled = parting.pool(open_images(data, kind))
    recipe, why = settle(pooled.train, model, changes)
    if recipe.budget.patience:
        raise UsageError(
            f"budget.patience is {recipe.budget.patience}, which ends a run by a look at the pictures that "
            "it is scored on; with folds expected 0; leave it out"
        )
    made = parting.parts(pooled, folds, recipe.seed)
    told = gather(recipe, pooled, source).model  # a model that cannot be used is refused here
    root = new_folder(out or Path("runs") / (Path(data).resolve().name or "run"))
    describe(root, recipe, source.described(pooled))
    whole = _CrossVal(root, recipe, source, pooled, quiet)
    whole.write({})
    for words in (pooled.told, f"{count(len(pooled.train), 'picture')} in {folds} folds", told, why):
        whole.say(words)
    for words in (*pooled.warnings, *parting.never_learnt(pooled, made)):
        whole.say(f"note: {words}")
    return whole.go()


def _check_alone() -> None:
    if launched():
        raise UsageError(
            "torchrun started several processes, but folds are trained by one; "
            "start `saccade train` itself, or train without folds"
        )


def is_crossval(folder: Path) -> bool:
    """Is it the folder of a cross-validation, rather than that of a single run or a fold?"""
    return (folder / RESULT).is_file()


def resume(folder: Path, quiet: bool = False) -> Path:
    """Go on where it was stopped or killed, inside of a fold too, to the same bytes."""
    _check_alone()
    recipe, described = start.recorded(folder)
    assert isinstance(recipe, Recipe)
    source = Source.of(described)
    if source.fold is None or source.fold.number:
        raise ModelError(f"{folder / 'data.json'} is not that of a cross-validation; start anew")
    pooled = source.open(recipe)
    check_same(folder, described, source.described(pooled), NOUN)
    return _CrossVal(folder, recipe, source, pooled, quiet).go()


class _CrossVal:
    """Goes from fold to fold and to the run of all pictures; whatever is done already stays."""

    def __init__(self, root: Path, recipe: Recipe, source: Source, pooled: Collection, quiet: bool) -> None:
        assert source.fold is not None
        self.root, self.recipe, self.source, self.pooled, self.quiet = root, recipe, source, pooled, quiet
        self.folds = source.fold.of
        self.parts = parting.parts(pooled, self.folds, recipe.seed)
        self.scores: list[Scores] = []
        self.stopped = False

    def say(self, words: str) -> None:
        """A line for the person at the terminal."""
        if not self.quiet:
            print(words, file=sys.stderr, flush=True)

    def go(self) -> Path:
        """Do all that is not done yet."""
        with listening(self._stop):
            for number in range(1, self.folds + 1):
                self.fold(number)
            self.join()
            self.refit()
        return self.root

    def fold(self, number: int) -> None:
        """Train with one part held out, and score on it."""
        folder, name = self.root / f"fold-{number}", f"fold {number} of {self.folds}"
        if not (folder / PREDICTIONS).is_file():
            source = Source(data=self.source.data, kind=self.source.kind, fold=Fold(number, self.folds))
            judged(self._train(folder, source, name))
        scores = _scores(folder)
        self.scores.append(scores)
        self.write({})
        self.say(f"{name}: right {percent(scores.accuracy)} of {count(scores.count, 'picture')}")

    def join(self) -> None:
        """Put the answers and the scores of all folds together."""
        self.say(told(self.write({})))
        rows: dict[int, parting.Answer] = {}
        for number, (_, held) in enumerate(self.parts, 1):
            found = parting.read(self.root / f"fold-{number}" / PREDICTIONS, number, len(held))
            rows |= dict(zip(held.tolist(), found, strict=True))
        parting.write(self.root / PREDICTIONS, [rows[i] for i in range(len(self.pooled.train))])
        wrong = [
            mistake
            for number in range(1, self.folds + 1)
            for mistake in read_json(self.root / f"fold-{number}" / "evaluation.json")["mistakes"]
        ]
        wrong.sort(key=lambda mistake: -mistake["score"])
        pooled = pool_scores(self.scores).to_json()
        evaluation = {"split": "out-of-fold", "scores": pooled, "mistakes": wrong[:SHOWN]}
        write_json(self.root / "evaluation.json", evaluation)

    def refit(self) -> None:
        """Train on all pictures, and score on the test split, if there is one."""
        self.say(f"now all {count(len(self.pooled.train), 'picture')}, for the model that answers")
        run = self._train(self.root, self.source, "all pictures")
        test = self.pooled.test
        if test is not None:
            kept = load(self.root)
            scores, _ = evaluate(kept.module, kept.preprocess, test, "test")
            found = self.write({"test": _share(scores)})["test"]
            self.say(f"test: right {_told_share(found)} of {count(scores.count, 'picture')}")
        _, page = judged(run)
        self.say(f"report: {page}")

    def write(self, more: dict[str, Any]) -> dict[str, Any]:
        """Write crossval.json with what is known so far, and return it."""
        described = read_json(self.root / "data.json")
        known = {
            "folds": self.folds,
            "seed": self.recipe.seed,
            "source": described["source"],
            "pictures": len(self.pooled.train),
            "scores": [
                {
                    "fold": number,
                    "learnt": len(self.parts[number - 1][0]),
                    "pictures": scores.count,
                    "correct": scores.correct,
                    **{name: getattr(scores, name) for name in ("accuracy", "balanced_accuracy", "loss")},
                }
                for number, scores in enumerate(self.scores, 1)
            ],
        }
        if len(self.scores) == self.folds:
            accuracies = [scores.accuracy for scores in self.scores]
            known |= {"mean": mean(accuracies), "deviation": stdev(accuracies)}
            known["pooled"] = _share(pool_scores(self.scores))
        known |= more
        write_text(self.root / RESULT, json.dumps(known, indent=2, ensure_ascii=False) + "\n")
        return known

    def _train(self, folder: Path, source: Source, name: str) -> Run:
        """Begin or go on with one of the runs, to its end."""
        if any(step_of(place) >= 0 for place in (folder / "checkpoints").glob("step-*")):
            run = start.resume(folder, self.quiet, brief=True)
            steps = run.state.steps or run.plan.steps
            run.log.say(f"{name}: going on from step {run.state.step} of {steps}")
        else:  # killed before its first checkpoint, it has nothing to lose
            folder.mkdir(exist_ok=True)
            found = source.part(self.pooled, self.recipe)
            command = (self.root / "command.txt").read_text(encoding="utf-8")
            run = start.begin(
                folder, gather(self.recipe, found, source), self.quiet, brief=True, command=command
            )
        run.stopped = self.stopped
        try:
            run.go()
        except StoppedError as error:
            raise StoppedError(
                f"stopped in {name}, at step {run.state.step} of {run.state.steps}; "
                f"go on with: saccade train --resume {self.root}"
            ) from error
        return run

    def _stop(self) -> None:
        """Between two runs: the next one stops before its first step."""
        if self.stopped:
            os._exit(130)
        self.stopped = True


def _scores(folder: Path) -> Scores:
    try:
        return Scores.from_json(read_json(folder / "evaluation.json")["scores"])
    except (KeyError, ValueError) as error:
        raise ModelError(
            f"{folder / 'evaluation.json'} cannot be used ({error}); "
            f"remove {folder / PREDICTIONS} and resume, and the fold is scored again"
        ) from error


def _share(scores: Scores) -> dict[str, Any]:
    low, high = wilson(scores.correct, scores.count)
    found = {"pictures": scores.count, "correct": scores.correct, "accuracy": scores.accuracy}
    return {**found, "low": low, "high": high}


def _told_share(share: dict[str, Any]) -> str:
    ends = f"95 % sure: {percent(share['low'])} to {percent(share['high'])}"
    return f"{percent(share['accuracy'])} ({ends})"


def told(result: dict[str, Any]) -> str:
    """What came out, in a line."""
    spread = f"{percent(result['mean'])} +- {result['deviation'] * 100:.1f} ({result['folds']} folds)"
    return f"mean {spread}, pooled {_told_share(result['pooled'])}"
