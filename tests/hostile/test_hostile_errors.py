"""Errors of the operating system and of libraries: a short sentence and an exit code of the table."""

import errno
import os
import subprocess
import sys

import forked
import pytest
from promise import check_sentence
from terminal import run, small
from trees import tree

from saccade.cli import app

LONG = "x" * 5000


def ends_with(error, monkeypatch):
    """What the command line makes of an exception."""

    def broken(name):
        raise error

    monkeypatch.setattr("saccade.models.names.config", broken)
    return run("models", "vit_b16")


@pytest.mark.parametrize(
    "words",
    [
        ("predict", LONG, "photo.png"),
        ("predict", "model", f"{LONG}.png"),
        ("predict", f"--{LONG}", "model"),
        ("train", LONG),
        ("train", "data", "--out", LONG),
        ("train", "data", "--set", LONG),
        ("train", "data", "--recipe", LONG),
        ("train", "--resume", LONG),
        ("check", "data", "--html", f"{LONG}.html"),
        ("predict", "model", "data", "--csv", LONG),
        ("export", "model", LONG),
        ("convert", "model", "--out", LONG),
        ("doctor", LONG),
        ("pull", LONG),
        ("compare", "data", "--models", LONG),
        ("demo", "--out", LONG),
        (LONG,),
    ],
    ids=lambda words: " ".join(words).replace(LONG, "X"),
)
def test_an_argument_of_5000_letters_is_a_short_sentence(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small().save(tmp_path / "model")
    tree(tmp_path / "data", {"cat": 3, "dog": 3})
    done = run(*words)
    assert done.code in (2, 3, 4), done.err
    line = done.err.splitlines()[-1]
    check_sentence(line)
    assert len(line) <= app.LONGEST + len("error: ")


@pytest.mark.parametrize(
    "words", [("a " * 5000), f"{LONG} is odd; do this", "\x1b\x07" * 3000, "word\n" * 3000, "é" * 10**6]
)
def test_the_text_of_a_library_is_cut_and_its_head_and_tail_stay(words, monkeypatch):
    done = ends_with(KeyError(f"first {words} last; do this instead"), monkeypatch)
    assert done.err.count("\n") == 1
    line = done.err.removesuffix("\n")
    assert line.isprintable()
    assert len(line) <= app.LONGEST + len("error: ")
    assert line.startswith("error: this is a bug in saccade (KeyError: 'first ")
    assert line.endswith("please report it")


def test_a_line_that_fits_is_not_touched(monkeypatch):
    path = "/".join(["folder"] * 40)
    assert path in ends_with(OSError(errno.EACCES, "Permission denied", path), monkeypatch).err


ERRORS = [
    (OSError(errno.ENAMETOOLONG, "File name too long", "long"), 2, "'long' cannot be used (File name too"),
    (OSError(errno.ELOOP, "Too many levels", "loop"), 2, "a link that leads back to itself; remove the link"),
    (PermissionError(errno.EACCES, "Permission denied", "mine"), 2, "you lack permission; grant it"),
    (FileNotFoundError(errno.ENOENT, "No such file", "gone"), 2, "'gone' cannot be used"),
    (IsADirectoryError(errno.EISDIR, "Is a directory", b"bytes"), 2, "'bytes' cannot be used"),
    (NotADirectoryError(errno.ENOTDIR, "Not a directory"), 2, "a file cannot be used (Not a directory)"),
    (OSError(errno.EROFS, "Read-only file system", "x"), 2, "the disk is read-only"),
    (OSError(errno.EIO, "Input/output error", "x"), 5, "the disk failed; copy the data to another disk"),
    (OSError(errno.ESTALE, "Stale file handle", "x"), 5, "the network disk is gone"),
    (OSError(errno.EMFILE, "Too many open files"), 5, "raise the limit with `ulimit -n 1024`"),
    (OSError(errno.ENFILE, "Too many open files in system"), 5, "raise the limit"),
    (ImportError("libx.so: cannot open shared object file: Too many open files"), 5, "raise the limit"),
    (RuntimeError("unable to open shared memory object: Too many open files (24)"), 5, "raise the limit"),
    (OSError(errno.EAGAIN, "Resource temporarily unavailable"), 5, "no processes or memory left"),
    (RecursionError("maximum recursion depth exceeded"), 3, "nested too deeply"),
    (UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "surrogates not allowed"), 2, "bytes that are not UTF-8"),
    (ValueError("embedded null byte"), 2, "a null byte"),
    (ValueError("embedded null character in path"), 2, "a null byte"),
    (ValueError("open: embedded null character in path"), 2, "a null byte"),  # Python 3.13
    (OSError("without a number"), 70, "this is a bug in saccade"),
    (ValueError("other"), 70, "this is a bug in saccade"),
]


@pytest.mark.parametrize(("error", "code", "told"), ERRORS, ids=[str(error) for error, _, _ in ERRORS])
def test_what_a_person_can_mend_is_no_fault_of_saccade(error, code, told, monkeypatch):
    done = ends_with(error, monkeypatch)
    assert done.code == code, done.err
    assert told in done.err
    assert done.err.count("\n") == 1


def test_a_soft_limit_is_raised_for_the_workers(tmp_path):
    tree(tmp_path / "data", {"cat": 8, "dog": 8})
    line = f"ulimit -S -n 24; exec {sys.executable} -m saccade train data --model vit_xs4_12"
    line += " --set budget.epochs=1 --set budget.batch=4 --set workers=2"
    done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_a_closed_stream_is_no_fault(closed, tmp_path):
    line = f"{sys.executable} -m saccade models gpt2 {closed}"
    done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_an_error_does_not_land_in_the_output_where_stderr_is_closed(tmp_path):
    line = f"{sys.executable} -m saccade predict nowhere x.png 2>&-"
    done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (4, "")


@pytest.mark.parametrize("words", [("data", "--out", b"o\xff"), (b"d\xff",)])
def test_a_run_whose_name_is_no_text_is_refused_before_a_folder_is_made(words, tmp_path):
    for name in (b"data", b"d\xff"):
        os.makedirs(os.path.join(os.fsencode(tmp_path), name))
    tree(tmp_path / "data", {"cat": 4, "dog": 4})
    os.rename(
        tmp_path / "data", os.path.join(os.fsencode(tmp_path), words[0] if len(words) == 1 else b"data")
    )
    before = sorted(os.listdir(os.fsencode(tmp_path)))
    done = forked.run("train", *words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "bytes that are not UTF-8" in check_sentence(done.stderr.splitlines()[-1])
    assert sorted(os.listdir(os.fsencode(tmp_path))) == before
