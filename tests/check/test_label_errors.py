"""Suspected labels: what was swapped on purpose is found, and what was learnt is told from what was not."""

import csv
import json
import shutil

import pytest
from swapped import COLOURS, RECIPE, coloured, digits, trained
from terminal import small
from trees import tree

from saccade.api.train import run_folds
from saccade.check.examine import examine
from saccade.check.label_errors import LEARNT, UNKNOWN, UNSEEN, find_label_errors, load_models
from saccade.data.readers.open import open_images
from saccade.errors import DataError, ModelError, UsageError
from saccade.tasks.classify.probe import probe


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Coloured pictures, a run that was trained on them, and the names of those in a wrong folder."""
    folder = tmp_path_factory.mktemp("suspects")
    wrong = coloured(folder / "colours")
    return folder / "colours", trained(folder / "colours", folder / "run", 8, "budget.batch=16"), wrong


def looked(data, run):
    found = open_images(data)
    return find_label_errors(load_models(run, found), found, examine(found))


def held_out(data, run):
    found = open_images(data)
    kinds = load_models(run, found).kinds["train"].tolist()
    return {found.train.name(i) for i, kind in enumerate(kinds) if kind == UNSEEN}


def names(part):
    return [each.place.name for each in part.suspects]


def test_swapped_labels_are_found_with_what_they_should_be(place):
    data, run, wrong = place
    unseen, learnt = looked(data, run).parts
    assert (unseen.kind, learnt.kind) == (UNSEEN, LEARNT)
    assert unseen.pictures + learnt.pictures == 120
    suspected = {*names(unseen), *names(learnt)}
    assert suspected <= wrong
    assert len(suspected) >= 7
    assert {*names(unseen)} == suspected & held_out(data, run)
    for each in (*unseen.suspects, *learnt.suspects):
        assert each.answer[0] == each.place.name.split("/")[1][0]  # b7.png is blue, wherever it lies
        assert each.place.label == each.place.name.split("/")[0]
        assert each.sure > each.own
    assert [each.margin for each in learnt.suspects] == sorted(
        (each.margin for each in learnt.suspects), reverse=True
    )


def test_the_parts_are_those_of_the_run(place):
    data, run, _ = place
    described = json.loads((run / "data.json").read_text())
    found = open_images(data)
    kinds = load_models(run, found).kinds["train"]
    assert (kinds == LEARNT).sum() == described["train"]["pictures"]
    assert (kinds == UNSEEN).sum() == described["val"]["pictures"]
    assert load_models(run, found).note == ""


def test_a_split_of_its_own_is_unseen_and_a_copy_elsewhere_is_known_again(place, tmp_path):
    data = tmp_path / "colours"
    coloured(data / "train", each=12, wrong=0)
    coloured(data / "val", each=6, wrong=1)
    run = trained(data, tmp_path / "run", 1, "budget.batch=16")
    copy = shutil.copytree(data, tmp_path / "elsewhere")
    coloured(copy / "test", each=4, wrong=0)  # pictures that the run never met
    for source in (data, copy):
        kinds = load_models(run, open_images(source)).kinds
        assert {word: set(each.tolist()) for word, each in kinds.items()} == {
            "train": {LEARNT},
            **{word: {UNSEEN} for word in kinds if word != "train"},
        }
    (copy / "train" / "red" / "r0.png").unlink()
    kinds = load_models(run, open_images(copy)).kinds
    assert {word: set(each.tolist()) for word, each in kinds.items()} == {
        "train": {UNKNOWN},
        "val": {UNSEEN},
        "test": {UNKNOWN},
    }


def test_other_pictures_are_judged_and_it_is_said_that_nothing_is_known_of_them(place, tmp_path):
    data, run, _ = place
    copy = shutil.copytree(data, tmp_path / "mended")
    known = {f"{colour}/{colour[0]}{i}.png" for colour in COLOURS for i in range(3, 40)}
    held = held_out(data, run)
    (copy / min(known & held)).unlink()
    (copy / min(known - held)).write_bytes(b"")  # and one that cannot be read
    told = looked(copy, run)
    [part] = told.parts
    assert (part.kind, part.pictures) == (UNKNOWN, 118)
    assert "the images differ from those that" in told.note
    assert len(part.suspects) >= 7
    assert json.loads(json.dumps(told.to_json()))["judged"] == {"unknown": 118}


@pytest.mark.slow
def test_of_a_cross_validation_each_picture_is_judged_by_the_fold_that_held_it_out(tmp_path):
    data = tmp_path / "colours"
    coloured(data / "train", each=8, wrong=0)
    coloured(data / "test", each=2, wrong=0)
    words = [*RECIPE, "budget.epochs=1", "budget.batch=8"]
    run = run_folds(str(data), 2, "vit_xs2_8", tmp_path / "run", words, quiet=True)
    found = open_images(data)
    made = load_models(run, found)
    assert len(made.models) == 3
    assert {split: set(kinds.tolist()) for split, kinds in made.kinds.items()} == {
        "train": {UNSEEN},
        "test": {UNSEEN},
    }
    with (run / "predictions.csv").open(newline="") as file:
        answered = {row["name"]: int(row["fold"]) for row in csv.DictReader(file)}
    turns = {found.train.name(i): turn for i, turn in enumerate(made.turns["train"].tolist())}
    assert turns == answered
    assert set(made.turns["test"].tolist()) == {0}
    [part] = find_label_errors(made, found, examine(found)).parts
    assert (part.kind, part.pictures) == (UNSEEN, 30)
    (fold,) = {turns["train/red/r0.png"]}
    alone = load_models(run / f"fold-{fold}", found).kinds["train"].tolist()
    assert {found.train.name(i) for i, kind in enumerate(alone) if kind == UNSEEN} == {
        name for name, turn in turns.items() if turn == fold
    }


def test_a_probe_is_a_run_too(place, tmp_path):
    data, run, wrong = place
    made = probe(str(data), str(run), tmp_path / "probe", ["folds=2", "workers=0"], quiet=True)
    found = open_images(data)
    assert load_models(made, found).kinds["train"].tolist() == load_models(run, found).kinds["train"].tolist()
    assert {name for part in looked(data, made).parts for name in names(part)} & wrong


def test_a_run_for_other_classes_is_refused_in_one_sentence(place, tmp_path):
    _, run, _ = place
    with pytest.raises(
        DataError, match=r"have 2 classes that .* does not know \(cat, dog\); expected classes among its"
    ):
        load_models(run, open_images(tree(tmp_path, {"cat": 2, "dog": 2, "red": 2})))


def test_fewer_classes_than_the_model_knows_are_judged(place, tmp_path):
    data, run, _ = place
    shutil.copytree(data, tmp_path / "two")
    shutil.rmtree(tmp_path / "two" / "blue")
    [part] = looked(tmp_path / "two", run).parts
    assert {each.answer for each in part.suspects} <= {"green", "red"}
    assert "red/g0.png" in names(part)


def test_what_is_no_run_is_refused_in_words(place, tmp_path):
    data, run, _ = place
    found = open_images(data)
    with pytest.raises(UsageError, match=r"is not a run folder \(it has no recipe\.json\)"):
        load_models(small().save(tmp_path / "model"), found)
    broken = shutil.copytree(run, tmp_path / "broken")
    (broken / "data.json").write_text("[]")
    with pytest.raises(ModelError, match=r"data\.json holds a JSON list; expected an object"):
        load_models(broken, found)


def test_pictures_that_nobody_can_read_are_refused_in_words(place, tmp_path):
    _, run, _ = place
    for colour in ("red", "green", "blue"):
        (tmp_path / colour).mkdir()
        (tmp_path / colour / "0.png").write_bytes(b"")
    with pytest.raises(DataError, match="none of the images can be read, so no label can be checked"):
        looked(tmp_path, run)


@pytest.mark.slow
def test_of_digits_with_swapped_labels_most_are_found(tmp_path):
    """After 30 epochs: 11 of 12 unseen ones found among 12 suspects, 46 of 78 learnt ones among 47."""
    wrong = digits(tmp_path / "digits")
    assert len(wrong) == 90
    run = trained(tmp_path / "digits", tmp_path / "run", 15, "budget.batch=64")
    found = open_images(tmp_path / "digits")
    kinds = load_models(run, found).kinds["train"].tolist()
    for part in looked(tmp_path / "digits", run).parts:
        here = {found.train.name(i) for i, kind in enumerate(kinds) if kind == part.kind} & wrong
        hits = set(names(part)) & wrong
        assert len(hits) >= 0.6 * len(here), part.kind
        assert len(hits) >= 0.6 * len(part.suspects), part.kind
        surest = names(part)[: len(here) // 2]
        assert len(set(surest) & wrong) >= 0.9 * len(surest), part.kind
