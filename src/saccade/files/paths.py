"""A model file opened once, and the words in which it is refused."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

from saccade.errors import ModelError

REMEDY = "download it again, or ask its author for a safetensors file"


class Flaw(Exception):  # noqa: N818 (nobody meets it: it becomes a ModelError)
    """What is wrong with a file ("is cut short"), raised where its name is not known; see `refusal`."""

    def __init__(self, found: str, remedy: str = REMEDY) -> None:
        super().__init__(found)
        self.found, self.remedy = found, remedy


def shown(text: object, limit: int = 200) -> str:
    """Return untrusted text as one short printable line: no newline or terminal escape survives."""
    line = str(text)
    if len(line) > limit:
        line = line[: limit - 3] + "..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def refusal(path: Path, flaw: Flaw) -> ModelError:
    """Join the name and the flaw into the one sentence that the person reads."""
    return ModelError(f"{shown(path)} {flaw.found}; {flaw.remedy}")


def check_name(name: str) -> None:
    """Refuse names that would surprise a terminal or a file system; no tensor of a real model has one."""
    if not name or len(name) > 1000:
        raise Flaw(f"names a tensor with {len(name):,} characters, where 1 to 1,000 were expected")
    if not name.isprintable() or name == "__metadata__":
        raise Flaw(f"names a tensor '{shown(name)}', where a printable name of its own was expected")
    if name.startswith("/") or "\\" in name or ".." in name.split("/"):
        raise Flaw(
            f"names a tensor '{shown(name)}', a path out of its folder, where a plain name was expected"
        )


def open_file(path: Path) -> BufferedReader:
    """Open a regular file for reading; a pipe or a device is refused and never waited for."""
    try:
        # O_NONBLOCK returns at once from a pipe without a writer; symlinks are followed because the
        # Hugging Face cache is made of them, and fstat below looks at the very object that is read.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        raise refusal(path, _unopened(error)) from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    what = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
    raise refusal(path, Flaw(f"is {what}, where a file was expected", "give a model file"))


def _unopened(error: OSError | ValueError) -> Flaw:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Flaw("does not exist, where a model file or folder was expected", "check the spelling")
    if isinstance(error, OSError) and error.errno == errno.ENXIO:
        return Flaw("is a socket or a device, where a file was expected", "give a model file")
    words = error.strerror if isinstance(error, OSError) else error
    return Flaw(f"cannot be opened ({words}), where a readable file was expected", "check its permissions")
