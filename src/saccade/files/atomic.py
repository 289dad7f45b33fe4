"""Write files whole or not at all: temporary file, fsync, rename, fsync of the folder."""

import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedRandom
from pathlib import Path
from typing import TypeVar

from saccade.errors import ResourceError, SaccadeError, UsageError
from saccade.wording import printable

T = TypeVar("T")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PAUSES = (0.25, 1.0, 4.0)
"""Seconds before each further try of a write that failed."""
TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")


@contextmanager
def replacing(path: Path, needed: int) -> Iterator[BufferedRandom]:
    """Yield an empty file that replaces `path` if the block succeeds, and vanishes if not."""
    temporary = path.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        # Not tempfile: its files stay private, and these follow the umask like any other.
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with os.fdopen(descriptor, "w+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            with suppress(OSError):  # renamed, or gone with its disk
                os.unlink(temporary)
        sync_folder(path.parent)
    except OSError as error:
        raise _unwritten(path, needed, error) from error


def patiently(write: Callable[[], T], what: str, folder: Path, needed: int, then: str) -> T:
    """Write, and try again after each of `PAUSES`: a network disk may be back by then.

    A full disk is not retried. The last failure is a ResourceError with the bytes needed and free, and
    what to do.
    """
    tries = 0
    while True:
        try:
            return write()
        except (OSError, UsageError, ResourceError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(cause, OSError):
                raise
            if cause.errno in FULL or tries == len(PAUSES):
                raise ResourceError(
                    f"{what} cannot be written to {printable(folder)} ({cause.strerror}); "
                    f"{needed:,} bytes are needed and {free(folder)} are free; "
                    f"free some space or repair the disk, then {then}"
                ) from error
        time.sleep(PAUSES[tries])
        tries += 1


def free(folder: Path) -> str:
    """Return the bytes left on the disk of a folder, in words; the folder itself may be gone."""
    for parent in (folder, *folder.absolute().parents):
        with suppress(OSError):
            return f"{shutil.disk_usage(parent).free:,}"
    return "an unknown number"


def sweep(folder: Path) -> None:
    """Remove the temporary files that a killed process left in a folder."""
    with suppress(OSError):
        for path in folder.iterdir():
            if TEMPORARY.fullmatch(path.name):
                path.unlink()


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritten(path: Path, needed: int, error: OSError) -> SaccadeError:
    if error.errno in (*FULL, errno.EIO):
        return ResourceError(
            f"{printable(path)} needs {needed:,} bytes and {free(path.parent)} are free ({error.strerror}); "
            "nothing was left behind; free some space or choose another folder"
        )
    return UsageError(
        f"{printable(path)} cannot be written ({error.strerror}); expected an existing folder with write "
        "permission; choose another folder"
    )


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text so that a reader finds the old file or the new one, never half of either."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Do what `write_text` does with bytes."""
    with replacing(path, len(data)) as file:
        file.write(data)


def run_path(source: str | Path, prefix: str = "", suffix: str = "", unnamed: str = "data") -> Path:
    """Return the usual folder of a result: runs/ and the name of its data or model; it may exist."""
    name = Path(source).resolve().name.removesuffix(".safetensors") or unnamed
    return Path("runs") / f"{prefix}{name}{suffix}"


def check_free(out: Path | None) -> None:
    """Refuse a folder that is not empty, before any work is done."""
    if out is None:
        return
    if not out.name:
        raise UsageError(f"the folder to write is {str(out)!r}; expected a folder with a name")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and is not empty; nothing was written; give another name")


def new_folder(out: Path, numbered: bool = True) -> Path:
    """Make a folder; nothing is overwritten.

    Args:
        numbered: Add -2, -3, ... to its name if it exists; otherwise refuse one that is not empty.
    """
    if out.name in ("", ".."):
        raise UsageError(f"the folder to write is {str(out)!r}; expected a folder with a name")
    path, number = out, 1
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            if number == 1 and not path.is_dir():
                raise UsageError(
                    f"{printable(path)} is a file; expected a folder; choose another name"
                ) from None
            if not numbered:
                check_free(path)
                return path
            number += 1
            path = out.with_name(f"{out.name}-{number}")
        except OSError as error:
            raise UsageError(
                f"{printable(path)} cannot be created ({error.strerror}); choose another folder"
            ) from error


@contextmanager
def fresh(folder: Path) -> Iterator[Path]:
    """Refuse a folder that is not empty; if the block fails, leave nothing behind."""
    existed = folder.exists()
    check_free(folder)
    try:
        yield folder
    except BaseException as error:
        _undo(folder, existed)
        if isinstance(error, OSError):
            raise UsageError(f"{folder} cannot be written ({error.strerror}); choose another") from error
        raise


def _undo(folder: Path, existed: bool) -> None:
    """Remove everything from a folder that was new or empty."""
    for path in folder.iterdir() if folder.is_dir() else ():
        path.unlink()
    if not existed:
        shutil.rmtree(folder, ignore_errors=True)
