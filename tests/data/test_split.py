"""Splits: a partition, stratified, deterministic, stable under new files; folds equal to scikit-learn's."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from trees import picture, tree

from saccade.data.readers.open import open_images
from saccade.data.splits import hold_out, kfold, stratified
from saccade.errors import DataError, UsageError


def keys(count, seed=0):
    return np.random.default_rng(seed).integers(0, 2**63, count).astype(np.uint64)


some_labels = st.lists(st.integers(0, 6), min_size=1, max_size=120).map(lambda x: np.array(x, np.int32))
fractions = st.floats(0.01, 0.9)


@given(some_labels, fractions, st.integers(0, 2**31))
@settings(deadline=None)
def test_every_picture_is_on_one_side_and_every_class_on_both(labels, fraction, seed):
    train, val = stratified(labels, fraction, seed, keys=keys(len(labels)))
    assert sorted([*train, *val]) == list(range(len(labels)))
    for label in np.unique(labels):
        count, held = (labels == label).sum(), (labels[val] == label).sum()
        assert 1 <= held <= count - 1 if count > 1 else held == 0


@given(some_labels, fractions, st.integers(0, 99), st.integers(1, 9))
@settings(deadline=None)
def test_groups_never_part(labels, fraction, seed, count):
    groups = np.random.default_rng(seed).integers(0, count, len(labels))
    train, val = stratified(labels, fraction, seed, groups)
    assert sorted([*train, *val]) == list(range(len(labels)))
    assert not set(groups[train]) & set(groups[val])


def test_the_share_of_a_class_is_near_the_fraction():
    labels = np.repeat(np.arange(5), (20, 50, 500, 5000, 50_000)).astype(np.int32)
    for seed in range(20):
        _, val = stratified(labels, 0.2, seed, keys=keys(len(labels)))
        share = np.bincount(labels[val]) / np.bincount(labels)
        assert (share >= 0.1).all()
        assert (share <= 0.4).all()
        assert abs(share[4] - 0.2) < 0.01


def test_the_same_seed_gives_the_same_split_and_another_another():
    labels, names = np.zeros(1000, np.int32), keys(1000)
    first = stratified(labels, 0.2, 3, keys=names)[1]
    assert first.tolist() == stratified(labels, 0.2, 3, keys=names)[1].tolist()
    other = stratified(labels, 0.2, 4, keys=names)[1]
    assert len(np.intersect1d(first, other)) < 100


def test_the_order_of_the_files_does_not_matter():
    labels, names = np.repeat(np.arange(4), 100).astype(np.int32), keys(400)
    held = set(names[stratified(labels, 0.2, 0, keys=names)[1]])
    order = np.random.default_rng(1).permutation(400)
    assert set(names[order][stratified(labels[order], 0.2, 0, keys=names[order])[1]]) == held


def test_new_files_move_no_old_one():
    labels, names = np.repeat(np.arange(10), 400).astype(np.int32), keys(4000)
    for seed in range(5):
        chosen = np.random.default_rng(seed).permutation(4000)[:2000]
        before = set(names[chosen][stratified(labels[chosen], 0.2, seed, keys=names[chosen])[1]])
        after = set(names[stratified(labels, 0.2, seed, keys=names)[1]])
        assert before == after & set(names[chosen])


def test_new_pictures_in_a_folder_leave_the_old_ones_where_they_were(tmp_path):
    tree(tmp_path, {"a": 100, "b": 100})
    first = hold_out(open_images(tmp_path))
    assert first.val is not None
    held = {first.val.name(i) for i in range(len(first.val))}
    for i in range(40):
        (tmp_path / "a" / f"0{i}.png").write_bytes(picture(i))
    second = hold_out(open_images(tmp_path))
    assert second.val is not None
    now = {second.val.name(i) for i in range(len(second.val))}
    assert held == {name for name in now if not name.startswith("a/0") or name == "a/0.png"}
    assert len(now) > len(held)


def test_a_group_keeps_its_side_when_others_come():
    rng = np.random.default_rng(0)
    groups, labels = rng.integers(-(2**62), 2**62, 200).repeat(5), rng.integers(0, 3, 1000).astype(np.int32)
    train, val = stratified(labels, 0.3, 0, groups)
    few = np.flatnonzero(np.isin(groups, np.unique(groups)[::2]))
    part = stratified(labels[few], 0.3, 0, groups[few])[1]
    assert set(groups[few][part]) == set(groups[val]) & set(groups[few])
    assert 0.2 < len(val) / 1000 < 0.4
    assert len(train) + len(val) == 1000


def test_a_class_of_two_groups_is_on_both_sides():
    labels, groups = np.repeat(np.arange(4), 6).astype(np.int32), np.repeat(np.arange(8), 3)
    for seed in range(50):
        train, val = stratified(labels, 0.1, seed, groups)
        assert set(labels[train]) == set(labels[val]) == {0, 1, 2, 3}


def test_a_fraction_that_holds_nothing_or_all_is_refused():
    with pytest.raises(UsageError, match=r"the fraction to hold out is 1.5; expected a number from"):
        stratified(np.zeros(3, np.int32), 1.5, 0)


@pytest.mark.parametrize("k", [2, 3, 5, 10])
@pytest.mark.parametrize("seed", [0, 7])
def test_folds_equal_scikit_learns(k, seed):
    rng = np.random.default_rng(seed)
    labels, groups = rng.integers(0, 4, 200).astype(np.int32), rng.integers(0, 25, 200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for theirs, given_groups in ((StratifiedKFold, None), (StratifiedGroupKFold, groups)):
            expected = theirs(k, shuffle=True, random_state=seed).split(labels, labels, given_groups)
            found = list(kfold(labels, k, seed, given_groups))
            assert len(found) == k
            for (a, b), (c, d) in zip(found, expected, strict=True):
                assert a.tolist() == c.tolist()
                assert b.tolist() == d.tolist()
            assert sorted(np.concatenate([val for _, val in found])) == list(range(200))
            if given_groups is not None:
                assert not any(set(groups[a]) & set(groups[b]) for a, b in found)


def test_too_many_folds_are_refused_and_a_small_class_is_no_obstacle():
    labels = np.array([0] * 9 + [1] * 2, np.int32)
    assert len(list(kfold(labels, 3, 0))) == 3
    with pytest.raises(UsageError, match="10 folds were asked for, but no class has as many images; ask"):
        list(kfold(labels, 10, 0))
    with pytest.raises(UsageError, match=r"4 folds were asked for, but there are only 3 groups"):
        list(kfold(labels, 4, 0, np.arange(11) % 3))
    with pytest.raises(UsageError, match=r"the number of folds is 1; expected a number from 2"):
        list(kfold(labels, 1, 0))


def test_a_collection_gets_pictures_to_validate_on(tmp_path):
    found = open_images(tree(tmp_path, {"a": 10, "b": 10, "c": 1}))
    parted = hold_out(found, 0.2, 5)
    assert parted.val is not None
    assert len(parted.train) + len(parted.val) == 21
    assert f"{len(parted.val)} of them held out for validation (seed 5)" in parted.summary
    assert parted.warnings == ("1 class with a single image, never validated: c",)
    assert hold_out(parted) is parted


def test_a_single_picture_of_each_class_cannot_be_parted(tmp_path):
    found = open_images(tree(tmp_path, {"a": 1, "b": 1}))
    with pytest.raises(DataError, match=r"every class has a single image, so none can be held out"):
        hold_out(found)
