"""Digests of files: SHA-256 of what a model folder holds, and a quick hash of samples of a large file.

model.json keeps the digests of the files beside it. The weights must be those that were saved. People may
edit labels and preprocessing, so a changed digest there does not refuse the model; `saccade doctor` reports
it.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Mapping
from io import BufferedReader
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from saccade.errors import ModelError
from saccade.files.paths import Flaw, open_file, refusal
from saccade.files.strict_json import read_json, write_json
from saccade.wording import printable

KEY = "sha256"
FORM = re.compile("[0-9a-f]{64}")
BLOCK = 4096
WHOLE = 4 * BLOCK
"""`sample_digest` reads files up to this size whole; of larger ones the head, the middle and the tail."""
EACH = 2**20
"""It reads one more block for every this many bytes, as an archive holds many images."""
DIGEST = 16
UNREADABLE = bytes(DIGEST)


def sha256(file: BufferedReader) -> str:
    """Return the digest of an open file, regardless of the position in it."""
    try:
        with mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            return hashlib.sha256(data).hexdigest()
    except ValueError:  # empty
        return hashlib.sha256().hexdigest()


def digest_files(paths: Iterable[Path]) -> str:
    """Return one digest of the names and contents of files."""
    found = {}
    for path in paths:
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").digest()
    return _joint(found)


def digest_contents(contents: Mapping[str, mmap]) -> str:
    """Return what `digest_files` returns for files that are mapped already, by name."""
    return _joint({name: hashlib.sha256(content).digest() for name, content in contents.items()})


def _joint(digests: Mapping[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name in sorted(digests):
        whole.update(name.encode(errors="surrogateescape") + b"\0" + digests[name])
    return whole.hexdigest()


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the digests of some files of a folder, as model.json keeps them; missing files are left out."""
    found = {}
    for name in names:
        if (folder / name).is_file():
            with open_file(folder / name) as file:
                found[name] = sha256(file)
    return found


def claimed(model: Mapping[str, Any] | None, name: str) -> str:
    """Return the digest of a file in model.json, or nothing if an older version wrote it."""
    kept = (model or {}).get(KEY, {})
    found = kept.get(name, "") if isinstance(kept, Mapping) else None
    if not isinstance(found, str) or (found and not FORM.fullmatch(found)):
        raise ModelError(
            f"model.json says {KEY} {printable(repr(kept), 60)}; expected 64 hexadecimal digits for each "
            f"file; save the model again"
        )
    return found


def verify(path: Path, file: BufferedReader, wanted: str) -> None:
    """Refuse a file whose digest is not the one in model.json."""
    if wanted and sha256(file) != wanted:
        found = "is not the file that was saved: its SHA-256 differs from the one in model.json"
        remedy = (
            f'copy the folder again; if you changed the weights on purpose, remove "{KEY}" from model.json'
        )
        raise refusal(path, Flaw(found, remedy))


def withdraw(path: Path) -> None:
    """Remove the digests from model.json while the files beside it are replaced: a kill may come between."""
    try:
        known = read_json(path) if path.is_file() else {}
    except ModelError:
        return
    if known.pop(KEY, None) is not None:
        write_json(path, known)


def changed(folder: Path, model: Mapping[str, Any], name: str) -> bool:
    """Return whether a file differs from its digest in model.json; False if there is none."""
    wanted = claimed(model, name)
    return bool(wanted) and digests(folder, (name,)).get(name) != wanted


def sample_digest(path: str, start: int = 0, length: int = -1) -> bytes:
    """Hash a file, or `length` bytes of it, by samples: finds swapped files, not forged ones.

    Return `UNREADABLE` if it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                return UNREADABLE
            length = found.st_size - start if length < 0 else length
            total = hashlib.blake2b(b"%d" % length, digest_size=DIGEST)
            if length <= WHOLE:
                total.update(os.pread(descriptor, length, start))
                return total.digest()
            if hasattr(os, "posix_fadvise"):  # else the kernel reads ahead, 128 KiB for each block
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            gaps = 2 + length // EACH // 2 * 2  # even: one block is in the middle
            for i in range(gaps + 1):
                total.update(os.pread(descriptor, BLOCK, start + (length - BLOCK) * i // gaps))
            return total.digest()
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return UNREADABLE
