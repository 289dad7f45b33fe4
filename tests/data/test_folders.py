"""Class folders as people have them: with splits or without, with litter, links and odd names."""

import os
import socket
import stat

import numpy as np
import pytest
from pictures import BAD, GOOD, write
from trees import picture, state, tree

from saccade.data.image.decode import decode
from saccade.data.readers.folders import open_folders
from saccade.data.readers.open import detect, open_images
from saccade.errors import DataError, UsageError


def names(images):
    return [images.name(i) for i in range(len(images))]


def test_flat_class_folders_are_one_split(tmp_path):
    found = open_images(tree(tmp_path, {"dog": 2, "Cat": 1, "10": 1, "9": 1}))
    assert found.train.classes == ["10", "9", "Cat", "dog"]  # the order of bytes, as in torchvision
    assert found.val is None
    assert found.test is None
    assert found.train.groups is None
    assert found.warnings == ()
    assert found.summary == "class folders: 5 images of 4 classes"


@pytest.mark.parametrize("train", ["train", "training", "Train"])
@pytest.mark.parametrize("val", ["val", "valid", "validation", "dev", "eval", "VAL"])
def test_splits_are_known_by_their_usual_names(tmp_path, train, val):
    found = open_images(tree(tmp_path, {f"{train}/a": 2, f"{train}/b": 3, f"{val}/a": 1, f"{val}/b": 1}))
    assert len(found.train) == 5
    assert found.val is not None
    assert names(found.val) == [f"{val}/a/0.png", f"{val}/b/0.png"]
    assert found.summary == "class folders: 7 images of 2 classes (train 5, val 2)"


@pytest.mark.parametrize("test", ["test", "testing"])
def test_a_test_split_is_kept_apart(tmp_path, test):
    found = open_images(tree(tmp_path, {"train/a": 1, "train/b": 1, f"{test}/a": 2, f"{test}/b": 1}))
    assert found.val is None
    assert found.test is not None
    assert found.test.labels.tolist() == [0, 0, 1]
    assert list(found.by_name) == ["train", "test"]


def test_a_class_called_train_stays_a_class(tmp_path):
    found = open_images(tree(tmp_path, {"bus": 2, "train": 2, "tram": 1}))
    assert found.train.classes == ["bus", "train", "tram"]


def test_folders_beside_the_splits_are_left_out_and_told(tmp_path):
    found = open_images(tree(tmp_path, {"train/a": 1, "train/b": 1, "masks": 2}))
    assert len(found.train) == 2
    assert found.warnings == ("1 folder next to train left out: masks",)


def test_the_class_is_the_first_folder_whatever_lies_below(tmp_path):
    found = open_images(tree(tmp_path, {"a/2020/may": 1, "a/2021": 2, "a": 1, "b/x.png": 1}))
    assert names(found.train) == [
        "a/0.png",
        "a/2020/may/0.png",
        "a/2021/0.png",
        "a/2021/1.png",
        "b/x.png/0.png",
    ]
    assert found.train.labels.tolist() == [0, 0, 0, 0, 1]


def test_litter_is_passed_over_and_other_files_are_told(tmp_path):
    tree(tmp_path, {"a": 1, "b": 1, "a/__MACOSX": 1, "__MACOSX/a": 1, ".git/a": 1, "b/.cache": 2})
    for name in ("Thumbs.db", ".DS_Store", "._0.png", "desktop.ini"):
        (tmp_path / "a" / name).write_bytes(b"\0")
    assert open_images(tmp_path).warnings == ()
    (tmp_path / "a" / "notes.txt").write_text("hello")
    (tmp_path / "a" / "README").write_text("hello")
    found = open_images(tmp_path)
    assert found.warnings == ("2 other files left out: a/README, a/notes.txt",)
    assert len(found.train) == 2


def test_a_picture_is_known_by_its_content_where_the_ending_tells_nothing(tmp_path):
    tree(tmp_path, {"a": 1, "b": 1})
    (tmp_path / "a" / "photo").write_bytes(picture(7))
    (tmp_path / "a" / "photo.jpg_large").write_bytes(picture(8))
    assert names(open_images(tmp_path).train)[:3] == ["a/0.png", "a/photo", "a/photo.jpg_large"]


