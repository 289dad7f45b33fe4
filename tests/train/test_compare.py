"""A comparison from a folder to a table: nested fractions, equal sizes, stopped and resumed."""

import csv
import json
import re
from statistics import median

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from report_page import report
from terminal import run as saccade
from torch import nn
from trees import tree

from saccade.compare import compare, plan
from saccade.data.readers.open import open_images
from saccade.data.splits import few, hold_out, nested
from saccade.engine import timing
from saccade.errors import DataError, StoppedError
from saccade.metrics.interval import wilson
from saccade.models import cost, names
from saccade.models.build import build
from saccade.train import start
from saccade.train.run import Run
from saccade.vision.backbone import small_name

MODELS = "vit_xs4_12,resnet18_small_w2_12"
QUICK = ["budget.epochs=2", "budget.batch=8", "workers=0", "optim.ema=0"]
WORDS = [word for change in QUICK for word in ("--set", change)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    tree(folder / "pictures", {"cat": 30, "dog": 30})
    parts = {"train/cat": 12, "train/dog": 12, "val/cat": 3, "val/dog": 3, "test/cat": 5, "test/dog": 5}
    tree(folder / "parted", parts)
    return folder


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Time models for a moment only; a run's own report, which is slow to draw, has tests of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "SECONDS", 0.05)
        patch.setattr(start, "write_report", lambda folder, _: folder / "report.html")
        yield


@pytest.fixture(scope="module")
def whole(place):
    """A comparison that was never stopped, and what the terminal said."""
    out = place / "whole"
    done = saccade(
        "compare", place / "pictures", "--models", MODELS, "--fractions", "1,0.5", "--out", out, *WORDS
    )
    assert done.code == 0, done.err
    return out, done


def test_one_command_leaves_a_table_plots_a_page_and_a_run_for_each_training(whole):
    folder, done = whole
    head, *lines = done.out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        [model, share] for share in ("50%", "100%") for model in MODELS.split(",")
    ]
    assert head.split()[:4] == ["model", "data", "images", "accuracy"]
    for name in ("learning", "speed", "reach"):
        assert (folder / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert json.loads((folder / "plots" / f"{name}.json").read_text())["rows"]
    page = (folder / "report.html").read_text()
    assert "vit_xs4_12 against resnet18_small_w2_12 on pictures" in page
    assert "<script" not in page
    for model in MODELS.split(","):
        for share in ("50", "100"):
            assert (folder / f"{model}-{share}" / "model.safetensors").is_file()
    assert len(re.findall(r"^[1-4]/4 .* accuracy ", done.err, re.MULTILINE)) == 4


def test_the_numbers_of_the_table_are_those_of_the_runs_and_of_the_models(whole):
    folder, _ = whole
    _, rows = plan.recorded(folder)
    told = json.loads((folder / "compare.json").read_text())
    held = {row.held_out for row in rows}
    assert len(held) == 1
    for row in rows:
        place = folder / f"{row.model}-{row.fraction * 100:g}"
        scored = json.loads((place / "evaluation.json").read_text())
        assert (scored["scores"]["count"], scored["split"]) == (row.held_out, "held-out")
        assert scored["scores"]["accuracy"] == row.accuracy == row.correct / row.held_out
        assert wilson(row.correct, row.held_out) == (row.low, row.high)
        described = json.loads((place / "data.json").read_text())
        assert described["train"]["pictures"] == row.pictures
        assert row.epochs == 2
        assert row.seconds > 0
        assert 0 <= row.effective[0] <= row.effective[1] <= 12 * 2**0.5
        assert np.shape(row.attention) == ((4, 4) if row.model.startswith("vit") else (0,))
    for each in told["costs"]:
        module = build(names.config(each["model"], 2))
        assert each["parameters"] == cost.parameters(module)
        assert each["macs"] == cost.macs(module, (12, 12))
        assert min(each["latency"], each["throughput"], each["forward"]) > 0
        assert each["step"] > each["forward"]
        assert each["step"] > 3 * 4 * each["parameters"]  # a gradient and two moments for each
    assert [each["field"] for each in told["costs"]] == [0, 109]
    with (folder / "compare.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["model"], float(line["accuracy"])) for line in lines] == [
        (r.model, r.accuracy) for r in rows
    ]


def test_the_same_pictures_are_held_out_and_fewer_are_among_more(whole):
    folder, _ = whole
    described = [json.loads(path.read_text()) for path in sorted(folder.glob("*/data.json"))]
    assert len(described) == 4
    assert len({each["val"]["fingerprint"] for each in described}) == 1
    assert {each.get("fraction", 1) for each in described} == {0.5, 1}


def test_a_training_that_was_stopped_is_gone_on_with_and_finished_ones_are_left_alone(
    place, whole, monkeypatch
):
    ordinary, steps = Run.step, []

    def step(self, state, logged):
        steps.append(state.step)
        self.stopped = len(steps) == 8
        ordinary(self, state, logged)

    folder, _ = plan.begin(
        str(place / "pictures"), MODELS.split(","), (0.5,), changes=QUICK, out=place / "stopped"
    )
    monkeypatch.setattr(Run, "step", step)
    with pytest.raises(StoppedError, match=f"Resume with: saccade compare --resume {folder}"):
        compare.go(folder, print)
    assert len(steps) == 8
    assert len(plan.recorded(folder)[1]) == 1
    monkeypatch.setattr(Run, "step", ordinary)
    again = saccade("compare", "--resume", folder, "--json")
    assert again.code == 0, again.err
    assert "1/2" not in again.err
    assert "2/2" in again.err
    kept, never = json.loads(again.out)["rows"], plan.recorded(whole[0])[1]
    same = ("model", "fraction", "pictures", "correct", "held_out", "epochs")
    assert [[row[name] for name in same] for row in kept] == [
        [getattr(row, n) for n in same] for row in never[:2]
    ]
    tensors = [(path / f"{MODELS.split(',')[1]}-50" / "model.safetensors") for path in (folder, whole[0])]
    assert tensors[0].read_bytes() == tensors[1].read_bytes()


def test_a_test_split_is_what_is_scored_on(place, monkeypatch):
    monkeypatch.setattr(start, "write_report", lambda folder, _: report(folder))
    folder, made = plan.begin(
        str(place / "parted"), ["resnet18_small_w2_12"], (1.0,), changes=QUICK, out=place / "tested"
    )
    _, rows, _ = compare.go(folder, print)
    assert [(row.pictures, row.held_out) for row in rows] == [(24, 10)]
    assert not any("test split" in note for note in made.notes)
    assert not list((folder / "plots").glob("reach*"))
    assert (folder / "resnet18_small_w2_12-100" / "report.html").is_file()


def test_changed_pictures_are_not_gone_on_with(place):
    tree(place / "changing", {"a": 6, "b": 6})
    folder, _ = plan.begin(str(place / "changing"), ["vit_xs4_12"], out=place / "changed")
    tree(place / "changing", {"a": 7}, start=99)
    with pytest.raises(DataError, match=r"are not the ones that .* started with; start a new run"):
        compare.go(folder, print)


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_a_resnet_becomes_as_large_as_the_vit_within_five_per_cent(name):
    models, notes = plan.alike([name, "vit_ti16"], [names.config(n, 10) for n in (name, "vit_ti16")])
    assert models[1] == "vit_ti16"
    sizes = [plan.size(names.config(model, 10)) for model in models]
    assert abs(sizes[0] / sizes[1] - 1) < 0.05
    assert re.fullmatch(rf"{name}_w\d+", models[0])
    assert len(notes) == 1
    assert f"{sizes[0]:,} parameters" in notes[0]


def test_no_other_width_is_nearer_to_the_size_that_was_asked_for():
    config = names.config("resnet18_small_8", 10)
    for target in (1, 136_586, 11_000_000):
        found = plan.nearest_width(config, target)
        sizes = {
            w: plan.size(names.config(f"resnet18_small_w{w}_8", 10)) for w in (1, 2, 6, 7, 8, 62, 63, 64)
        }
        assert abs(sizes[found] - target) == min(abs(size - target) for size in sizes.values())


def test_the_width_in_a_name_is_that_of_the_first_stage_and_64_is_the_usual_one():
    assert names.config("resnet18_w44").width == 44
    assert names.config("resnet50_small_w20_32").image == (32, 32)
    assert names.config("resnet18_w64") == names.config("resnet18")


some_labels = st.lists(st.integers(0, 6), min_size=1, max_size=120).map(lambda x: np.array(x, np.int32))


@given(some_labels, st.floats(0.001, 1), st.floats(0.001, 1), st.integers(0, 2**31))
@settings(deadline=None)
def test_a_fraction_holds_its_share_of_every_class_and_lies_within_any_larger_one(labels, a, b, seed):
    keys = np.random.default_rng(1).integers(0, 2**63, len(labels)).astype(np.uint64)
    small, large = (nested(labels, fraction, seed, keys=keys) for fraction in sorted((a, b)))
    assert set(small) <= set(large)
    for label in np.unique(labels):
        count = (labels == label).sum()
        assert (labels[small] == label).sum() == max(1, round(count * min(a, b)))
    assert len(nested(labels, 1.0, seed, keys=keys)) == len(labels)


def test_a_fraction_leaves_what_is_held_out_as_it_is(place):
    found = hold_out(open_images(place / "pictures"))
    less = few(found, 0.25)
    assert less.val is found.val
    assert len(less.train) == sum(max(1, round(n / 4)) for n in np.bincount(found.train.labels))
    names_of = [{part.name(i) for i in range(len(part))} for part in (less.train, found.train)]
    assert names_of[0] < names_of[1]


def test_the_peak_counts_what_is_held_at_once_and_nothing_from_before():
    before = torch.zeros(1_000_000)

    def work():
        for _ in range(3):
            made = before + 1  # 4 MB, freed before the next but one
        return made

    assert timing.peak_memory(work) == pytest.approx(8_000_000, abs=1000)
    assert timing.peak_memory(lambda: before.add_(1)) < 1000


def test_a_larger_batch_takes_more_memory_and_a_slower_model_more_time():
    narrow, wide = (nn.Sequential(nn.Flatten(), nn.Linear(192, n), nn.Linear(n, 10)) for n in (8, 8000))
    assert timing.forward_memory(wide, (8, 8), 64) > 1.9 * timing.forward_memory(wide, (8, 8), 32)
    quick, slow = map(median, timing.forward_times([narrow, wide], (8, 8), 32, seconds=0.1))
    assert slow > quick > 0


REFUSALS = [
    (["compare"], 2, "give either DATA to start a comparison or --resume FOLDER"),
    (["compare", "--resume", "x", "--fractions", "1"], 2, "leave out the other options"),
    (["compare", "--resume", "pictures"], 2, "is not a comparison"),
    (["compare", "nowhere"], 3, "nowhere"),
    (["compare", "pictures", "--models", "vit_b_16"], 2, "no model is named 'vit_b_16'; did you mean"),
    (["compare", "pictures", "--models", "vit_ti16,resnet18_small_32"], 2, "expected the same for all"),
    (["compare", "pictures", "--fractions", "half"], 2, "expected comma-separated numbers such as 0.1,0.3,1"),
    (["compare", "pictures", "--fractions", "2"], 2, "a fraction of the images is 2.0; expected a number"),
    (["compare", "pictures", "--equal", "parms"], 2, "did you mean 'params'?"),
    (["compare", "pictures", "--equal", "time"], 2, "give both options, or neither"),
    (["compare", "pictures", "--minutes", "3"], 2, "give both options, or neither"),
    (["compare", "pictures", "--models", "vit_ti16,vit_s16", "--equal", "params"], 2, "only ResNets can be"),
    (["compare", "pictures", "--set", "lr=3"], 2, "ClassifyRecipe has no field 'lr'"),
]


@pytest.mark.parametrize(("words", "code", "told"), REFUSALS, ids=[" ".join(r[0]) for r in REFUSALS])
def test_what_cannot_work_is_told_in_one_sentence(place, monkeypatch, words, code, told):
    monkeypatch.chdir(place)
    done = saccade(*words)
    assert (done.code, done.out) == (code, "")
    assert told in done.err
    assert done.err.startswith("error: ")
    assert not (place / "runs").exists()


def test_without_names_a_vit_meets_a_resnet_that_sees_the_same_pixels(place):
    _, made = plan.begin(str(place / "pictures"), out=place / "usual")
    assert made.models == (small_name(12), "resnet18_small_12")
    assert names.config(made.models[0]).image == (12, 12)
    assert made.fractions == (0.1, 0.3, 1.0)


def test_the_recipe_is_the_same_for_all_and_the_time_too(place):
    folder, made = plan.begin(
        str(place / "pictures"),
        MODELS.split(","),
        (1.0,),
        ("params", "time"),
        2.0,
        QUICK,
        out=place / "timed",
    )
    assert made.models[0] == "vit_xs4_12"
    assert "budget.minutes=2" in made.changes
    assert plan.recorded(folder) == (made, [])


def test_a_dishonest_difference_is_called_chance():
    from saccade.compare.page import conclusion

    def row(model, correct):
        low, high = wilson(correct, 100)
        return plan.Row(
            model=model, fraction=1.0, pictures=9, held_out=100, correct=correct, accuracy=correct / 100,
            low=low, high=high, epochs=1.0, seconds=1.0,
        )  # fmt: skip

    assert "may be chance" in conclusion([row("a", 60), row("b", 66)])
    assert "b reaches an accuracy of 90.0%, a 60.0%" in conclusion([row("a", 60), row("b", 90)])
    assert "do not overlap" in conclusion([row("a", 60), row("b", 90)])


def test_no_winner_is_declared_over_a_model_that_never_started_to_learn():
    from saccade.compare.page import conclusion, doubts

    def row(model, correct, epochs):
        low, high = wilson(correct, 736)
        return plan.Row(
            model=model, fraction=1.0, pictures=2934, held_out=736, correct=correct, accuracy=correct / 736,
            low=low, high=high, epochs=epochs, seconds=1.0, largest=180 / 736,
        )  # fmt: skip

    good, idle = row("conv_vit", 357, 4.0), row("resnet18", 180, 0.22)
    words = conclusion([good, idle])
    assert "no ranking is possible: conv_vit 48.5%, resnet18 24.5%" in words
    assert "resnet18 may not have started to learn after 0.22 epochs on 2,934 images" in words
    assert "not clearly above that of always answering the largest class (24.5%)" in words
    assert "reaches an accuracy" not in words
    assert "do not overlap" not in words
    assert doubts([good]) == []
    assert "no ranking is possible" in conclusion([idle])
