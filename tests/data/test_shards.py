"""WebDataset shards: scanned by headers, read in place, never extracted, damage told with its place."""

import gzip
import json
import os
import pickle
import random
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from trees import picture, state, tar

from saccade.data.readers.open import detect, open_images
from saccade.data.readers.shards import expand
from saccade.data.readers.tar import members
from saccade.errors import DataError


def names(images):
    return [images.name(i) for i in range(len(images))]


def samples(start, count, kind="cls"):
    """Return members of a shard whose classes alternate between 0 and 1."""
    result = {}
    for i in range(start, start + count):
        result[f"{i:05}.png"] = picture(i)
        label = {"cls": f"{i % 2}", "txt": f"kind {i % 2}\n", "json": json.dumps({"label": f"kind {i % 2}"})}
        result[f"{i:05}.{kind}"] = label[kind].encode()
    return result


@pytest.fixture
def shards(tmp_path):
    for i in range(3):
        tar(tmp_path / f"shard-{i:03}.tar", samples(10 * i, 10))
    return tmp_path


@pytest.mark.parametrize("pattern", ["", "shard-{000..002}.tar", "shard-*.tar"])
def test_a_folder_a_brace_pattern_and_a_glob_give_the_same(shards, pattern):
    before = state(shards)
    found = open_images(str(shards / pattern))
    assert found.summary == "WebDataset, 3 shards: 30 images of 2 classes"
    assert found.train.classes == ["0", "1"]
    assert found.train.labels.tolist() == [i % 2 for i in range(30)]
    assert names(found.train)[::11] == [f"shard-00{i}.tar/{11 * i:05}.png" for i in range(3)]
    for i in random.Random(0).sample(range(30), 30):
        assert found.train.read(i) == picture(i)
    assert state(shards) == before


@pytest.mark.parametrize("kind", ["cls", "txt", "json"])
def test_a_label_may_be_a_number_a_text_or_an_object(tmp_path, kind):
    found = open_images(tar(tmp_path / "one.tar", samples(0, 4, kind)))
    assert found.train.classes == (["0", "1"] if kind == "cls" else ["kind 0", "kind 1"])


@pytest.mark.parametrize("key", ["label", "cls"])
def test_a_json_may_hold_a_number_under_either_key(tmp_path, key):
    content = {}
    for i in range(4):
        content |= {
            f"{i}.jpg": picture(i, kind="JPEG"),
            f"{i}.json": json.dumps({key: 9 + i, "x": []}).encode(),
        }
    assert open_images(tar(tmp_path / "one.tar", content)).train.classes == ["9", "10", "11", "12"]


def test_a_list_of_classes_beside_the_shards_names_the_numbers(shards):
    (shards / "classes.txt").write_text("cat\ndog\n")
    assert open_images(shards).train.classes == ["cat", "dog"]
    (shards / "classes.txt").write_text("cat\n")
    with pytest.raises(DataError, match=r"has the class 1, but .*classes.txt names 1 classes"):
        open_images(shards)


def test_splits_are_told_by_names_of_shards_or_folders(tmp_path):
    for name in ("set-train-000.tar", "set-train-001.tar", "set-val-000.tar", "test/000.tar"):
        tar(tmp_path / name, samples(0, 4))
    found = open_images(tmp_path)
    assert found.val is not None
    assert found.test is not None
    assert (len(found.train), len(found.val), len(found.test)) == (8, 4, 4)


def test_pictures_without_a_label_and_other_members_are_told_or_passed_over(tmp_path):
    content = samples(0, 4) | {"lost.png": picture(50), "odd.cls": b"1", "notes": b"", "._x.png": b"\0\5"}
    content |= {
        "broken.png": picture(51),
        "broken.json": b"{",
        "deep.png": picture(52),
        "deep.json": b"[" * 9999,
    }
    found = open_images(tar(tmp_path / "one.tar", content))
    assert len(found.train) == 4
    [told] = found.warnings
    assert told.startswith("3 images without a label left out: ")
    assert told.endswith("one.tar/deep.png")


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_format_of_tar_is_read_as_tarfile_reads_it(tmp_path, form):
    long = "folder/" * 12 + "n" * 90
    content = {
        f"{long}.png": picture(1),
        f"{long}.cls": b"0",
        "b.png": picture(2),
        "b.cls": b"1",
        "\u00e9.png": b"",
    }
    if form != tarfile.USTAR_FORMAT:
        content |= {"m" * 300 + ".png": picture(3), "m" * 300 + ".cls": b"1"}
    path = tar(tmp_path / "one.tar", content, form)
    with tarfile.open(path, errors="surrogateescape") as archive:
        expected = [(os.fsencode(m.name), m.offset_data, m.size) for m in archive if m.isreg()]
    assert [tuple(member) for member in members(str(path))] == expected


