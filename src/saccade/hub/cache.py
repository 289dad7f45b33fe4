"""A repository's folder in the cache, in huggingface_hub's layout; nothing outside it is touched."""

import errno
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from saccade.errors import ResourceError
from saccade.wording import one_line

ELSEWHERE = "set HF_HOME to a folder on another disk"
LIMIT = 32_000_000
"""Bytes of a stored note: a ref or a list of names."""
LINKLESS = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


@dataclass(frozen=True, kw_only=True, slots=True)
class RepositoryCache:
    """blobs/DIGEST holds a file, snapshots/COMMIT/NAME links to it, refs/REVISION holds a commit."""

    cache: Path
    name: str

    @property
    def path(self) -> Path:
        return self.cache / self.name

    def inside(self, path: Path) -> Path:
        """Return the path, or refuse it if it leaves the cache once every link is followed."""
        cache = os.path.realpath(self.cache)
        ends = [os.path.realpath(end) for end in ((path.parent, path) if path != self.cache else (path,))]
        if any(os.path.commonpath([cache, end]) != cache for end in ends):
            raise ResourceError(
                f"{one_line(path)} is a link that leads out of the cache; expected a file or folder in it; "
                f"remove the link, or {ELSEWHERE}"
            )
        return path

    def blob(self, word: str) -> Path:
        return self._made(self.path / "blobs") / word

    def snapshot(self, commit: str) -> Path:
        return self.path / "snapshots" / commit

    def ref(self, revision: str) -> Path:
        return self.path / "refs" / revision

    def listing(self, commit: str) -> Path:
        """Return the path of the list of a dataset's files; without it, missing files would go unnoticed."""
        return self.path / "listings" / commit

    def lock(self, word: str) -> Path:
        return self.inside(self._made(self.cache / ".locks" / self.name) / f"{word}.lock")

    def holds(self, path: Path) -> bool:
        """Return whether a file exists, itself or through a link within the cache."""
        return self.inside(path).is_file()

    def read(self, path: Path) -> bytes:
        """Return a note, or empty bytes if there is none."""
        if not self.holds(path):
            return b""
        with path.open("rb") as file:
            return file.read(LIMIT)

    def write(self, path: Path, text: str) -> None:
        """Write a note, whole or not at all; replace a link in its place instead of following it."""
        self._made(path.parent)
        temporary = self.blob(f"{os.getpid()}.new")
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            file.write(text.encode())
        temporary.replace(path)

    def open(self, path: Path) -> IO[bytes]:
        """Open a partly fetched blob, positioned at its end."""
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        number = os.open(self.inside(path), flags | getattr(os, "O_BINARY", 0), 0o666)
        file = os.fdopen(number, "r+b")
        about = os.fstat(number)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:  # a second name could be anywhere
            file.close()
            raise ResourceError(
                f"{one_line(path)} is a pipe, a device or a file with a second name; expected a file that "
                f"only the cache holds; remove it, or {ELSEWHERE}"
            )
        file.seek(0, os.SEEK_END)
        return file

    def link(self, blob: Path, path: Path) -> None:
        """Link a snapshot's file to this blob; on a disk without links, move the blob there."""
        self._made(path.parent)
        temporary = self.blob(f"{blob.name}.link")
        temporary.unlink(missing_ok=True)
        try:
            temporary.symlink_to(os.path.relpath(blob, path.parent))
        except OSError as error:
            if error.errno not in LINKLESS and not hasattr(error, "winerror"):
                raise
            blob.replace(path)
        else:
            temporary.replace(path)

    def remove(self, path: Path) -> None:
        """Remove a file and the target of its link, never anything outside the cache."""
        blob = Path(os.path.realpath(self.inside(path)))
        path.unlink(missing_ok=True)
        blob.unlink(missing_ok=True)

    def _made(self, folder: Path) -> Path:
        """Make a folder part by part, checking that no link on the way leads out."""
        for part in (*reversed(folder.relative_to(self.cache).parents), folder.relative_to(self.cache)):
            self.inside(self.cache / part).mkdir(parents=part == Path(), exist_ok=True)
        return folder


def checksum(path: Path, like: str) -> str:
    """Return the git blob id of a file if `like` has 40 digits, else its SHA-256."""
    head = b"blob %d\0" % path.stat().st_size
    start: Any = hashlib.sha1(head, usedforsecurity=False) if len(like) == 40 else hashlib.sha256()
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: start).hexdigest()
