"""Datasets on the hub: fetched once, checked, resumed, identified by their commit, and used offline."""

import io
import json
import random

import pytest
from hub import Hub, isolate
from terminal import run
from trees import picture

from saccade.data.readers import hub as data_hub
from saccade.data.readers.hub import read_source
from saccade.data.readers.open import open_images
from saccade.errors import DataError, SaccadeError, UsageError

pa = pytest.importorskip("pyarrow", reason="the extra `shards` is not installed")
pq = pytest.importorskip("pyarrow.parquet")

REPO = "someone/pets"
TRAIN, LATER, TEST = (
    "data/train-00000-of-00002.parquet",
    "data/train-00001-of-00002.parquet",
    "data/test-00000-of-00001.parquet",
)


def parquet(count, start=0, names=("cat", "dog"), padding=0):
    """A file as push_to_hub of Hugging Face's datasets writes it."""
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = pa.array([{"bytes": picture(start + i), "path": f"{i}.png"} for i in range(count)], kind)
    pad = [random.Random(0).randbytes(padding), *[b""] * (count - 1)]
    table = pa.table({"image": images, "label": [i % len(names) for i in range(count)], "pad": pad})
    features = {"image": {"_type": "Image"}, "label": {"names": list(names), "_type": "ClassLabel"}}
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    made = io.BytesIO()
    pq.write_table(table, made)
    return made.getvalue()


FILES = {
    "README.md": b"# Pets",
    ".gitattributes": b"*.parquet filter=lfs",
    TRAIN: parquet(6),
    LATER: parquet(4, 6),
    TEST: parquet(4, 10),
}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)
    with Hub({f"datasets/{REPO}": FILES}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        yield hub


def test_splits_and_class_names_come_from_the_files(hub, tmp_path):
    found = open_images(f"hf:{REPO}")
    commit = hub.branches[f"datasets/{REPO}", "main"]
    assert found.summary.startswith(f"hf:{REPO} at {commit[:8]}: Parquet, 3 files: ")
    assert found.train.classes == ["cat", "dog"]
    assert found.test is not None
    assert (len(found.train), len(found.test), found.val) == (10, 4, None)
    assert [found.train.read(i) for i in range(10)] == [picture(i) for i in range(10)]
    folder = tmp_path / "home/hub/datasets--someone--pets/snapshots" / commit
    assert sorted(path.name for path in folder.iterdir()) == ["data"]
    assert not hub.asked("README")


def test_what_is_there_is_not_fetched_again(hub):
    open_images(f"hf:{REPO}")
    hub.requests.clear()
    open_images(f"hf:{REPO}")
    assert not hub.asked("/store/")


def test_a_revision_and_a_folder_can_be_named(hub):
    older = open_images(f"hf:{REPO}").summary
    files = {"small/train-0.parquet": parquet(4, 50), "large/train/0.parquet": parquet(8, 60)}
    hub.push(f"datasets/{REPO}", files, "refs/pr/1")
    assert len(open_images(f"hf:{REPO}/small@refs/pr/1").train) == 4
    assert not hub.asked("large")
    assert len(open_images(f"hf:{REPO}/large@refs/pr/1").train) == 8
    with pytest.raises(
        DataError, match=rf"{REPO} holds 2 datasets side by side \(large, small\); .* hf:{REPO}/small"
    ):
        open_images(f"hf:{REPO}@refs/pr/1")
    with pytest.raises(
        DataError, match=r"has no Parquet files in tiny; it has them in large, small; check the sp"
    ):
        open_images(f"hf:{REPO}/tiny@refs/pr/1")
    assert open_images(f"hf:{REPO}").summary == older


def test_a_transfer_that_broke_is_taken_up_where_it_stopped(hub):
    large = parquet(10, padding=22_000_000)
    hub.push(f"datasets/{REPO}", {TRAIN: large})
    hub.cut(TRAIN, 15_000_000, times=100)
    with pytest.raises(DataError, match=r"could not be reached .*: what has arrived is kept"):
        open_images(f"hf:{REPO}")
    hub.heal()
    hub.requests.clear()
    assert len(open_images(f"hf:{REPO}").train) == 10
    assert [one.headers.get("range") for one in hub.asked("GET /store/")] == ["bytes=15000000-"]


def test_a_damaged_file_is_refused_and_fetched_anew(hub):
    hub.damage(LATER)
    with pytest.raises(DataError, match=rf"{LATER} is damaged: .* run the command again"):
        open_images(f"hf:{REPO}")
    hub.heal()
    assert len(open_images(f"hf:{REPO}").train) == 10


def test_offline_a_whole_copy_is_used_and_a_part_of_one_is_not(hub, monkeypatch):
    hub.damage(LATER)  # the test split is there by then, the second half of training is not
    with pytest.raises(DataError, match="is damaged"):
        open_images(f"hf:{REPO}@{hub.branches[f'datasets/{REPO}', 'main']}")
    hub.heal()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.requests.clear()
    for revision in ("", f"@{hub.branches[f'datasets/{REPO}', 'main']}"):
        with pytest.raises(DataError, match=rf"{REPO} is missing or incomplete in .* unset HF_HUB_OFFLINE"):
            open_images(f"hf:{REPO}{revision}")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    told = open_images(f"hf:{REPO}").summary
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.requests.clear()
    assert open_images(f"hf:{REPO}").summary == told
    assert not hub.requests


def test_a_hub_that_does_not_answer_is_replaced_by_the_copy(hub, capsys):
    told = open_images(f"hf:{REPO}").summary
    hub.fail(status=503, times=100)
    assert open_images(f"hf:{REPO}").summary == told
    assert "using the copy in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"cat/1.jpg": b"", "dog/1.jpg": b""}, "has no .parquet file, only 2 images; .* download it"),
        ({"images.zip": b"PK"}, r"has no .parquet file, only archives \(images.zip\); .* unpack them and"),
        (
            {"pets.py": b"", "README.md": b""},
            "has no .parquet file among its 2 files; .*@refs/convert/parquet",
        ),
        ({"../../x.parquet": b"", "/etc/x.parquet": b"", ".hidden/x.parquet": b""}, "has no .parquet file"),
    ],
)
def test_a_data_set_of_another_kind_is_refused_in_a_sentence(hub, files, says):
    hub.push("datasets/someone/else", files)
    with pytest.raises(DataError, match=f"someone/else {says}") as caught:
        open_images("hf:someone/else")
    assert "\n" not in str(caught.value)
    assert not hub.asked("resolve|store")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("hf:pets", "'pets' is not a name on the hub; names look like uoft-cs/cifar10"),
        ("hf:../../etc", "is not a name on the hub"),
        ("hf:a/b/../c", "does not name the folder of a dataset"),
        ("hf:a/b/", "does not name the folder of a dataset"),
        ("hf:a/b/.git", "does not name the folder of a dataset"),
        ("hf:a/b@", "is not a name on the hub"),
        ("hf:a/b@../c", "is not a revision of a/b"),
        (f"hf:{REPO}@v9", f"no revision 'v9' of {REPO}"),
        ("hf:someone/pest", "no dataset named someone/pest on http://127.0.0.1"),
    ],
)
def test_a_name_that_cannot_be_is_refused(hub, name, says):
    with pytest.raises(UsageError, match=says):
        open_images(name)


