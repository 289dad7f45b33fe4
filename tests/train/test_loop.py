"""The loop, its schedule, its optimiser and its running mean, on problems of a few numbers."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from saccade.models.vit import ViT, ViTConfig
from saccade.train.loop import Plan, TrainState, fit
from saccade.train.optim import Ema, adamw, cosine


class Line:
    """Learn y = 3 x + 1."""

    def __init__(self, spoil=()):
        self.module = nn.Linear(1, 1)
        self.spoil, self.calls = set(spoil), 0

    def loss(self, batch):
        self.calls += 1
        error = (self.module(batch["x"]) - 3 * batch["x"] - 1).square().mean()
        return {"loss": error * (math.nan if self.calls in self.spoil else 1)}

    def score(self, module, batches):
        return {"accuracy": 0.0}


class Witness:
    def __init__(self, end=math.inf):
        self.losses, self.epochs, self.returns, self.end = [], 0, 0, end

    def step(self, state, logged):
        self.losses.append(logged["loss"])

    def epoch(self, state):
        self.epochs += 1

    def broken(self, state, batch):
        self.returns += 1
        state.skipped = 0

    def over(self):
        return len(self.losses) >= self.end


def batches():
    generator = torch.Generator().manual_seed(0)
    while True:
        yield {"x": torch.randn(8, 1, generator=generator)}


def train(task, plan, witness=None, ema=None):
    witness = witness or Witness()
    state = TrainState(task.module, adamw(task.module, plan.lr, 0.0), ema)
    fit(task, batches(), plan, state, witness)
    return state, witness


def test_the_learning_rate_rises_in_a_line_and_falls_along_a_cosine():
    rates = [cosine(step / 100, 0.1, 0.01) for step in range(100)]
    assert rates[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert rates[10] == 1
    assert rates[55] == pytest.approx(0.5)
    assert rates[99] < 0.001
    assert all(a > b for a, b in pairwise(rates[10:]))
    assert cosine(0.0, 0.0, 1.0) == 1


def test_a_line_is_learnt():
    _, witness = train(Line(), Plan(steps=300, epoch=100, lr=0.1, warmup=0.03))
    assert witness.losses[-1] < 1e-3
    assert witness.epochs == 3


def test_accumulated_batches_are_the_mean_of_their_gradients():
    torch.manual_seed(0)
    one, two = Line(), Line()
    two.module.load_state_dict(one.module.state_dict())
    stream = [next(iter_) for iter_ in [batches()] for _ in range(8)]
    joined = ({"x": torch.cat([a["x"], b["x"]])} for a, b in zip(stream[::2], stream[1::2], strict=True))
    plan = {"steps": 4, "epoch": 4, "lr": 0.1}
    for task, given, accumulate in ((one, joined, 1), (two, iter(stream), 2)):
        state = TrainState(task.module, adamw(task.module, 0.1, 0.0))
        fit(task, given, Plan(**plan, accumulate=accumulate), state, Witness())
    assert_close(one.module.weight, two.module.weight)


def test_a_step_without_finite_numbers_is_skipped_and_moves_nothing():
    task = Line(spoil={3})
    _, witness = train(task, Plan(steps=300, epoch=100, lr=0.1))
    assert witness.losses[-1] < 1e-3
    assert witness.returns == 0
    assert all(p.isfinite().all() for p in task.module.parameters())


def test_three_bad_steps_in_a_row_call_for_help():
    _, witness = train(Line(spoil={5, 6, 7}), Plan(steps=20, epoch=20, lr=0.1))
    assert witness.returns == 1


def test_the_watcher_can_end_it():
    _, witness = train(Line(), Plan(steps=300, epoch=100, lr=0.1), Witness(end=7))
    assert len(witness.losses) == 7


def test_long_gradients_are_shortened():
    task = Line()
    state = TrainState(
        task.module, torch.optim.SGD([{"params": task.module.parameters(), "share": 1.0}], lr=1.0)
    )
    before = [p.clone() for p in task.module.parameters()]
    fit(task, batches(), Plan(steps=1, epoch=1, lr=1.0, clip=1e-3), state, Witness())
    moved = torch.cat(
        [(a - b).flatten() for a, b in zip(before, task.module.parameters(), strict=True)]
    ).norm()
    assert moved.item() == pytest.approx(1e-3, rel=1e-3)


def test_the_running_mean_follows_and_ends_near_the_weights():
    task = Line()
    ema = Ema(task.module, 0.9)
    train(task, Plan(steps=300, epoch=300, lr=0.1), ema=ema)
    assert_close(ema.module.weight, task.module.weight, atol=0.01, rtol=0)
    assert not ema.module.weight.requires_grad


def test_vectors_and_positions_do_not_decay_and_lower_layers_step_less():
    vit = ViT(ViTConfig(image=(16, 16), patch=8, width=24, depth=2, heads=3, hidden=48, classes=5))
    groups = adamw(vit, 1e-3, 0.05, layer_decay=0.5).param_groups
    of = {id(p): group for group in groups for p in group["params"]}
    assert of[id(vit.blocks[0].norm1.weight)]["weight_decay"] == 0
    assert of[id(vit.position.table)]["weight_decay"] == 0
    assert of[id(vit.blocks[0].mlp.up.weight)]["weight_decay"] == 0.05
    shares = [of[id(p)]["share"] for p in (vit.patches.weight, vit.blocks[0].mlp.up.weight, vit.head.weight)]
    assert shares == [0.125, 0.25, 1.0]
    assert sum(len(group["params"]) for group in groups) == len(list(vit.parameters()))
