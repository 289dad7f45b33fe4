"""`saccade prune` as a newcomer types it: learnt, by a rule, for a speed; and what it refuses."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from terminal import run
from trees import tree

import saccade
from saccade import values
from saccade.api.models import Model
from saccade.cli import prune
from saccade.data.image.preprocess import Preprocess
from saccade.engine import timing
from saccade.models.names import config
from saccade.models.resnet import ResNet
from saccade.models.vit import ViT, ViTConfig
from saccade.prune import search
from saccade.tasks.classify.recipe import ClassifyRecipe
from saccade.tokens.merge import Merged
from saccade.tokens.prune import Pruned
from saccade.vision import pruned

QUICK = ["--set", "budget.epochs=1", "--set", "budget.batch=8", "--set", "workers=0"]
TINY = ViTConfig(image=(16, 16), patch=2, width=24, depth=4, heads=3, hidden=48, classes=2)


@pytest.fixture(scope="module", autouse=True)
def _hurried():
    """Measure for a moment only: what is measured here is not what the tests are about."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "SECONDS", 0.05)
        patch.setattr(search, "SECONDS", 0.05)
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prune")
    tree(folder / "pictures", {"train/cat": 12, "train/dog": 12, "test/cat": 4, "test/dog": 4})
    tree(folder / "reversed", {"dog": 12, "bird": 12, "cat": 12})
    tree(folder / "others", {"ant": 4, "bee": 4})
    torch.manual_seed(0)
    small = Preprocess(size=(16, 16), fit="squash")
    Model(ViT(TINY), small, ["dog", "cat"]).save(folder / "dense")
    cnn = ResNet(config("resnet18_small_w4_16", 2))
    Model(cnn, small, ["dog", "cat"]).save(folder / "cnn")
    return folder


@pytest.fixture(scope="module")
def learnt(place):
    done = run("prune", place / "dense", place / "pictures", "--keep", "0.5", "--out", place / "a", *QUICK)
    assert done.code == 0, done.err
    return done


def test_a_model_learns_to_drop_patches_and_is_a_model_folder(place, learnt):
    assert learnt.out.strip() == str(place / "a")
    assert "learns to keep 50% of the patches at block 3" in learnt.err
    for word in ("accuracy (8 test images)", "same answer as dense", "x fewer", "batch 32", "quartiles"):
        assert word in learnt.err
    model = saccade.load(place / "a")
    assert isinstance(model.module, Pruned)
    assert (model.module.plan.keep, model.labels) == (0.5, ["dog", "cat"])
    assert run("evaluate", place / "a", place / "pictures").code == 0
    recipe = json.loads((place / "a/recipe.json").read_text())
    assert recipe["teacher"] == str(place / "dense")
    assert recipe["keep"] == 0.5


def test_the_predictors_have_learnt_and_the_log_tells_what_was_kept(place, learnt):
    events = [json.loads(line) for line in (place / "a/events.jsonl").read_text().splitlines()]
    kept = [event["kept"] for event in events if event["kind"] == "step"]
    assert kept
    assert all(0 < share < 1 for share in kept)
    torch.manual_seed(0)
    fresh = saccade.load(place / "a").module.predictors[0].decide.weight
    assert torch.isfinite(fresh).all()


def test_the_report_shows_both_models(place, learnt):
    page = (place / "a/report.html").read_text()
    assert "Fewer patches" in page
    assert "keep 0.5 at block 3, by a trained predictor" in page
    found = json.loads((place / "a/pruning.json").read_text())
    assert found["macs"] < found["dense_macs"]
    assert [each["batch"] for each in found["speeds"]] == [1, 32]
    assert found["tokens"] == [65, 65, 33, 33]


@pytest.mark.parametrize("how", ["merge", "merge-paper", "attention", "random"])
def test_a_rule_needs_no_training(place, how, tmp_path):
    done = run(
        *("prune", place / "dense", place / "pictures", "--keep", "0.5", "--how", how),
        *("--out", tmp_path / "x", "--json"),
    )
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["folder"] == str(tmp_path / "x")
    assert 0.6 < found["macs"] / found["dense_macs"] < 0.8, "merging costs what dropping costs"
    module = saccade.load(tmp_path / "x").module
    assert isinstance(module, Merged if how.startswith("merge") else Pruned)


REFUSALS = [
    (["--keep", "0"], 2, "--keep is 0; expected a share of the patches above 0 and below 1"),
    (["--keep", "1.2"], 2, "--keep is 1.2; expected a share"),
    (["--keep", "0.7", "--target-ms", "20"], 2, "--keep and --target-ms were given; give one of them"),
    (["--speed-up", "2", "--target-ms", "20"], 2, "--target-ms and --speed-up were given"),
    ([], 2, "no target was given; give --keep 0.7, --target-ms 20 or --speed-up 1.5"),
    (["--keep", "0.7", "--how", "dorp"], 2, "did you mean 'drop'?"),
    (["--keep", "0.7", "--how", "merge", "--minutes", "3"], 2, "only --keep with --how drop trains"),
    (["--speed-up", "0.5"], 2, "--speed-up is 0.5; expected a number from 1.01 to 100"),
    (["--speed-up", "2", "--how", "merge"], 2, "leave out --how"),
    (["--speed-up", "2", "--batch", "0"], 2, "--batch is 0"),
]


