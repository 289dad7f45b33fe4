"""One run from a folder of pictures to a model folder: started, watched, stopped, resumed."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from saccade.data.images import Images
from saccade.data.loader import Order, scoring, steps_in, training
from saccade.data.transform import Preprocess
from saccade.errors import DataError, SaccadeError
from saccade.models.build import Vision
from saccade.tasks.classify import Classify
from saccade.tasks.task import Batch
from saccade.train import state as checkpoints
from saccade.train.ema import Ema
from saccade.train.log import Log
from saccade.train.loop import Plan, State, fit
from saccade.train.optim import adamw
from saccade.train.recipe import Recipe
from saccade.train.stop import listening
from saccade.weights.load import write
from saccade.weights.rename import state as tensors_of


class StoppedError(SaccadeError):
    """SIGINT or SIGTERM came; the state is saved."""

    exit_code = 130


class DivergedError(SaccadeError):
    """Numbers were not finite, again and again."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Material:
    """What a run works with."""

    recipe: Recipe
    train: Images
    val: Images
    module: Vision
    preprocess: Preprocess
    teacher: nn.Module | None = None


class Run:
    """Watches the loop: logs, scores, saves, and ends it when asked to."""

    def __init__(self, folder: Path, material: Material, quiet: bool = False) -> None:
        self.folder, self.material = folder, material
        recipe = material.recipe
        self.per_epoch = steps_in(len(material.train), recipe.budget.batch, recipe.budget.accumulate)
        steps = self.per_epoch * recipe.budget.epochs
        self.plan = Plan(
            steps=steps,
            epoch=self.per_epoch,
            lr=recipe.optim.lr,
            warmup=round(steps * recipe.budget.warmup),
            accumulate=recipe.budget.accumulate,
            clip=recipe.optim.clip,
            seed=recipe.seed,
            precision=recipe.precision,
        )
        self.task = Classify(material.module, material.teacher)
        optim = recipe.optim
        optimizer = adamw(material.module, optim.lr, optim.decay, optim.beta2, optim.layer_decay)
        ema = Ema(material.module, optim.ema) if optim.ema else None
        self.state = State(material.module, optimizer, ema)
        self.log = Log(folder, steps, quiet)
        self.best, self.stale, self.returns = -1.0, 0, 0
        self.stopped = False
        self.failed: set[int] = set()
        self._saved = self._clock = time.monotonic()

    def step(self, state: State, logged: dict[str, float]) -> None:
        """Log; save when the interval is over or somebody asked to stop."""
        now = time.monotonic()
        budget = self.material.recipe.budget
        images = round(budget.batch * budget.accumulate / max(now - self._clock, 1e-9))
        self._clock = now
        self.log.step(state.step, logged, images)
        if state.step % max(1, self.per_epoch // 20) == 0:
            self.log.event("step", state.step, **logged, images_per_second=images)
        ends = state.step % self.per_epoch == 0 or state.step == self.plan.steps
        if not ends and (
            self.stopped or now - self._saved > budget.save
        ):  # an epoch's end saves once it is scored
            self.save()

    def epoch(self, state: State) -> None:
        """Score on the pictures held back, keep the model if it is the best so far, and save."""
        module = state.module if state.ema is None else state.ema.module
        budget = self.material.recipe.budget
        unseen = scoring(self.material.val, self.material.preprocess, max(budget.batch, 32))
        scores = self.task.score(module, unseen)
        number, count = state.step // self.per_epoch, max(state.sums.get("steps", 0.0), 1.0)
        row = {
            "epoch": number,
            "step": state.step,
            "train_loss": state.sums.get("loss", float("nan")) / count,
            "val_loss": scores["loss"],
            "val_accuracy": scores["accuracy"],
            "lr": state.optimizer.param_groups[0]["lr"],
        }
        self.log.row(**row)
        self.log.event("epoch", **row)
        told = f"epoch {number}/{budget.epochs}  loss {row['train_loss']:.3f}  right {scores['accuracy']:.1%}"
        if scores["accuracy"] > self.best:
            self.best, self.stale = scores["accuracy"], 0
            write(self.folder, module, self.material.preprocess, list(self.material.train.classes))  # type: ignore[arg-type]
            told += "  (best so far)"
        else:
            self.stale += 1
        self.log.say(told)
        state.sums.clear()
        self.save()

    def broken(self, state: State, batch: Batch) -> None:
        """Go back to the last checkpoint with half the learning rate, twice; then give up."""
        names = ", ".join(self.material.train.name(int(i)) for i in batch["index"][:3])
        self.returns += 1
        place, _ = checkpoints.latest(self.folder / "checkpoints")
        if self.returns > 2 or place is None:
            raise DivergedError(
                f"the loss was not a finite number {self.plan.tries} times in a row at step {state.step} "
                f"(pictures: {names}, ...); the last good state is kept; try a smaller optim.lr"
            )
        self.restore(place)
        state.slower *= 0.5
        self.log.say(f"numbers were not finite; back to step {state.step} with half the learning rate")

    def over(self) -> bool:
        """Stop when asked to, or when nothing has got better for long enough."""
        patience = self.material.recipe.budget.patience
        return self.stopped or bool(patience and self.stale >= patience)

    def save(self) -> None:
        """Write a checkpoint."""
        state = self.state
        groups = {
            "module": tensors_of(state.module),
            "optimizer": checkpoints.optimizer_tensors(state.optimizer, state.module),
        }
        if state.ema is not None:
            groups["ema"] = tensors_of(state.ema.module)
        kept = {
            "step": state.step,
            "slower": state.slower,
            "sums": state.sums,
            "best": self.best,
            "stale": self.stale,
            "returns": self.returns,
            "failed": sorted(self.failed),
        }
        checkpoints.save(self.folder / "checkpoints", state.step, groups, kept)
        self._saved = time.monotonic()
        self.log.event("save", state.step)

    def restore(self, place: Path) -> None:
        """Go on from a checkpoint."""
        groups, kept = checkpoints.read(place)
        state = self.state
        load_tensors(state.module, groups["module"])
        if state.ema is not None:
            load_tensors(state.ema.module, groups["ema"])
        checkpoints.restore_optimizer(state.optimizer, state.module, groups.get("optimizer", {}))
        state.step, state.slower, state.sums = kept["step"], kept["slower"], dict(kept["sums"])
        state.skipped = 0
        self.best, self.stale, self.returns = kept["best"], kept["stale"], max(self.returns, kept["returns"])
        self.failed = set(kept["failed"])
        self.log.forget_after(state.step)

    def batches(self) -> Iterator[Batch]:
        """Batches from the present step on; after a return to an earlier step, from there."""
        recipe, m = self.material.recipe, self.material
        accumulate = recipe.budget.accumulate
        while True:
            first, last = self.state.step * accumulate, self.plan.steps * accumulate
            per_epoch = self.per_epoch * accumulate
            order = Order(len(m.train), recipe.budget.batch, per_epoch, recipe.seed, first, last)
            returns = self.returns
            for batch in training(
                m.train, m.preprocess, recipe.augment, recipe.mix, recipe.seed, order, recipe.workers
            ):
                if self.returns != returns:
                    break
                self._count_failures(batch.pop("failed"))
                yield batch
            else:
                return

    def _count_failures(self, failed: torch.Tensor) -> None:
        for index in failed.tolist():
            if index not in self.failed:
                self.failed.add(index)
                self.log.say(f"left out: {self.material.train.name(index)} cannot be read any more")
        most = self.material.recipe.bad * len(self.material.train)
        if len(self.failed) > max(most, 1):
            raise DataError(
                f"{len(self.failed)} of {len(self.material.train)} pictures cannot be read, more than the "
                f"{self.material.recipe.bad:.0%} that is borne; run `saccade check`, or set bad higher"
            )

    def go(self) -> None:
        """Train to the end, or until a signal; the second one leaves at once."""
        with listening(self._stop):
            try:
                fit(self.task, self.batches(), self.plan, self.state, self)
            finally:
                self.log.close()
        self.log.event("end", self.state.step, reason="stopped" if self.stopped else "done")
        if self.stopped:
            raise StoppedError(
                f"stopped at step {self.state.step} of {self.plan.steps}; "
                f"go on with: saccade train --resume {self.folder}"
            )

    def _stop(self) -> None:
        if self.stopped:
            os._exit(130)
        self.stopped = True


def load_tensors(module: torch.nn.Module, found: dict[str, torch.Tensor]) -> None:
    """Give a module its tensors back."""
    own = module.state_dict()
    for name, tensor in found.items():
        own[name].copy_(tensor)
