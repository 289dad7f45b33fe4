"""Manifests: every spelling of the columns, relative to the file, and each bad line by its number."""

import json
import os

import numpy as np
import pytest
from trees import picture, state, tree

from saccade.data.readers.manifest import open_manifest, read_table
from saccade.data.readers.open import detect, open_images
from saccade.data.splits import hold_out
from saccade.errors import DataError


@pytest.fixture
def photos(tmp_path):
    return tree(tmp_path, {"a": 3, "b": 3})


def wrote(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
    return path


def names(images):
    return [images.name(i) for i in range(len(images))]


@pytest.mark.parametrize("path", ["path", "file", "file_name", "image", "filename", " Path "])
@pytest.mark.parametrize("label", ["label", "class", "target", "category", "Label"])
def test_columns_are_known_by_their_usual_names(photos, path, label):
    found = open_images(wrote(photos / "all.csv", f"{path},other,{label}", "a/0.png,1,x", "b/1.png,2,y"))
    assert names(found.train) == ["a/0.png", "b/1.png"]
    assert found.train.classes == ["x", "y"]
    assert found.train.read(1) == (photos / "b" / "1.png").read_bytes()
    assert found.summary == "manifest: 2 images of 2 classes"


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("m.tsv", ["path\tlabel", "a/0.png\tx, y", "b/0.png\tz"]),
        ("m.csv", ["path;label", "a/0.png;x, y", "b/0.png;z"]),
        ("m.csv", ["path,label", 'a/0.png,"x, y"', "", "b/0.png,z"]),
        (
            "m.jsonl",
            ['{"path": "a/0.png", "label": "x, y"}', "", '{"label": "z", "path": "b/0.png", "n": [1]}'],
        ),
        ("m.ndjson", ['{"Path": "a/0.png", "LABEL": "x, y"}', '{"label": "z", "path": "b/0.png"}']),
    ],
)
def test_tables_and_objects_say_the_same(photos, name, lines):
    found = open_images(wrote(photos / name, *lines))
    assert names(found.train) == ["a/0.png", "b/0.png"]
    assert found.train.classes == ["x, y", "z"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_what_a_spreadsheet_saves_is_read(photos, encoding):
    (photos / "m.csv").write_bytes("path,label\r\na/0.png,caf\u00e9\r\nb/0.png,z\r\n".encode(encoding))
    assert open_images(photos / "m.csv").train.classes == ["caf\u00e9", "z"]


def test_file_names_that_are_no_utf8_are_found(photos):
    name = b"a/\xff.png"
    with open(os.path.join(os.fsencode(photos), name), "wb") as file:
        file.write(picture(9))
    (photos / "m.csv").write_bytes(b"path,label\n" + name + b",x\nb/0.png,y\n")
    assert open_images(photos / "m.csv").train.read(0) == picture(9)


def test_absolute_paths_and_paths_upwards_are_the_users_own_business(photos):
    (photos / "lists").mkdir()
    found = open_images(
        wrote(photos / "lists" / "m.csv", "path,label", f"{photos}/a/0.png,x", "../b/0.png,y")
    )
    assert found.train.read(0) == (photos / "a" / "0.png").read_bytes()
    assert found.train.read(1) == (photos / "b" / "0.png").read_bytes()


def test_a_split_column_parts_the_pictures(photos):
    lines = [
        "a/0.png,x,train",
        "a/1.png,x,Validation",
        "b/0.png,y,training",
        "b/1.png,y,dev",
        "b/2.png,y,test",
    ]
    found = open_images(wrote(photos / "m.csv", "path,label,split", *lines))
    assert found.val is not None
    assert found.test is not None
    assert (names(found.train), names(found.val)) == (["a/0.png", "b/0.png"], ["a/1.png", "b/1.png"])
    assert names(found.test) == ["b/2.png"]
    assert found.warnings == ("1 class without an image in test: x",)


def test_groups_are_numbers_that_do_not_depend_on_the_other_lines(photos):
    head, lines = (
        "path,label,group",
        ["a/0.png,x,p1", "a/1.png,x,p2", "b/0.png,y,p1", "b/1.png,y,", "b/2.png,y,"],
    )
    groups = open_images(wrote(photos / "m.csv", head, *lines)).train.groups
    assert groups is not None
    assert groups[0] == groups[2]
    assert len(set(groups.tolist())) == 4
    fewer = open_images(wrote(photos / "m.csv", head, *lines[1:])).train.groups
    assert fewer is not None
    assert fewer.tolist() == groups[1:].tolist()


def test_a_group_in_two_splits_is_told(photos):
    lines = ["a/0.png,x,p1,train", "a/1.png,x,p1,val", "b/0.png,y,p2,train", "b/1.png,y,p3,val"]
    found = open_images(wrote(photos / "m.csv", "path,label,group,split", *lines))
    assert found.warnings == ("1 group of images in more than one split; the scores will be too high",)


def test_numbers_are_ordered_as_numbers_and_may_have_gaps(photos):
    found = open_images(wrote(photos / "m.csv", "path,label", "a/0.png,10", "a/1.png,9", "b/0.png,2.0"))
    assert found.train.classes == ["2", "9", "10"]
    assert found.train.labels.tolist() == [2, 1, 0]


def test_numbers_get_their_names_from_a_column(photos):
    lines = ["a/0.png,7,seven", "a/1.png,3,three", "b/0.png,7,seven"]
    found = open_images(wrote(photos / "m.csv", "path,label,label_name", *lines))
    assert found.train.classes == ["three", "seven"]
    assert found.train.labels.tolist() == [1, 0, 1]
    with pytest.raises(DataError, match=r"line 4 of .* calls the class 7 'sieben'; expected 'seven'"):
        open_images(wrote(photos / "m.csv", "path,label,label_name", *lines[:2], "b/0.png,7,sieben"))


def test_numbers_get_their_names_from_a_list_beside_the_manifest(photos):
    wrote(photos / "labels.txt", "crane", "dog", "crane")
    found = open_images(wrote(photos / "m.csv", "path,label", "a/0.png,2", "a/1.png,0"))
    assert found.train.classes == ["crane", "dog", "crane"]  # ImageNet has two cranes
    assert found.train.labels.tolist() == [2, 0]
    assert found.warnings == ("1 class without an image: dog",)
    with pytest.raises(DataError, match=r"has the class 3, but .*labels.txt names 3 classes, counted from 0"):
        open_images(wrote(photos / "m.csv", "path,label", "a/0.png,3", "a/1.png,0"))


def test_numbers_in_json_are_numbers(photos):
    lines = [json.dumps({"file_name": f"a/{i}.png", "label": 9 + i}) for i in range(3)]
    assert open_images(wrote(photos / "m.jsonl", *lines)).train.classes == ["9", "10", "11"]


def test_a_folder_with_metadata_is_a_manifest(photos):
    wrote(photos / "metadata.csv", "file_name,label", "a/0.png,x", "b/0.png,y")
    assert detect(photos) == "manifest"
    assert names(open_images(photos).train) == ["a/0.png", "b/0.png"]
    assert len(open_images(photos, "folders").train) == 6


def test_each_split_may_have_its_own_manifest(tmp_path):
    tree(tmp_path, {"train/pictures": 2, "validation/pictures": 2})
    for split in ("train", "validation"):
        lines = ["pictures/0.png,x", "pictures/1.png,y"]
        wrote(tmp_path / split / "metadata.csv", "file_name,label", *lines)
    found = open_images(tmp_path)
    assert found.val is not None
    assert names(found.val) == ["validation/pictures/0.png", "validation/pictures/1.png"]
    assert found.val.read(0) == (tmp_path / "validation" / "pictures" / "0.png").read_bytes()
    wrote(tmp_path / "train.csv", "path,label", "train/pictures/0.png,x", "train/pictures/1.png,y")
    wrote(tmp_path / "val.csv", "path,label", "validation/pictures/0.png,x")
    for split in ("train", "validation"):
        (tmp_path / split / "metadata.csv").unlink()
    found = open_images(tmp_path)
    assert found.val is not None
    assert (len(found.train), len(found.val)) == (2, 1)


def test_missing_files_are_named_and_stay_to_be_counted(photos):
    found = open_images(wrote(photos / "m.csv", "path,label", "a/0.png,x", "a/9.png,x", "b/0.png,y"))
    assert len(found.warnings) == 1
    assert found.warnings[0].endswith("m.csv missing: a/9.png")
    with pytest.raises(DataError, match=r"a/9.png does not exist"):
        found.train.read(1)


def test_a_repeated_line_is_left_out_and_a_file_in_two_splits_is_told(photos):
    lines = ["a/0.png,x,train", "./a/0.png,x,train", "b/0.png,y,train", "a/0.png,x,val", "b/1.png,y,val"]
    found = open_images(wrote(photos / "m.csv", "path,label,split", *lines))
    assert names(found.train) == ["a/0.png", "b/0.png"]
    assert found.warnings[0].endswith("m.csv in two splits: a/0.png in train and val")
    assert found.warnings[1].endswith("m.csv left out: same file as an earlier line")


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["path,label", "a/0.png,x", "a/../a/0.png,y"], r"twice, as 'x' \(line 2\) and as 'y' \(line 3\)"),
        (
            ["path,label", "a/0.png,x", "a/1.png"],
            "line 3 of .*m.csv has 1 column; expected 2, as in the first",
        ),
        (["path,label", "a/0.png,x,y"], "line 2 of .*m.csv has 3 columns; expected 2.*double quotes"),
        (["path,label", "a/0.png,"], "line 2 of .*m.csv has no label; expected one in the column 'label'"),
        (["image,label", ",x"], "line 2 of .*m.csv has no file name; expected one in the column 'image'"),
        (["path,label", 'a/0.png,"x'], "line 2 of .*m.csv cannot be read as a table: unexpected end of data"),
        (
            ["a/0.png,x"],
            "has the columns a/0.png, x; expected a column path .or file_name, image. and one label",
        ),
        (["path,caption", "a/0.png,x"], "has the columns path, caption; expected a column path"),
        ([""], "has the columns nothing; expected a column path"),
        (["path,label"], "m.csv lists no images; expected"),
        (
            ["path,label,split", "a/0.png,x,holdout"],
            "line 2 of .* has the split 'holdout'; expected one of train",
        ),
        (
            ["path,label", "x/0.png,x", "x/1.png,y"],
            "none of the 2 files in .* exists .the first would be",
        ),
        (["path,label", "a/0.png,x"], "has only one class, x; expected two or more"),
        (
            ["path,label", "a/\0.png,x"],
            "line 2 of .*m.csv has a file name with a zero byte|line contains NUL",
        ),
        (["path,label", "a/0.png," + "x" * 200_000], "line 2 of .* cannot be read as a table: field larger"),
        (["path,label,split", "a/0.png,x,val", "b/0.png,y,val"], "has images only for val; expected some"),
    ],
)
def test_a_bad_manifest_is_refused_with_the_line(photos, lines, says):
    before = state(photos)
    path = wrote(photos / "m.csv", *lines)
    with pytest.raises(DataError, match=says) as caught:
        open_images(path)
    assert "\n" not in str(caught.value)
    path.unlink()
    os.utime(photos)
    assert state(photos) == before


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"path": "a/0.png", "label": "x"', "line 2 of .*m.jsonl is not JSON: "),
        ("[1, 2]", "line 2 of .*m.jsonl is not a JSON object; expected one with path and label"),
        ('{"path": "a/0.png"}', "line 2 of .*m.jsonl has the columns path; expected a column path"),
        ('{"path": "a/0.png", "label": true}', "line 2 of .*m.jsonl has the columns path"),
        ('{"path": "a/0.png", "label": {"a": 1}}', "line 2 of .*m.jsonl has the columns path"),
        ("[" * 100_000, "line 2 of .*m.jsonl is not JSON: "),
    ],
)
def test_a_bad_line_of_json_is_refused_with_its_number(photos, line, says):
    with pytest.raises(DataError, match=says):
        open_images(wrote(photos / "m.jsonl", '{"path": "a/0.png", "label": "x"}', line))


