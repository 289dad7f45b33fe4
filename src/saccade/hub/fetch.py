"""Repositories of the Hugging Face hub, fetched into its own cache and checked by their checksums.

No server chooses a path: a file's name comes from our own lists, a blob's name from its checksum.
"""

import errno
import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote as escape

from saccade.errors import DataError, ModelError, ResourceError, SaccadeError, UsageError
from saccade.hub.cache import ELSEWHERE, RepositoryCache
from saccade.hub.connection import AnswerError, Connection, StatusError
from saccade.hub.library import progress_bar
from saccade.hub.listing import COMMIT, LIMIT, HubListing, parse, read_listing
from saccade.hub.names import choose_files, is_plain, read_name
from saccade.hub.transfer import PASSING, check, receive
from saccade.wording import one_line

Choose = Callable[[Iterable[str], str], list[str]]
"""Takes the names of all files and the repository's, and returns the files that are needed."""

LISTING_SECONDS = 120.0
QUICK = 5.0
"""Seconds for a hub to answer where there is something else to do without it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Repository:
    """Where a repository is on the hub, and where in the cache."""

    name: str
    revision: str
    endpoint: str
    folder: RepositoryCache
    kind: str
    choose: Choose

    @property
    def error(self) -> type[SaccadeError]:
        return DataError if self.kind == "dataset" else ModelError

    @property
    def address(self) -> str:
        return re.sub("//[^/@]*@", "//", self.endpoint)  # never print a password in HF_ENDPOINT

    @property
    def page(self) -> str:
        return f"{'datasets/' * (self.kind == 'dataset')}{self.name}"


def _cache_folder() -> Path:
    """Return the folder that huggingface_hub would use if imported now; it reads the environment once."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{home}/huggingface"
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    return Path(os.path.expandvars(hub)).expanduser()


def _cached(repo: _Repository) -> Path | None:
    """Return the snapshot folder if it is whole, without a connection.

    A model is whole if its weights are there: `choose` puts them after the settings, the index after the
    shards, and `_download` fetches in this order. A dataset is whole if all that its listing names is there.
    """
    folder = repo.folder
    commit = folder.read(folder.ref(repo.revision)).decode("ascii", "replace").strip() or repo.revision
    if not COMMIT.fullmatch(commit) or not folder.inside(folder.snapshot(commit)).is_dir():
        return None
    snapshot = folder.snapshot(commit)
    try:
        if repo.kind == "dataset":
            names = parse(folder.read(folder.listing(commit)))
            needed = repo.choose([name for name in names if is_plain(name)], repo.name)
            return snapshot if all(folder.holds(snapshot / name) for name in needed) else None
        repo.choose([path.name for path in snapshot.iterdir() if folder.holds(path)], repo.name)
    except (ModelError, AnswerError, TypeError, AttributeError):
        return None
    return snapshot


def _ask(repo: _Repository, source: Connection) -> HubListing:
    """Ask the hub for the revision's commit and its files."""
    from huggingface_hub import constants

    path = f"/api/{repo.kind}s/{repo.name}/revision/{escape(repo.revision, safe='')}?blobs=true"
    wait = constants.HF_HUB_ETAG_TIMEOUT
    return read_listing(source.read(path, limit=LIMIT, wait=wait, seconds=LISTING_SECONDS), repo.revision)


def _download(repo: _Repository, bar: Any) -> Path:
    """Fetch and check the missing files of the revision's commit."""
    folder = repo.folder
    with closing(Connection(repo.endpoint)) as source:
        listing = _ask(repo, source)
        snapshot, ref = folder.snapshot(listing.commit), folder.ref(repo.revision)
        needed = repo.choose(listing.files, repo.name)
        if repo.kind == "dataset":
            folder.write(folder.listing(listing.commit), json.dumps(sorted(listing.files)))
        for name in needed:
            entry, path = listing.files[name], snapshot / name
            if not folder.holds(path):
                where = partial(source.get, f"/{repo.page}/resolve/{listing.commit}/{escape(name)}")
                shown = partial(bar, desc=name[-40:])
                receive(folder, listing.commit, name, entry, where, shown, repo.error)
            # a large file was checked when it arrived; hashing gigabytes at each load would be slow
            if entry.digest and (not entry.large or path.stat().st_size != entry.size):
                check(folder, path, name, entry.digest, repo.error)
    if listing.commit not in (repo.revision, folder.read(ref).decode("ascii", "replace")):
        # last: until now the revision means the older copy, which is complete
        folder.write(ref, listing.commit)
    return snapshot


