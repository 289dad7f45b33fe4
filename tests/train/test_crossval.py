"""Cross-validation: every picture held out once, and the same bytes whenever it was stopped or killed."""

import csv
import hashlib
import json
import signal
import time
from collections import Counter

import numpy as np
import pytest
import torch
from forked import PIPE, Forked
from report_page import report
from runs import judged
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from terminal import run as run_command
from trees import picture, tree

import saccade
from saccade.api.models import Model
from saccade.api.train import resume_folds, resume_run, run_folds
from saccade.data.image.preprocess import Preprocess
from saccade.data.readers.open import open_images
from saccade.errors import DataError, ModelError, StoppedError, UsageError
from saccade.metrics.classify import pool_scores, scores
from saccade.metrics.interval import wilson
from saccade.models.vit import ViT, ViTConfig
from saccade.tasks import find_task
from saccade.train import start
from saccade.train.run import Run
from saccade.train.start import is_cross_validation
from saccade.weights.formats.tensors import read_tensors

RECIPE = [
    "budget.epochs=3",
    "budget.batch=4",
    "optim.ema=0.9",
    "optim.lr=3e-3",
    "dropout=0.1",
    "augment.policy=trivial",
    "workers=0",
]
COUNTS = {"cat": 9, "dog": 9, "eel": 6}
UNDRAWN = "import saccade.report.html as r; r.render = r.save = lambda *_: b'\\x89PNG'; "
PROGRAM = UNDRAWN + "import sys; from saccade.__main__ import main; sys.exit(main())"


@pytest.fixture(autouse=True, scope="module")
def _undrawn():
    """The words of the reports without the drawing, which takes most of the time; one test draws."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("render", "save"):
            patch.setattr(f"saccade.report.html.{name}", lambda *_: b"\x89PNG")
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A tree of pictures and a small model to start from."""
    folder = tmp_path_factory.mktemp("crossval")
    tree(folder / "pictures", COUNTS)
    torch.manual_seed(0)
    vit = ViT(ViTConfig(image=(12, 12), patch=4, width=24, depth=2, heads=3, hidden=48, classes=0))
    Model(vit, Preprocess(size=(12, 12), fit="squash"), []).save(folder / "small")
    return folder


def begin(place, name, folds=3, data="pictures", *changes):
    out, words = place / name, [*RECIPE, *changes]
    return run_folds(str(place / data), folds, str(place / "small"), out, words, quiet=True)


@pytest.fixture(scope="module")
def whole(place):
    """The one that was never stopped."""
    return begin(place, "whole")


@pytest.fixture(scope="module")
def short(place):
    """Another one, of two folds and an epoch."""
    return begin(place, "short", 2, "pictures", "budget.epochs=1")


def lines(folder):
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def result(folder):
    return json.loads((folder / "crossval.json").read_text())


def proof(folder):
    """Hashes of all that must be the same: the results, every answer, and the weights of all runs."""
    names = ["crossval.json", "predictions.csv", "evaluation.json", "results.csv", "model.safetensors"]
    files = [folder / name for name in names]
    files += sorted(folder.glob("fold-*/predictions.csv")) + sorted(folder.glob("fold-*/model.safetensors"))
    assert len(files) == len(names) + 2 * result(folder)["folds"]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_every_picture_is_held_out_once_in_the_fold_that_scikit_learn_puts_it_in(whole):
    rows = lines(whole)
    assert Counter(row["label"] for row in rows) == COUNTS
    assert len({row["name"] for row in rows}) == sum(COUNTS.values())
    folds, wanted = np.array([int(row["fold"]) for row in rows]), np.zeros(len(rows), int)
    theirs = StratifiedKFold(3, shuffle=True, random_state=0).split(rows, [row["label"] for row in rows])
    for number, (_, held) in enumerate(theirs, 1):
        wanted[held] = number
    assert folds.tolist() == wanted.tolist()


