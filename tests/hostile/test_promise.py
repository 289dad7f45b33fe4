"""The harness itself: what it must notice, it notices."""

import contextlib
import gc
import os
import socket
from pathlib import Path

import numpy as np
import pytest
from promise import MEBIBYTE, check_sentence, command, keeps_promise

from saccade.errors import DataError


def test_a_refusal_in_a_sentence_keeps_the_promise(tmp_path):
    def refuse():
        raise DataError("x.png is empty; expected an image; copy it again")

    assert isinstance(keeps_promise(refuse, tmp_path), DataError)


def test_any_other_exception_breaks_it(tmp_path):
    with pytest.raises(ZeroDivisionError):
        keeps_promise(lambda: 1 / 0, tmp_path)


@pytest.mark.parametrize(
    "act",
    [
        lambda path: path.write_text("x"),
        lambda path: path.unlink(),
        lambda path: path.rename(path.with_suffix(".old")),
        lambda path: path.with_name("folder").mkdir(),
        lambda path: path.with_name("link").symlink_to(path),
        lambda path: os.truncate(path, 0),
    ],
)
def test_a_change_outside_breaks_it(tmp_path, act):
    inside, outside = tmp_path / "inside", tmp_path / "thesis.docx"
    inside.mkdir()
    outside.write_text("years of work")
    with pytest.raises(AssertionError, match=r"thesis\.docx|folder|link"):
        keeps_promise(lambda: act(outside), inside)


def test_a_write_through_a_link_that_leads_outside_breaks_it(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "thesis.docx"
    inside.mkdir()
    (inside / "link").symlink_to(outside)
    with pytest.raises(AssertionError, match=r"thesis\.docx"):
        keeps_promise(lambda: (inside / "link").write_text("x"), inside)


def test_a_name_look_up_breaks_it(tmp_path):
    def look_up():
        with contextlib.suppress(OSError):
            socket.getaddrinfo("host.invalid", 80)

    with pytest.raises(AssertionError, match="getaddrinfo"):
        keeps_promise(look_up, tmp_path)


def test_time_and_memory_beyond_the_bound_break_it(tmp_path):
    with pytest.raises(AssertionError):
        keeps_promise(lambda: sum(range(10**7)), tmp_path, seconds=0.001)
    gc.collect()  # what earlier tests left behind must not be freed while this one measures
    with pytest.raises(AssertionError):
        keeps_promise(lambda: np.ones(400 * MEBIBYTE // 8).sum(), tmp_path, mebibytes=10)


@pytest.mark.parametrize("sentence", ["", "two\nlines", "an \x1b[31mescape", "x" * 700, "a fault of saccade"])
def test_a_bad_sentence_breaks_it(sentence):
    with pytest.raises(AssertionError):
        check_sentence(sentence)


def test_a_command_is_run_and_checked(tmp_path):
    done = command("predict", "no-such-model", "x.png", cwd=tmp_path, code=4)
    assert "no-such-model" in done.err
    assert list(Path(tmp_path).iterdir()) == []
