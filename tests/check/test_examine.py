"""The look at every picture: bad ones with the right reason, exact counts, twins, and nothing changed."""

import io
import json
import os
from dataclasses import fields

import numpy as np
import pytest
from pictures import KINDS, scene, write
from PIL import Image, ImageEnhance
from sklearn.datasets import load_digits
from trees import picture, state, tar, tree

from saccade.check.examine import Examination, examine
from saccade.check.near_duplicates import _joined, near, same, sketch
from saccade.data.pictures import Pictures
from saccade.data.readers.open import open_images
from saccade.data.splits import stratified
from saccade.progress import Progress


def photo(number: int) -> Image.Image:
    """Return a smooth picture with structure, unlike those of other numbers."""
    noise = np.random.default_rng(number).integers(0, 256, (6, 8, 3)).astype(np.uint8)
    return Image.fromarray(noise).resize((96, 72), Image.Resampling.BICUBIC)


def changed(image: Image.Image, how: str) -> Image.Image:
    if how == "resized":
        return image.resize((61, 47), Image.Resampling.LANCZOS)
    if how == "brighter":
        return ImageEnhance.Brightness(image).enhance(1.1)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=35)
    return Image.open(buffer).convert("RGB")


@pytest.mark.parametrize("full", [False, True])
def test_the_corpus_mixed_into_good_pictures_is_told_exactly(tmp_path, full):
    tree(tmp_path, {"a": 60, "b": 60})
    corpus = tmp_path / "b" / "corpus"
    corpus.mkdir()
    planted = write(corpus, [odd for odd in KINDS if not odd.name.startswith((".", "Thumbs"))])
    before = state(tmp_path)
    found = open_images(tmp_path)
    seen = examine(found, workers=2, full=full)
    assert state(tmp_path) == before

    said = {each.place.name: each.reason for each in seen.unreadable}
    listed = {found.train.name(i) for i in range(len(found.train))}
    refused = {f"b/corpus/{odd.name}": odd for odd in planted.values() if not odd.usable}
    refused = {name: odd for name, odd in refused.items() if name in listed}
    assert len(refused) >= 60
    if full:
        assert set(said) == set(refused)
    else:  # a header tells of a page, an empty file or a bomb, not of a cut in the pixels
        assert set(said) < set(refused)
        assert {"b/corpus/empty.jpg", "b/corpus/page.jpg", "b/corpus/50000.png"} <= set(said)
    for name, reason in said.items():
        assert refused[name].says in reason
        assert os.path.basename(name) in reason
    a, b = seen.balance
    assert (a.label, a.counts, a.unreadable) == ("a", {"train": 60}, 0)
    assert (b.label, b.counts["train"], b.unreadable) == ("b", len(listed) - 60, len(said))
    assert sum(seen.formats.values()) == sum(seen.modes.values()) == len(listed) - len(said)
    assert seen.bad().tolist() == sorted(each.place.index for each in seen.unreadable)
    assert seen.sizes.width[2] == 60_000
    assert not seen.sound


def test_a_sound_set_is_sound(tmp_path):
    seen = examine(
        open_images(tree(tmp_path, {"train/a": 5, "train/b": 4, "val/a": 2, "val/b": 1})), full=True
    )
    assert seen.sound
    assert seen.pictures == 12
    assert seen.splits == {"train": 9, "val": 3}
    assert seen.sizes.common == ((12, 12, 12),)
    assert seen.formats == {"PNG": 12}
    assert seen.modes == {"RGB": 12}
    assert [each.counts for each in seen.balance] == [{"train": 5, "val": 2}, {"train": 4, "val": 1}]


def test_files_that_vanish_after_the_listing_are_named_and_counted(tmp_path):
    found = open_images(tree(tmp_path, {"a": 3, "b": 3}))
    (tmp_path / "a" / "1.png").unlink()
    [lost] = examine(found).unreadable
    assert lost.place.name == "a/1.png"
    assert "does not exist" in lost.reason


@pytest.mark.parametrize("full", [False, True])
def test_the_same_file_twice_under_two_labels_and_in_two_splits(tmp_path, full):
    tree(tmp_path, {"train/a": 3, "train/b": 3, "val/a": 2, "val/b": 2})
    (tmp_path / "train" / "a" / "again.png").write_bytes((tmp_path / "train" / "a" / "0.png").read_bytes())
    (tmp_path / "train" / "b" / "wrong.png").write_bytes((tmp_path / "train" / "a" / "1.png").read_bytes())
    (tmp_path / "val" / "b" / "leak.png").write_bytes((tmp_path / "train" / "b" / "2.png").read_bytes())
    seen = examine(open_images(tmp_path), full=full)
    for groups, expected in (
        (seen.duplicates, ["train/a/0.png", "train/a/again.png"]),
        (seen.contradictions, ["train/a/1.png", "train/b/wrong.png"]),
        (seen.leaks, ["train/b/2.png", "val/b/leak.png"]),
    ):
        [group] = groups
        assert group.exact
        assert [place.name for place in group.places] == expected
    assert not seen.sound