def test_the_numbers_are_those_of_the_answers(whole):
    rows, found = lines(whole), result(whole)
    hits = [[row["label"] == row["predicted"] for row in rows if row["fold"] == str(n)] for n in (1, 2, 3)]
    accuracies = [np.mean(hit) for hit in hits]
    assert [fold["accuracy"] for fold in found["scores"]] == pytest.approx(accuracies)
    assert found["mean"] == pytest.approx(np.mean(accuracies))
    assert found["deviation"] == pytest.approx(np.std(accuracies, ddof=1))
    right, of = sum(map(sum, hits)), len(rows)
    assert (found["pooled"]["correct"], found["pooled"]["pictures"]) == (right, of)
    assert (found["pooled"]["low"], found["pooled"]["high"]) == pytest.approx(wilson(right, of))
    assert (found["folds"], found["seed"], found["pictures"], "test" in found) == (3, 0, 24, False)
    assert all(0 < float(row["score"]) <= 1 for row in rows)


def test_the_last_model_has_learnt_from_all_pictures_and_can_answer(place, whole):
    described = json.loads((whole / "data.json").read_text())
    assert described["train"]["pictures"] == 24
    assert "val" not in described
    model = saccade.load(whole)
    assert model.labels == ["cat", "dog", "eel"]
    assert len(model.predict(place / "pictures/cat/0.png")) == 3
    results = (whole / "results.csv").read_text().splitlines()
    assert [line.split(",")[3:5] for line in results[1:]] == [["", ""]] * 3


@pytest.mark.parametrize("name", [".", "fold-1"])
def test_the_weights_of_the_last_epoch_are_kept_so_that_no_picture_chooses_an_epoch(whole, name):
    folder = whole / name
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    kept, ended = read_tensors(folder / "model.safetensors"), read_tensors(last / "ema.safetensors")
    assert kept.keys() == ended.keys()
    assert all(torch.equal(kept[key], ended[key]) for key in kept)


def test_a_fold_is_a_run_that_can_be_gone_on_with_by_itself(whole):
    run = resume_run(whole / "fold-2", quiet=True)
    held = [run.job.splits.val.name(i) for i in range(len(run.job.splits.val))]
    rows = lines(whole)
    assert held == [row["name"] for row in rows if row["fold"] == "2"]
    assert len(run.job.splits.train) == len(rows) - len(held)
    before = (whole / "fold-2/predictions.csv").read_bytes()
    (whole / "fold-2/predictions.csv").unlink()
    run.go()
    start.finish(run)
    assert (whole / "fold-2/predictions.csv").read_bytes() == before
    assert not is_cross_validation(whole / "fold-2")
    assert is_cross_validation(whole)
    assert "<bdi>held-out</bdi> images were classified" in (whole / "fold-2/report.html").read_text()


def test_val_is_folded_too_and_test_is_kept_for_the_last_model(place, capsys):
    counts = {"train/cat": 6, "train/dog": 6, "val/cat": 2, "val/dog": 2, "test/cat": 3, "test/dog": 2}
    tree(place / "parted", counts)
    (place / "parted/train/cat/0.png").write_bytes(picture(1)[:60])
    out, words = place / "parted-run", [*RECIPE, "budget.epochs=1"]
    folder = run_folds(str(place / "parted"), 2, str(place / "small"), out, words)
    told = capsys.readouterr().err
    assert "(train 12, val 4, test 5); train and val are joined" in told
    assert "16 images in 2 folds" in told
    rows, found = lines(folder), result(folder)
    assert {row["name"].split("/")[0] for row in rows} == {"train", "val"}
    broken = [row for row in rows if not row["predicted"]]
    assert [(row["name"], row["score"]) for row in broken] == [("train/cat/0.png", "")]
    assert (len(rows), found["pooled"]["pictures"], found["test"]["pictures"]) == (16, 15, 5)
    told = told.splitlines()
    assert [line.partition(":")[0] for line in told if line.startswith("fold ")] == [
        "fold 1 of 2",
        "fold 2 of 2",
    ]
    assert not [line for line in told if line.startswith(("epoch", "step"))]
    [summary] = [line for line in told if line.startswith("mean ")]
    low, high = (100 * found["pooled"][end] for end in ("low", "high"))
    assert summary == (
        f"mean {100 * found['mean']:.1f}% ± {100 * found['deviation']:.1f} (2 folds), "
        f"pooled accuracy {100 * found['pooled']['accuracy']:.1f}% (95% CI {low:.1f}% to {high:.1f}%)"
    )
    assert any(line.startswith("test: accuracy ") for line in told)


