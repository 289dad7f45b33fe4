"""`saccade check`: the table, the JSON and the exit code."""

import json
import re

import pytest
import typer
from swapped import coloured, trained
from terminal import run as saccade
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
    assert err == "class folders: 7 images of 2 classes (train 5, val 2)\n"
    lines = out.splitlines()
    assert lines[0].split() == ["class", "train", "val", "unreadable"]
    assert lines[1].split() == ["a", "3", "1", "0"]
    assert lines[3].split() == ["all", "5", "2", "0"]
    assert lines[-1] == "no problems found"


def test_findings_leave_with_1_and_are_named(tmp_path, capsys):
    tree(tmp_path, {"train/a": 3, "train/b": 2, "val/a": 1, "val/b": 1, "train/c": 0})
    (tmp_path / "train" / "b" / "bad.jpg").write_bytes(b"<html>")
    (tmp_path / "val" / "b" / "x.png").write_bytes((tmp_path / "train" / "a" / "0.png").read_bytes())
    code, out, _ = checked(capsys, tmp_path)
    assert code == 1
    assert "  train: train/b/bad.jpg is not an image: an HTML page saved as .jpg" in out
    assert "  train/a/0.png (train, a) = val/b/x.png (val, b)" in out
    assert "1 class folder without an image left out: train/c" in out
    assert out.splitlines()[-1] == (
        "found: 1 unreadable image, 1 contradiction, 1 leak between splits, 1 note"
    )


def test_json_holds_everything(tmp_path, capsys):
    tree(tmp_path, {"a": 30, "b": 2})
    for i in range(30):
        (tmp_path / "a" / f"{i}.png").write_bytes(b"")
    code, out, _ = checked(capsys, tmp_path, as_json=True, quick=True)
    report = json.loads(out)
    assert code == 1
    assert report["told"] == "class folders: 32 images of 2 classes"
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
    assert "(60 medium-sized classes omitted; --json lists them all)" in out


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Coloured pictures, some in a wrong folder, and a run that was trained on them."""
    folder = tmp_path_factory.mktemp("check")
    wrong = coloured(folder / "colours")
    return folder / "colours", trained(folder / "colours", folder / "run", 6, "budget.batch=16"), wrong


def test_the_page_is_written_beside_the_report(tmp_path, capsys):
    tree(tmp_path / "p", {"<script>x<": 3, "b": 2})
    plain = checked(capsys, tmp_path / "p")
    code, out, err = checked(capsys, tmp_path / "p", html=tmp_path / "check.html")
    assert (code, out) == plain[:2]
    assert err == plain[2] + f"page: {tmp_path / 'check.html'}\n"
    page = (tmp_path / "check.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;x&lt;" in page
    assert "<script" not in page
    assert "no problems found" in page


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nowhere/check.html", "nowhere does not exist"),
        ("p", "a folder; expected the name of a file in it"),
        ("p/a/0.png", "exists and is not a page of `saccade check`, so it is not replaced"),
    ],
)
def test_a_page_that_cannot_be_written_is_refused_before_the_work(tmp_path, name, told):
    tree(tmp_path / "p", {"a": 3, "b": 2})
    before = (tmp_path / "p" / "a" / "0.png").read_bytes()
    done = saccade("check", tmp_path / "p", "--html", tmp_path / name)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert told in done.err
    assert done.err.count("\n") == 1
    assert (tmp_path / "p" / "a" / "0.png").read_bytes() == before


def test_a_run_names_suspected_labels_in_words_in_json_and_on_the_page(place, tmp_path, capsys):
    data, run, wrong = place
    code, out, _ = checked(capsys, data, run=run, html=tmp_path / "check.html")
    assert code == 0, "a suspicion is a question to a person, and no finding"
    assert re.search(r"\d suspected labels? among the \d+ images that the model was not trained on\n", out)
    assert "that the model was trained on (a model memorises its training labels" in out
    assert re.search(r"^found: \d suspected labels$", out.splitlines()[-1])
    assert out.count("  image ") == 2
    _, out, _ = checked(capsys, data, run=run, as_json=True)
    told = json.loads(out)["suspicion"]
    assert sum(told["judged"].values()) == 120
    assert {each["place"]["name"] for each in told["suspects"]} <= wrong
    assert {each["part"] for each in told["suspects"]} == {"unseen", "learnt"}
    page = (tmp_path / "check.html").read_text(encoding="utf-8")
    for each in told["suspects"]:
        assert (
            f"{each['place']['name']}, label says {each['place']['label']}, model says {each['answer']}"
            in page
        )


def test_a_run_of_other_classes_is_one_sentence(place, tmp_path):
    tree(tmp_path / "p", {"cat": 3, "dog": 2})
    done = saccade("check", tmp_path / "p", "--run", place[1])
    assert (done.code, done.out) == (3, "")
    assert "have 2 classes that" in done.err.splitlines()[-1]
    done = saccade("check", place[0], "--run", tmp_path / "p")
    assert (done.code, done.out) == (2, "")
    assert "is not a run folder (it has no recipe.json)" in done.err
