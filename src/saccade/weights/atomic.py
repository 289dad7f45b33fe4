"""Files that are there whole or not at all: temporary file, fsync, rename, fsync of the folder."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedRandom
from pathlib import Path

from saccade.errors import ResourceError, SaccadeError, UsageError
from saccade.weights.source import shown

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def replacing(path: Path, needed: int) -> Iterator[BufferedRandom]:
    """Give an empty file that takes the place of `path` if the block ends well, and vanishes if not."""
    temporary = path.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        # Not tempfile: its files are private for ever, and these follow the umask like any other.
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with os.fdopen(descriptor, "w+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        _sync_folder(path.parent)
    except OSError as error:
        raise _unwritten(path, needed, error) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritten(path: Path, needed: int, error: OSError) -> SaccadeError:
    if error.errno in FULL:
        free = shutil.disk_usage(path.parent).free
        return ResourceError(
            f"{shown(path)} needs {needed:,} bytes and {free:,} are free ({error.strerror}); "
            "nothing was left behind; free some space or choose another folder"
        )
    return UsageError(
        f"{shown(path)} cannot be written ({error.strerror}), where a folder that exists and may be "
        "written to was expected; choose another place"
    )


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text so that a reader finds the old file or the new one, never half of either."""
    data = text.encode()
    with replacing(path, len(data)) as file:
        file.write(data)


def new_folder(out: Path) -> Path:
    """Make a folder: the one asked for, or with -2, -3, ... if it exists already; nothing is overwritten."""
    if out.name in ("", ".."):
        raise UsageError(f"the folder to write is {str(out)!r}; expected one with a name of its own")
    path, number = out, 1
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            number += 1
            path = out.with_name(f"{out.name}-{number}")
        except OSError as error:
            raise UsageError(
                f"{shown(path)} cannot be made ({error.strerror}); choose another place"
            ) from error