@pytest.mark.parametrize(("words", "code", "told"), REFUSALS)
def test_what_cannot_work_is_refused_in_a_sentence(place, words, code, told):
    done = run("prune", place / "dense", place / "pictures", *words)
    assert (done.code, done.out) == (code, "")
    assert told in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("words", ["--keep 0.7", "--keep 0.7 --how merge", "--speed-up 2"])
def test_models_and_data_that_do_not_fit_are_refused_in_a_sentence(place, words, learnt):
    cases = [
        ("cnn", "pictures", 2, "a ResNet has no patches to drop"),
        ("a", "pictures", 2, "the model is already pruned; give the dense model"),
        ("dense", "others", 3, "the images have 2 classes that"),
        ("dense", "reversed", 3, "does not know (bird)"),
    ]
    for model, data, code, told in cases:
        done = run("prune", place / model, place / data, *words.split(), "--out", place / "never")
        assert done.code == code, done.err
        assert told in done.err
        assert not (place / "never").exists()


@pytest.mark.parametrize("words", ["--keep 0.7", "--keep 0.7 --how merge", "--speed-up 2"])
def test_a_place_where_no_folder_can_be_made_is_refused_before_any_work(place, words, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    for out in ("file", "file/x"):
        done = run("prune", place / "dense", place / "pictures", *words.split(), "--out", tmp_path / out)
        assert done.code == 2
        assert "choose another" in done.err
        assert "takes" not in done.err, "it was measured"


@pytest.mark.parametrize("words", ["drop", "merge", "attention", "random"])
def test_a_plan_that_saves_nothing_is_refused_before_any_work(place, words, tmp_path, monkeypatch):
    shallow = ViT(replace(TINY, depth=1))
    Model(shallow, Preprocess(size=(16, 16), fit="squash"), ["dog", "cat"]).save(tmp_path / "shallow")
    monkeypatch.setattr(pruned, "right_of", None)
    out = ("--how", words, "--out", tmp_path / "x")
    done = run("prune", tmp_path / "shallow", place / "pictures", "--keep", "0.5", *out)
    assert (done.code, done.out) == (2, "")
    assert "saves nothing in a model with 1 block and a grid of 8 x 8 patches" in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_a_block_that_was_named_is_where_patches_are_dropped(place):
    done = run("prune", place / "dense", place / "pictures", "--keep", "0.5", "--set", "places=[7]", *QUICK)
    assert (done.code, done.out) == (2, "")
    assert "places are (7,); expected increasing block numbers from 0 to 3" in done.err


def test_a_speed_is_written_with_what_was_asked_for_and_scored_on_other_pictures(
    place, tmp_path, monkeypatch
):
    """Times are made up: a model with fewer tokens is twice as fast."""
    monkeypatch.setattr(search, "forward_times", lambda modules, *_: [[2.0] * 9, [1.0] * 9][: len(modules)])
    seen = []
    scored = search.right_of
    monkeypatch.setattr(search, "right_of", lambda *given: seen.append(given[2]) or scored(*given))
    out = ("--out", tmp_path / "x", "--json")
    done = run("prune", place / "dense", place / "pictures", "--speed-up", "1.3", *out)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["wanted"], [each["ratio"] for each in found["speeds"]]) == (1.3, [2.0])
    assert found["split"] == "other test"
    assert 0 < len(seen[0]) == 8 - found["pictures"] < 8
    assert f"chosen on {len(seen[0])} images and is evaluated on {found['pictures']} others" in done.err
    shutil.copytree(place / "dense", tmp_path / "run")
    (tmp_path / "run/recipe.json").write_text(json.dumps(values.to_json(ClassifyRecipe())))
    (tmp_path / "run/data.json").write_text("{}")
    out = ("--out", tmp_path / "y", "--json")
    done = run("prune", tmp_path / "run", place / "pictures", "--speed-up", "1.3", *out)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["split"], found["pictures"]) == ("test", 8), (
        "what the training held back was there to choose"
    )
    assert {seen[1].name(i).split("/")[0] for i in range(len(seen[1]))} == {"train"}
    assert len(seen[1]) < 24


def test_a_target_that_cannot_be_met_tells_what_could_be_reached(place):
    done = run("prune", place / "dense", place / "pictures", "--speed-up", "90", "--out", place / "none")
    assert done.code == 2
    last = done.err.strip().splitlines()[-1]
    assert ("no plan reaches" in last and "the fastest takes" in last) or "no plan was faster" in last
    assert not (place / "none").exists()


def test_a_target_that_the_dense_model_meets_changes_nothing(place):
    done = run("prune", place / "dense", place / "pictures", "--target-ms", "60000", "--out", place / "none")
    assert (done.code, done.out.strip()) == (0, str(place / "dense"))
    assert "the dense model is already that fast" in done.err
    assert not (place / "none").exists()


def test_a_large_loss_is_worth_a_note(tmp_path, capsys):
    counts = {"pictures": 10, "dense_right": 9, "same": 2, "dense_macs": 100, "macs": 10}
    found = pruned.PrunedComparison(
        plan="keep 0.1", dense="run", split="test", right=2, tokens=(5,), speeds=(), **counts
    )
    for right, noted in ((2, True), (9, False)):
        prune._print_comparison(tmp_path, replace(found, right=right), as_json=False)
        assert ("note: 70 points were lost" in capsys.readouterr().err) == noted