def test_pictures_of_foreign_formats_are_listed_to_be_named_later(tmp_path):
    tree(tmp_path, {"a": 1, "b": 1})
    (tmp_path / "a" / "phone.HEIC").write_bytes(b"\0\0\0\x24ftypheic\0\0\0\0")
    found = open_images(tmp_path)
    with pytest.raises(DataError, match=r"a/phone.HEIC is a HEIC image"):
        decode(found.train.open(1))


def test_pipes_sockets_and_devices_are_skipped_and_named(tmp_path):
    tree(tmp_path, {"a": 1, "b": 1})
    os.mkfifo(tmp_path / "a" / "pipe.png")
    (tmp_path / "b" / "zero.png").symlink_to("/dev/zero")
    here = os.getcwd()
    os.chdir(tmp_path)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("a/socket.png")
    os.chdir(here)
    found = open_images(tmp_path)
    assert len(found.train) == 2
    told = " ".join(found.warnings)
    for name, kind in (("a/pipe.png", "pipe"), ("a/socket.png", "socket"), ("b/zero.png", "device")):
        assert f"{name} is a {kind}" in told


def test_links_to_files_and_folders_work_and_loops_end(tmp_path):
    root = tree(tmp_path / "root", {"a": 1, "b": 1})
    tree(tmp_path / "far", {"c": 2}, start=50)
    (root / "a" / "link.png").symlink_to(tmp_path / "far" / "c" / "0.png")
    (root / "a" / "dangling.png").symlink_to("nowhere")
    (root / "a" / "self.png").symlink_to("self.png")
    (root / "c").symlink_to(tmp_path / "far" / "c")
    (root / "a" / "up").symlink_to("..")
    (root / "b" / "here").symlink_to(".")
    found = open_images(root, "folders")
    assert found.train.classes == ["a", "b", "c"]
    assert names(found.train)[:4] == ["a/0.png", "a/dangling.png", "a/link.png", "a/self.png"]
    assert [w for w in found.warnings if w.startswith("b/here/ is a link to a folder of the same class")]
    with pytest.raises(DataError, match=r"is a link to a file that does not exist"):
        found.train.read(1)
    with pytest.raises(DataError, match=r"is a link that leads back to itself"):
        found.train.read(3)


def test_class_names_that_are_almost_the_same_are_told(tmp_path):
    found = open_images(tree(tmp_path, {"Cat": 1, "cat": 1, "dog ": 1, "bird": 1}))
    assert found.train.classes == ["Cat", "bird", "cat", "dog"]
    assert found.warnings[0] == "class names are simplified: 'dog ' as 'dog'"
    assert found.warnings[1].startswith("classes 'Cat' and 'cat' differ only in case and are kept")


def test_the_two_ways_to_write_an_accent_are_one_class(tmp_path):
    found = open_images(tree(tmp_path, {"train/caf\u00e9": 1, "train/b": 1, "val/cafe\u0301": 1, "val/b": 1}))
    assert found.train.classes == ["b", "caf\u00e9"]


def test_empty_class_folders_are_left_out_and_listed(tmp_path):
    found = open_images(tree(tmp_path, {"a": 1, "b": 1, "c": 0, "d/deep": 0}))
    assert found.train.classes == ["a", "b"]
    assert found.warnings == ("2 class folders without an image left out: c, d",)


