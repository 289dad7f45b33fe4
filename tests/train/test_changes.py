"""Pictures that change and workers that die while a run learns; and a long run that needs no more memory."""

import gc
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from trees import picture, tree

from saccade.api.train import resume_run, start_run
from saccade.errors import DataError, ResourceError, StoppedError
from saccade.train.checkpoint import digest, latest

RECIPE = ["budget.epochs=3", "budget.batch=4", "workers=0"]


def begin(tmp_path, name="run", *changes):
    if not (tmp_path / "pictures").exists():
        tree(tmp_path / "pictures", {"cat": 14, "dog": 14})
    data = str(tmp_path / "pictures")
    run = start_run(data, "vit_xs2_8", tmp_path / name, [*RECIPE, *changes], quiet=True)
    run.said = []
    run.log.say = run.said.append
    return run


def at_step(run, number, act):
    ordinary = run.step

    def step(state, logged):
        ordinary(state, logged)
        if state.step == number:
            act()

    run.step = step


def removed(path):
    path.unlink()


def replaced(path):
    path.write_text("<html>no such picture</html>")


def cut(path):
    path.write_bytes(path.read_bytes()[:40])


def made_a_folder(path):
    path.unlink()
    path.mkdir()


CHANGES = {
    removed: "{} does not exist",
    replaced: "{} is not an image: an HTML page",
    cut: "{}",
    made_a_folder: "{} is a folder",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("part", ["train", "val"])
def test_a_picture_that_cannot_be_read_any_more_is_named_and_counted_once(tmp_path, change, part):
    run = begin(tmp_path)
    images = getattr(run.job.splits, part)
    path = Path(images.store.path(int(images.rows[0])))
    at_step(run, 2, lambda: change(path))
    run.go()
    told = [words for words in run.said if words.startswith("left out: ")]
    assert len(told) == 1
    assert path.name in told[0]
    assert run.unreadable.numbers == {"train": set(), "val": set(), part: {0}}


def test_a_picture_that_is_another_one_now_is_learnt_from(tmp_path):
    run = begin(tmp_path)
    path = Path(run.job.splits.train.store.path(int(run.job.splits.train.rows[0])))
    at_step(run, 2, lambda: path.write_bytes(picture(999)))
    run.go()
    assert run.unreadable.numbers["train"] == set()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_without_a_readable_picture_moves_nothing_and_the_run_goes_on(tmp_path, workers):
    run = begin(tmp_path, "run", "budget.batch=1", f"workers={workers}", "optim.decay=0", "optim.ema=0")
    images = run.job.splits.train
    Path(images.store.path(int(images.rows[3]))).unlink()
    run.go()
    assert run.unreadable.numbers["train"] == {3}
    assert run.state.step == run.plan.steps == 3 * len(images)


@pytest.mark.parametrize(("part", "workers"), [("train", 0), ("train", 1), ("val", 0)])
def test_more_than_the_share_that_is_borne_end_the_run(tmp_path, part, workers):
    run = begin(tmp_path, "run", f"workers={workers}", "bad=0.1")
    images = getattr(run.job.splits, part)

    def remove_all():
        for row in images.rows.tolist():
            Path(images.store.path(row)).unlink()

    at_step(run, 1, remove_all)
    words = rf"\d+ of {len(images)} images cannot be read \(limit 10%\). Run `saccade check`"
    with pytest.raises(DataError, match=words) as caught:
        run.go()
    assert caught.value.exit_code == 3
    assert "Traceback" not in str(caught.value)


@pytest.fixture
def attentive(monkeypatch):
    """Torch looks every 5 seconds whether its workers are alive; here it looks more often."""
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.2,))


def kill_worker():
    """Kill the newest worker of a loader: older ones may be left over, and other tests leave children too."""
    children = (child.pid for child in multiprocessing.active_children())
    names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in children}
    os.kill(max(pid for pid, name in names.items() if name.startswith("pt_data_worker")), signal.SIGKILL)


def proof(run):
    last = latest(run.folder / "checkpoints")[0]
    return {path.name: digest(path) for path in [*last.iterdir(), run.folder / "results.csv"]}


# of two workers the one killed may be left over from before, or done already: its death is then met by nobody
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_worker_that_is_killed_is_replaced_once_and_the_second_death_ends_the_run(
    tmp_path, attentive, workers
):
    whole = begin(tmp_path, "whole", f"workers={workers}", "budget.accumulate=2")
    whole.go()
    run = begin(tmp_path, "once", f"workers={workers}", "budget.accumulate=2")
    at_step(run, 3, kill_worker)
    run.go()
    assert (run.deaths, proof(run)) == (1, proof(whole))
    assert sum("starting new ones" in words for words in run.said) == 1
    run = begin(tmp_path, "twice", f"workers={workers}", "budget.accumulate=2")
    at_step(run, 1, kill_worker)
    at_step(run, 4, kill_worker)
    with pytest.raises(ResourceError, match=r"was killed twice.*saved at step \d+") as caught:
        run.go()
    assert caught.value.exit_code == 5
    assert latest(run.folder / "checkpoints")[0].name == f"step-{run.state.step:09}"
    resume_run(run.folder, quiet=True).go()
    assert proof(run) == proof(whole)


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_2000_steps_need_no_more_memory_than_200(tmp_path):
    run = begin(
        tmp_path, "run", "budget.epochs=401", "optim.ema=0.9", "budget.save=1", "augment.policy=trivial"
    )
    assert run.plan.steps > 2001
    sizes = {}
    for step in (200, 2000):
        at_step(run, step, lambda step=step: sizes.update({step: resident()}))
    at_step(run, 2001, lambda: setattr(run, "stopped", True))
    with pytest.raises(StoppedError):
        run.go()
    print({step: f"{size / 1e6:.1f} MB" for step, size in sizes.items()})
    assert sizes[2000] <= 1.02 * sizes[200]
