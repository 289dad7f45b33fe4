"""The one training loop: it knows tasks, steps and time, and nothing about pictures or sentences."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from saccade.processes import ALONE, Team, whole
from saccade.tasks.task import Batch, Task
from saccade.train.ema import Ema
from saccade.train.schedule import cosine

TYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """When what happens."""

    steps: int
    epoch: int
    """Steps in an epoch."""
    lr: float
    warmup: float = 0.0
    """The share of all steps over which the learning rate rises."""
    accumulate: int = 1
    """Batches to a step: their gradients are averaged before the weights move."""
    clip: float = 1.0
    """Longest gradient; longer ones are shortened to it. 0 means any."""
    seed: int = 0
    precision: str = "fp32"
    tries: int = 3
    """Steps in a row that may be skipped because a number was not finite."""


@dataclass(slots=True)
class State:
    """Everything that changes while training."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    ema: Ema | None = None
    step: int = 0
    skipped: int = 0
    """Steps in a row whose numbers were not finite."""
    slower: float = 1.0
    """Factor on the learning rate; halved whenever training had to go back."""
    sums: dict[str, float] = field(default_factory=dict)
    """Of what was logged since the epoch began."""
    steps: int = 0
    """How many steps there will be: the plan's, until a time budget corrects it (`aim`)."""
    aimed: tuple[int, float] = (0, 0.0)
    """The step at which that was last corrected, and the share of the training done by then."""

    @property
    def pace(self) -> float:
        """What a step adds to the share done."""
        step, done = self.aimed
        return (1 - done) / max(self.steps - step, 1)

    @property
    def done(self) -> float:
        """The share of the training that lies behind; the learning rate follows it."""
        step, done = self.aimed
        return done + (self.step - step) * self.pace

    def aim(self, steps: int) -> None:
        """Let the training end after so many steps; the learning rate goes on from where it is."""
        self.aimed, self.steps = (self.step, self.done), max(steps, self.step + 1)


@runtime_checkable
class Watcher(Protocol):
    """Whoever looks on: writes logs and checkpoints, scores, and may end it."""

    def step(self, state: State, logged: dict[str, float]) -> None:
        """After every step; may go back to an earlier one."""

    def epoch(self, state: State) -> None:
        """After every epoch, unless `step` went back: score, and clear the sums."""

    def broken(self, state: State, batch: Batch) -> None:
        """After `Plan.tries` steps in a row without finite numbers: go back to a good state, or raise."""

    def over(self) -> bool:
        """Shall training end here?"""


def fit(
    task: Task, batches: Iterator[Batch], plan: Plan, state: State, watcher: Watcher, team: Team = ALONE
) -> None:
    """Train from `state.step` to the plan's end, or until the watcher has seen enough."""
    device = next(state.module.parameters()).device
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
            with team.quiet(task.module, part + 1 < plan.accumulate):
                with half(device, plan.precision):
                    found = task.loss(batch)
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
        if sound:  # else the gradients stay as they are, for `broken` to look at
            nn.utils.clip_grads_with_norm_(state.module.parameters(), plan.clip or math.inf, norm)
            scaler.step(state.optimizer)
            if state.ema is not None:
                state.ema.update(state.module, state.step)
            for name, number in {**logged, "steps": 1.0}.items():
                state.sums[name] = state.sums.get(name, 0.0) + number
        scaler.update()
        if (
            state.skipped >= plan.tries and not scaler.is_enabled()
        ):  # a scaler skips until it has found its scale
            watcher.broken(state, batch)
            continue
        step = state.step
        watcher.step(state, {**logged, "lr": rate, "gradient": length})
        if state.step == step and (step % plan.epoch == 0 or step >= state.steps):
            watcher.epoch(state)
            state.module.train()


def half(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Compute in half precision where asked; weights and the optimiser stay in fp32."""
    kind = TYPES[precision]
    return nullcontext() if kind is None else torch.autocast(device.type, dtype=kind)
