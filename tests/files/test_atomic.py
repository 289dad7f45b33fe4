"""Files are there whole or not at all."""

import errno
import os

import pytest

from saccade.errors import ResourceError, UsageError
from saccade.files.atomic import fresh, write_text


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResourceError, match=r"a\.txt needs 7 bytes and [\d,]+ are free"):
        write_text(path, "renewal")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(UsageError, match="cannot be written"):
        write_text(tmp_path / "no" / "a.txt", "x")


def test_a_written_file_follows_the_umask(tmp_path):
    before = os.umask(0o022)
    try:
        write_text(tmp_path / "a.txt", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o644


def test_a_folder_that_fails_is_left_as_it_was(tmp_path):
    def fail():
        with fresh(tmp_path / "new") as folder:
            folder.mkdir()
            (folder / "half").write_text("x")
            raise OSError(errno.EROFS, "Read-only file system")

    with pytest.raises(UsageError, match="cannot be written"):
        fail()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old").write_text("x")
    with pytest.raises(UsageError, match="exists and is not empty; nothing was written"), fresh(tmp_path):
        pass