@pytest.mark.parametrize("how", ["resized", "brighter", "encoded"])
def test_pictures_that_look_alike_are_found_and_others_are_not(tmp_path, how):
    for split, start in (("train", 0), ("val", 100)):
        for label in "ab":
            (tmp_path / split / label).mkdir(parents=True)
            for i in range(15):
                photo(start + ord(label) * 1000 + i).save(tmp_path / split / label / f"{i}.png")
    twin = changed(photo(97_003), how)
    twin.save(tmp_path / "val" / "b" / "twin.png")
    [group] = examine(open_images(tmp_path), full=True).twins
    assert not group.exact
    assert group.across_splits
    assert group.across_labels
    assert [place.name for place in group.places] == ["train/a/3.png", "val/b/twin.png"]
    assert not examine(open_images(tmp_path)).twins


def test_blank_pictures_are_not_the_twins_of_each_other(tmp_path):
    for label in "ab":
        (tmp_path / label).mkdir()
        for i in range(3):
            Image.new("RGB", (20 + i, 20), (250, 250, 250 - i - ord(label) % 2 * 3)).save(
                tmp_path / label / f"{i}.png"
            )
    assert not examine(open_images(tmp_path), full=True).twins


def test_twins_share_a_group_so_that_a_split_cannot_part_them(tmp_path):
    tree(tmp_path, {"a": 20, "b": 20})
    for i in range(10):
        (tmp_path / "a" / f"copy{i}.png").write_bytes((tmp_path / "a" / f"{i}.png").read_bytes())
    images = open_images(tmp_path).train
    groups = examine(images).groups()
    assert len(np.unique(groups)) == 40
    for seed in range(10):
        train, val = stratified(images.labels, 0.3, seed, groups)
        assert not {images.read(i) for i in train} & {images.read(i) for i in val}


def test_what_was_seen_goes_to_json_and_progress_counts_every_picture(tmp_path):
    tree(tmp_path, {"a": 50, "b": 20})
    (tmp_path / "a" / "0.png").write_bytes(b"")
    with Progress("checking", quiet=True) as bar:
        moved = []
        bar._move = lambda part, done: moved.append((part.label, part.total, done))
        seen = examine(open_images(tmp_path), full=True)
    assert moved == [("checking", 70, done) for done in range(1, 71)]
    again = json.loads(json.dumps(seen.to_json()))
    assert again["pictures"] == 70
    assert again["unreadable"][0]["place"]["name"] == "a/0.png"
    assert {field.name for field in fields(Examination)} <= set(again)


def test_the_number_of_workers_changes_nothing(tmp_path):
    tree(tmp_path, {"a": 40, "b": 40})
    write(tmp_path / "a", [odd for odd in KINDS if odd.name.startswith("cut")])
    one, many = (examine(open_images(tmp_path), workers=w, full=True) for w in (1, 5))
    assert one == many


def test_real_digits_are_sound_apart_from_a_few_that_look_alike(tmp_path):
    digits, labels = load_digits(return_X_y=True)
    content = {}
    for i in range(500):
        buffer = io.BytesIO()
        Image.fromarray((digits[i].reshape(8, 8) * 15).astype(np.uint8)).save(buffer, "PNG")
        content |= {f"{i}.png": buffer.getvalue(), f"{i}.cls": b"%d" % labels[i]}
    seen = examine(open_images(tar(tmp_path / "digits.tar", content)), full=True)
    assert not seen.unreadable
    assert seen.modes == {"L": 500}
    assert len(seen.twins) <= 3


def test_the_hash_does_not_depend_on_size_and_every_pair_within_the_distance_is_found():
    assert sketch(photo(1))[0] == sketch(photo(1))[0]
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**63, 400).astype(np.uint64)
    for i in range(100):  # each second hundred differs from the first in 0 to 6 bits, anywhere
        flips = rng.choice(64, i % 7, replace=False)
        hashes[100 + i] = hashes[i] ^ np.bitwise_or.reduce(
            np.uint64(1) << flips.astype(np.uint64), initial=np.uint64(0)
        )
    thumbs = rng.integers(0, 256, (400, 16, 16)).astype(np.uint8)
    thumbs[100:200] = thumbs[:100]
    assert [group.tolist() for group in near(hashes, thumbs)] == [[i, i + 100] for i in range(100)]
    thumbs[100:200] = rng.integers(0, 256, (100, 16, 16))  # alike by their hash alone
    assert not near(hashes, thumbs)


def test_a_thousand_copies_are_one_group():
    thumbs = np.broadcast_to(
        np.asarray(Image.fromarray(scene()).convert("L").resize((16, 16))), (1000, 16, 16)
    )
    [group] = near(np.full(1000, 12345, np.uint64), thumbs)
    assert group.tolist() == list(range(1000))


def test_a_long_chain_is_one_group():
    order = np.random.default_rng(0).permutation(5000)
    pairs = np.stack([order[:-1], order[1:]], axis=1)
    assert not _joined(5000, pairs).any()
    assert [group.tolist() for group in same(np.array([3, 1, 3, 2, 1]))] == [[0, 2], [1, 4]]
    assert near(np.empty(0, np.uint64), np.empty((0, 16, 16), np.uint8)) == []


def test_a_plain_set_of_images_is_examined_as_training_pictures(tmp_path):
    images = open_images(tree(tmp_path, {"a": 2, "b": 2})).train
    assert isinstance(images, Pictures)
    assert examine(images.take(np.array([3, 1]))).splits == {"train": 2}
    assert picture(1) != picture(2)
