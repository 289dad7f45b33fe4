"""One run of any task, from data to a model folder: log, evaluate, save, stop and resume."""

import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import cast

import torch
from torch import nn

from saccade.data.loader import restart_on_death, steps_in
from saccade.errors import DivergedError, ResourceError, StoppedError
from saccade.files.atomic import patiently
from saccade.files.lock import Lock
from saccade.models.build import Vision, build_like
from saccade.processes import Team, check_batch, keep_freed_memory, whole
from saccade.progress import estimate
from saccade.signals import listening
from saccade.task import Batch, Job, Task
from saccade.train import checkpoint
from saccade.train.log import Log, StoppableLog, Trackers, UnreadableExamples
from saccade.train.loop import JobLearner, Plan, TimeBudget, TrainState, fit
from saccade.train.optim import Ema, adamw
from saccade.train.selection import Selection
from saccade.weights.layouts.rules import state as tensors_of

REPORT = 5.0
"""Seconds that the report takes, about."""


class Run:
    """Watches the loop: logs, evaluates, saves, and stops it on request."""

    def __init__(
        self,
        folder: Path,
        task: Task,
        job: Job,
        team: Team,
        selection: Selection,
        *,
        quiet: bool = False,
        brief: bool = False,
        lock: Lock | None = None,
    ) -> None:
        """Prepare to train.

        Args:
            selection: Which examples are held out; it decides whether to keep the best epoch or the last.
            brief: Print no line per epoch (used when many runs share a terminal).
            lock: What keeps other runs out of the folder.
        """
        self.folder, self.task, self.job, self.team = folder, task, job, team
        self.selection, self.chooses = selection, selection.chooses
        self.brief, self.lock = brief, lock
        recipe = job.recipe
        check_batch(recipe.budget.batch, team, task.noun)
        self.per_epoch = job.steps or steps_in(
            len(job.splits.train), recipe.budget.batch, recipe.budget.accumulate
        )
        self.every = recipe.budget.score or self.per_epoch
        steps = recipe.budget.steps or self.per_epoch * recipe.budget.epochs
        self.plan = Plan(
            steps=steps,
            epoch=self.every,
            lr=recipe.optim.lr,
            warmup=recipe.budget.warmup,
            accumulate=recipe.budget.accumulate,
            clip=recipe.optim.clip,
            seed=recipe.seed,
            precision=recipe.precision,
        )
        device, optim = team.device(recipe.device), recipe.optim
        module = job.module.to(device)
        ema = Ema(module, optim.ema) if optim.ema else None
        for made in (module,) if ema is None else (module, ema.module):
            team.shard(made)
        learning = team.wrap(module)
        learning = torch.compile(learning) if recipe.compile else learning  # type: ignore[assignment]
        optimizer = adamw(module, optim.lr, optim.decay, optim.beta2, optim.layer_decay)
        self.state = TrainState(module, optimizer, ema, steps=steps)
        self.learner = JobLearner(job, learning, self.state)
        scored = tuple(f"val_{name}" for name in task.metrics)
        self.log = Log(folder, steps, quiet, team.leads, scored)
        self.unreadable = job.unreadable = UnreadableExamples(
            task.noun, job, self.log
        )  # not a method: it would keep the lock
        self.time_budget = TimeBudget(recipe.budget.minutes or recipe.budget.limit, self.every)
        self.most = sys.maxsize if recipe.budget.minutes else steps
        """Steps that no estimate of the time left exceeds."""
        self.warm = False
        """Whether the work before the first step is done."""
        self.best, self.stale, self.returns = -1.0, 0, 0
        self.stopped = False
        self.deaths = 0
        self._last: Path | None = None
        self._kept = -1
        self.first: float | None = None
        """Training loss of the first step."""
        self.last: float | None = None
        """Mean training loss of the last epoch."""
        self.diverged, self.doubts = "", list[str]()
        """Warnings on the trained model, from its evaluation."""
        self.label = "step"
        """What the bar counts; other words where several runs share a terminal."""
        self.watched, self._timed = not quiet, quiet or brief
        self._shown: list[int] = []
        self._amount = 0.0
        self.waited = 0.0
        """Seconds for which the loop had to wait for batches."""
        self._saved = self._clock = time.monotonic()

    def step(self, state: TrainState, logged: dict[str, float]) -> None:
        """Log; save when the interval is over or a signal came."""
        now = time.monotonic()
        budget = self.job.recipe.budget
        seconds, self._clock = now - self._clock, now
        rate = round(self._amount * self.team.size / max(seconds, 1e-9))
        self._amount, unit = 0.0, self.task.unit
        # with a time budget, the pace so far decides how many steps still fit; all processes must agree
        if self.time_budget.step(seconds, state.steps - state.step) and state.step < state.steps:
            steps = self.team.broadcast(min(state.step + self.time_budget.left(), self.most))
            if steps != state.steps:
                state.aim(steps)
                self.log.steps = state.steps
        if self.first is None and math.isfinite(logged["loss"]):
            self.first = logged["loss"]
        self.log.step(state.step, logged, f"{rate} {unit}/s")
        if not self._timed and self.log.pace_known:
            self._timed = True
            if not self.time_budget.seconds:
                self.log.tell_time()
        if state.step % max(1, self.every // 20) == 0:
            self.log.event("step", state.step, **logged, **{f"{unit}_per_second": rate})
        self.stopped = self.team.any(self.stopped)
        ends = state.step % self.every == 0 or state.step >= state.steps
        if not ends and (self.stopped or self.team.broadcast(now - self._saved > budget.save)):
            self.save_or_return()  # the end of an epoch saves after its evaluation

    def epoch(self, state: TrainState) -> None:
        """Evaluate on the validation split, keep the model if it is the best so far, and save."""
        if self._returned():
            return
        module = state.module if state.ema is None else state.ema.module
        task, began = self.task, time.monotonic()
        scores = self.job.score(module, self.team)
        self.time_budget.scoring = time.monotonic() - began
        number, count = self._epochs(state.step), max(state.sums.get("steps", 0.0), 1.0)
        row = {
            "epoch": number,
            "step": state.step,
            **({"train_loss": state.sums.get("loss", float("nan")) / count} if state.step else {}),
            **{f"val_{name}": scores[name] for name in task.metrics if name in scores},
            "lr": state.optimizer.param_groups[0]["lr"],
        }
        self.log.row(**row)
        self.log.event("epoch", **row, waited=round(self.waited, 3))
        if math.isfinite(row.get("train_loss", math.nan)):
            self.last = row["train_loss"]
        line = f"epoch {number:g}/{self._epochs(state.steps):g}"
        line += f"  train loss {row['train_loss']:.3f}" if state.step else "  (before training)"
        line += f"  {task.score_line(scores)}" if scores else ""
        merit = task.merit(scores) if scores else -1.0
        better = bool(scores) and merit > self.best
        equal = bool(scores) and merit == self.best  # then the later one, at a smaller rate
        self.best, self.stale = (merit, 0) if better else (self.best, self.stale + 1)
        if better or equal or not scores or not self.chooses:
            self._keep(module)
        line += "  (best so far)" if better and self.chooses else ""
        if not self.brief:
            self.log.say(line)
        state.sums.clear()
        self.save()
        self._clock = time.monotonic()
        self.time_budget.scored(self._clock - began)

    def _expect_scoring(self) -> None:
        """Measure the first batches of a validation: a time budget, and the time left, count all of them."""
        if (
            self.job.splits.val is None
            or self.time_budget.scoring
            or not (self.time_budget.seconds or self.watched)
        ):
            return
        module = self.state.module if self.state.ema is None else self.state.ema.module
        self.time_budget.scoring = estimate(lambda: self.job.score(module, self.team))

    def _after(self) -> float:
        """Return the seconds that follow the steps: validations, that of the report too, and the report."""
        left = -(-max(0, self.state.steps - self.state.step) // self.every)
        return self.time_budget.scoring * (left + (self.job.splits.val is not None)) + REPORT

    def _left(self) -> float:
        """Return the seconds until the end of a time budget and its report."""
        budget = self.time_budget
        return budget.seconds - budget.spent - (time.monotonic() - self._clock) + REPORT

    def _epochs(self, step: int) -> int | float:
        """Return how many epochs a step is; one that ends early counts as a whole one."""
        if self.every == self.per_epoch:
            return -(-step // self.per_epoch)
        return round(step / self.per_epoch, 4)

    def _keep(self, module: nn.Module) -> None:
        """Write the model into the run folder, which is not recreated if it has vanished."""
        needed = sum(t.numel() * t.element_size() for t in tensors_of(module).values())
        if self.team.sharded:  # FSDP: all processes gather each tensor, and one writes a module of its own
            tensors = {name: whole(tensor) for name, tensor in tensors_of(module).items()}
            module = build_like(cast(Vision, self.job.module))
            checkpoint.restore_module(module, tensors)
        if not self.team.leads:
            return

        def keep() -> None:
            os.stat(self.folder)
            self.job.save(self.folder, module)

        then = f"resume with: saccade train --resume {quote(str(self.folder))}"
        patiently(keep, "the model", self.folder, needed, then)

    def broken(self, state: TrainState, batch: Batch) -> None:
        """Go back to the last checkpoint with half the learning rate, twice; then give up."""
        self._return(f"the loss or its gradient was not a finite number {self.plan.tries} times in a row")

    def _return(self, found: str) -> None:
        state, where = self.state, checkpoint.culprit(self.state.module)
        names = ", ".join(self.job.name(i) for i in self._shown[:3])
        self.returns += 1
        place, _ = checkpoint.latest(self.folder / "checkpoints")
        if self.returns > 2 or place is None:
            raise DivergedError(
                f"{found} at step {state.step}, first in {where} ({self.task.noun}: {names}, ...); "
                "the last good state is kept; try a smaller optim.lr"
            )
        self.restore(place)
        state.slower *= 0.5
        state.skipped = 0
        self.save()  # so that the lower rate survives a kill
        self.log.say(f"{found} ({where}); back to step {state.step} with half the learning rate")

    def _returned(self) -> bool:
        """Go back if a number of the state is not finite: such a state is neither evaluated nor saved."""
        bad = checkpoint.unsound(checkpoint.tensor_groups(self.state))
        if bad:
            self._return(f"{bad} was not finite")
        return bool(bad)

    def over(self) -> bool:
        """Return whether to stop: a signal came, or patience has run out."""
        patience = self.job.recipe.budget.patience
        return self.stopped or bool(patience and self.stale >= patience)

    def save_or_return(self) -> None:
        """Write a checkpoint, or go back to the last one if this one would hold non-finite numbers."""
        if not self._returned():
            self.save()

    def save(self) -> None:
        """Write a checkpoint."""
        state, team, groups = self.state, self.team, checkpoint.tensor_groups(self.state)
        failed = self.unreadable.numbers["train"] = set().union(
            *team.all_gather(self.unreadable.numbers["train"])
        )
        kept = {
            "step": state.step,
            "steps": state.steps,
            "aimed": list(state.aimed),
            "spent": self.time_budget.spent if self.time_budget.seconds else 0.0,
            "skipped": state.skipped,
            "slower": state.slower,
            "sums": state.sums,
            "best": self.best,
            "stale": self.stale,
            "returns": self.returns,
            "warm": self.warm,
            "losses": [self.first, self.last],
            "failed": sorted(failed),
        }
        place = self.folder / "checkpoints"
        if team.leads:
            self._last = checkpoint.save(place, state.step, groups, kept, self._last)
        self._saved, self._kept = time.monotonic(), state.step
        self.log.event("save", state.step)

    def restore(self, place: Path) -> None:
        """Continue from a checkpoint."""
        groups, kept = checkpoint.read(place)
        state = self.state
        checkpoint.restore_module(state.module, groups.get("module", {}))
        if state.ema is not None:
            checkpoint.restore_module(state.ema.module, groups.get("ema", {}))
        checkpoint.restore_optimizer(state.optimizer, state.module, groups.get("optimizer", {}))
        state.step, state.slower, state.sums = kept["step"], kept["slower"], dict(kept["sums"])
        state.skipped, self._last, self._kept = kept.get("skipped", 0), place, kept["step"]
        state.steps, state.aimed = kept["steps"], (kept["aimed"][0], kept["aimed"][1])
        self.time_budget.spent, self.log.steps = kept["spent"], state.steps
        self.warm = kept.get("warm", True)
        self.best, self.stale, self.returns = kept["best"], kept["stale"], max(self.returns, kept["returns"])
        self.first, self.last = kept.get("losses", (None, None))
        self.unreadable.numbers["train"] = set(kept["failed"])
        self.log.forget_after(state.step)

    def batches(self) -> Iterator[Batch]:
        """Yield batches from the current step on, also after a rollback."""
        # A batch is a function of its number, so going back is only starting again at another number: after a
        # rollback (`returns` has changed) the outer loop starts over; otherwise it ends with the inner one.
        job, budget = self.job, self.job.recipe.budget
        while True:
            last = self.plan.steps * budget.accumulate
            last = sys.maxsize if budget.minutes else last  # the clock decides how many
            returns, began = self.returns, time.monotonic()

            def begin(first: int, last: int = last) -> Iterator[Batch]:
                return job.batches(first, last, self.team.part)

            for batch in restart_on_death(begin, self.state.step * budget.accumulate, self._worker_died):
                if self.returns != returns:
                    break
                if "failed" in batch:
                    self.unreadable("train", batch.pop("failed").tolist())
                self._shown, self._amount = batch["index"].tolist(), self._amount + job.amount(batch)
                self.waited += time.monotonic() - began
                yield batch
                began = time.monotonic()
            if self.returns == returns:
                return

    def _worker_died(self) -> None:
        """Continue with new workers, once; they die when the machine runs out of memory."""
        self.deaths, noun = self.deaths + 1, self.task.noun
        if self.deaths > 1 and not self.stopped:
            self.save()
            raise ResourceError(
                f"a process that reads {noun} was killed twice; is the memory full? "
                f"The state is saved at step {self.state.step}; free some memory, then resume with: "
                f"saccade train --resume {self.folder}"
            )
        self.log.say(f"note: a process that reads {noun} was killed; starting new ones")

    def go(self) -> None:
        """Train to the end, or until a signal; a second signal exits at once."""
        track, leads = self.job.recipe.track, self.team.leads
        keep_freed_memory()
        with listening(self._stop):
            try:
                self.log.trackers = Trackers(
                    track if leads else "", self.folder, self.state.step, self.log.say
                )
                self._warm_start()
                bar = self.log.open(self.label, self.state.steps)
                bar.after, bar.ends = self._after, self._left if self.time_budget.seconds else None
                self._expect_scoring()
                fit(self.learner, self.batches(), self.plan, self.state, self, self.team)
                if self.stopped and self._kept != self.state.step:  # the signal came just after the step
                    self.save_or_return()
            finally:
                self.log.close()
        self.log.event("end", self.state.step, reason="stopped" if self.stopped else "done")
        if self.stopped:
            raise StoppedError(
                f"Interrupted at step {self.state.step}/{self.state.steps}. "
                f"Resume with: saccade train --resume {quote(str(self.folder))}"
            )

    def _warm_start(self) -> None:
        """Do the work before the first step, whose time counts, and evaluate the result as epoch 0."""
        if self.warm or self.state.step or self.stopped:
            return
        began, state = time.monotonic(), self.state
        log = StoppableLog(self.log, lambda: self.stopped, self.brief)
        with self.log.open("features"):
            wanted = self.job.warm_start(state.module, self.folder, log, self.team)
        self.warm, self.log.steps = True, state.steps or self.plan.steps
        self.time_budget.spent += time.monotonic() - began
        if not wanted:
            return
        if state.ema is not None:
            checkpoint.restore_module(state.ema.module, tensors_of(state.module))
        state.steps = state.steps or self.plan.steps
        if self.job.splits.val is None:
            self.save()
        else:
            self.epoch(state)

    def _stop(self) -> None:
        if self.stopped:
            self.log.leave()
            os._exit(130)
        self.stopped = True
