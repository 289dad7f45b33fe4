"""A time budget is kept, whatever the machine does meanwhile; the learning rate still falls to nothing."""

import time

import pytest
import torch
from torch import nn
from trees import tree

from saccade.api.train import start_run
from saccade.train.loop import TimeBudget, TrainState
from saccade.train.optim import cosine

RECIPE = ["budget.batch=8", "workers=0", "optim.ema=0", "mix.mixup=0", "mix.cutmix=0"]


def begun(steps):
    module = nn.Linear(1, 1)
    return TrainState(module, torch.optim.SGD(module.parameters()), steps=steps)


def simulate(minutes, speeds, scoring=0.0, per_epoch=50, expected=0.0):
    """Train with steps of those seconds; return the seconds it took and the rates of the steps."""
    budget, state, rates = TimeBudget(minutes, per_epoch), begun(1000), []
    budget.scoring = expected
    while state.step < state.steps:
        rates.append(cosine(state.done, 0.1, state.pace))
        state.step += 1
        if budget.step(speeds(state.step), state.steps - state.step) and state.step < state.steps:
            state.aim(state.step + budget.left())
        if state.step % per_epoch == 0:
            budget.scored(scoring)
    return budget.spent + 2 * scoring, rates


@pytest.mark.parametrize(
    ("speeds", "scoring"),
    [
        (lambda _: 0.1, 0.0),
        (lambda _: 0.1, 1.0),
        (lambda step: 5.0 if step == 1 else 0.1, 0.0),
        (lambda step: 0.1 if step < 200 else 0.3, 0.5),
        (lambda step: 0.3 if step < 100 else 0.1, 0.5),
    ],
    ids=["steady", "with scoring", "slow start", "machine slows down", "machine speeds up"],
)
def test_the_end_comes_when_it_should_and_the_rate_has_fallen(speeds, scoring):
    spent, rates = simulate(2.0, speeds, scoring)
    assert spent == pytest.approx(120, rel=0.05)
    assert max(rates) == pytest.approx(1, abs=0.02)
    assert rates[-1] < 0.01


def test_one_long_validation_at_the_end_is_counted_before_it_is_seen():
    spent, rates = simulate(2.0, lambda _: 1.0, 30.0, per_epoch=10**6, expected=30.0)
    assert spent == pytest.approx(120, rel=0.05)
    assert 50 <= len(rates) <= 62


def test_few_long_steps_on_a_machine_that_slows_down_still_end_in_time():
    spent, _ = simulate(6.0, lambda step: 6.0 if step < 20 else 12.0, 10.0, per_epoch=92, expected=10.0)
    assert spent == pytest.approx(360, rel=0.06)


def test_an_epoch_of_one_step_keeps_it_too():
    spent, _ = simulate(2.0, lambda _: 0.1, 0.1, per_epoch=1)
    assert spent == pytest.approx(120, rel=0.05)


def test_without_a_budget_nothing_is_corrected():
    budget = TimeBudget(0.0, 10)
    assert not any(budget.step(1.0) for _ in range(100))
    assert budget.spent == 100
    assert TimeBudget(1.0, 10).step(1.0) == (TimeBudget.FIRST == 1)


def test_correcting_the_number_of_steps_leaves_the_rate_where_it_is():
    state = begun(100)
    state.step = 30
    before = state.done
    state.aim(1000)
    assert state.done == pytest.approx(before)
    state.step = 1000
    assert state.done == pytest.approx(1)
    state.aim(5)
    assert state.steps == 1001


def test_a_run_with_a_budget_ends_in_time(tmp_path):
    tree(tmp_path / "pictures", {"cat": 40, "dog": 40})
    run = start_run(
        str(tmp_path / "pictures"),
        "vit_xs4_12",
        tmp_path / "run",
        [*RECIPE, "budget.minutes=0.1"],
        quiet=True,
    )
    began = time.monotonic()
    run.go()
    assert 3 < time.monotonic() - began < 9
    assert run.state.step >= run.state.steps
    assert (tmp_path / "run" / "model.safetensors").is_file()
