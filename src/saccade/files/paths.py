"""Open a regular file once, and say in words what is wrong with it."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

from saccade.errors import ModelError, check_handles
from saccade.wording import printable

REMEDY = "download it again, or ask its author for a safetensors file"


class Flaw(Exception):  # noqa: N818 (users never see it: it becomes a ModelError)
    """What is wrong with a file ("is cut short"), raised where its name is not known; see `refusal`."""

    def __init__(self, found: str, remedy: str = REMEDY) -> None:
        super().__init__(found)
        self.found, self.remedy = found, remedy


LINKED = Flaw("is a link to another file; expected the file itself", "replace the link with a copy")


def refusal(path: Path, flaw: Flaw) -> ModelError:
    """Join the name and the flaw into one sentence for the user."""
    return ModelError(f"{printable(path)} {flaw.found}; {flaw.remedy}")


def refusal_at(where: str, error: Exception) -> ModelError:
    """Return the error with its path in front unless the message has it; shorten untrusted text."""
    words = printable(error, 400)
    return ModelError(words if where in words else f"{where}: {words}")


def check_name(name: str) -> None:
    """Refuse names that would surprise a terminal or a file system; no tensor of a real model has one."""
    if not name or len(name) > 1000:
        raise Flaw(f"names a tensor with {len(name):,} characters; expected 1 to 1,000")
    if not name.isprintable() or name == "__metadata__":
        raise Flaw(f"names a tensor '{printable(name)}'; expected a printable name of its own")
    if name.startswith("/") or "\\" in name or ".." in name.split("/"):
        raise Flaw(f"names a tensor '{printable(name)}', a path out of its folder; expected a plain name")


def open_file(path: Path, *, links: bool = True) -> BufferedReader:
    """Open a regular file for reading; refuse a pipe or a device without waiting for it.

    Args:
        links: Whether it may be a symlink or have a second name; False for names from an untrusted file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if links else os.O_NOFOLLOW)
    try:
        # O_NONBLOCK returns at once from a pipe without a writer; symlinks are followed because the
        # Hugging Face cache is made of them, and fstat below looks at the very object that is read.
        descriptor = os.open(path, flags)
    except (OSError, ValueError) as error:
        check_handles(error)
        linked = not links and getattr(error, "errno", 0) == errno.ELOOP
        raise refusal(path, LINKED if linked else _unopened(error)) from error
    found = os.fstat(descriptor)
    mode = found.st_mode
    if stat.S_ISREG(mode) and (links or found.st_nlink == 1):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISREG(mode):
        raise refusal(path, LINKED)
    what = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
    raise refusal(path, Flaw(f"is {what}; expected a file", "give a model file"))


def _unopened(error: OSError | ValueError) -> Flaw:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Flaw("does not exist; expected a model file or folder", "check the spelling")
    if isinstance(error, OSError) and error.errno == errno.ENXIO:
        return Flaw("is a socket or a device; expected a file", "give a model file")
    words = error.strerror if isinstance(error, OSError) else error
    return Flaw(f"cannot be opened ({words}); expected a readable file", "check its permissions")
