"""A lock that allows one training run at a time in a run folder; it is released when its process ends."""

import errno
import fcntl
import os
import time
from pathlib import Path
from weakref import WeakValueDictionary, finalize

from saccade.errors import UsageError
from saccade.wording import printable

NAME = ".lock"
# an untrusted folder may hold a link or a pipe with this name
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_BUSY = (errno.EWOULDBLOCK, errno.EACCES)


class Lock:
    """A folder locked for as long as this object lives."""

    def __init__(self, descriptor: int) -> None:
        self.release = finalize(self, os.close, descriptor)


_held: WeakValueDictionary[tuple[int, int], Lock] = WeakValueDictionary()


def _release_all() -> None:
    """Release the lock in a child: a worker that outlives a killed parent would keep the folder locked."""
    for lock in list(_held.values()):
        lock.release()


os.register_at_fork(after_in_child=_release_all)


def lock(folder: Path) -> Lock | None:
    """Lock a folder for this process; UsageError names the process that already holds it.

    Return None if the file system has no locks or the folder is not writable.
    """
    try:
        descriptor = os.open(folder / NAME, _FLAGS, 0o666)
    except OSError:
        return None
    found = os.fstat(descriptor)
    key = found.st_dev, found.st_ino
    if (mine := _held.get(key)) is not None:  # a cross-validation and its last run share a folder
        os.close(descriptor)
        return mine
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno not in _BUSY:
            return None
        raise UsageError(
            f"{printable(folder)} is in use by {_holder(found)}; only one training run at a time can write "
            "to a run folder; wait for it to end, or stop it first"
        ) from error
    _held[key] = made = Lock(descriptor)
    return made


def is_locked(folder: Path) -> bool:
    """Return whether a process is training in a folder; nothing is written."""
    try:
        descriptor = os.open(folder / NAME, _FLAGS & ~os.O_CREAT & ~os.O_RDWR | os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _BUSY
    finally:
        os.close(descriptor)
    return False


def _holder(found: os.stat_result) -> str:
    """Return the process that holds a file and its start time, if the kernel says so."""
    wanted = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        rows = [line.split() for line in Path("/proc/locks").read_text(encoding="ascii").splitlines()]
        number = next(row[4] for row in rows if row[1] == "FLOCK" and row[5] == wanted)
        ticks = int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19])
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
        started = time.localtime(int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, StopIteration):
        return "another process"
    return f"process {number}, started at {time.strftime('%Y-%m-%d %H:%M:%S', started)}"