def test_a_folder_without_a_manifest_says_so_when_one_is_forced(photos):
    with pytest.raises(DataError, match=r"has no manifest; expected metadata.csv"):
        open_images(photos, "manifest")
    with pytest.raises(DataError, match=r"cannot be read: No such file or directory; expected a manifest"):
        open_manifest(photos / "none.csv")


# tables with any target


def test_a_table_gives_each_image_its_number(photos):
    table = wrote(
        photos / "t.csv", "path,split,age", "a/0.png,train,3", "a/1.png,train,2.5", "b/0.png,val,-1"
    )
    found = read_table(table)
    assert found.train.targets.tolist() == [3.0, 2.5]
    assert found.val is not None
    assert found.val.targets.tolist() == [-1.0]
    assert found.train.classes == []
    assert found.summary == "table: 3 images (train 2, val 1)"


def test_a_target_may_be_any_object(photos):
    table = wrote(
        photos / "t.jsonl", *(f'{{"path": "a/{i}.png", "target": "{i} {i + 1}"}}' for i in range(3))
    )
    found = read_table(table, lambda text: [int(word) for word in text.split()])
    assert found.train.targets.tolist() == [[0, 1], [1, 2], [2, 3]]
    assert found.train.take(np.array([2, 0])).targets.tolist() == [[2, 3], [0, 1]]
    assert found.train.fingerprint() != read_table(table, str).train.fingerprint()


def test_numbers_without_classes_are_held_out_by_their_names(photos):
    table = wrote(photos / "t.csv", "image,target", *(f"{c}/{i}.png,{i / 7}" for c in "ab" for i in range(3)))
    parted = hold_out(read_table(table), 0.3)
    assert parted.val is not None
    assert len(parted.train) + len(parted.val) == 6
    assert sorted([*parted.train.targets, *parted.val.targets]) == sorted(i / 7 for i in (0, 0, 1, 1, 2, 2))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            ("path,target", "a/0.png,old"),
            r"line 2 of .*t.csv has 'old' in the column 'target'; expected a number",
        ),
        (("path,target", "a/0.png,nan"), "has 'nan' in the column 'target'; expected a finite number"),
        (("path,x,y", "a/0.png,1,2"), "has the columns path, x, y; expected a column path .* and one target"),
        (("path,target", "a/0.png,1", "a/0.png,2"), "lists a/0.png twice, as '1' .* and as '2'"),
        (("path,target,split", "a/0.png,1,test"), "has no images to train on"),
        (("path,target",), "lists no images"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_in_words(photos, lines, words):
    with pytest.raises(DataError, match=words):
        read_table(wrote(photos / "t.csv", *lines))
