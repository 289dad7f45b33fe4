"""Datasets on the Hugging Face hub: their Parquet files, fetched into its cache and opened there."""

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from saccade.data.pictures import Pictures
from saccade.data.readers.listing import HUB, SPLITS
from saccade.data.readers.parquet import open_parquet
from saccade.data.splits import Splits
from saccade.errors import DataError, UsageError
from saccade.hub.fetch import fetch
from saccade.hub.names import read_name
from saccade.wording import count, one_line, show_name, some

PART = r"(?!\.)[^/\\:\x00-\x1f\x7f]+"
FOLDER = re.compile(rf"{PART}(?:/{PART})*")
FILE = re.compile(rf"(?:{PART}/)*{PART}\.parquet")
PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar")
CONVERTED = "refs/convert/parquet"
"""The branch on which the hub keeps a Parquet copy that it makes of many datasets."""


def read_source(source: str) -> tuple[str, str, str]:
    """Read "hf:owner/name", with "/folder" or "@revision" after it, into repository, folder and revision."""
    name, at, revision = source.removeprefix(HUB).partition("@")
    parts = name.split("/")
    repo, folder = "/".join(parts[:2]), "/".join(parts[2:])
    if len(parts) > 2 and not FOLDER.fullmatch(folder):
        raise UsageError(
            f"{show_name(source[:100])} does not name the folder of a dataset; expected hf:owner/name or "
            "hf:owner/name/folder@revision; give the folder as its page shows it"
        )
    repo, revision = read_name(f"{repo}{at}{revision}", kind="dataset")
    return repo, folder, revision


def open_hub(source: str, *, least: int = 2) -> Splits[Pictures]:
    """Fetch what is missing of a dataset from the hub and open it; its summary names the commit."""
    repo, folder, revision = read_source(source)
    chosen = partial(choose, folder=folder)
    snapshot = fetch(repo, revision=revision, kind="dataset", choose=chosen)
    found = open_parquet(snapshot / folder, least=least)
    return replace(found, summary=f"{show_name(source)} at {snapshot.name[:8]}: {found.summary}")


def choose(names: Iterable[str], repo: str, folder: str = "") -> list[str]:
    """Return the Parquet files of a dataset, or of one folder of it; hidden ones do not count."""
    names, inside = sorted(names), f"{folder}/" if folder else ""
    files = [name for name in names if name.startswith(inside) and FILE.fullmatch(name)]
    if not files:
        raise DataError(_without(names, repo, folder))
    sets = sorted({_set_of(name.removeprefix(inside)) for name in files})
    if len(sets) > 1:
        words = [one_line(word, 40) or "the top" for word in sets]
        raise DataError(
            f"{repo} holds {len(sets)} datasets side by side ({some(words)}); expected one; "
            f"name its folder, for example {HUB}{repo}/{one_line(inside + sets[-1], 120)}"
        )
    return files


def _set_of(name: str) -> str:
    """Return the folder that distinguishes datasets of one repository: data/train/0.parquet is of `data`."""
    *folders, _ = name.split("/")
    return "/".join(folders[:-1] if folders and folders[-1].lower() in SPLITS else folders)


def _without(names: list[str], repo: str, folder: str) -> str:
    """Say what is there instead of Parquet files, and what to do with it."""
    sets = sorted({_set_of(name) for name in names if FILE.fullmatch(name)})
    if sets:
        there = f"it has them in {some([one_line(word, 40) or 'its top' for word in sets])}"
        return f"{repo} has no Parquet files in {one_line(folder, 60)}; {there}; check the spelling"
    pictures = [name for name in names if name.lower().endswith(PICTURES)]
    archives = [one_line(name, 40) for name in names if name.lower().endswith(ARCHIVES)]
    found = f", only {count(len(pictures), 'image')}" if pictures else f" among its {len(names)} files"
    found = f", only archives ({some(archives)})" if archives else found
    unpack = ", unpack them" if archives else ""
    return (
        f"{repo} has no .parquet file{found}; only Parquet is read from the hub; "
        f"try {HUB}{repo}@{CONVERTED} (a copy that the hub makes of many datasets), or download it "
        f"(hf download {repo} --repo-type dataset){unpack} and give the folder"
    )
