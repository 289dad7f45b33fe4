"""Batches by number: a function of seed and number, with any target, for any number of workers."""

import numpy as np
import pytest
import torch
from trees import tree

from saccade.data.image.preprocess import Preprocess
from saccade.data.loader import by_number, once
from saccade.data.pictures import Pictures
from saccade.data.readers.open import open_images
from saccade.errors import DataError

SMALL = Preprocess(size=(4, 4))


def example(source, target, draws):
    """A number that depends on the draws, beside the image and its target."""
    luck = 0.0 if draws is None else draws.uniform("luck")
    return {"image": SMALL(source), "age": np.float32(target), "luck": np.float64(luck)}


def moved(batch, draws):
    return {**batch, "moved": batch["luck"] + draws.uniform("move")}


@pytest.fixture
def ages(tmp_path):
    found = open_images(tree(tmp_path, {"a": 5, "b": 5})).train
    return Pictures(found.store, found.rows, np.arange(10) / 8)


def numbered(pictures, first=0, last=6, **options):
    options = {"batch": 4, "per_epoch": 2, "seed": 7, "workers": 0, "finish": moved, **options}
    return list(by_number(pictures, example, first=first, last=last, **options))


def same(one, other):
    return len(one) == len(other) and all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in zip(one, other, strict=True)
    )


def test_a_batch_depends_on_its_number_and_not_on_where_one_begins_or_on_workers(ages):
    whole = numbered(ages)
    assert same(numbered(ages, first=3), whole[3:])
    assert same(numbered(ages, workers=2), whole)
    assert not same(numbered(ages, seed=8), whole)


def test_targets_draws_and_index_belong_to_their_image(ages):
    for batch in numbered(ages):
        assert batch["age"].dtype == torch.float32
        assert torch.equal(batch["age"], batch["index"].float() / 8)
        assert batch["image"].shape == (4, 3, 4, 4)
        assert len(set((batch["moved"] - batch["luck"]).tolist())) <= 4  # one draw for the whole batch
        assert len(batch["failed"]) == 0
    first, second = numbered(ages, last=2)
    assert not set(first["index"].tolist()) & set(second["index"].tolist())


def test_processes_share_each_batch(ages):
    whole, left, right = numbered(ages), numbered(ages, part=(0, 2)), numbered(ages, part=(1, 2))
    for all_of_it, one, other in zip(whole, left, right, strict=True):
        assert torch.equal(torch.cat([one["index"], other["index"]]), all_of_it["index"])
        assert torch.equal(torch.cat([one["luck"], other["luck"]]), all_of_it["luck"])


@pytest.mark.parametrize("workers", [0, 2])
def test_an_example_that_is_refused_is_reported_and_not_replaced(ages, workers):
    def refusing(source, target, draws):
        if target * 8 in (2, 3):
            raise DataError("not this one")
        return example(source, target, draws)

    batches = list(once(ages, refusing, batch=2, workers=workers))
    assert [batch["index"].tolist() for batch in batches] == [[0, 1], [4, 5], [6, 7], [8, 9]]
    [batch] = by_number(
        ages, refusing, batch=10, per_epoch=1, seed=0, first=0, last=1, workers=workers, finish=moved
    )
    assert sorted(batch["failed"].tolist()) == [2, 3]
    assert sorted(batch["index"].tolist()) == [0, 1, 4, 5, 6, 7, 8, 9]
    assert len(batch["moved"]) == 8


def test_a_batch_without_any_example_still_has_its_numbers(ages):
    def never(source, target, draws):
        raise DataError("gone")

    [batch] = by_number(ages, never, batch=4, per_epoch=2, seed=0, first=0, last=1, workers=0)
    assert len(batch["failed"]) == 4
    assert batch.keys() == {"index", "failed"}
    assert list(once(ages, never)) == []


def test_once_gives_every_image_once_in_order_without_draws(ages):
    batches = list(once(ages, example, batch=3))
    assert torch.cat([batch["index"] for batch in batches]).tolist() == list(range(10))
    assert not torch.cat([batch["luck"] for batch in batches]).any()
    half = list(once(ages, example, batch=3, part=(1, 2)))
    assert torch.cat([batch["index"] for batch in half]).tolist() == [1, 3, 5, 7, 9]
