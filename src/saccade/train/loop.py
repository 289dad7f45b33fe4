"""The training loop of all tasks: it knows steps and time, and nothing about images or sentences."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from saccade.models.modules import device_of
from saccade.processes import ALONE, Team, whole
from saccade.task import Batch, Job
from saccade.train.optim import Ema, cosine

TYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The schedule and settings of a training run."""

    steps: int
    epoch: int
    """Steps in an epoch."""
    lr: float
    warmup: float = 0.0
    """The share of all steps over which the learning rate rises."""
    accumulate: int = 1
    """Batches per step: their gradients are averaged before the weights are updated."""
    clip: float = 1.0
    """Largest gradient norm; larger ones are clipped to it. 0: no clipping."""
    seed: int = 0
    precision: str = "fp32"
    tries: int = 3
    """Steps in a row that may be skipped because a number was not finite."""


@dataclass(slots=True)
class TrainState:
    """Everything that changes while training."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    ema: Ema | None = None
    step: int = 0
    skipped: int = 0
    """Steps in a row whose numbers were not finite."""
    slower: float = 1.0
    """Factor on the learning rate; halved whenever training rolls back."""
    sums: dict[str, float] = field(default_factory=dict)
    """Sums of what was logged in this epoch."""
    steps: int = 0
    """Total number of steps: the plan's, until a time budget corrects it (`aim`)."""
    aimed: tuple[int, float] = (0, 0.0)
    """The step of the last correction, and the share of the training done by then."""

    @property
    def pace(self) -> float:
        """The share of the training that one step adds."""
        step, done = self.aimed
        return (1 - done) / max(self.steps - step, 1)

    @property
    def done(self) -> float:
        """The share of the training that is done; the learning rate follows it."""
        step, done = self.aimed
        return done + (self.step - step) * self.pace

    def aim(self, steps: int) -> None:
        """End the training after `steps` steps; the learning rate continues without a jump."""
        self.aimed, self.steps = (self.step, self.done), max(steps, self.step + 1)


class TimeBudget:
    """Estimates how many more steps fit into the minutes; with 0 minutes it only counts the seconds."""

    FIRST, OFTEN = 3, 20
    """Steps before the first estimate, as they are slower than the rest; steps between two estimates."""
    RECENT = 0.05
    """The weight of the newest step in the running mean of their times."""

    def __init__(self, minutes: float, per_epoch: int) -> None:
        self.seconds, self.per_epoch = minutes * 60, per_epoch
        self.spent = 0.0
        """Seconds of training and evaluation so far, those before a resume included."""
        self.scoring = 0.0
        """Seconds of an evaluation: an estimate until one is measured."""
        self._each = 0.0
        self._steps = 0

    def step(self, seconds: float, left: int = 10**9) -> bool:
        """Count a step; return whether to correct the number of steps, of which so many are `left`."""
        self.spent += seconds
        self._steps += 1
        measured = self._steps - self.FIRST + 1
        self._each += (max(self.RECENT, 1 / measured) if measured > 0 else 1.0) * (seconds - self._each)
        often = max(1, min(self.OFTEN, left // 10))  # a count, because all processes must agree
        return bool(self.seconds) and (self._steps == self.FIRST or self._steps % often == 0)

    def scored(self, seconds: float) -> None:
        """Count an evaluation; two more follow at the end, for the last epoch and for the report."""
        self.spent += seconds
        self.scoring = seconds

    def left(self) -> int:
        """Return how many more steps fit."""
        left = self.seconds - self.spent - 2 * self.scoring
        return max(1, int(left / (self._each + self.scoring / self.per_epoch)))


@runtime_checkable
class Watcher(Protocol):
    """Writes logs and checkpoints, evaluates, and may end the training."""

    def step(self, state: TrainState, logged: dict[str, float]) -> None:
        """Called after every step; may roll back to an earlier one."""

    def epoch(self, state: TrainState) -> None:
        """Called after every epoch, unless `step` rolled back: evaluate, and clear the sums."""

    def broken(self, state: TrainState, batch: Batch) -> None:
        """Called after `Plan.tries` non-finite steps in a row: roll back to a good state, or raise."""

    def over(self) -> bool:
        """Return whether to end the training here."""


@runtime_checkable
class Learner(Protocol):
    """A module, as several processes or a compiler may have wrapped it, with its loss."""

    @property
    def module(self) -> nn.Module: ...

    def loss(self, batch: Batch) -> Batch: ...


@dataclass
class JobLearner:
    """A job's loss on the module that trains."""

    job: Job
    module: nn.Module
    state: TrainState

    def loss(self, batch: Batch) -> Batch:
        return self.job.loss(self.module, batch, self.state.done)


def half(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return an autocast context for half precision; weights and optimiser stay in fp32."""
    kind = TYPES[precision]
    return nullcontext() if kind is None else torch.autocast(device.type, dtype=kind)


def fit(
    learner: Learner,
    batches: Iterator[Batch],
    plan: Plan,
    state: TrainState,
    watcher: Watcher,
    team: Team = ALONE,
) -> None:
    """Train from `state.step` to the plan's end, or until the watcher ends it."""
    device = device_of(state.module)
    scaler = torch.amp.GradScaler(device.type, enabled=plan.precision == "fp16")
    state.module.train()
    state.steps = state.steps or plan.steps
    while state.step < state.steps and not watcher.over():
        rate = plan.lr * state.slower * cosine(state.done, plan.warmup, state.pace)
        for group in state.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        luck = (plan.seed * 1_000_003 + state.step) * team.size + team.rank
        torch.manual_seed(luck)  # dropout depends on the step, not on history
        state.optimizer.zero_grad(set_to_none=True)
        logged: dict[str, float] = {}
        for part in range(plan.accumulate):
            batch = {name: value.to(device, non_blocking=True) for name, value in next(batches).items()}
            with team.no_sync(learner.module, part + 1 < plan.accumulate):
                with half(device, plan.precision):
                    found = learner.loss(batch)
                scaler.scale(found["loss"] / plan.accumulate).backward()  # type: ignore[no-untyped-call]
            for name, value in found.items():
                logged[name] = logged.get(name, 0.0) + value.item() / plan.accumulate
        scaler.unscale_(state.optimizer)
        norm = nn.utils.get_total_norm([p.grad for p in state.module.parameters() if p.grad is not None])
        length = whole(norm).item()
        logged = team.mean(logged)
        state.step += 1
        sound = math.isfinite(length) and math.isfinite(logged["loss"])
        state.skipped = 0 if sound else state.skipped + 1
        if sound:  # otherwise the gradients stay, for `broken` to inspect
            nn.utils.clip_grads_with_norm_(state.module.parameters(), plan.clip or math.inf, norm)
            scaler.step(state.optimizer)
            if state.ema is not None:
                state.ema.update(state.module, state.step)
            for name, number in {**logged, "steps": 1.0}.items():
                state.sums[name] = state.sums.get(name, 0.0) + number
        scaler.update()
        # a scaler skips steps until it has found its scale
        if state.skipped >= plan.tries and not scaler.is_enabled():
            watcher.broken(state, batch)
            continue
        step = state.step
        watcher.step(state, {**logged, "lr": rate, "gradient": length})
        if state.step == step and (step % plan.epoch == 0 or step >= state.steps):
            watcher.epoch(state)
            state.module.train()
