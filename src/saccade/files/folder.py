"""A folder that a model is written into: new or empty, and never left with half of one."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from saccade.errors import UsageError


@contextmanager
def fresh(folder: Path) -> Iterator[Path]:
    """Refuse a folder that holds something; if what follows fails, leave nothing of it behind."""
    existed = folder.exists()
    if existed and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not empty; nothing was written; give another name")
    try:
        yield folder
    except BaseException as error:
        _undo(folder, existed)
        if isinstance(error, OSError):
            raise UsageError(f"{folder} cannot be written ({error.strerror}); choose another") from error
        raise


def _undo(folder: Path, existed: bool) -> None:
    """What is in the folder now was not there before."""
    for path in folder.iterdir() if folder.is_dir() else ():
        path.unlink()
    if not existed:
        shutil.rmtree(folder, ignore_errors=True)