def test_a_group_is_never_on_both_sides(place):
    rows = [(f"pictures/{label}/{i}.png", label, i // 2) for label, n in COUNTS.items() for i in range(n)]
    text = "".join(f"{path},{label},scene {group}\n" for path, label, group in rows)
    (place / "grouped.csv").write_text(f"path,label,group\n{text}")
    found = lines(begin(place, "grouped", 3, "grouped.csv", "budget.epochs=1"))
    assert [row["name"] for row in found] == [path for path, _, _ in rows]
    groups, folds = [group for _, _, group in rows], [int(row["fold"]) for row in found]
    assert len(set(zip(groups, folds, strict=True))) == len(set(groups))
    pooled = open_images(str(place / "grouped.csv"))
    theirs = StratifiedGroupKFold(3, shuffle=True, random_state=0)
    parts = theirs.split(rows, pooled.train.labels, pooled.train.groups)
    for number, (_, held) in enumerate(parts, 1):
        assert np.flatnonzero(np.array(folds) == number).tolist() == held.tolist()


# stopped and killed


def killed(*_):
    raise OSError("as good as killed")


def wait_until(child, there, what):
    deadline = time.monotonic() + 120
    while not there():
        assert child.poll() is None, f"it ended before {what}: {child.stderr.read()}"
        if time.monotonic() > deadline:
            child.kill()
            pytest.fail(f"{what} took more than two minutes: {child.communicate()[1]}")
        time.sleep(0.002)


def launched(*words):
    return Forked(["train", *words], code=PROGRAM, stderr=PIPE)


def steps(folder):
    return [path for path in (folder / "checkpoints").glob("step-*") if path.name > "step-000000001"]


@pytest.mark.slow
def test_stopped_in_one_fold_and_killed_in_another_it_goes_on_to_the_same_bytes(place, whole):
    root = place / "interrupted"
    settings = [word for change in (*RECIPE, "budget.save=0") for word in ("--set", change)]
    words = [place / "pictures", "--model", place / "small", "--out", root, "--folds", 3, *settings]
    child = launched(*words)
    wait_until(child, lambda: steps(root / "fold-2"), "a step of fold 2")
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=120)
    assert child.returncode == 130, told
    assert "Interrupted in fold 2 of 3, at step " in told
    assert told.strip().endswith(f". Resume with: saccade train --resume {root}")
    child = launched("--resume", root)
    wait_until(child, lambda: steps(root / "fold-3"), "a step of fold 3")
    child.kill()
    child.communicate(timeout=120)
    assert child.returncode == -signal.SIGKILL
    assert (root / "fold-2/predictions.csv").is_file()
    assert not (root / "fold-3/predictions.csv").is_file()
    assert "mean" not in result(root)
    assert resume_folds(root, quiet=True) == root
    assert proof(root) == proof(whole)
    assert "--folds 3" in (root / "fold-3/command.txt").read_text()
    assert (root / "command.txt").read_text() == (root / "fold-3/command.txt").read_text()


def test_stopped_in_the_run_of_all_pictures_it_goes_on_to_the_same_bytes(place, short, monkeypatch):
    root, ordinary = place / "late", Run.step

    def step(run, state, logged):
        if run.folder == root and state.step == 4:
            signal.raise_signal(signal.SIGINT)
        ordinary(run, state, logged)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "step", step)
        with pytest.raises(StoppedError, match=rf"Interrupted in all images, at step 4/.* --resume {root}$"):
            begin(place, "late", 2, "pictures", "budget.epochs=1")
    resume_folds(root, quiet=True)
    assert proof(root) == proof(short)


