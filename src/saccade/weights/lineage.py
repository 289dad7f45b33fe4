"""Where weights come from: what a model started from, what that started from, and so on; in model.json."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from saccade.files.digest import FORM, claimed, sha256
from saccade.files.paths import open_file
from saccade.files.strict_json import read_json
from saccade.weights.formats.tensors import SINGLE
from saccade.weights.identify import LINEAGE, Identified, weights_in
from saccade.weights.pretrained import PRETRAINED
from saccade.wording import printable

FIELDS = ("name", "hub", "revision", "licence", "trained_on", "sha256")
MOST = 20
"""Generations that are kept; a file with more is not ours."""
CACHED = re.compile(r"models--(?P<owner>[\w.-]+?)--(?P<name>[\w.-]+)")
LICENCE = re.compile(r"^license:\s*['\"]?([\w.+-]+)", re.MULTILINE)
HEAD = 20_000
Lineage = Sequence[dict[str, str]]
"""The newest ancestor first."""


def ancestors(found: Identified) -> Lineage:
    """Return what the weights of a model were made from: for other people's, the file itself."""
    return _kept(found) if found.model is not None else [_entry(found)]


def descent(found: Identified) -> Lineage:
    """Return the lineage of a model that starts from these weights: they, and what they were made from."""
    return [_entry(found), *(_kept(found) if found.model is not None else ())][:MOST]


@runtime_checkable
class Loadable(Protocol):
    """A loaded model that knows what it was read from."""

    @property
    def origin(self) -> Identified | None: ...


def lineage_of(loaded: Loadable) -> Lineage:
    """Return the lineage of a loaded model; empty for one that was made here."""
    return () if loaded.origin is None else ancestors(loaded.origin)


def recorded(run: Path) -> Lineage:
    """Return the lineage that a run wrote down when it started."""
    return read_lineage(read_json(run / "data.json").get(LINEAGE))


def words_for(entry: dict[str, str]) -> str:
    """Return an ancestor in one line."""
    revision = f"@{entry['revision'][:7]}" if entry.get("revision") else ""
    hub = f"{entry['hub']}{revision}" if entry.get("hub") else ""
    parts = [
        hub if hub != entry.get("name") else "",
        f"licence {entry.get('licence') or 'unknown'}",
        f"trained on {entry['trained_on']}" if entry.get("trained_on") else "",
        f"SHA-256 {entry['sha256'][:12]}" if entry.get("sha256") else "",
    ]
    return f"{entry.get('name', 'weights')} ({', '.join(part for part in parts if part)})"


def read_lineage(value: object) -> list[dict[str, str]]:
    """Return the lineage that untrusted JSON holds, without anything that is not text."""
    rows = [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []
    return [
        {key: printable(row[key], 200) for key in FIELDS if isinstance(row.get(key), str) and row[key]}
        for row in rows[:MOST]
    ]


def _kept(found: Identified) -> list[dict[str, str]]:
    return read_lineage((found.model or {}).get(LINEAGE))


def _entry(found: Identified) -> dict[str, str]:
    """Describe weights: who published them, under which licence, and the digest of their file."""
    hub, revision = _on_hub(found.path)
    known = next(((name, row) for name, row in PRETRAINED.items() if row.hub == hub), None)
    made = {"name": known[0] if known else hub or found.path.resolve().name}
    made |= {"hub": hub, "revision": revision, "licence": known[1].licence if known else _licence(found)}
    made |= {"trained_on": known[1].trained_on if known else _data(found), "sha256": _digest(found)}
    return {key: value for key, value in made.items() if value}


def _on_hub(path: Path) -> tuple[str, str]:
    """Return the repository and the commit of a folder in the hub's cache: .../NAME/snapshots/COMMIT."""
    folder = path if path.is_dir() else path.parent
    match = CACHED.fullmatch(folder.parent.parent.name) if folder.parent.name == "snapshots" else None
    return (f"{match['owner']}/{match['name']}", folder.name) if match else ("", "")


def _licence(found: Identified) -> str:
    """Return the licence that a folder names: in its config.json, as timm's, or at the top of its README."""
    cfg = found.side.get("pretrained_cfg")
    named = cfg.get("license") if isinstance(cfg, dict) else None
    if isinstance(named, str) and named:
        return printable(named, 60)
    page = found.folder / "README.md"
    if not found.path.is_dir() or not page.is_file():
        return ""
    with open_file(page) as file:
        match = LICENCE.search(file.read(HEAD).decode("utf-8", "replace"))
    return match[1] if match else ""


def _data(found: Identified) -> str:
    """Return the name of the dataset that trained a run of ours."""
    facts = found.folder / "data.json"
    if found.model is None or not facts.is_file():
        return ""
    return Path(str(read_json(facts).get("source", ""))).name


def _digest(found: Identified) -> str:
    """Return the SHA-256 of the weights; a blob in the hub's cache is named by it."""
    if kept := claimed(found.model, SINGLE):
        return kept
    path = weights_in(found.path)
    path = path / SINGLE if path.is_dir() else path
    if not path.is_file():  # several shards
        return ""
    if FORM.fullmatch(path.resolve().name):
        return path.resolve().name
    with open_file(path) as file:
        return sha256(file)
