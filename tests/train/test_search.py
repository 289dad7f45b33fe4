"""Search for a given speed: plans from gentle to aggressive, their tokens, and which of them is taken."""

from dataclasses import replace

import pytest
import torch
from trees import tree

from saccade.data.image.preprocess import Preprocess
from saccade.data.readers.open import open_images
from saccade.engine import timing
from saccade.errors import UsageError
from saccade.models.vit import ViT, ViTConfig
from saccade.prune import search
from saccade.tokens.cost import lengths, macs
from saccade.tokens.merge import MergedConfig, decreasing, merge
from saccade.tokens.plan import apply_plan, describe_plan, like, rates
from saccade.tokens.prune import PrunedConfig
from saccade.vision import pruned

TINY = ViTConfig(image=(16, 16), patch=2, width=24, depth=4, heads=3, hidden=48, classes=2)


@pytest.fixture(scope="module")
def vit():
    torch.manual_seed(0)
    return ViT(TINY).eval()


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return open_images(tree(tmp_path_factory.mktemp("search"), {"cat": 4, "dog": 4})).train


def test_families_go_from_gentle_to_rough_and_their_tokens_are_those_of_the_model(vit):
    lines = search.families(vit)
    ways = {type(line[0]) for line in lines}
    assert ways == {PrunedConfig, MergedConfig}
    for line in lines:
        work = [sum(search.tokens(config)) for config in line]
        assert work == sorted(work, reverse=True)
    for config in (lines[0][0], lines[2][-1], lines[-1][-1]):
        assert tuple(search.tokens(config)) == lengths(config)


def test_plans_that_are_all_the_same_in_fact_are_tried_once():
    one = search.families(ViT(replace(TINY, depth=1)))
    assert [describe_plan(line[-1]) for line in one] == ["merge 32 patches per block"]
    for line in search.families(ViT(replace(TINY, depth=2)))[-2:]:
        assert len({rates(config) for config in line}) == len(line)
        assert tuple(search.tokens(line[-1])) == lengths(line[-1])


def taken(modules, image, batch, seconds=0.0):
    """Made up, as times of so small a model are chance: what a token costs, and nothing else."""
    plans = [getattr(module, "loop", None) for module in modules]
    return [[float(65 * 4 if plan is None else sum(search.tokens(plan)))] * 9 for plan in plans]


def test_the_plan_that_answers_best_of_those_fast_enough_is_taken(vit, images, monkeypatch):
    right = {"merge": 3, "keep": 2}
    seen = []

    def scored(modules, preprocess, pictures, batch=32):
        seen.extend(module.loop for module in modules)
        return 4, [right[describe_plan(module.loop).split()[0]] for module in modules], []

    monkeypatch.setattr(search, "forward_times", taken)
    monkeypatch.setattr(search, "right_of", scored)
    small, said = Preprocess(size=(16, 16)), []
    best = search.search(vit, small, images, lambda _: 1.4, 1, said.append)
    assert isinstance(best.tried.config, MergedConfig)
    assert (best.tried.right, best.tried.ratio >= 1.4, best.aim) == (0.75, True, 1.4)
    assert best.speed.ratio == best.tried.ratio
    assert all(sum(search.tokens(config)) * 1.4 <= 65 * 4 for config in seen)
    assert any("predicted" in words for words in said)
    right.update(merge=1)
    best = search.search(vit, small, images, lambda _: 1.4, 1, said.append)
    assert isinstance(best.tried.config, PrunedConfig)
    assert search.search(vit, small, images, lambda _: 0.9, 1, said.append) is None
    with pytest.raises(UsageError, match=r"no plan reaches .* ms, .*; the fastest takes .* ms"):
        search.search(vit, small, images, lambda _: 50.0, 1, said.append)


def test_a_plan_slower_than_the_dense_model_is_never_taken(vit, images, monkeypatch):
    monkeypatch.setattr(
        search, "forward_times", lambda modules, *_: [[1.0 + i] * 9 for i in range(len(modules))]
    )
    with pytest.raises(UsageError, match="no plan was faster here"):
        search.search(vit, Preprocess(size=(16, 16)), images, lambda _: 1.2, 1, lambda _: None)


@pytest.mark.parametrize(("factor", "stays"), [(0.97, True), (0.9, False)])
def test_a_plan_that_won_by_chance_gives_way_to_the_next(vit, images, monkeypatch, factor, stays):
    """All but the best are as fast when measured again."""

    def again(modules, image, batch, seconds=0.0):
        rows, plan = taken(modules, image, batch), getattr(modules[-1], "loop", None)
        if not seconds and isinstance(plan, MergedConfig):
            rows[1] = [rows[0][0] / (1.4 * factor)] * 9
        return rows

    monkeypatch.setattr(search, "forward_times", again)
    monkeypatch.setattr(
        search,
        "right_of",
        lambda modules, *_: (4, [3 if isinstance(m.loop, MergedConfig) else 2 for m in modules], []),
    )
    said = []
    best = search.search(vit, Preprocess(size=(16, 16)), images, lambda _: 1.4, 1, said.append)
    assert isinstance(best.tried.config, MergedConfig if stays else PrunedConfig)
    assert best.speed.ratio == pytest.approx(1.4 * factor) if stays else best.speed.ratio >= 1.4
    assert any("when measured again; not taken" in words for words in said) != stays


