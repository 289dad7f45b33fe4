"""Pictures by number: no object for each, the right bytes, the same identity everywhere."""

import gc
import os
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest
from torch.utils.data import DataLoader
from trees import picture, tree

from saccade.data.image.decode import decode
from saccade.data.pictures import Files, Packing, Pictures
from saccade.data.readers.open import open_images
from saccade.errors import DataError


@pytest.fixture
def photos(tmp_path):
    return tree(tmp_path / "photos", {"cat": 4, "dog": 3})


def test_every_number_gives_its_file_and_its_label(photos):
    images = open_images(photos).train
    assert len(images) == 7
    assert images.classes == ["cat", "dog"]
    assert images.labels.dtype == np.int64
    assert images.labels.tolist() == [0] * 4 + [1] * 3
    for i in range(7):
        assert images.read(i) == (photos / images.name(i)).read_bytes()
    assert [images.name(i) for i in (0, 6)] == ["cat/0.png", "dog/2.png"]
    assert decode(images.open(6)).size == (12, 12)


def test_a_view_holds_the_pictures_asked_for_in_their_order(photos):
    images = open_images(photos).train
    view = images.take(np.array([6, 0, 5])).take(np.array([2, 0]))
    assert [view.name(i) for i in range(len(view))] == ["dog/1.png", "dog/2.png"]
    assert view.labels.tolist() == [1, 1]
    assert view.store is images.store


def test_labels_can_be_counted_in_the_list_of_a_model(photos):
    images = open_images(photos).train
    again = images.relabel(["dog", "bird", "cat"])
    assert again.labels.tolist() == [2] * 4 + [0] * 3
    assert again.classes == ["dog", "bird", "cat"]
    with pytest.raises(
        DataError,
        match=r"have 1 class that the model does not know \(dog\); expected classes among its 2",
    ):
        images.relabel(["cat", "bird"])


def test_a_vanished_file_is_named(photos):
    images = open_images(photos).train
    (photos / "cat" / "2.png").unlink()
    with pytest.raises(DataError, match=r"cat/2.png does not exist; expected an image"):
        images.read(2)
    (photos / "cat" / "3.png").unlink()
    os.mkfifo(photos / "cat" / "3.png")
    with pytest.raises(DataError, match=r"cat/3.png is a pipe"):
        images.read(3)
    assert images.read(1)


def test_a_damaged_file_is_named_by_its_place_below_the_root(photos):
    (photos / "dog" / "1.png").write_bytes(b"<html>")
    with pytest.raises(DataError, match=r"^dog/1.png is not an image: an HTML page saved as .png"):
        decode(open_images(photos).train.open(5))


def test_the_fingerprint_follows_names_labels_and_sizes_and_nothing_else(photos, tmp_path):
    first = open_images(photos).train.fingerprint()
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("dog", "cat"):  # another order of creation, another order of listing
        (moved / name).mkdir()
        for path in sorted((photos / name).iterdir(), reverse=True):
            shutil.copy(path, moved / name)
    assert open_images(moved).train.fingerprint() == first
    (moved / "dog" / "1.png").write_bytes(picture(99) + b"x")
    other = open_images(moved).train.fingerprint()
    (moved / "dog" / "1.png").rename(moved / "cat" / "9.png")
    assert len({first, other, open_images(moved).train.fingerprint()}) == 3


def test_the_fingerprint_is_the_same_in_another_process(photos):
    code = (
        "from saccade.data.readers.open import open_images; "
        f"print(open_images({str(photos)!r}).train.fingerprint())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == open_images(photos).train.fingerprint()


def test_names_in_bytes_that_are_no_utf8_are_read_and_shown_safely(tmp_path):
    root = os.fsencode(tmp_path)
    for folder in (b"a\xff", b"b"):
        os.mkdir(root + b"/" + folder)
        with open(root + b"/" + folder + b"/x\xfe\n\x1b[31m.png", "wb") as file:
            file.write(picture(1))
    found = open_images(tmp_path)
    assert found.train.classes == ["a\\xff", "b"]
    assert found.train.read(0) == picture(1)
    assert found.train.name(0).isprintable()
    assert len(found.train.fingerprint()) == 64


class Length:
    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return len(self.images.read(i)), int(self.images.labels[i])


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_read_the_same_pictures(photos, context):
    images = open_images(photos).train
    loader = DataLoader(Length(images), batch_size=None, num_workers=2, multiprocessing_context=context)
    assert [tuple(item) for item in loader] == [Length(images)[i] for i in range(7)]


def test_a_pickled_set_is_the_same_set(photos):
    images = open_images(photos).train
    again = pickle.loads(pickle.dumps(images))
    assert again.fingerprint() == images.fingerprint()


def test_no_python_object_is_kept_for_a_picture():
    packing = Packing()
    packing.extend(b"class/", (b"%d.jpg" % i for i in range(200_000)))
    store = Files("/nowhere", packing.packed())
    gc.collect()
    before = len(gc.get_objects())
    images = Pictures(store, np.arange(200_000), np.zeros(200_000, np.int32), ["class"])
    assert len(gc.get_objects()) - before < 50
    assert images.name(199_999) == "class/199999.jpg"
    assert len(pickle.dumps(images)) < 200_000 * 45


MEASURE = """
import sys, time, resource
from saccade.data.readers.open import open_images
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before, start = resident(), time.perf_counter()
found = open_images(sys.argv[1])
print(len(found.train), time.perf_counter() - start, resident() - before)
"""


def listed(root, classes, each):
    for c in range(classes):
        folder = root / f"class_{c:04}"
        folder.mkdir(parents=True)
        for i in range(each):
            os.close(os.open(folder / f"IMG_{i:06}.jpg", os.O_CREAT | os.O_WRONLY))
    done = subprocess.run([sys.executable, "-c", MEASURE, root], capture_output=True, text=True, check=True)
    count, seconds, kept = done.stdout.split()
    assert int(count) == classes * each
    return float(seconds), int(kept)


def test_ten_thousand_files_are_listed_in_a_hundredth_of_the_time_for_a_million(tmp_path):
    seconds, kept = listed(tmp_path / "many", 10, 1000)
    assert seconds < 30 / 100
    assert kept < 15_000_000


@pytest.mark.slow
def test_a_million_files_are_listed_in_half_a_minute_and_a_hundred_megabytes(tmp_path):
    seconds, kept = listed(tmp_path / "many", 1000, 1000)
    assert seconds < 30
    assert kept < 100_000_000  # a Python string for each would take at least as much again
    shutil.rmtree(tmp_path / "many")
