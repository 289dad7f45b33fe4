import pytest
from terminal import run

from saccade.api.load import load


def test_the_demo_goes_from_pictures_to_a_report_and_never_overwrites(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "mine").write_text("of value")
    done = run("demo", "--epochs", "1", "--out", tmp_path / "x")
    folder = tmp_path / "x-2"
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == str(folder)
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["mine"]
    assert "epoch 1/1" in done.err
    assert load(folder).labels == [str(i) for i in range(10)]
    pictures = sorted((folder / "pictures").iterdir())
    assert len(pictures) == 6
    assert str(pictures[0]) in done.out
    assert (folder / "report.html").is_file()
    assert "etter than random" in done.err or "No method can be judged" in done.err
    assert "click a patch" in done.err
    assert (folder / "explain.html").stat().st_size < 5_000_000
    assert "saccade train photos" in done.err


@pytest.mark.slow
def test_the_demo_learns_the_digits(tmp_path):
    done = run("demo", "--out", tmp_path / "x")
    told = next(line for line in done.err.splitlines() if line.startswith("   accuracy "))
    assert float(told.split()[1].rstrip("%")) >= 97


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--epochs", "0"], "epochs is 0; expected a number from 1 to 10000"),
        (["--out", ""], "the folder to write is '.'; expected a folder with a name"),
        (["--out", "/"], "the folder to write is '/'; expected a folder with a name"),
        (["--out", "/dev/null/x"], "/dev/null/x cannot be created (Not a directory); choose another folder"),
    ],
)
def test_a_demo_that_cannot_be_saved_is_refused_before_it_trains(words, told):
    done = run("demo", *words)
    assert (done.code, done.out, done.err) == (2, "", f"error: {told}\n")
