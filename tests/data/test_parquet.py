"""Parquet: the shapes that the hub writes, labels with and without names, and words without pyarrow."""

import json
import pickle
import random
import sys

import pytest
from torch.utils.data import DataLoader
from trees import picture, state

from saccade.data.readers import parquet
from saccade.data.readers.open import detect, open_images
from saccade.errors import DataError, UsageError

pa = pytest.importorskip("pyarrow", reason="the extra `shards` is not installed")
pq = pytest.importorskip("pyarrow.parquet")


def wrote(path, labels, start=0, struct=True, names=(), group=7, column="image"):
    data = [picture(start + i) for i in range(len(labels))]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())]) if struct else pa.binary()
    values = [{"bytes": each, "path": f"{i}.png"} for i, each in enumerate(data)] if struct else data
    table = pa.table({"id": range(len(data)), column: pa.array(values, kind), "label": labels})
    if names:
        info = {"info": {"features": {"label": {"names": list(names), "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=group)
    return path


@pytest.mark.parametrize("struct", [True, False])
def test_pictures_and_labels_are_read_in_any_order(tmp_path, struct):
    path = wrote(tmp_path / "all.parquet", [i % 3 + 8 for i in range(30)], struct=struct)
    before = state(tmp_path)
    found = open_images(path)
    assert found.summary == "Parquet, 1 file: 30 images of 3 classes"
    assert found.train.classes == ["8", "9", "10"]
    assert found.train.labels.tolist() == [i % 3 for i in range(30)]
    for i in random.Random(0).sample(range(30), 30):
        assert found.train.read(i) == picture(i)
    assert found.train.name(29) == "all.parquet/29"
    assert state(tmp_path) == before


def test_words_are_sorted_and_class_labels_keep_their_order(tmp_path):
    path = wrote(tmp_path / "a.parquet", ["dog", "cat", "dog"])
    assert open_images(path).train.classes == ["cat", "dog"]
    path = wrote(tmp_path / "b.parquet", [1, 0, 1], names=("zebra", "ant", "bee"))
    found = open_images(path)
    assert found.train.classes == ["zebra", "ant", "bee"]
    assert found.train.labels.tolist() == [1, 0, 1]


def test_the_files_of_a_hub_data_set_are_its_splits(tmp_path):
    for name, count in {
        "train-00000-of-00002": 6,
        "train-00001-of-00002": 4,
        "validation-0": 2,
        "test-0": 3,
    }.items():
        wrote(tmp_path / "data" / f"{name}.parquet", [i % 2 for i in range(count)], start=count)
    assert detect(tmp_path) == "parquet"
    found = open_images(tmp_path)
    assert found.val is not None
    assert found.test is not None
    assert (len(found.train), len(found.val), len(found.test)) == (10, 2, 3)
    assert found.test.read(2) == picture(5)
    assert found.train.read(6) == picture(4)


def test_rows_without_a_label_are_left_out_and_told(tmp_path):
    found = open_images(wrote(tmp_path / "all.parquet", [0, -1, 1, None, 0]))
    assert found.train.labels.tolist() == [0, 1, 0]
    assert found.train.read(1) == picture(2)
    assert found.warnings[0].startswith("2 rows of ")


def test_a_row_without_bytes_is_named(tmp_path):
    values = pa.array([{"bytes": picture(0)}, {"bytes": None}], pa.struct([("bytes", pa.binary())]))
    pq.write_table(pa.table({"image": values, "label": ["a", "b"]}), tmp_path / "x.parquet")
    images = open_images(tmp_path / "x.parquet").train
    assert images.read(0) == picture(0)
    with pytest.raises(DataError, match=r"row 1 of .*x.parquet has no image data"):
        images.read(1)


def test_memory_stays_bounded_whatever_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "KEPT", 3000)
    images = open_images(wrote(tmp_path / "all.parquet", [i % 2 for i in range(60)], group=5)).train
    for i in random.Random(0).choices(range(60), k=200):
        assert images.read(i) == picture(i)
        kept = images.store._kept.values()
        assert sum(column.nbytes for column in kept) <= 3000


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: wrote(p, [0, 1], column="photo"), "has the columns .*photo .*expected image .* and label"),
        (lambda p: wrote(p, [0, 5], names=("a", "b")), "has the label '5', but names only 2 classes"),
        (lambda p: wrote(p, [None, -1]), "has no row with a label"),
        (lambda p: wrote(p, [0, 0]), "has only one class, 0"),
        (lambda p: p.write_bytes(b"PAR1 nonsense"), "x.parquet (is damaged|cannot be read)"),
        (lambda p: p.write_bytes(b""), "x.parquet (is damaged|cannot be read)"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(tmp_path, make, says):
    make(tmp_path / "x.parquet")
    with pytest.raises(DataError, match=says) as caught:
        open_images(tmp_path / "x.parquet")
    assert "\n" not in str(caught.value)


def test_files_that_disagree_are_refused(tmp_path):
    wrote(tmp_path / "a.parquet", [0, 1], names=("a", "b"))
    wrote(tmp_path / "b.parquet", [0, 1], names=("b", "a"))
    with pytest.raises(DataError, match=r"differ in their columns or class names"):
        open_images(tmp_path)


def test_a_file_that_vanishes_is_named(tmp_path):
    path = wrote(tmp_path / "x.parquet", [0, 1])
    images = open_images(path).train
    path.unlink()
    with pytest.raises(DataError, match=r"x.parquet cannot be read: "):
        images.read(0)


def test_without_pyarrow_the_command_that_installs_it_is_told(tmp_path, monkeypatch):
    path = wrote(tmp_path / "x.parquet", [0, 1])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match=r"needs pyarrow, .*; pip install 'saccade\[shards\]'"):
        open_images(path)


class Bytes:
    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images.read(i)


def test_workers_read_parquet_even_after_the_parent_did(tmp_path):
    images = open_images(wrote(tmp_path / "all.parquet", [i % 2 for i in range(20)])).train
    assert images.read(3) == picture(3)
    loader = DataLoader(Bytes(images), batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert list(loader) == [picture(i) for i in range(20)]
    assert pickle.loads(pickle.dumps(images)).store._kept == {}
