"""Open any source of labelled images, recognised by content: folders, manifest, shards, Parquet, the hub."""

import glob
import os
from pathlib import Path

from saccade.data.pictures import Pictures
from saccade.data.readers import folders, manifest
from saccade.data.readers.listing import HUB, RANGE, SPLITS, nearest
from saccade.data.splits import Splits
from saccade.errors import DataError, UsageError, check_handles, check_word
from saccade.spellings import is_url
from saccade.wording import show_name

KINDS = ("auto", "folders", "manifest", "shards", "parquet")
EXPECTED = "expected a folder of class folders, a manifest (.csv, .tsv, .jsonl), .tar shards or .parquet"
ARCHIVES = (".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".7z", ".rar", ".gz")


def open_images(source: str | Path, kind: str = "auto", *, least: int = 2) -> Splits[Pictures]:
    """Open labelled images of any kind; their `summary` says in one line what they were read as.

    Args:
        kind: One of KINDS; "auto" decides by what is there.
        least: The fewest classes that make sense; 1 to look at the images of a single one.
    """
    check_word("the format", kind, KINDS)
    text = os.fspath(source)
    if text.startswith(HUB):
        if kind not in ("auto", "parquet"):
            raise UsageError(
                f"{show_name(text)} is a dataset on the hub, where only Parquet is read, not {kind}; "
                "leave out --format"
            )
        from saccade.data.readers.hub import open_hub

        return open_hub(text, least=least)
    _check_path(text)
    kind = detect(source) if kind == "auto" else kind
    if kind == "folders":
        return folders.open_folders(source, least=least)
    if kind == "manifest":
        return manifest.open_manifest(source, least=least)
    if kind == "shards":
        from saccade.data.readers.shards import open_shards

        return open_shards(source, least=least)
    from saccade.data.readers.parquet import open_parquet

    return open_parquet(source, least=least)


def _check_path(text: str) -> None:
    """Refuse what cannot be a path: a name that is too long, a lone surrogate, a link to itself."""
    try:
        os.stat(text)
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        check_handles(error)
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"{show_name(text, 200)} cannot be opened: {reason}; {EXPECTED}; check the path"
        ) from error


def detect(source: str | Path) -> str:
    """Return the kind of a source by its name and, for a folder, by its content."""
    text = os.fspath(source)
    path, name = Path(text), show_name(text, 200)
    if path.is_dir():
        return _detect_folder(path)
    ending = path.suffix.lower()
    if not path.exists() and (RANGE.search(text) or glob.has_magic(text)):
        return "parquet" if ending == ".parquet" else "shards"
    if not os.path.lexists(text):
        raise DataError(
            f"{name} is a web address; {EXPECTED}; download it first"
            if is_url(text)
            else f"there is nothing at {name}; {EXPECTED}; {nearest(text)}"
        )
    if not path.is_file():
        raise DataError(f"{name} is neither a folder nor a file that can be read; {EXPECTED}")
    if text.lower().endswith(ARCHIVES):
        raise DataError(f"{name} is a packed archive; {EXPECTED}; unpack it and give the folder")
    kinds = {".tar": "shards", ".parquet": "parquet", **dict.fromkeys(manifest.ENDINGS, "manifest")}
    if ending not in kinds:
        raise DataError(f"{name} is a single file; {EXPECTED}")
    return kinds[ending]


def _detect_folder(path: Path) -> str:
    if manifest.find(path):
        return "manifest"
    try:
        with os.scandir(path) as entries:
            names = {entry.name for entry in entries if not entry.name.startswith(".")}
    except OSError as error:
        check_handles(error)
        raise DataError(f"{show_name(path)} cannot be listed: {error.strerror}; {EXPECTED}") from error
    if names & {"dataset_dict.json", "dataset_info.json"} and names & {"state.json", "dataset_dict.json"}:
        raise DataError(
            f"{show_name(path)} was written by save_to_disk of Hugging Face's datasets; {EXPECTED}; "
            "write it with to_parquet instead"
        )
    for kind, ending in (("shards", ".tar"), ("parquet", ".parquet")):
        if any(name.lower().endswith(ending) for name in names):
            return kind
    for kind, ending in (("shards", ".tar"), ("parquet", ".parquet")):  # train/0.tar, data/train-0.parquet
        if any(any((path / name).glob(f"*{ending}")) for name in names & {"data", "shards", *SPLITS}):
            return kind
    return "folders"