def _sentence(error: Exception, repo: _Repository) -> SaccadeError:
    """Say what went wrong on the way to the hub, and what to do."""
    status, word = getattr(error, "status", 0), getattr(error, "word", "")
    reason = one_line(error) or type(error).__name__
    if word == "RevisionNotFound":
        found = f"no revision {repo.revision!r} of {repo.name} on {repo.address}"
        return UsageError(f"{found}; check the spelling")
    if word == "RepoNotFound":
        hint = "check the spelling (a private repository needs HF_TOKEN)"
        noun = "dataset" if repo.kind == "dataset" else "repository"
        return UsageError(f"no {noun} named {repo.name} on {repo.address}; {hint}")
    if status in (401, 403):
        return repo.error(
            f"{repo.address} restricts access to {repo.name} (answer {status}); it expects a token; "
            f"check the spelling, ask for access on {repo.address}/{repo.page} and set HF_TOKEN"
        )
    if status:
        return repo.error(f"{repo.address} answered {status} when asked for {repo.name}; try again later")
    if isinstance(error, AnswerError):
        return repo.error(
            f"{repo.address} did not answer as a hub does ({reason}); expected {repo.name}; "
            "check HF_ENDPOINT, and whether the network's login page answers instead"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f"{repo.folder.cache} for {repo.name}"
        return ResourceError(f"no space is left in {where}; make room, or {ELSEWHERE}")
    if isinstance(error, OSError) and error.errno is not None:
        return ResourceError(f"cannot store {repo.name} in {repo.folder.cache}: {reason}; {ELSEWHERE}")
    return repo.error(
        f"{repo.address} could not be reached for {repo.name} ({reason}); check the network and HF_ENDPOINT, "
        "and run the command again: what has arrived is kept"
    )


def _repository(
    name: str, revision: str | None, cache: Path | None, kind: str, choose: Choose
) -> _Repository:
    repo_id, wanted = read_name(name, revision, kind)
    return _Repository(
        name=repo_id,
        revision=wanted,
        endpoint=(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/"),
        folder=RepositoryCache(cache=cache or _cache_folder(), name=f"{kind}s--{repo_id.replace('/', '--')}"),
        kind=kind,
        choose=choose,
    )


def _offline() -> bool:
    from huggingface_hub import constants

    flags = {os.environ.get(flag, "").upper() for flag in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    return constants.HF_HUB_OFFLINE or not flags.isdisjoint({"1", "ON", "YES", "TRUE"})


def cached(name: str) -> Path | None:
    """Return the folder of a model that the cache holds, without a connection; None if it does not."""
    try:
        return _cached(_repository(name, None, None, "model", choose_files))
    except (SaccadeError, OSError):
        return None


def reachable(name: str) -> str:
    """Return "" if the hub describes this repository within a few seconds, else why not, in a few words."""
    repo = _repository(name, None, None, "model", choose_files)
    try:
        import httpx2  # noqa: F401
        import huggingface_hub  # noqa: F401
    except ImportError:
        return "huggingface_hub is not installed (pip install 'saccade[hub]')"
    if _offline():
        return "HF_HUB_OFFLINE is set"
    found: list[str] = []

    def ask() -> None:
        try:
            with closing(Connection(repo.endpoint)) as source:
                _ask(repo, source)
            found.append("")
        except Exception as error:  # whatever it is, there is no hub
            found.append(one_line(_sentence(error, repo), 200).split(";")[0])

    thread = Thread(target=ask, daemon=True)  # a name server may take minutes to say no
    thread.start()
    thread.join(QUICK)
    return found[0] if found else f"{repo.address} did not answer within {QUICK:g} seconds"


def fetch(
    name: str,
    *,
    revision: str | None = None,
    cache: Path | None = None,
    progress: bool = True,
    kind: str = "model",
    choose: Choose = choose_files,
) -> Path:
    """Return the folder of a repository such as google/vit-base-patch16-224, fetching what is missing.

    With HF_HUB_OFFLINE the hub is not contacted; if it does not answer, the copy in the cache is used and a
    line on stderr says so. Files are checked when they arrive, and small ones at each call.

    Args:
        kind: "model" or "dataset"; the hub has separate names for them.
        choose: Which of its files are needed.
    """
    repo = _repository(name, revision, cache, kind, choose)
    try:
        import httpx2
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        hint = "models and datasets on the hub need it; run pip install 'saccade[hub]'"
        raise UsageError(f"huggingface_hub is not installed; {hint}") from error
    if _offline():
        if (copy := _cached(repo)) is not None:
            return copy
        raise repo.error(
            f"{repo.name} is missing or incomplete in {repo.folder.cache}; HF_HUB_OFFLINE expects it there; "
            "unset HF_HUB_OFFLINE and run the command once with a connection"
        )
    hidden = not (progress and sys.stderr.isatty())
    try:
        return _download(repo, partial(progress_bar(), disable=hidden, unit="B", unit_scale=True))
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, StatusError, AnswerError) as error:
        sentence = _sentence(error, repo)
        status = getattr(error, "status", 0)
        unanswered = isinstance(error, httpx2.TransportError) or status in PASSING or status >= 500
        if unanswered and (copy := _cached(repo)) is not None:
            print(f"{str(sentence).split(';')[0]}; using the copy in {copy}", file=sys.stderr)
            return copy
        raise sentence from error
