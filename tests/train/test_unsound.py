"""Numbers that are not finite: skipped, undone, and at last the run ends; they are never saved."""

import hashlib
import math

import pytest
import torch
from trees import tree

from saccade.api.train import resume_run, start_run
from saccade.errors import DivergedError, StoppedError
from saccade.train.checkpoint import latest, read
from saccade.weights.formats.tensors import read_tensors

RECIPE = ["budget.epochs=3", "budget.batch=4", "budget.save=0", "optim.ema=0.9", "dropout=0.1", "workers=0"]


def begin(tmp_path, name="run", *changes):
    if not (tmp_path / "pictures").exists():
        tree(tmp_path / "pictures", {"cat": 12, "dog": 12})
    data = str(tmp_path / "pictures")
    return start_run(data, "vit_xs2_8", tmp_path / name, [*RECIPE, *changes], quiet=True)


def in_loss(run, when):
    ordinary = run.learner.loss
    run.learner.loss = lambda batch: {n: v * (math.nan if when() else 1) for n, v in ordinary(batch).items()}


def in_gradient(run, when):
    bias = run.state.module.blocks[1].mlp.up.bias
    bias.register_hook(lambda gradient: gradient * math.inf if when() else gradient)


def in_input(run, when):
    ordinary = run.learner.loss
    run.learner.loss = lambda batch: ordinary(
        {**batch, "image": batch["image"] * math.nan} if when() else batch
    )


def in_weight(run, when):
    ordinary = run.learner.loss

    def loss(batch):
        if when():
            with torch.no_grad():
                run.state.module.blocks[1].mlp.up.weight[0, 0] = math.nan
        return ordinary(batch)

    run.learner.loss = loss


PLACES = {
    in_loss: "the gradient of ",
    in_gradient: r"the gradient of blocks\.1\.mlp\.up\.bias",
    in_input: "the gradient of ",
    in_weight: r"the weight blocks\.1\.mlp\.up\.weight",
}
INTO = {into.__name__: (into, where) for into, where in PLACES.items()}


def sound(folder):
    """Is there nothing but finite numbers in all that was written?"""
    files = [*folder.rglob("*.safetensors")]
    assert files
    return all(t.isfinite().all() for path in files for t in read_tensors(path).values())


@pytest.mark.parametrize("name", INTO)
def test_numbers_that_go_wrong_for_a_moment_are_passed_over(tmp_path, name):
    run, steps = begin(tmp_path), []
    INTO[name][0](run, lambda: run.state.step == 4 and not steps and not steps.append(4))
    run.go()
    assert run.returns == (name == "in_weight")  # a weight stays what it is until it is undone
    assert run.state.step == run.plan.steps
    assert sound(run.folder)


@pytest.mark.parametrize("name", INTO)
def test_numbers_that_stay_wrong_end_the_run_with_a_layer_and_pictures_named(tmp_path, name):
    into, where = INTO[name]
    run, said = begin(tmp_path), []
    run.log.say = said.append
    into(run, lambda: run.state.step >= 4)
    with pytest.raises(DivergedError, match=rf"at step \d+, first in {where}.* \(images: .*\.png, ") as end:
        run.go()
    assert end.value.exit_code == 1
    assert "try a smaller optim.lr" in str(end.value)
    assert sum("back to step" in words for words in said) == 2
    place, damaged = latest(run.folder / "checkpoints")
    assert damaged == []
    assert read(place)[1]["slower"] == 0.25
    assert sound(run.folder)


def test_three_steps_are_passed_over_before_anything_is_undone(tmp_path):
    for bad, returns in ((2, 0), (3, 1)):
        run = begin(tmp_path, f"bad-{bad}")
        in_loss(run, lambda run=run, bad=bad: not run.returns and 2 <= run.state.step < 2 + bad)
        run.go()
        assert run.returns == returns


@pytest.mark.parametrize("last", [False, True])
def test_weights_that_are_not_finite_at_an_epochs_end_are_neither_scored_nor_kept(tmp_path, last):
    run = begin(tmp_path)
    when, ordinary = run.plan.steps if last else run.per_epoch, run.step

    def step(state, logged):
        if state.step == when and not run.returns:
            with torch.no_grad():
                run.state.ema.module.head.weight[0, 0] = math.inf
        ordinary(state, logged)

    run.step = step
    run.go()
    assert run.returns == 1
    assert len((run.folder / "results.csv").read_text().splitlines()) == 4
    assert sound(run.folder)


def test_a_return_to_the_first_step_forgets_the_optimiser_too(tmp_path):
    run = begin(tmp_path, "run", "budget.save=60")
    in_loss(run, lambda: not run.returns and run.state.step in (1, 2, 3))
    checked = []

    def loss(batch, ordinary=run.learner.loss):
        if run.returns and not checked:
            checked.append((run.state.step, len(run.state.optimizer.state)))
        return ordinary(batch)

    run.learner.loss = loss
    run.go()
    assert checked == [(0, 0)]


def test_a_run_that_was_undone_and_then_stopped_goes_on_to_the_same_bytes(tmp_path):
    def spoilt(run):
        in_loss(run, lambda: run.state.slower == 1 and 3 <= run.state.step < 6)
        return run

    def proof(run):
        last = latest(run.folder / "checkpoints")[0]
        files = [*sorted(last.iterdir()), run.folder / "results.csv", run.folder / "model.safetensors"]
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    whole = spoilt(begin(tmp_path, "whole"))
    whole.go()
    assert whole.returns == 1
    for steps in (4, 7):
        run = spoilt(begin(tmp_path, f"stopped-{steps}"))
        ordinary = run.step

        def step(state, logged, run=run, ordinary=ordinary, steps=steps):
            run.stopped = state.step == steps
            ordinary(state, logged)

        run.step = step
        with pytest.raises(StoppedError):
            run.go()
        spoilt(resume_run(run.folder, quiet=True)).go()
        assert proof(run) == proof(whole)
