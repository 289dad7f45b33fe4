"""A run folder that two processes want, data that changed under it, and another number of threads."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import forked
import numpy as np
import pytest
import torch
from forked import PIPE, Forked
from promise import check_sentence, command
from trees import picture, tar, tree

from saccade.api.train import resume_folds, resume_run, run_folds, start_run
from saccade.compare import compare, plan
from saccade.data.readers.open import open_images
from saccade.errors import DataError, UsageError
from saccade.files.digest import BLOCK, EACH, UNREADABLE, WHOLE, sample_digest
from saccade.files.lock import NAME, lock
from saccade.train.checkpoint import digest
from saccade.train.run import Run

QUICK = [
    "budget.epochs=2",
    "budget.batch=4",
    "budget.save=0",
    "optim.ema=0.9",
    "workers=0",
    "augment.policy=none",
]
MODEL = "vit_xs4_12"


def words(changes=QUICK):
    return [word for change in changes for word in ("--set", change)]


def bitmaps(root: Path) -> Path:
    """Class folders of BMPs, which all have one size."""
    for label in ("cat", "dog"):
        (root / label).mkdir(parents=True)
        for i in range(8):
            (root / label / f"{i}.bmp").write_bytes(picture(i + 100 * (label == "dog"), kind="BMP"))
    return root


def proof(run: Path) -> dict[str, str]:
    """Hashes of all that must be the same at the end."""
    last = sorted((run / "checkpoints").iterdir())[-1]
    files = [*sorted(last.iterdir()), *(run / name for name in ("results.csv", "model.safetensors"))]
    return {path.name: digest(path) for path in files}


def exchange(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    assert first != second
    assert len(first) == len(second)
    one.write_bytes(second)
    other.write_bytes(first)


CHANGED = (
    r"the images in .* are not the ones that .* started with \(same names and sizes, .*\); start a new run"
)


@pytest.fixture
def begun(tmp_path) -> tuple[Path, Path]:
    """BMPs and a run on them that has not made a step."""
    data = bitmaps(tmp_path / "data")
    run = start_run(str(data), MODEL, tmp_path / "run", QUICK, quiet=True)
    run.log.close()
    return data, run.folder


def test_images_of_one_size_exchanged_between_classes_are_noticed(begun):
    data, run = begun
    exchange(data / "cat/0.bmp", data / "dog/0.bmp")
    with pytest.raises(DataError, match=CHANGED):
        resume_run(run, quiet=True)
    exchange(data / "cat/0.bmp", data / "dog/0.bmp")
    resume_run(run, quiet=True).log.close()


def test_the_command_says_so_in_a_sentence(begun, tmp_path):
    data, run = begun
    exchange(data / "cat/1.bmp", data / "dog/2.bmp")
    done = command("train", "--resume", run, cwd=tmp_path, code=3)
    assert "same names and sizes, different content" in done.err


def test_a_copy_of_the_data_with_other_times_is_the_same_data(begun, tmp_path):
    data, run = begun
    data.rename(tmp_path / "old")
    shutil.copytree(tmp_path / "old", data, copy_function=shutil.copyfile)
    resume_run(run, quiet=True).log.close()


def test_a_run_of_an_older_version_goes_by_names_and_sizes(begun):
    data, run = begun
    described = json.loads((run / "data.json").read_text())
    for part in ("train", "val"):
        assert described[part].pop("content")
    (run / "data.json").write_text(json.dumps(described))
    exchange(data / "cat/0.bmp", data / "dog/0.bmp")
    resume_run(run, quiet=True).log.close()


def test_a_manifest_and_shards_are_noticed_too(tmp_path):
    data = bitmaps(tmp_path / "data")
    rows = [f"data/{label}/{i}.bmp,{label}\n" for label in ("cat", "dog") for i in range(8)]
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(rows))
    members = {
        f"{label}{i}.{ending}": (data / label / f"{i}.bmp").read_bytes()
        if ending == "bmp"
        else label.encode()
        for label in ("cat", "dog")
        for i in range(8)
        for ending in ("bmp", "cls")
    }
    shard = tar(tmp_path / "shards/one.tar", members)
    for source in (tmp_path / "list.csv", shard):
        before = open_images(source).train
        assert open_images(source).train.content() == before.content()
        if source == shard:
            members["cat0.bmp"], members["dog0.bmp"] = members["dog0.bmp"], members["cat0.bmp"]
            tar(shard, members)
        else:
            exchange(data / "cat/0.bmp", data / "dog/0.bmp")
        after = open_images(source).train
        assert after.fingerprint() == before.fingerprint()
        assert after.content() != before.content()


def test_a_parquet_file_is_noticed_too(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    images = [picture(i, kind="BMP") for i in range(12)]

    def wrote():
        table = pa.table({"image": pa.array(images, pa.binary()), "label": [i % 2 for i in range(12)]})
        pq.write_table(table, tmp_path / "all.parquet", compression="none", use_dictionary=False)
        return open_images(tmp_path / "all.parquet").train.content()

    before = wrote()
    assert wrote() == before
    images[0], images[1] = images[1], images[0]
    assert wrote() != before


def test_a_split_and_its_order_are_part_of_the_content(tmp_path):
    images = open_images(bitmaps(tmp_path / "data")).train
    some, others = images.take(np.arange(4)), images.take(np.arange(4)[::-1].copy())
    assert len({images.content(), some.content(), others.content()}) == 3


def test_every_file_is_read_once_however_many_splits_ask(tmp_path, monkeypatch):
    images, asked = open_images(bitmaps(tmp_path / "data")).train, []
    ordinary = images.store.digest
    monkeypatch.setattr(images.store, "digest", lambda row: asked.append(row) or ordinary(row))
    for part in (images, images.take(np.arange(5)), images):
        part.content()
    assert sorted(asked) == list(range(16))


@pytest.mark.parametrize("size", [0, 1, WHOLE, WHOLE + 1, 100_000, 5 * EACH + 7])
def test_a_change_in_head_middle_or_tail_shows(tmp_path, size):
    path = tmp_path / "file"
    path.write_bytes(bytes(size))
    found = {sample_digest(str(path))}
    places = {0, size // 2, size - 1} if size else set()
    for place in places:
        data = bytearray(size)
        data[place] = 1
        path.write_bytes(data)
        found.add(sample_digest(str(path)))
    assert len(found) == 1 + len(places)
    path.write_bytes(bytes(size + 1))
    assert sample_digest(str(path)) not in found


def test_a_large_file_is_read_in_part(tmp_path):
    path = tmp_path / "file"
    data = bytearray(EACH // 2)
    path.write_bytes(data)
    first = sample_digest(str(path))
    data[BLOCK + 10] = 1
    path.write_bytes(data)
    assert sample_digest(str(path)) == first


def test_what_cannot_be_read_is_told_apart_from_what_can(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "none", tmp_path / "pipe", tmp_path, tmp_path / "a\0b"):
        assert sample_digest(str(path)) == UNREADABLE


def test_a_comparison_and_folds_notice_the_exchange(tmp_path, monkeypatch):
    data = bitmaps(tmp_path / "data")
    compared, _ = plan.begin(str(data), [MODEL], out=tmp_path / "compared")

    def killed(run):
        raise OSError("as good as killed")

    monkeypatch.setattr(Run, "go", killed)
    with pytest.raises(OSError, match="killed"):
        run_folds(str(data), 2, MODEL, tmp_path / "folds", QUICK, quiet=True)
    exchange(data / "cat/0.bmp", data / "dog/0.bmp")
    with pytest.raises(DataError, match=CHANGED):
        compare.go(compared, print)
    with pytest.raises(DataError, match=CHANGED):
        resume_folds(tmp_path / "folds", quiet=True)


def test_another_number_of_threads_is_told_in_one_line(begun, capsys):
    _, run = begun
    env = json.loads((run / "env.json").read_text())
    assert env["threads"] == str(torch.get_num_threads())
    resume_run(run).log.close()
    assert "threads" not in capsys.readouterr().err
    (run / "env.json").write_text(json.dumps(env | {"threads": "64"}))
    resume_run(run).log.close()
    lines = [line for line in capsys.readouterr().err.splitlines() if "threads" in line]
    assert len(lines) == 1
    assert lines[0].startswith("note: the run started with 64 threads and resumes with")
    assert "OMP_NUM_THREADS=64" in lines[0]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"threads": null}', '{"threads": "many"}'])
def test_an_env_file_that_says_nothing_of_threads_is_no_obstacle(begun, text):
    _, run = begun
    (run / "env.json").write_text(text)
    resume_run(run, quiet=True).log.close()


HOLD = "import sys, time; from pathlib import Path; from saccade.files.lock import lock\n"
HOLD += "held = lock(Path(sys.argv[1])); print('held', flush=True); time.sleep(600)"


@pytest.fixture
def holder(begun):
    """A process that has the run folder."""
    process = Forked([begun[1]], code=HOLD, stdout=PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_folder_in_use_is_refused_with_the_process_that_has_it(begun, holder, tmp_path):
    _, run = begun
    done = command("train", "--resume", run, cwd=tmp_path, code=2)
    line = done.err.splitlines()[-1]
    assert re.search(rf"run is in use by process {holder.pid}, started at 20\d\d-\d\d-\d\d \d\d:", line)
    assert "one training run at a time" in line
    began = time.mktime(time.strptime(re.search(r"started at ([-\d]+ [:\d]+)", line)[1], "%Y-%m-%d %H:%M:%S"))
    assert abs(time.time() - began) < 120
    check_sentence(line)


def test_a_lock_of_a_killed_process_is_no_obstacle(begun, holder):
    _, run = begun
    with pytest.raises(UsageError, match="is in use by process"):
        resume_run(run, quiet=True)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    resume_run(run, quiet=True).log.close()


def test_workers_that_outlive_their_parent_hold_nothing(begun):
    _, run = begun
    # each writes its line at once: print would write number and newline apart, and the two would interleave
    fork = "import os; child = os.fork(); os.write(1, f'{child}\\n'.encode())"
    code = HOLD.replace("print('held', flush=True)", fork)
    process = Forked([run], code=code, stdout=PIPE)
    assert process.stdout is not None
    child = max(int(process.stdout.readline()) for _ in range(2))
    process.kill()
    process.wait()
    try:
        os.kill(child, 0)  # it lives
        resume_run(run, quiet=True).log.close()
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


def test_a_folder_is_free_again_once_its_run_is_forgotten(tmp_path):
    held = lock(tmp_path)
    assert lock(tmp_path) is held
    code = (
        "import sys; from pathlib import Path; from saccade.files.lock import lock; lock(Path(sys.argv[1]))"
    )
    assert forked.run(tmp_path, code=code).returncode == 1
    del held
    assert forked.run(tmp_path, code=code).returncode == 0


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / NAME).symlink_to(tmp_path / "outside")
    assert lock(tmp_path / "run") is None
    assert not (tmp_path / "outside").exists()


def test_of_two_resumed_at_once_one_trains_to_the_same_bytes(tmp_path):
    data = tree(tmp_path / "data", {"cat": 12, "dog": 12})
    changes = ["budget.epochs=8" if change.startswith("budget.epochs") else change for change in QUICK]
    run = start_run(str(data), MODEL, tmp_path / "run", changes, quiet=True)
    run.log.close()
    del run
    whole = Path(shutil.copytree(tmp_path / "run", tmp_path / "whole"))
    forked.run("train", "--resume", whole, check=True)
    killed = Forked(["train", "--resume", tmp_path / "run"])
    while not list((tmp_path / "run/checkpoints").glob("step-00000000[3-9]")):
        assert killed.poll() is None
        time.sleep(0.02)
    killed.kill()
    killed.wait()
    both = [Forked(["train", "--resume", tmp_path / "run"], stderr=PIPE) for _ in "12"]
    told = [process.communicate(timeout=120)[1] for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes == [0, 2], told
    [error] = [line for text in told for line in text.splitlines() if line.startswith("error")]
    assert "is in use by process" in error
    assert proof(tmp_path / "run") == proof(whole)
