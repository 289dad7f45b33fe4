"""A run from a folder to a model: stopped or killed anywhere, it goes on to the same bytes."""

import gc
import hashlib
import json
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from trees import state as tree_state
from trees import tree

import saccade
from saccade.api.models import Model
from saccade.api.train import resume_run, start_run
from saccade.data.image.preprocess import Preprocess
from saccade.data.readers.open import open_images
from saccade.errors import DataError, DivergedError, StoppedError, UsageError
from saccade.files.atomic import new_folder
from saccade.models.vit import ViT, ViTConfig
from saccade.recipe import read_recipe
from saccade.tasks import find_task
from saccade.train import start
from saccade.train.start import default_recipe
from saccade.weights.formats.tensors import read_tensors

RECIPE = [
    "budget.epochs=3",
    "budget.batch=4",
    "budget.accumulate=2",
    "budget.save=0",
    "optim.ema=0.9",
    "optim.lr=1e-3",
    "dropout=0.1",
    "droppath=0.1",
    "mix.mixup=0.2",
    "augment.policy=trivial",
    "augment.erase=0.3",
    "workers=0",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A tree of pictures and a small model to start from."""
    folder = tmp_path_factory.mktemp("run")
    tree(folder / "pictures", {"cat": 24, "dog": 24, "eel": 16})
    torch.manual_seed(0)
    vit = ViT(ViTConfig(image=(12, 12), patch=4, width=24, depth=2, heads=3, hidden=48, classes=0))
    Model(vit, Preprocess(size=(12, 12), fit="squash"), []).save(folder / "small")
    return folder


def begin(place, name, *changes):
    data, model = str(place / "pictures"), str(place / "small")
    return start_run(data, model, place / name, [*RECIPE, *changes], quiet=True)


def proof(folder):
    """Hashes of all that must be the same: weights, running mean, optimiser, results, the model kept."""
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    files = [*sorted(last.glob("*.safetensors")), last / "state.json", folder / "results.csv"]
    files += [folder / "model.safetensors", folder / "model.json"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def whole(place):
    """The run that was never stopped."""
    run = begin(place, "whole")
    run.go()
    start.finish(run)
    return run


def test_a_run_leaves_a_model_that_can_answer_and_all_that_is_needed_to_repeat_it(place, whole):
    names = {path.name for path in whole.folder.iterdir()}
    assert {"model.safetensors", "model.json", "preprocess.json", "labels.txt"} <= names
    assert {"recipe.json", "command.txt", "env.json", "data.json", "events.jsonl", "results.csv"} <= names
    assert {"report.html", "evaluation.json", "plots", "checkpoints"} <= names
    model = saccade.load(whole.folder)
    assert model.labels == ["cat", "dog", "eel"]
    assert len(model.predict(place / "pictures" / "cat" / "0.png")) == 3
    assert json.loads((whole.folder / "recipe.json").read_text())["budget"]["epochs"] == 3


def test_the_pictures_are_left_as_they_were(place, whole):
    before = tree_state(place / "pictures")
    begin(place, "again").go()
    assert tree_state(place / "pictures") == before


@pytest.mark.parametrize("steps", [1, 5, 6, 11])
def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(place, whole, steps):
    run = begin(place, f"stopped-{steps}")
    ordinary = run.step

    def step(state, logged):
        run.stopped = state.step == steps
        ordinary(state, logged)

    run.step = step
    with pytest.raises(StoppedError, match="Resume with: saccade train --resume") as caught:
        run.go()
    assert caught.value.exit_code == 130
    resume_run(run.folder, quiet=True).go()
    assert proof(run.folder) == proof(whole.folder)


def test_another_number_of_workers_changes_nothing(place, whole):
    run = begin(place, "workers", "workers=2")
    run.go()
    assert proof(run.folder) == proof(whole.folder)


PROGRAM = "import sys; from saccade.__main__ import main; sys.exit(main())"


def killed_again_and_again(place, folder, times, seed):
    """Kill -9 at random moments, resume each time; the last one may end."""
    source = random.Random(seed)
    words = ["-c", PROGRAM, "train", "--resume", str(folder)]
    for i in range(times + 1):
        child = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if i < times:
            time.sleep(source.uniform(2.0, 5.0))
            child.send_signal(signal.SIGKILL)
        _, told = child.communicate(timeout=300)
        if i == times or child.returncode == 0:
            assert child.returncode == 0, told.decode()
            return


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_to_the_same_bytes(place, whole):
    folder = begin(place, "killed").folder  # the run itself is let go, and its lock with it
    gc.collect()
    killed_again_and_again(place, folder, times=8, seed=1)
    assert proof(folder) == proof(whole.folder)


def test_numbers_that_stay_infinite_end_the_run_with_the_last_good_state(place):
    run = begin(place, "diverged")
    ordinary = run.learner.loss
    run.learner.loss = lambda batch: {
        n: v * (float("nan") if run.state.step > 4 else 1) for n, v in ordinary(batch).items()
    }
    with pytest.raises(
        DivergedError, match=r"not a finite number 3 times in a row .* try a smaller optim.lr"
    ):
        run.go()
    again = resume_run(run.folder, quiet=True)
    assert all(tensor.isfinite().all() for tensor in again.state.module.state_dict().values())


def test_with_the_body_frozen_only_the_head_moves(place):
    run = begin(place, "probe", "freeze=body", "optim.ema=0")
    before = {name: tensor.clone() for name, tensor in run.state.module.state_dict().items()}
    run.go()
    moved = {n for n, tensor in run.state.module.state_dict().items() if not torch.equal(tensor, before[n])}
    assert moved == {"head.weight", "head.bias"}


def test_a_teacher_of_the_same_classes_is_learnt_from_and_another_is_refused(place, whole):
    run = begin(place, "taught", f"teacher={whole.folder}", "budget.epochs=1")
    run.go()
    assert run.job.teacher is not None
    with pytest.raises(UsageError, match="does not have the 3 classes of the data"):
        begin(place, "refused-teacher", f"teacher={place / 'small'}")


def test_changed_pictures_are_not_gone_on_with(place, tmp_path):
    tree(tmp_path / "few", {"a": 6, "b": 6})
    run = start_run(str(tmp_path / "few"), str(place / "small"), tmp_path / "run", [*RECIPE], quiet=True)
    run.log.close()
    tree(tmp_path / "few", {"a": 7}, start=99)
    with pytest.raises(DataError, match=r"are not the ones that .* started with; start a new run"):
        resume_run(run.folder, quiet=True)


def test_a_folder_that_is_no_run_is_not_resumed(tmp_path):
    with pytest.raises(UsageError, match="is not a run folder"):
        resume_run(tmp_path, quiet=True)


def test_runs_are_never_overwritten(tmp_path):
    names = [new_folder(tmp_path / "run").name for _ in range(3)]
    assert names == ["run", "run-2", "run-3"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            "bugdet.epochs=3",
            "cannot set bugdet.epochs: ClassifyRecipe has no field 'bugdet'; did you mean 'budget'",
        ),
        ("budget.epochs=many", "epochs is int .* so it cannot become 'many'"),
        ("budget.epochs=0", "budget.epochs is 0; expected a number from 1"),
        ("seed", "--set was given 'seed'; expected name=value"),
        ("freeze=all", "freeze is 'all', which is not known"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused_in_words(place, change, words):
    with pytest.raises(UsageError, match=words):
        begin(place, "refused", change)


@pytest.mark.parametrize("what", ["body", "0", "1", "2"])
def test_a_part_can_be_kept_from_learning(place, what):
    run = begin(place, f"frozen-{what}", f"freeze={what}", "budget.epochs=1", "optim.ema=0")
    before = {name: tensor.clone() for name, tensor in run.state.module.state_dict().items()}
    run.go()
    changed = {n for n, t in run.state.module.state_dict().items() if not torch.equal(t, before[n])}
    expected = {
        "body": ("head.",),
        "0": ("blocks.", "norm.", "head."),
        "1": ("blocks.1.", "norm.", "head."),
        "2": ("norm.", "head."),
    }[what]
    assert changed
    assert all(name.startswith(expected) for name in changed)
    assert all(any(name.startswith(prefix) for name in changed) for prefix in expected)


def test_more_frozen_blocks_than_there_are_is_refused(place):
    with pytest.raises(UsageError, match="freeze is 3, but the model has 2 blocks"):
        begin(place, "none", "freeze=3")


def test_a_recipe_file_sets_fields_and_the_command_line_has_the_last_word(place, tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text('seed = 3\nmodel = "vit_xs4_12"\n[augment]\ncrop = [0.5, 1.0]\n[budget]\nbatch = 4\n')
    changes = [*read_recipe(path), "budget.batch=2"]
    recipe, _ = default_recipe(find_task(), open_images(str(place / "pictures")), "", changes)
    assert (recipe.seed, recipe.model, recipe.augment.crop, recipe.budget.batch) == (
        3,
        "vit_xs4_12",
        (0.5, 1.0),
        2,
    )
    path.write_text("seed = ")
    with pytest.raises(UsageError, match="cannot be read as a recipe"):
        read_recipe(path)


@pytest.mark.slow
def test_compiled_code_learns_the_same(place):
    """In processes of their own: the checker of shapes, which only tests have, cannot be compiled."""
    same = [word for change in (*RECIPE, "dropout=0", "droppath=0") for word in ("--set", change)]
    for name, more in (("plain", ()), ("compiled", ("--set", "compile=true"))):
        command = [
            "train",
            str(place / "pictures"),
            "--model",
            str(place / "small"),
            "--out",
            str(place / name),
        ]
        subprocess.run(
            [sys.executable, "-m", "saccade", *command, *same, *more], check=True, capture_output=True
        )
    mine, theirs = (read_tensors(place / name / "model.safetensors") for name in ("plain", "compiled"))
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-3, atol=1e-4)