def test_a_class_that_is_missing_in_val_is_told(tmp_path):
    found = open_images(tree(tmp_path, {"train/a": 1, "train/b": 1, "val/a": 1}))
    assert found.val is not None
    assert found.val.classes == ["a", "b"]
    assert found.warnings == ("1 class without an image in val: b",)


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_classes_are_no_problem(tmp_path, count):
    for i in range(count):
        (tmp_path / f"{i}").mkdir()
        (tmp_path / f"{i}" / "x.jpg").touch()
    images = open_images(tmp_path).train
    assert len(images.classes) == count
    assert images.labels.tolist() == list(range(count))


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ({}, "photos is empty; expected a folder for each class"),
        ({"a": 0, "b": 0}, "photos holds 2 folders but no image; expected a folder for each class"),
        ({"a": 3}, "photos has only one class, a; expected two or more"),
        (
            {".": 7},
            "7 images directly in .*photos .0.png, 1.png, .* and 2 more.; expected one folder per class",
        ),
        (
            {"train": 2, "val": 1},
            "2 images directly in .*photos/train .train/0.png, train/1.png.; expected",
        ),
        ({"train/a": 1, "train/b": 1, "val/a": 1, "val/bb": 1}, "class 'bb' .* is only in val, .* mean 'b'"),
        (
            {"train/a": 1, "train/b": 1, "test/x": 1, "test/y": 1},
            "class 'x' .*only in test.* .and 1 more such",
        ),
        (
            {"train/a": 1, "train/b": 1, "val/a": 1, "valid/a": 1},
            "has both val and valid, which mean the same",
        ),
        ({"inner/a": 1, "inner/b": 1}, "only one class, inner, with 2 folders in it; .* mean .*photos/inner"),
        ({"train/a": 0, "val/a": 2}, "images only for val; expected some to train on"),
    ],
)
def test_what_cannot_be_learnt_from_is_refused_in_one_sentence(tmp_path, counts, says):
    (tmp_path / "photos").mkdir()
    root = tree(tmp_path / "photos", counts)
    with pytest.raises(DataError, match=says) as caught:
        open_images(root)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


def test_a_wrong_path_or_kind_is_refused_in_words(tmp_path):
    tree(tmp_path / "photos", {"a": 1, "b": 1})
    for word, says in {
        "phtos": "there is nothing at .*phtos; expected a folder of class folders.*did you mean photos?",
        "photos/a/0.png": "0.png is a single file; expected",
        "photos.zip": "there is nothing at",
    }.items():
        with pytest.raises(DataError, match=says):
            open_images(tmp_path / word)
    for name, says in {
        "x.zip": "x.zip is a packed archive.*unpack it",
        "x.tar.gz": "is a packed archive",
    }.items():
        (tmp_path / name).write_bytes(b"PK")
        with pytest.raises(DataError, match=says):
            open_images(tmp_path / name)
    with pytest.raises(DataError, match=r"is a web address; .* download it first"):
        open_images("https://example.org/x.tar")
    with pytest.raises(UsageError, match=r"hf:org/name is a dataset on the hub, .*; leave out --format"):
        open_images("hf:org/name", "folders")
    with pytest.raises(
        UsageError, match=r"the format is 'folder', which is not known; did you mean 'folders'"
    ):
        open_images(tmp_path / "photos", "folder")
    with pytest.raises(DataError, match=r"cannot be listed: No such file"):
        open_folders(tmp_path / "nothing")
    assert detect(tmp_path / "photos") == "folders"


def test_one_class_can_be_asked_for(tmp_path):
    assert open_images(tree(tmp_path, {"a": 2}), least=1).train.labels.tolist() == [0, 0]


def test_an_unreadable_folder_is_told(tmp_path, monkeypatch):
    tree(tmp_path, {"a": 1, "b": 1, "b/locked": 1})
    real = os.scandir

    def scandir(path):
        if bytes(path).endswith(b"locked/"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = open_folders(tmp_path)
    assert len(found.train) == 2
    assert found.warnings == ("b/locked/ cannot be listed: Permission denied; skipped",)


def test_the_whole_corpus_of_odd_files_is_listed_or_named_and_nothing_is_changed(tmp_path):
    tree(tmp_path, {"a": 50, "b": 50})
    (tmp_path / "a" / "odd").mkdir()
    planted = write(tmp_path / "a" / "odd")
    before = state(tmp_path)
    found = open_images(tmp_path)
    listed = set(names(found.train))
    for path, odd in planted.items():
        name = os.fsencode(path.name)
        special = not path.is_symlink() and not stat.S_ISREG(path.stat().st_mode)
        hidden = name.startswith(b".") or name == b"Thumbs.db"
        if odd.usable:
            assert any(
                os.fsencode(found.train.store.path(i)).endswith(b"/" + name) for i in range(len(found.train))
            )
        elif not special and not hidden and odd.name != "zero.png":
            assert f"a/odd/{odd.name}" in listed
    assert sum("is a pipe" in w or "is a socket" in w or "is a device" in w for w in found.warnings) == 3
    assert state(tmp_path) == before
    assert np.bincount(found.train.labels)[1] == 50
    assert len(GOOD) + 50 < np.bincount(found.train.labels)[0] <= len(GOOD) + len(BAD) + 51