def test_a_signal_between_two_folds_stops_before_the_next_one(place, short, monkeypatch):
    root, ordinary = place / "between", start.evaluate_run

    def conclude(run):
        signal.raise_signal(signal.SIGTERM)
        return ordinary(run)

    with monkeypatch.context() as patch:
        patch.setattr(start, "evaluate_run", conclude)
        with pytest.raises(StoppedError, match="Interrupted in fold 2 of 2, at step 0/"):
            begin(place, "between", 2, "pictures", "budget.epochs=1")
    assert (root / "fold-1/predictions.csv").is_file()
    resume_folds(root, quiet=True)
    assert proof(root) == proof(short)


def test_killed_before_the_first_checkpoint_a_fold_begins_anew(place, short, monkeypatch):
    root = place / "early"
    with monkeypatch.context() as patch:
        patch.setattr(Run, "save", killed)
        with pytest.raises(OSError, match="as good as killed"):
            begin(place, "early", 2, "pictures", "budget.epochs=1")
    assert (root / "fold-1/recipe.json").is_file()
    resume_folds(root, quiet=True)
    assert proof(root) == proof(short)


def test_what_is_done_already_is_done_again_to_the_same_bytes(short):
    before = proof(short)
    resume_folds(short, quiet=True)
    assert proof(short) == before


# refused


@pytest.mark.parametrize(
    ("folds", "change", "words"),
    [
        (1, "seed=0", "the number of folds is 1; expected a number from 2 to 24"),
        (0, "seed=0", "the number of folds is 0"),
        (99, "seed=0", "the number of folds is 99; expected a number from 2 to 24"),
        (10, "seed=0", "10 folds were asked for, but no class has as many images; ask for 9 or fewer"),
        (
            7,
            "seed=0",
            "7 folds were asked for, but the class eel has only 6 images; ask for 6 or fewer folds",
        ),
        (
            3,
            "budget.patience=2",
            "budget.patience is 2, which ends a run by its score on the held-out images",
        ),
    ],
)
def test_folds_that_cannot_be_made_are_refused_before_a_folder_is(place, folds, change, words):
    with pytest.raises(UsageError, match=words):
        begin(place, "refused", folds, "pictures", change)
    assert not (place / "refused").exists()


def test_several_processes_are_refused(place, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="torchrun started several processes, but folds are trained by one"):
        begin(place, "refused")
    assert not (place / "refused").exists()


def test_a_class_with_one_picture_is_to_be_left_out(place, tmp_path):
    tree(tmp_path / "few", {"cat": 4, "dog": 4, "emu": 1})
    with pytest.raises(UsageError, match="emu has only 1 image; add images of it, or leave it out"):
        run_folds(str(tmp_path / "few"), 2, str(place / "small"), tmp_path / "run", quiet=True)


def test_groups_with_a_val_split_are_refused_as_a_group_could_be_parted(place):
    text = "".join(
        f"pictures/cat/{i}.png,{'ab'[i % 2]},scene {i},{('train', 'val')[i > 5]}\n" for i in range(9)
    )
    (place / "both.csv").write_text(f"path,label,group,split\n{text}")
    with pytest.raises(DataError, match="mark the val images as train"):
        begin(place, "refused", 2, "both.csv")


def test_a_class_that_groups_keep_in_one_fold_is_told(place):
    rows = [(label, i, i) for label in ("cat", "dog") for i in range(6)] + [("eel", 0, 9), ("eel", 1, 9)]
    text = "".join(f"pictures/{label}/{i}.png,{label},scene {group}\n" for label, i, group in rows)
    (place / "lonely.csv").write_text(f"path,label,group\n{text}")
    found = open_images(str(place / "lonely.csv"))
    [told] = find_task().fold_notes(found, found.train.folds(2, seed=0))
    assert told.endswith("has no training image of 1 class: eel")


def test_changed_pictures_are_not_gone_on_with(place, tmp_path, monkeypatch):
    tree(tmp_path / "few", {"a": 4, "b": 4})
    root, data, model = tmp_path / "run", str(tmp_path / "few"), str(place / "small")
    monkeypatch.setattr(Run, "go", killed)
    with pytest.raises(OSError, match="as good as killed"):
        run_folds(data, 2, model, root, RECIPE, quiet=True)
    tree(tmp_path / "few", {"a": 5}, start=99)
    with pytest.raises(DataError, match=r"are not the ones that .* started with; start a new run"):
        resume_folds(root, quiet=True)


