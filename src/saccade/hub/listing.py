"""A hub's description of a repository: its commit, and the size and checksum of each file."""

import json
import re
from dataclasses import dataclass
from typing import Any

from saccade.files.strict_json import marks
from saccade.hub.connection import AnswerError
from saccade.hub.names import is_plain

COMMIT = re.compile(r"[0-9a-f]{40}")
BLOB, SHA256 = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")
LIMIT = 16_000_000
"""Bytes of a listing: enough for about 60,000 files."""
VALUES = 1_000_000
LARGEST = 10**13
"""Bytes of one file; the hub itself accepts at most 5e10."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file; its size is -1 and its digest empty if a mirror does not list them."""

    size: int
    digest: str
    large: bool


@dataclass(frozen=True, slots=True)
class HubListing:
    commit: str
    files: dict[str, ListedFile]


def parse(data: bytes) -> Any:
    """Parse JSON of at most `VALUES` values; anything else raises an AnswerError."""
    # Counted first: the parser would already have spent the memory.
    if len(marks(data).translate(None, b"]}")) > VALUES:
        raise AnswerError(f"its listing holds more than {VALUES:,} values")
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, a number of 5,000 digits
        raise AnswerError("its listing is not readable JSON") from error


def _digest(value: object, form: re.Pattern[str]) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not form.fullmatch(value):
        raise AnswerError("its listing has a malformed checksum")
    return value


def _size(value: object) -> int:
    if value is None:
        return -1
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise AnswerError("its listing has a file size that is not a plausible number")
    return value


def _entry(row: dict[str, Any]) -> ListedFile:
    large = row.get("lfs")
    if large is None:
        return ListedFile(_size(row.get("size")), _digest(row.get("blobId"), BLOB), False)
    if not isinstance(large, dict):
        raise AnswerError("its listing describes a large file by something other than an object")
    return ListedFile(_size(large.get("size")), _digest(large.get("sha256"), SHA256), True)


def read_listing(data: bytes, revision: str) -> HubListing:
    """Parse a hub's answer; leave out files whose names are not plain relative paths."""
    value = parse(data)
    if not isinstance(value, dict):
        raise AnswerError("its listing is not a JSON object")
    commit, rows = value.get("sha"), value.get("siblings") or []
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise AnswerError("its listing names no commit")
    if COMMIT.fullmatch(revision) and commit != revision:
        raise AnswerError("its listing is for another commit")
    if not isinstance(rows, list):
        raise AnswerError("its listing has no list of files")
    files: dict[str, ListedFile] = {}
    for row in rows:
        name = row.get("rfilename") if isinstance(row, dict) else None
        if not isinstance(name, str):
            raise AnswerError("its listing has a file without a name")
        if name in files:
            raise AnswerError("its listing names a file twice")
        if is_plain(name):
            files[name] = _entry(row)
    return HubListing(commit, files)