def test_names_that_lead_outside_are_only_names(tmp_path):
    evil = ["../../evil", "/etc/evil", "a/../../evil", "\x1b[31mred", "line\nbreak"]
    content = {}
    for i, name in enumerate(evil):
        content |= {f"{name}.png": picture(i), f"{name}.cls": b"%d" % i}
    before = set(tmp_path.parent.iterdir())
    found = open_images(tar(tmp_path / "in" / "one.tar", content))
    assert [found.train.read(i) for i in range(5)] == [picture(i) for i in range(5)]
    assert all(found.train.name(i).isprintable() for i in range(5))
    assert set(tmp_path.parent.iterdir()) == before
    assert os.listdir(tmp_path / "in") == ["one.tar"]


def test_links_devices_and_folders_inside_are_passed_over(tmp_path):
    path = tar(tmp_path / "one.tar", samples(0, 2))
    with tarfile.open(path, "a") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
            info = tarfile.TarInfo("x.png")
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    assert len(open_images(path).train) == 2


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            lambda d: d[:550],
            "one.tar is cut short: a member at byte 0 needs .* bytes, but the file ends first",
        ),
        (lambda d: d[:100], "one.tar is cut short: it ends at byte 100, inside a block"),
        (lambda d: d[:700], "one.tar is cut short: it ends at byte 700, inside a block"),
        (lambda d: d[:0], "one.tar is cut short"),
        (lambda d: gzip.compress(d), "one.tar is compressed with gzip; expected a plain tar; unpack it"),
        (lambda d: b"PK\3\4" + d, "one.tar is not a tar archive"),
        (
            lambda d: d[:1030] + b"\xff" + d[1031:],
            "one.tar is damaged: the header at byte 1,024 does not match",
        ),
        (lambda d: d[:1024] + d[1024:1148] + b"zzzzzzzzzzz\0" + d[1160:], "one.tar is damaged: "),
    ],
)
def test_a_damaged_shard_is_refused_with_the_place(tmp_path, damage, says):
    path = tar(tmp_path / "one.tar", samples(0, 4))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=says):
        open_images(path)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_damage_is_read_or_refused_and_never_a_crash(tmp_path_factory, data):
    path = tar(tmp_path_factory.mktemp("t") / "one.tar", samples(0, 2))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 20))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content))
    try:
        found = list(members(str(path)))
    except DataError:
        return
    assert all(member.offset + member.size <= len(content) for member in found)


def test_shards_that_are_missing_are_named(shards):
    with pytest.raises(DataError, match=r"2 shards of .* missing: .*shard-003.tar, .*shard-004.tar"):
        open_images(str(shards / "shard-{000..004}.tar"))
    with pytest.raises(DataError, match=r"no file matches .*none-\*.tar; expected shards that end in .tar"):
        open_images(str(shards / "none-*.tar"))
    with pytest.raises(DataError, match=r"counts from 9 to 3; expected a range that goes up"):
        open_images(str(shards / "shard-{9..3}.tar"))
    with pytest.raises(DataError, match=r"holds 1 image and none with a label; expected key.jpg with"):
        open_images(tar(shards / "alone.tar", {"a.png": picture(0)}))


def test_a_shard_that_changes_during_the_run_is_named(shards):
    images = open_images(shards).train
    (shards / "shard-001.tar").unlink()
    with pytest.raises(DataError, match=r"00010.png in .*shard-001.tar cannot be read: No such file"):
        images.read(10)
    (shards / "shard-002.tar").write_bytes(b"short")
    with pytest.raises(DataError, match=r"00020.png in .*shard-002.tar is cut short: the shard has shrunk"):
        images.read(20)
    assert images.read(0) == picture(0)


def test_ranges_multiply():
    assert expand("a{1..2}-{08..10}") == [f"a{i}-{j}" for i in "12" for j in ("08", "09", "10")]


def test_the_kind_is_detected(shards):
    assert detect(shards) == "shards"
    assert detect(shards / "shard-000.tar") == "shards"
    (shards / "train").mkdir()
    os.rename(shards / "shard-000.tar", shards / "train" / "0.tar")
    for path in shards.glob("*.tar"):
        path.unlink()
    assert detect(shards) == "shards"


class Bytes:
    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images.read(i)


def test_workers_read_the_shards_too(shards):
    images = pickle.loads(pickle.dumps(open_images(shards).train))
    loader = DataLoader(
        Bytes(images), batch_size=None, shuffle=False, num_workers=2, multiprocessing_context="fork"
    )
    assert list(loader) == [picture(i) for i in range(30)]