@pytest.mark.parametrize(
    ("aim", "ratio", "told"), [(1.4, 1.2, "no plan reaches"), (1.02, 0.99, "no plan was faster here")]
)
def test_a_speed_that_no_plan_has_twice_is_refused(vit, images, monkeypatch, aim, ratio, told):
    def again(modules, image, batch, seconds=0.0):
        return taken(modules, image, batch) if seconds else [[ratio] * 9, [1.0] * 9]

    monkeypatch.setattr(search, "forward_times", again)
    with pytest.raises(UsageError, match=told):
        search.search(vit, Preprocess(size=(16, 16)), images, lambda _: aim, 1, lambda _: None)


def test_rougher_plans_are_tried_where_none_was_as_fast_again(vit, images, monkeypatch):
    first, long = [], []

    def again(modules, image, batch, seconds=0.0):
        rows, plan = taken(modules, image, batch), getattr(modules[-1], "loop", None)
        (first if seconds and not long else [] if seconds else long).append(plan)
        if not seconds and plan in first:
            rows[1] = [rows[0][0] / 1.3] * 9
        return rows

    monkeypatch.setattr(search, "forward_times", again)
    monkeypatch.setattr(search, "_timed", lambda _, inputs: [float(z.shape[1]) for z in inputs])
    monkeypatch.setattr(search, "right_of", lambda modules, *_: (4, [3] * len(modules), []))
    best = search.search(vit, Preprocess(size=(16, 16)), images, lambda _: 1.4, 1, lambda _: None)
    assert best.tried.config not in first
    assert best.speed.ratio >= 1.4
    assert best.tried.predicted == pytest.approx(best.speed.slim)
    assert long[-1] == best.tried.config
    assert len(long) == len(set(long))


def test_a_machine_that_becomes_faster_meanwhile_is_asked_for_less(vit, images, monkeypatch):
    slow = [2.0]

    def race(modules, image, batch, seconds=0.0):
        if not seconds:
            slow[0] = 1.0
        return [[slow[0] * each for each in row] for row in taken(modules, image, batch)]

    monkeypatch.setattr(search, "forward_times", race)
    monkeypatch.setattr(search, "right_of", lambda modules, *_: (4, [3] * len(modules), []))
    said = []
    best = search.search(
        vit, Preprocess(size=(16, 16)), images, lambda dense: dense / (65 * 4 / 1.3), 1, said.append
    )
    assert best.aim == pytest.approx(1.3)
    assert [words for words in said if "searching again" in words] == [
        "the dense model takes 260000.0 ms now; searching again"
    ]


def test_a_plan_that_saves_nothing_is_not_taken_however_fast_it_seems(images, monkeypatch):
    single = ViT(replace(TINY, image=(2, 2)))
    monkeypatch.setattr(search, "forward_times", lambda modules, *_: [[2.0] * 9, [1.0] * 9][: len(modules)])
    with pytest.raises(UsageError, match="no plan was faster here"):
        search.search(single, Preprocess(size=(2, 2)), images, lambda _: 1.2, 1, lambda _: None)


def test_a_plan_is_chosen_on_other_pictures_than_it_is_scored_on(tmp_path):
    both = open_images(tree(tmp_path / "a", {"train/a": 2, "train/b": 2, "val/a": 3, "test/b": 4}))
    some, split, others = pruned.apart(both, 512)
    assert (len(some), split, len(others)) == (3, "test", 4)
    found = open_images(tree(tmp_path / "b", {"train/a": 2, "train/b": 2, "test/a": 30, "test/b": 30}))
    for enough, low, high in ((512, 15, 45), (8, 4, 16)):
        some, split, others = pruned.apart(found, enough)
        names = [{images.name(i) for i in range(len(images))} for images in (some, others)]
        assert (split, len(names[0] | names[1]), names[0] & names[1]) == ("other test", 60, set())
        assert low <= len(some) <= high
        assert set(some.labels) == set(others.labels) == {0, 1}
    few = open_images(tree(tmp_path / "c", {"train/a": 2, "train/b": 2, "test/a": 1, "test/b": 1}))
    some, split, others = pruned.apart(few, 512)
    assert (some is others, split) == (True, "twice used test")


def test_merging_like_a_share_costs_what_dropping_costs(vit):
    drops, merges = apply_plan(vit, "random", 0.5), apply_plan(vit, "merge", 0.5)
    assert macs(merges.loop) == pytest.approx(macs(drops.loop), rel=0.05)
    assert merges.plan.rates == (like(vit, 0.5),) * 4


def test_plans_in_words(vit):
    assert describe_plan(apply_plan(vit, "drop", 0.7).loop) == "keep 0.7 at block 3, by a trained predictor"
    assert describe_plan(apply_plan(vit, "attention", 0.7).loop) == "keep 0.7 at block 3, by attention"
    assert describe_plan(apply_plan(vit, "random", 0.7).loop) == "keep 0.7 at block 3, at random"
    assert describe_plan(merge(vit, 3).loop) == "merge 3 patches per block"
    assert describe_plan(merge(vit, decreasing(4, 3)).loop) == "merge 6 down to 0 patches per block"
    assert describe_plan(merge(vit, 64).loop) == "merge 32 down to 4 patches per block", (
        "none merges more than half"
    )
    assert describe_plan(PrunedConfig(vit=TINY, keep=0.5, places=())) == "keep all patches in every block"


def test_a_race_is_run_in_turns_and_told_as_a_ratio(monkeypatch, vit):
    monkeypatch.setattr(timing, "SECONDS", 0.01)
    rows = timing.forward_times([vit, vit], (16, 16), 1)
    assert len(rows[0]) == len(rows[1]) >= timing.LEAST
    found = pruned.speed(1, [4.0, 4.0, 6.0, 8.0], [2.0, 2.0, 2.0, 2.0])
    assert (found.ratio, found.low, found.high, found.rounds) == (2.5, 2.0, 3.0, 4)