def test_damaged_answers_of_a_fold_are_refused_in_words(whole):
    path = whole / "fold-1/predictions.csv"
    before = path.read_bytes()
    for damage in (before[:40], before.replace(b",1\n", b",2\n"), b"\xff"):
        path.write_bytes(damage)
        with pytest.raises(ModelError, match=r"fold-1/predictions.csv .* remove it and resume"):
            resume_folds(whole, quiet=True)
    path.write_bytes(before)


def test_folds_and_resume_do_not_go_together(place):
    done = run_command("train", "--resume", place / "whole", "--folds", 3)
    assert done.code == 2
    assert "leave out the other options" in done.err


def test_the_command_line_makes_folds_and_goes_on_with_them(place):
    quick = ["--set", "budget.epochs=1", "--set", "workers=0"]
    words = ["--model", place / "small", "--out", place / "typed", "--folds", 2, *quick]
    done = run_command("train", place / "pictures", *words)
    assert (done.code, done.out.strip()) == (0, str(place / "typed")), done.err
    again = run_command("train", "--resume", place / "typed")
    assert (again.code, again.out.strip()) == (0, str(place / "typed")), again.err
    assert f"{place / 'typed'} is already finished: accuracy" in again.err
    assert "out-of-fold images" in again.err
    (place / "typed" / "report.html").unlink()
    again = run_command("train", "--resume", place / "typed")
    assert (again.code, again.out.strip()) == (0, str(place / "typed")), again.err
    assert "fold 2 of 2: accuracy" in again.err


# told


def test_pooled_scores_are_those_of_all_pictures_scored_at_once():
    p, labels = judged(5, 90)
    parts = [scores(p[a:b], labels[a:b]) for a, b in ((0, 17), (17, 60), (60, 90))]
    pooled, at_once = pool_scores(parts), scores(p, labels)
    assert pooled.confusion.tolist() == at_once.confusion.tolist()
    for name in ("top5", "loss", "brier", "ece", "macro_f1", "confidence"):
        assert getattr(pooled, name) == pytest.approx(getattr(at_once, name))
    assert type(pooled).from_json(pooled.to_json()).correct == at_once.correct


def test_the_report_shows_each_fold_the_spread_and_the_pooled_confusion(whole):
    found = result(whole)
    page = (whole / "report.html").read_text()
    assert f"The mean of 3 folds is {100 * found['mean']:.1f}%" in page
    assert f"their standard deviation {100 * found['deviation']:.1f} points" in page
    assert f"{found['pooled']['correct']} of 24 <bdi>out-of-fold</bdi> images were classified" in page
    assert 'id="each-fold"' in page
    assert all(f'href="fold-{n}/report.html"' in page for n in (1, 2, 3))
    confusion = np.array(json.loads((whole / "evaluation.json").read_text())["scores"]["confusion"])
    rows = lines(whole)
    pairs = Counter((row["label"], row["predicted"]) for row in rows)
    names = list(COUNTS)
    assert confusion.tolist() == [[pairs[a, b] for b in names] for a in names]


def test_the_folds_are_drawn(whole, monkeypatch):
    from saccade.report import plots

    for name in ("render", "save"):
        monkeypatch.setattr(f"saccade.report.html.{name}", getattr(plots, name))
    report(whole)
    assert (whole / "plots/folds.png").read_bytes().startswith(b"\x89PNG")
    drawn = json.loads((whole / "plots/folds.json").read_text())
    assert [row[3] for row in drawn["rows"]] == [fold["accuracy"] for fold in result(whole)["scores"]]


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"scores": [{}]}', b'{"scores": []}', b"\xff"])
def test_a_damaged_result_leaves_only_the_folds_out(whole, damage):
    path = whole / "crossval.json"
    before = path.read_bytes()
    path.write_bytes(damage)
    page = report(whole).read_text()
    path.write_bytes(before)
    assert "The folds are left out: crossval.json" in page
    assert "How to repeat it" in page