def test_a_model_is_no_data_set(hub):
    hub.push("someone/model", {"model.safetensors": b"x"})
    with pytest.raises(SaccadeError, match="no dataset named someone/model"):
        open_images("hf:someone/model")


def test_names_are_read_into_their_parts():
    assert read_source("hf:a/b") == ("a/b", "", "main")
    assert read_source("hf:a/b/c/d@refs/convert/parquet") == ("a/b", "c/d", "refs/convert/parquet")
    assert data_hub.choose(["b/test/0.parquet", "b/train/0.parquet"], "a/b") == [
        "b/test/0.parquet",
        "b/train/0.parquet",
    ]


def test_it_is_checked_and_learnt_from_at_the_command_line(hub, tmp_path, monkeypatch):
    done = run("check", f"hf:{REPO}", "--quick")
    assert done.code == 0, done.err
    assert "cat" in done.out
    monkeypatch.chdir(tmp_path)
    words = [
        "--model",
        "vit_xs2_8",
        "--set",
        "budget.epochs=1",
        "--set",
        "budget.batch=4",
        "--set",
        "workers=0",
    ]
    done = run("train", f"hf:{REPO}", *words)
    assert done.code == 0, done.err
    assert done.out.strip() == "runs/pets-vit_xs2_8"
    described = json.loads((tmp_path / "runs/pets-vit_xs2_8/data.json").read_text())
    assert described["source"] == f"hf:{REPO}"
    assert described["classes"] == ["cat", "dog"]
