"""Cross-validation: one run per fold, then one on all examples, in one folder.

Each fold keeps the weights of its last epoch, because the run on all examples has no validation split to
choose an epoch by. So the examples that a fold is evaluated on play no part in its training.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from statistics import mean, stdev
from typing import Any

from saccade.data.splits import Fold, pool
from saccade.errors import ModelError, StoppedError, UsageError
from saccade.files.lock import lock
from saccade.files.strict_json import read_json, write_json
from saccade.metrics.interval import wilson
from saccade.processes import launched
from saccade.recipe import Recipe
from saccade.report.folds_section import FILE as RESULT
from saccade.signals import listening
from saccade.task import Evaluation, Task
from saccade.train import start
from saccade.train.checkpoint import step_of
from saccade.train.run import Run
from saccade.train.selection import PREDICTIONS, Row, Selection, check_same, read_rows, write_rows
from saccade.wording import amount


def cross_validate(
    task: Task,
    data: str,
    folds: int,
    model: str = "",
    out: Path | None = None,
    changes: Sequence[str] = (),
    format: str = "auto",
    quiet: bool = False,
) -> Path:
    """Train and evaluate `folds` times, each time with another fold held out, then train on all examples.

    Return the folder of that last run. A test split is not used before that run is over.
    """
    _check_alone()
    start.check_out(out)
    selection = Selection(data=data, format=format, fold=Fold(0, folds))
    pooled = pool(start.open_data(task, data, changes, format))
    recipe, why = start.default_recipe(task, pooled, model, changes)
    if recipe.budget.patience:
        raise UsageError(
            f"budget.patience is {recipe.budget.patience}, which ends a run by its score on the held-out "
            f"{task.noun}; expected 0 with folds; leave it out"
        )
    parts = pooled.train.folds(folds, recipe.seed)
    job, _ = start.start_job(task, recipe, pooled)  # refuses a model that cannot be used
    root = start.new_run_folder(selection, out, task, job, recipe, "folds")
    whole = _CrossValidation(root, task, recipe, selection, pooled, quiet)
    whole.write({})
    for words in (
        pooled.summary,
        f"{amount(len(pooled.train), task.noun)} in {folds} folds",
        job.summary,
        why,
    ):
        whole.say(words)
    for words in (*pooled.warnings, *task.fold_notes(pooled, parts)):
        whole.say(f"note: {words}")
    return whole.go()


def _check_alone() -> None:
    if launched():
        raise UsageError(
            "torchrun started several processes, but folds are trained by one; "
            "run `saccade train` without torchrun, or train without folds"
        )


def resume(task: Task, folder: Path, quiet: bool = False) -> Path:
    """Resume where it was stopped or killed, inside a fold too, to the same bytes."""
    _check_alone()
    recipe, facts = start.read_run(task, folder)
    selection = Selection.recorded(facts)
    if selection.fold is None or selection.fold.number:
        raise ModelError(f"{folder / 'data.json'} does not describe a cross-validation; start a new one")
    pooled = selection.open(task, recipe)
    job, _ = start.start_job(task, recipe, pooled, folder)
    check_same(folder, facts, selection.facts(task, job), task.noun)
    whole = _CrossValidation(folder, task, recipe, selection, pooled, quiet)
    if note := start.note_threads(folder):
        whole.say(note)
    return whole.go()


class _CrossValidation:
    """Trains fold by fold, then on all examples; skips what is already done."""

    def __init__(
        self, root: Path, task: Task, recipe: Recipe, selection: Selection, pooled: Any, quiet: bool
    ) -> None:
        assert selection.fold is not None
        self.root, self.task, self.recipe, self.selection = root, task, recipe, selection
        self.pooled, self.quiet, self.folds, self.lock = pooled, quiet, selection.fold.of, lock(root)
        self.parts = pooled.train.folds(self.folds, recipe.seed)
        self.scores: list[Evaluation] = []
        self.stopped = False

    def say(self, words: str) -> None:
        """Print a line."""
        if not self.quiet:
            print(words, file=sys.stderr, flush=True)

    def go(self) -> Path:
        """Do everything that is not done yet."""
        with listening(self._stop):
            for number in range(1, self.folds + 1):
                self.fold(number)
            self.join()
            self.refit()
        return self.root

    def fold(self, number: int) -> None:
        """Train with one fold held out, and evaluate on it."""
        folder, name = self.root / f"fold-{number}", f"fold {number} of {self.folds}"
        if not (folder / PREDICTIONS).is_file():
            run = self._train(folder, replace(self.selection, fold=Fold(number, self.folds)), name)
            found, _ = start.evaluate_run(run)
            assert found is not None
            write_rows(
                folder / PREDICTIONS, [{**row, "fold": number} for row in found.rows]
            )  # last: it is done
        scores = self._scores(folder)
        self.scores.append(scores)
        self.write({})
        self.say(f"{name}: {self._words(scores.metrics)} on {amount(scores.count, self.task.noun)}")

    def join(self) -> None:
        """Combine the answers and the scores of all folds."""
        result = self.write({})
        metric = self.task.metrics[self.task.headline]
        spread = (
            f"{result['deviation'] * 100:.1f}" if metric.format == "percent" else f"{result['deviation']:.3g}"
        )
        mean_words = f"mean {metric.words(result['mean'])} ± {spread} ({self.folds} folds)"
        self.say(f"{mean_words}, pooled {self._share_words(result['pooled'])}")
        rows: dict[int, Row] = {}
        for number, (_, held) in enumerate(self.parts, 1):
            found = read_rows(self.root / f"fold-{number}" / PREDICTIONS, number, len(held))
            rows |= dict(zip(held.tolist(), found, strict=True))
        write_rows(self.root / PREDICTIONS, [rows[i] for i in sorted(rows)])
        write_json(
            self.root / "evaluation.json", self.task.pooled(self.scores, "out-of-fold").details, indent=1
        )

    def refit(self) -> None:
        """Train on all examples, and evaluate on the test split, if there is one."""
        self.say(f"training the final model on all {amount(len(self.pooled.train), self.task.noun)}")
        run = self._train(self.root, self.selection, f"all {self.task.noun}")
        test = self.pooled.test
        if test is not None:
            scores = self.task.evaluate(self.task.load(self.root), test, "test")
            found = self.write({"test": self._share(scores)})["test"]
            self.say(f"test: {self._share_words(found)} on {amount(scores.count, self.task.noun)}")
        _, page = start.evaluate_run(run)
        self.say(f"report: {page}")

    def write(self, more: dict[str, Any]) -> dict[str, Any]:
        """Write crossval.json with what is known so far, and return it."""
        counted, headline = self.task.counted, self.task.headline
        known = {
            "folds": self.folds,
            "seed": self.recipe.seed,
            "source": read_json(self.root / "data.json")["source"],
            counted: len(self.pooled.train),
            "scores": [
                {
                    "fold": number,
                    "learnt": len(self.parts[number - 1][0]),
                    counted: scores.count,
                    **_correct(scores),
                    **{name: scores.metrics[name] for name in self.task.fold_metrics},
                }
                for number, scores in enumerate(self.scores, 1)
            ],
        }
        if len(self.scores) == self.folds:
            values = [scores.metrics[headline] for scores in self.scores]
            known |= {"mean": mean(values), "deviation": stdev(values)}
            known["pooled"] = self._share(self.task.pooled(self.scores, "out-of-fold"))
        known |= more
        write_json(self.root / RESULT, known)
        return known

    def _scores(self, folder: Path) -> Evaluation:
        try:
            return self.task.revive(read_json(folder / "evaluation.json"))
        except (KeyError, ValueError) as error:
            raise ModelError(
                f"{folder / 'evaluation.json'} cannot be used ({error}); "
                f"remove {folder / PREDICTIONS} and resume; the fold is then evaluated again"
            ) from error

    def _share(self, found: Evaluation) -> dict[str, Any]:
        """Return the headline with its confidence interval, if it is a share of the examples."""
        share: dict[str, Any] = {self.task.counted: found.count, **_correct(found)}
        share[self.task.headline] = found.metrics[self.task.headline]
        if "correct" in share:
            share["low"], share["high"] = wilson(share["correct"], found.count)
        return share

    def _share_words(self, share: dict[str, Any]) -> str:
        metric = self.task.metrics[self.task.headline]
        words = self._words(share)
        return (
            f"{words} (95% CI {metric.words(share['low'])} to {metric.words(share['high'])})"
            if "low" in share
            else words
        )

    def _words(self, scores: dict[str, Any]) -> str:
        metric = self.task.metrics[self.task.headline]
        return f"{metric.title.lower()} {metric.words(scores[self.task.headline])}"

    def _train(self, folder: Path, selection: Selection, name: str) -> Run:
        """Start or resume one of the runs, and train to its end."""
        if any(step_of(place) >= 0 for place in (folder / "checkpoints").glob("step-*")):
            run = start.resume(self.task, folder, self.quiet, brief=True)
            steps = run.state.steps or run.plan.steps
            run.log.say(f"{name}: resuming from step {run.state.step} of {steps}")
        else:  # killed before its first checkpoint: start over
            folder.mkdir(exist_ok=True)
            splits = selection.apply(self.pooled, self.recipe)
            command = (self.root / "command.txt").read_text(encoding="utf-8")
            job, _ = start.start_job(self.task, self.recipe, splits)
            run = start.start_run(folder, self.task, job, selection, self.quiet, brief=True, command=command)
        run.stopped, run.label = self.stopped, f"{name}, step"
        try:
            run.go()
        except StoppedError as error:
            raise StoppedError(
                f"Interrupted in {name}, at step {run.state.step}/{run.state.steps}. "
                f"Resume with: saccade train --resume {quote(str(self.root))}"
            ) from error
        return run

    def _stop(self) -> None:
        """Between two runs: the next one stops before its first step."""
        if self.stopped:
            os._exit(130)
        self.stopped = True


def _correct(found: Evaluation) -> dict[str, int]:
    return {"correct": int(found.metrics["correct"])} if "correct" in found.metrics else {}
