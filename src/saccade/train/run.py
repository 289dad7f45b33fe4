"""One run from data to a model folder, whatever the task: started, watched, stopped, resumed."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from saccade.data.feed import steady
from saccade.errors import ResourceError
from saccade.files.atomic import patiently
from saccade.freed import keep_freed
from saccade.processes import check_batch, whole
from saccade.signals import listening
from saccade.tasks.task import Batch
from saccade.train import checkpoint as checkpoints
from saccade.train.ema import Ema
from saccade.train.log import Log
from saccade.train.loop import Plan, State, fit
from saccade.train.material import DivergedError, Material, StoppedError
from saccade.train.optim import adamw
from saccade.train.pace import Pace
from saccade.train.sinks import Sinks
from saccade.weights.layouts.rules import state as tensors_of


class Run:
    """Watches the loop: logs, scores, saves, and ends it when asked to."""

    def __init__(self, folder: Path, material: Material, quiet: bool = False, brief: bool = False) -> None:
        """`brief` leaves out the line an epoch, for one run of many."""
        self.folder, self.material, self.brief = folder, material, brief
        recipe, team = material.recipe, material.team
        check_batch(recipe.budget.batch, team, material.nouns[0])
        self.per_epoch = material.per_epoch
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
        module = material.module.to(device)
        ema = Ema(module, optim.ema) if optim.ema else None
        for made in (module,) if ema is None else (module, ema.module):
            team.share(made)
        learning = team.wrap(module)
        learning = torch.compile(learning) if recipe.compile else learning  # type: ignore[assignment]
        self.task = material.task(learning, lambda: self.state.done)
        optimizer = adamw(module, optim.lr, optim.decay, optim.beta2, optim.layer_decay)
        self.state = State(module, optimizer, ema, steps=steps)
        scored = tuple(f"val_{name}" for name in material.scored)
        self.log = Log(folder, steps, quiet, team.leads, scored)
        self.pace = Pace(recipe.budget.minutes, self.every)
        self.best, self.stale, self.returns = -1.0, 0, 0
        self.stopped = False
        self.deaths = 0
        self.failed: set[int] = set()
        self.unscored: set[int] = set()
        self._last: Path | None = None
        self._kept = -1
        self._shown: list[int] = []
        self._amount = 0.0
        self.waited = 0.0
        """Seconds for which the loop had to wait for batches."""
        self._saved = self._clock = time.monotonic()

    def step(self, state: State, logged: dict[str, float]) -> None:
        """Log; save when the interval is over or somebody asked to stop."""
        now = time.monotonic()
        budget = self.material.recipe.budget
        seconds, self._clock = now - self._clock, now
        rate = round(self._amount * self.material.team.size / max(seconds, 1e-9))
        self._amount, unit = 0.0, self.material.nouns[1]
        if self.pace.step(seconds) and state.step < state.steps:
            state.aim(self.material.team.told(state.step + self.pace.left()))
            self.log.steps = state.steps
        if not self.brief or self.log.panel is not None:
            self.log.step(state.step, logged, f"{rate} {unit}/s")
        if state.step % max(1, self.every // 20) == 0:
            self.log.event("step", state.step, **logged, **{f"{unit}_per_second": rate})
        self.stopped = self.material.team.any(self.stopped)
        ends = state.step % self.every == 0 or state.step >= state.steps
        if not ends and (self.stopped or self.material.team.told(now - self._saved > budget.save)):
            self.save_or_return()  # an epoch's end saves once it is scored

    def epoch(self, state: State) -> None:
        """Score on what is held back, keep the model if it is the best so far, and save."""
        if self._returned():
            return
        module = state.module if state.ema is None else state.ema.module
        m, began = self.material, time.monotonic()
        scores = m.score(self.task, module, self.unscored, self.log.say)
        number, count = self._epochs(state.step), max(state.sums.get("steps", 0.0), 1.0)
        row = {
            "epoch": number,
            "step": state.step,
            "train_loss": state.sums.get("loss", float("nan")) / count,
            **{f"val_{name}": scores[name] for name in m.scored if name in scores},
            "lr": state.optimizer.param_groups[0]["lr"],
        }
        self.log.row(**row)
        self.log.event("epoch", **row, waited=round(self.waited, 3))
        told = f"epoch {number:g}/{self._epochs(state.steps):g}  loss {row['train_loss']:.3f}"
        told += f"  {m.tell(scores)}" if scores else ""
        merit = m.merit(scores) if scores else -1.0
        better = bool(scores) and merit > self.best
        equal = bool(scores) and merit == self.best  # then the later one, at a smaller rate
        self.best, self.stale = (merit, 0) if better else (self.best, self.stale + 1)
        if better or equal or not scores or not m.choose:
            self._keep(module)
        told += "  (best so far)" if better and m.choose else ""
        if not self.brief:
            self.log.say(told)
        state.sums.clear()
        self.save()
        self._clock = time.monotonic()
        self.pace.scored(self._clock - began)

    def _epochs(self, step: int) -> int | float:
        """How often all has been seen by then; an epoch that ends early counts as one."""
        if self.every == self.per_epoch:
            return -(-step // self.per_epoch)
        return round(step / self.per_epoch, 4)

    def _keep(self, module: nn.Module) -> None:
        """Write the model into the run folder, which is not made anew if it has vanished."""
        m, needed = self.material, sum(t.numel() * t.element_size() for t in tensors_of(module).values())
        if m.team.sharded:
            tensors = {name: whole(tensor) for name, tensor in tensors_of(module).items()}
            module = m.blank()
            checkpoints.restore_module(module, tensors)
        if not m.team.leads:
            return

        def keep() -> None:
            os.stat(self.folder)
            m.keep(self.folder, module)

        then = f"go on with: saccade train --resume {self.folder}"
        patiently(keep, "the model", self.folder, needed, then)

    def broken(self, state: State, batch: Batch) -> None:
        """Go back to the last checkpoint with half the learning rate, twice; then give up."""
        self._return(f"the loss or its gradient was not a finite number {self.plan.tries} times in a row")

    def _return(self, found: str) -> None:
        state, where = self.state, checkpoints.culprit(self.state.module)
        names = ", ".join(self.material.name(i) for i in self._shown[:3])
        self.returns += 1
        place, _ = checkpoints.latest(self.folder / "checkpoints")
        if self.returns > 2 or place is None:
            raise DivergedError(
                f"{found} at step {state.step}, first in {where} ({self.material.nouns[0]}: {names}, ...); "
                "the last good state is kept; try a smaller optim.lr"
            )
        self.restore(place)
        state.slower *= 0.5
        state.skipped = 0
        self.save()  # a kill from here on does not forget that it was slowed down
        self.log.say(f"{found} ({where}); back to step {state.step} with half the learning rate")

    def _returned(self) -> bool:
        """Go back if a number of the state is not finite: such a state is neither scored nor saved."""
        bad = checkpoints.unsound(self._groups())
        if bad:
            self._return(f"{bad} was not finite")
        return bool(bad)

    def over(self) -> bool:
        """Stop when asked to, or when nothing has got better for long enough."""
        patience = self.material.recipe.budget.patience
        return self.stopped or bool(patience and self.stale >= patience)

    def save_or_return(self) -> None:
        """Write a checkpoint, or go back to the last one if this one would not be sound."""
        if not self._returned():
            self.save()

    def _groups(self) -> dict[str, dict[str, torch.Tensor]]:
        state = self.state
        optimizer = checkpoints.optimizer_tensors(state.optimizer, state.module)
        groups = {"module": tensors_of(state.module), "optimizer": optimizer}
        if state.ema is not None:
            groups["ema"] = tensors_of(state.ema.module)
        return {name: {key: whole(tensor) for key, tensor in group.items()} for name, group in groups.items()}

    def save(self) -> None:
        """Write a checkpoint."""
        state, team, groups = self.state, self.material.team, self._groups()
        self.failed = set().union(*team.gathered(self.failed))
        kept = {
            "step": state.step,
            "steps": state.steps,
            "aimed": list(state.aimed),
            "spent": self.pace.spent if self.pace.seconds else 0.0,
            "skipped": state.skipped,
            "slower": state.slower,
            "sums": state.sums,
            "best": self.best,
            "stale": self.stale,
            "returns": self.returns,
            "failed": sorted(self.failed),
        }
        place = self.folder / "checkpoints"
        if team.leads:
            self._last = checkpoints.save(place, state.step, groups, kept, self._last)
        self._saved, self._kept = time.monotonic(), state.step
        self.log.event("save", state.step)

    def restore(self, place: Path) -> None:
        """Go on from a checkpoint."""
        groups, kept = checkpoints.read(place)
        state = self.state
        checkpoints.restore_module(state.module, groups.get("module", {}))
        if state.ema is not None:
            checkpoints.restore_module(state.ema.module, groups.get("ema", {}))
        checkpoints.restore_optimizer(state.optimizer, state.module, groups.get("optimizer", {}))
        state.step, state.slower, state.sums = kept["step"], kept["slower"], dict(kept["sums"])
        state.skipped, self._last, self._kept = kept.get("skipped", 0), place, kept["step"]
        state.steps, state.aimed = kept["steps"], (kept["aimed"][0], kept["aimed"][1])
        self.pace.spent, self.log.steps = kept["spent"], state.steps
        self.best, self.stale, self.returns = kept["best"], kept["stale"], max(self.returns, kept["returns"])
        self.failed = set(kept["failed"])
        self.log.forget_after(state.step)

    def batches(self) -> Iterator[Batch]:
        """Batches from the present step on; after a return to an earlier step, from there."""
        m, budget = self.material, self.material.recipe.budget
        while True:
            last = self.plan.steps * budget.accumulate
            last = sys.maxsize if budget.minutes else last  # the clock tells how many
            returns, began = self.returns, time.monotonic()

            def begin(first: int, last: int = last) -> Iterator[Batch]:
                return m.batches(first, last)

            for batch in steady(begin, self.state.step * budget.accumulate, self._worker_died):
                if self.returns != returns:
                    break
                m.note(self.failed, batch, self.log.say)
                self._shown, self._amount = batch["index"].tolist(), self._amount + m.amount(batch)
                self.waited += time.monotonic() - began
                yield batch
                began = time.monotonic()
            if self.returns == returns:
                return

    def _worker_died(self) -> None:
        """Go on with new workers, once; they die when the machine runs out of memory."""
        self.deaths, noun = self.deaths + 1, self.material.nouns[0]
        if self.deaths > 1 and not self.stopped:
            self.save()
            raise ResourceError(
                f"a process that reads {noun} was ended from outside, twice; is the memory full? "
                f"The state is saved at step {self.state.step}; make room, then go on with: "
                f"saccade train --resume {self.folder}"
            )
        self.log.say(f"note: a process that reads {noun} was ended from outside; new ones are started")

    def go(self) -> None:
        """Train to the end, or until a signal; the second one leaves at once."""
        track, leads = self.material.recipe.track, self.material.team.leads
        keep_freed()
        with listening(self._stop):
            try:
                self.log.sinks = Sinks(track if leads else "", self.folder, self.state.step, self.log.say)
                fit(self.task, self.batches(), self.plan, self.state, self, self.material.team)
                if self.stopped and self._kept != self.state.step:  # it came just after the step was over
                    self.save_or_return()
            finally:
                self.log.close()
        self.log.event("end", self.state.step, reason="stopped" if self.stopped else "done")
        if self.stopped:
            raise StoppedError(
                f"stopped at step {self.state.step} of {self.state.steps}; "
                f"go on with: saccade train --resume {self.folder}"
            )

    def _stop(self) -> None:
        if self.stopped:
            self.log.leave()
            os._exit(130)
        self.stopped = True
