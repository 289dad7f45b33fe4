"""Several processes learn as one does: the same batches, the same curve, and a restart that goes on."""

import csv
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from itertools import chain

import pytest
import torch
from trees import tree

from saccade.data.loader import Once, Order
from saccade.errors import UsageError
from saccade.models.vit import ViT, ViTConfig
from saccade.processes import ALONE, Team, check_batch, copy_into, matching, whole
from saccade.weights.formats.tensors import read_tensors

RECIPE = (
    "budget.epochs=3",
    "budget.batch=8",
    "budget.accumulate=2",
    "budget.save=0",
    "optim.ema=0.9",
    "optim.lr=1e-2",
    "droppath=0",
    "mix.mixup=0.2",
    "mix.cutmix=0.5",
    "augment.policy=trivial",
    "workers=0",
)
PAIR = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    tree(folder / "pictures", {"cat": 24, "dog": 24, "eel": 20})
    return folder


def command(place, name, launcher=(), changes=()):
    sets = [word for change in (*RECIPE, *changes) for word in ("--set", change)]
    made = ("train", str(place / "pictures"), "--model", "vit_xs4_12", "--out", str(place / name), *sets)
    return [sys.executable, *launcher, "-m", "saccade", *made]


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}


def train(place, name, launcher=(), changes=()):
    done = subprocess.run(
        command(place, name, launcher, changes),
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return place / name, done


@pytest.fixture(scope="module")
def alone(place):
    return train(place, "alone")[0]


@pytest.fixture(scope="module")
def pair(place):
    return train(place, "pair", PAIR)


def curve(folder):
    with (folder / "results.csv").open(encoding="utf-8") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def compare(one, other, tolerance):
    assert len(curve(one)) == len(curve(other)) == 3
    for mine, theirs in zip(curve(one), curve(other), strict=True):
        assert mine == pytest.approx(theirs, rel=tolerance, abs=tolerance)
    mine, theirs = read_tensors(one / "model.safetensors"), read_tensors(other / "model.safetensors")
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-3, atol=1e-3)


def test_two_processes_have_the_curve_of_one_and_only_one_speaks(alone, pair):
    folder, done = pair
    compare(alone, folder, 1e-4)
    assert len(re.findall("going on|epoch 3/3", done.stderr)) == 1
    assert done.stdout.strip() == str(folder)
    assert len(list(folder.parent.glob("pair*"))) == 1


@pytest.mark.slow
def test_two_processes_with_a_slice_of_the_model_each_have_it_too(place, alone):
    compare(alone, train(place, "slices", PAIR, ["parallel=fsdp"])[0], 1e-4)


@pytest.mark.slow
def test_a_process_that_is_killed_is_begun_anew_and_the_run_goes_on_to_the_same_bytes(place, pair):
    launcher = (*PAIR, "--max-restarts", "1")
    running = subprocess.Popen(
        command(place, "killed", launcher),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment(),
    )
    deadline = time.monotonic() + 120
    while not (place / "killed" / "checkpoints" / "step-000000003").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    workers = subprocess.run(
        ["pgrep", "-P", str(running.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    os.kill(int(workers[-1]), signal.SIGKILL)
    _, told = running.communicate(timeout=180)
    assert running.returncode == 0, told.decode()
    assert "resuming from step" in told.decode()
    assert len(list(place.glob("killed*"))) == 1
    for name in ("model.safetensors", "results.csv"):
        mine, theirs = (hashlib.sha256((f / name).read_bytes()).digest() for f in (place / "killed", pair[0]))
        assert mine == theirs


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_slices_of_all_processes_are_the_batch_of_one(size):
    parts = [list(Order(50, 8, 6, 3, 2, 9, (rank, size))) for rank in range(size)]
    joined = [list(chain(*keys)) for keys in zip(*parts, strict=True)]
    assert joined == list(Order(50, 8, 6, 3, 2, 9))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_picture_is_scored_once_by_some_process(size):
    found = [key[-1] for rank in range(size) for keys in Once(10, 4, (rank, size)) for key in keys]
    assert sorted(found) == list(range(10))
    assert sum(len(Once(10, 4, (rank, size))) for rank in range(size)) >= 3


def test_a_batch_that_does_not_divide_evenly_is_refused():
    check_batch(6, Team(0, 3))
    with pytest.raises(UsageError, match=r"a batch of 8 images .* 3 processes; set budget.batch"):
        check_batch(8, Team(0, 3))


def test_alone_everything_is_agreed_on_at_once():
    assert ALONE.leads
    assert ALONE.mean({"loss": 2.0}) == {"loss": 2.0}
    assert ALONE.any(True)
    assert ALONE.broadcast("x") == "x"
    assert ALONE.all_gather(3) == [3]
    vit = ViT(ViTConfig(image=(8, 8), patch=4, width=8, depth=1, heads=1, hidden=8, classes=2))
    assert ALONE.wrap(vit) is vit
    weight = vit.head.weight
    copy_into(weight.data, torch.ones_like(weight))
    assert whole(weight).sum() == weight.numel()
    assert matching(weight, torch.tensor(3.0)) == 3
