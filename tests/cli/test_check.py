"""`saccade check`: the table, the JSON and the exit code."""

import json

import pytest
import typer
from trees import tree

from saccade.cli.check import check
from saccade.errors import DataError, UsageError


def checked(capsys, *words, **options):
    """Return the exit code, stdout and stderr of the command's function."""
    try:
        check(*map(str, words), **options)
        code = 0
    except typer.Exit as end:
        code = end.exit_code
    return code, *capsys.readouterr()


def test_sound_pictures_leave_with_0(tmp_path, capsys):
    tree(tmp_path, {"train/a": 3, "train/b": 2, "val/a": 1, "val/b": 1})
    code, out, err = checked(capsys, tmp_path)
    assert code == 0
    assert err == "class folders: 7 pictures of 2 classes (train 5, val 2)\n"
    lines = out.splitlines()
    assert lines[0].split() == ["class", "train", "val", "unreadable"]
    assert lines[1].split() == ["a", "3", "1", "0"]
    assert lines[3].split() == ["all", "5", "2", "0"]
    assert lines[-1] == "nothing is wrong with them"


def test_findings_leave_with_1_and_are_named(tmp_path, capsys):
    tree(tmp_path, {"train/a": 3, "train/b": 2, "val/a": 1, "val/b": 1, "train/c": 0})
    (tmp_path / "train" / "b" / "bad.jpg").write_bytes(b"<html>")
    (tmp_path / "val" / "b" / "x.png").write_bytes((tmp_path / "train" / "a" / "0.png").read_bytes())
    code, out, _ = checked(capsys, tmp_path)
    assert code == 1
    assert "  train: train/b/bad.jpg is not a picture: an HTML page saved as .jpg" in out
    assert "  train/a/0.png (train, a) = val/b/x.png (val, b)" in out
    assert "1 class folder without a picture left out: train/c" in out
    assert out.splitlines()[-1] == (
        "found: 1 unreadable picture, 1 contradiction, 1 leak between splits, 1 note"
    )


def test_json_holds_everything(tmp_path, capsys):
    tree(tmp_path, {"a": 30, "b": 2})
    for i in range(30):
        (tmp_path / "a" / f"{i}.png").write_bytes(b"")
    code, out, _ = checked(capsys, tmp_path, as_json=True, quick=True)
    report = json.loads(out)
    assert code == 1
    assert report["told"] == "class folders: 32 pictures of 2 classes"
    assert len(report["unreadable"]) == 30
    assert report["full"] is False
    _, out, _ = checked(capsys, tmp_path)
    assert "and 10 more; --json lists them all" in out


def test_unusable_data_is_an_error_with_exit_code_3(tmp_path, capsys):
    with pytest.raises(DataError, match="is empty") as caught:
        check(str(tmp_path))
    assert caught.value.exit_code == 3
    with pytest.raises(UsageError, match="workers is 0; expected a number from 1 to 256"):
        check(str(tmp_path), workers=0)


def test_many_classes_are_cut_in_the_middle(tmp_path, capsys):
    tree(tmp_path, {f"c{i:03}": 1 for i in range(100)})
    _, out, _ = checked(capsys, tmp_path)
    assert "(60 classes of middling size are not shown; --json lists them)" in out
