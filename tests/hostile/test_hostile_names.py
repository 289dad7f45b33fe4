"""Class names: one rule wherever they come from, so that whatever trains evaluates, predicts and resumes."""

import csv
import io
import json
import os
import tarfile
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from promise import command, fuzz
from trees import picture, tar, tree

from saccade.data.class_names import LONGEST, class_name, name_labels
from saccade.data.pictures import Pictures
from saccade.data.readers.open import open_images
from saccade.errors import DataError
from saccade.explain.target import class_index
from saccade.files.tables import from_cell, to_cell
from saccade.weights.identify import read_labels

ODD = {
    "big  dog": "big dog",
    " cat": "cat",
    "x" * 250: "x" * 250,
    "a\x1bb": r"a\x1bb",
    "dog\u200f": r"dog\u200f",
    "family \U0001f468\u200d\U0001f469": "family \U0001f468\\u200d\U0001f469",
    "cafe\u0301": "caf\u00e9",
    "Cat": "Cat",
    "=cmd|'C calc'!A0": "=cmd|'C calc'!A0",
    'a "quoted", name': 'a "quoted", name',
    "two\nlines": "two lines",
    "nul\\x00": r"nul\x00",
    "\u00a0wide\u3000space": "wide space",
}
QUICK = ("--model", "resnet18_small_w8_16", "--set", "budget.epochs=1", "--set", "workers=0")


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Class folders with odd names, and a model trained on them."""
    folder = tmp_path_factory.mktemp("names")
    tree(folder / "photos", dict.fromkeys(ODD, 3))
    command("train", "photos", *QUICK, "--out", "run", cwd=folder, code=0, seconds=60)
    return folder


def test_odd_names_train_and_come_back_from_labels_txt(odd):
    assert read_labels(odd / "run" / "labels.txt") == sorted(ODD.values())
    assert open_images(odd / "photos").train.classes == sorted(ODD.values())


def test_what_trains_is_evaluated_and_checked(odd):
    command("evaluate", "run", "photos", cwd=odd, code=0)
    assert "class names are simplified: ' cat' as 'cat'" in command("check", "photos", cwd=odd, code=1).out


def test_what_trains_is_explained_by_the_name_of_its_folder(odd):
    model = sorted(ODD.values())
    for raw, name in ODD.items():
        assert class_index(raw, model, len(model)) == model.index(name)


def test_what_trains_resumes_and_is_a_model_to_start_from(odd):
    done = command("train", "--resume", "run", cwd=odd)
    assert "changed" not in done.err
    words = ("train", "photos", *QUICK[2:], "--model", "run", "--out", "again")
    assert "its own head" in command(*words, cwd=odd, code=0, seconds=60).err


def test_predictions_as_csv_hold_no_formula(odd):
    path = odd / "=1+1.png"
    path.write_bytes(picture(1))
    done = command("predict", "run", "./=1+1.png", "=1+1.png", "--top", "13", "--csv", cwd=odd, code=0)
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert {row["picture"] for row in rows} == {"./=1+1.png", "'=1+1.png"}
    assert {from_cell(row["label"]) for row in rows} == set(ODD.values())
    assert not [cell for row in rows for cell in row.values() if cell[:1] in "=+-@\t\r"]
    assert all(0 <= float(row["score"]) <= 1 for row in rows)


def test_folds_write_no_formula_and_read_their_own_lines(tmp_path):
    tree(tmp_path / "photos", {"=cmd": 4, "@b": 4})
    words = ("train", "photos", *QUICK, "--folds", "2", "--out", "run")
    command(*words, cwd=tmp_path, code=0, seconds=90)
    found = list(tmp_path.rglob("predictions.csv"))
    assert found
    for path in found:
        rows = list(csv.DictReader(path.read_text().splitlines()))
        assert {row["label"] for row in rows} == {"'=cmd", "'@b"}
        assert {row["name"][0] for row in rows} == {"'"}


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("a\x1bb", "a\\x1bb"), r"'a\\x1bb' and 'a\\\\x1bb'"),
        (("big  dog", "big dog"), "'big  dog' and 'big dog'"),
        ((" cat", "cat"), "' cat' and 'cat'"),
        (("cat\u00a0", "cat"), r"'cat' and 'cat\\xa0'"),
    ],
)
def test_two_names_that_would_become_one_are_refused_with_both(tmp_path, names, found):
    tree(tmp_path / "photos", dict.fromkeys(names, 2))
    with pytest.raises(DataError, match=rf"photos has the classes {found}, which would both be called"):
        open_images(tmp_path / "photos")
    rows = [{"path": f"photos/{name}/0.png", "label": f"{name}."} for name in names]
    (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, rows)))
    if not names[0].startswith(" ") and not names[0].endswith("\u00a0"):
        with pytest.raises(DataError, match="which would both be called"):
            open_images(tmp_path / "all.jsonl")
    done = command("train", "photos", "--out", "run", cwd=tmp_path, code=3)
    assert "rename or merge them" in done.err
    assert not (tmp_path / "run").exists()


def test_the_same_two_names_in_two_splits_are_refused_too(tmp_path):
    tree(tmp_path, {"train/a\x1bb": 2, "train/c": 2, "val/a\\x1bb": 2})
    with pytest.raises(DataError, match="which would both be called"):
        open_images(tmp_path)


def test_two_spellings_of_one_name_are_one_class_and_told(tmp_path):
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    found = open_images(tree(tmp_path, {composed: 2, decomposed: 2, "b": 2}))
    assert found.train.classes == ["b", composed]
    assert "class 'caf\u00e9' is spelt two ways" in found.warnings[0]


@pytest.mark.parametrize(
    "name", ["x" * (LONGEST + 1), "\x1b" * 300, "e\u0301" * 100_000, "\u0301\u0316" * 500_000]
)
def test_a_label_that_is_too_long_is_refused_before_training(tmp_path, name):
    tree(tmp_path, {"a": 2})
    rows = [{"path": "a/0.png", "label": name}, {"path": "a/1.png", "label": "b"}]
    (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(DataError, match=r"more than 1,024 characters \('.{1,200}'\); shorten it"):
        open_images(tmp_path / "all.jsonl")


def test_every_folder_name_that_a_disk_can_hold_is_kept(tmp_path):
    for name in (b"\xff" * 255, b"\xfe" * 255, b"\x01" * 255):
        folder = os.fsencode(tmp_path) + b"/photos/" + name
        os.makedirs(folder)
        for i in range(2):
            with open(folder + b"/%d.png" % i, "wb") as file:
                file.write(picture(i))
    found = open_images(tmp_path / "photos").train.classes
    assert found == [r"\x01" * 255, r"\xfe" * 255, r"\xff" * 255]
    (tmp_path / "labels.txt").write_text("".join(f"{name}\n" for name in found), "utf-8")
    assert read_labels(tmp_path / "labels.txt") == found


def test_a_folder_named_by_white_space_alone_is_refused(tmp_path):
    with pytest.raises(DataError, match="is called ' ', which is all white space; rename it"):
        open_images(tree(tmp_path, {" ": 2, "a": 2}))


def test_folders_manifests_shards_and_parquet_agree_on_every_name(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    names = {raw: name for raw, name in ODD.items() if raw != "two\nlines"}  # two lines are no .txt label
    tree(tmp_path / "photos", dict.fromkeys(names, 1))
    kinds = {"folders": tmp_path / "photos"}
    rows = [(f"photos/{name}/0.png", name) for name in names]
    kinds["jsonl"] = tmp_path / "all.jsonl"
    kinds["jsonl"].write_text("\n".join(json.dumps({"path": path, "label": name}) for path, name in rows))
    kinds["csv"] = tmp_path / "all.csv"
    with kinds["csv"].open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    members = {f"{i}.{end}": data for i, name in enumerate(names)
               for end, data in (("png", picture(i)), ("txt", name.encode()))}  # fmt: skip
    kinds["shards"] = tar(tmp_path / "all.tar", members, tarfile.PAX_FORMAT)
    kinds["parquet"] = tmp_path / "all.parquet"
    table = {"image": [picture(i) for i in range(len(names))], "label": list(names)}
    parquet.write_table(pyarrow.table(table), kinds["parquet"])
    for source in kinds.values():
        assert open_images(source).train.classes == sorted(names.values())


def test_bytes_that_are_no_utf8_are_one_name_in_folders_and_manifests(tmp_path):
    os.makedirs(os.fsencode(tmp_path) + b"/photos/a\xff")
    (tmp_path / "photos" / "b").mkdir()
    for folder in (b"a\xff", b"b"):
        with open(os.fsencode(tmp_path) + b"/photos/" + folder + b"/0.png", "wb") as file:
            file.write(picture(len(folder)))
    (tmp_path / "all.csv").write_bytes(b"path,label\nphotos/a\xff/0.png,a\xff\nphotos/b/0.png,b\n")
    for source in ("photos", "all.csv"):
        assert open_images(tmp_path / source).train.classes == [r"a\xff", "b"]


def test_a_model_with_two_classes_of_one_name_is_not_scored_on_either(tmp_path):
    images = open_images(tree(tmp_path, {"crane": 2, "dog": 2})).train
    with pytest.raises(DataError, match="2 of the 3 known classes are called 'crane'"):
        images.relabel(["crane", "dog", "crane"])
    assert images.relabel(["crane", "dog", "cat", "cat"]).labels.tolist() == [0, 0, 1, 1]
    twice = Pictures(images.store, images.rows, images.labels, ["crane", "crane"])
    assert twice.relabel(["crane", "crane"]).labels.tolist() == [0, 0, 1, 1]


def test_labels_of_strangers_are_cut_and_never_empty():
    assert name_labels(["a" * 5000, " \n", "\ud800", None, 3]) == [
        "a" * LONGEST,
        "class 1",
        r"\ud800",
        "None",
        "3",
    ]


@pytest.mark.parametrize("target", ["9" * 5000, "class " + "9" * 5000, "²", "٣"])
def test_a_target_that_is_no_number_of_a_class_is_refused(odd, target):
    command("explain", "run", "photos/Cat/0.png", "--target", target, cwd=odd, code=2)


@fuzz
@given(st.text(max_size=40) | st.binary(max_size=40))
def test_the_rule_is_idempotent_and_fits_on_a_line(raw):
    name = class_name(raw)
    assert class_name(name) == name
    assert name.isprintable()
    assert name == " ".join(name.split())
    assert unicodedata.normalize("NFC", name) == name
    if isinstance(raw, str) and max(raw, default="") < "\ud800":
        assert class_name(raw.encode()) == name


@fuzz
@given(st.text(alphabet=st.sampled_from("'=+-@\t\r\n 1.a\uff1d"), max_size=6) | st.text(max_size=10))
def test_a_cell_runs_nothing_and_comes_back(text):
    cell = to_cell(text)
    assert from_cell(cell) == text
    number = cell.lstrip("+-").replace(".", "", 1).isdecimal()
    assert number or cell.strip(" ")[:1] not in tuple("=+-@\t\r\uff1d")
