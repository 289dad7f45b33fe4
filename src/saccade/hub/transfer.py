"""Transfer one file into the cache: bounded, resumable, and checked before it gets its name."""

import hashlib
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from time import sleep
from typing import IO, Any

from saccade.errors import ResourceError, SaccadeError
from saccade.hub.cache import ELSEWHERE, RepositoryCache, checksum
from saccade.hub.connection import AnswerError, Body, StatusError
from saccade.hub.library import file_lock
from saccade.hub.listing import ListedFile

SMALL = 64_000_000
"""Bytes of a settings file (.json, .txt)."""
UNLISTED = 64 * 2**30
"""Bytes of any other file whose size a mirror does not list."""
TRIES = 5
AMPLE = 1_000_000
"""A transfer that breaks off after this many bytes does not count as a try."""
PAUSE = 0.5
PASSING = (408, 429)
"""Statuses below 500 that are worth another try."""

Get = Callable[..., AbstractContextManager[Body]]


def check(folder: RepositoryCache, path: Path, name: str, digest: str, error: type[SaccadeError]) -> None:
    """Check a file against its SHA-256 (git-lfs) or git blob id; remove and refuse it if it differs."""
    found = checksum(path, digest)
    if found != digest:
        folder.remove(path)
        raise error(
            f"{name} is damaged: its checksum starts with {found[:12]}; expected {digest[:12]}; "
            "it has been removed from the cache; run the command again to fetch it"
        )


def _most(name: str, size: int) -> int:
    """Return how many bytes a file may have."""
    limit = SMALL if name.endswith((".json", ".txt")) else UNLISTED
    if limit == SMALL < size:
        raise AnswerError(f"it lists {name} with {size:,} bytes, more than the limit of {SMALL:,}")
    return limit if size < 0 else size


def _fill(file: IO[bytes], get: Get, most: int, size: int, bar: Any) -> None:
    """Append the missing rest of a file of at most `most` bytes; a size of -1 is unknown."""
    import httpx2
    from huggingface_hub import constants

    tries = 0
    while (done := file.tell()) != size:
        try:
            with get(start=done, wait=constants.HF_HUB_DOWNLOAD_TIMEOUT) as answer:
                if answer.start != done:
                    bar.update(-done)
                    file.seek(file.truncate(0))
                for piece in answer.pieces:
                    if file.tell() + len(piece) > most:
                        raise AnswerError(f"a file continues beyond the expected {most:,} bytes")
                    file.write(piece)
                    bar.update(len(piece))
            if size in (-1, file.tell()):
                return
            raise httpx2.RemoteProtocolError("a file ended early")
        except (httpx2.TransportError, StatusError) as error:
            status = error.status if isinstance(error, StatusError) else 500
            if status == 416:  # we have more bytes than the file
                file.seek(file.truncate(0))
            elif status < 500 and status not in PASSING:
                raise
            tries += file.tell() - done < AMPLE
            if tries == TRIES:
                raise
            sleep(PAUSE)


def receive(
    folder: RepositoryCache,
    commit: str,
    name: str,
    entry: ListedFile,
    get: Get,
    bar: Any,
    error: type[SaccadeError],
) -> None:
    """Fetch a file of a commit into the cache, resuming where an earlier call stopped.

    The blob is named by the checksum computed here.
    """
    most, path = _most(name, entry.size), folder.snapshot(commit) / name
    word = entry.digest or f"unlisted-{hashlib.sha256(f'{commit}/{name}'.encode()).hexdigest()}"
    partial, blob = folder.blob(f"{word}.partial"), folder.blob(entry.digest or "unlisted")
    with file_lock(folder.lock(word)):
        if entry.digest and folder.holds(blob):  # from another commit or a faster process
            folder.link(blob, path)
            return
        with folder.open(partial) as file:
            if file.tell() > most or not entry.digest:
                file.seek(file.truncate(0))
            missing, free = entry.size - file.tell(), shutil.disk_usage(partial.parent).free
            if missing > free:
                raise ResourceError(
                    f"{name} needs {missing / 1e6:.0f} MB; {folder.cache} has {free / 1e6:.0f} MB left; "
                    f"make room, or {ELSEWHERE}"
                )
            try:
                with bar(total=entry.size if entry.size >= 0 else None, initial=file.tell()) as shown:
                    _fill(file, get, most, entry.size, shown)
            except AnswerError:
                file.truncate(0)
                raise
        if entry.digest:
            check(folder, partial, name, entry.digest, error)
        else:
            blob = folder.blob(checksum(partial, ""))
        partial.replace(blob)
        folder.link(blob, path)
