"""Small sources of labelled pictures, and the hash of a tree that shows whether it was changed."""

import hashlib
import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from pictures import encode


def picture(number: int, side: int = 12, kind: str = "PNG") -> bytes:
    """Return a picture that no other number gives, and that resembles no other."""
    noise = np.random.default_rng(number).integers(0, 256, (4, 4, 3)).astype(np.uint8)
    return encode(noise.repeat(side // 4, 0).repeat(side // 4, 1), kind)


def tree(root: Path, counts: Mapping[str, int], start: int = 0) -> Path:
    """Make class folders, {"train/cat": 3} or {"cat": 3}, with different pictures."""
    for folder, count in counts.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            (root / folder / f"{i}.png").write_bytes(picture(start := start + 1))
    return root


def tar(path: Path, members: Mapping[str, bytes], form: int = tarfile.USTAR_FORMAT) -> Path:
    """Write an uncompressed tar."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form, errors="surrogateescape") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def state(root: Path) -> str:
    """Return a hash of every name, content, kind, link and time below the root."""
    total = hashlib.sha256()
    for folder, folders, files in os.walk(os.fsencode(root)):
        folders.sort()
        for name in sorted(files + folders):
            path = os.path.join(folder, name)
            found = os.lstat(path)
            total.update(b"%b %d %d %d\0" % (path, found.st_mode, found.st_size, found.st_mtime_ns))
            if os.path.islink(path):
                total.update(os.readlink(path))
            elif os.path.isfile(path):
                total.update(hashlib.sha256(Path(os.fsdecode(path)).read_bytes()).digest())
    return total.hexdigest()
