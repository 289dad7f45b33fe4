"""Digests find files that are not those that were saved."""

import hashlib
import os
from mmap import ACCESS_READ, mmap

from saccade.files.digest import changed, claimed, digest_contents, digest_files, digests, withdraw
from saccade.files.strict_json import read_json, write_json


def test_files_and_their_mapped_contents_have_one_digest(tmp_path):
    for name in ("b", "a", os.fsdecode(b"\xff")):
        (tmp_path / name).write_bytes(name.encode(errors="surrogateescape") * 9)
    contents = {}
    for path in tmp_path.iterdir():
        with path.open("rb") as file:
            contents[path.name] = mmap(file.fileno(), 0, access=ACCESS_READ)
    whole = hashlib.sha256()
    for name in sorted(contents):
        whole.update(name.encode(errors="surrogateescape") + b"\0" + hashlib.sha256(contents[name]).digest())
    assert digest_files(tmp_path.iterdir()) == digest_contents(contents) == whole.hexdigest()
    before = digest_files(tmp_path.iterdir())
    (tmp_path / "a").rename(tmp_path / "c")
    assert digest_files(tmp_path.iterdir()) != before


def test_a_changed_file_is_found_and_a_missing_digest_is_no_change(tmp_path):
    (tmp_path / "labels.txt").write_text("cat")
    model = {"sha256": digests(tmp_path, ("labels.txt", "nothing"))}
    assert list(model["sha256"]) == ["labels.txt"]
    assert not changed(tmp_path, model, "labels.txt")
    (tmp_path / "labels.txt").write_text("dog")
    assert changed(tmp_path, model, "labels.txt")
    assert not changed(tmp_path, {}, "labels.txt")
    assert claimed({}, "labels.txt") == ""


def test_digests_are_withdrawn_while_files_are_replaced(tmp_path):
    write_json(tmp_path / "model.json", {"format": 1, "sha256": {"a": "b"}})
    withdraw(tmp_path / "model.json")
    assert read_json(tmp_path / "model.json") == {"format": 1}
