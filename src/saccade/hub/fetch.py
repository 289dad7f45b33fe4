"""Repositories of the Hugging Face hub, fetched into its own cache and checked by their checksums."""

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from saccade.errors import DataError, ModelError, ResourceError, SaccadeError, UsageError
from saccade.hub.choose import choose
from saccade.hub.names import read_name

Choose = Callable[[Iterable[str], str], list[str]]
"""Takes the names of all files and the repository's, and returns the files that are needed."""

COMMIT = re.compile(r"[0-9a-f]{40}")
DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
ELSEWHERE = "set HF_HOME to a folder on another disk"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Repository:
    """Where a repository is on the hub, and where in the cache."""

    name: str
    revision: str
    endpoint: str
    cache: Path
    kind: str
    choose: Choose

    @property
    def folder(self) -> Path:
        return self.cache / f"{self.kind}s--{self.name.replace('/', '--')}"

    @property
    def error(self) -> type[SaccadeError]:
        return DataError if self.kind == "dataset" else ModelError

    def listing(self, commit: str) -> Path:
        """Where the names of a data set's files are kept: what is there does not tell what is missing."""
        return self.folder / "listings" / commit

    @property
    def place(self) -> str:
        return re.sub("//[^/@]*@", "//", self.endpoint)  # a password in HF_ENDPOINT is not for the screen


def _cache_folder() -> Path:
    """Return what huggingface_hub would use if it were imported now: it reads the environment only once."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{home}/huggingface"
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    return Path(os.path.expandvars(hub)).expanduser()


def _check(path: Path, name: str, digest: str, error: type[SaccadeError]) -> None:
    """Compare a file with its SHA-256 (git-lfs) or its git blob id; remove it and refuse it if it differs."""
    head = b"blob %d\0" % path.stat().st_size
    start = hashlib.sha256() if len(digest) == 64 else hashlib.sha1(head, usedforsecurity=False)
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: start).hexdigest()
    if found == digest:
        return
    while path.is_symlink():  # snapshot -> blob, and perhaps -> a store that repositories share
        target = path.parent / path.readlink()
        path.unlink()
        path = target
    path.unlink()
    raise error(
        f"{name} is damaged: its checksum begins with {found[:12]}; expected {digest[:12]}; "
        "it has been removed from the cache, so run the command again to fetch it anew"
    )


def _cached(repo: _Repository) -> Path | None:
    """Return the snapshot folder if it is whole, without a connection.

    A model is whole if its weights are there: `choose` puts them after the settings, the index after the
    shards, and `_download` fetches in this order. A data set is whole if all that its listing names is there.
    """
    ref = repo.folder / "refs" / repo.revision
    commit = ref.read_text().strip() if ref.is_file() else repo.revision
    snapshot = repo.folder / "snapshots" / commit
    if not COMMIT.fullmatch(commit) or not snapshot.is_dir():
        return None
    if repo.kind == "dataset":
        if not repo.listing(commit).is_file():
            return None
        needed = repo.choose(json.loads(repo.listing(commit).read_bytes()), repo.name)
        return snapshot if all((snapshot / name).is_file() for name in needed) else None
    try:
        repo.choose([path.name for path in snapshot.iterdir() if path.is_file()], repo.name)
    except ModelError:
        return None
    return snapshot


def _transfer(repo: _Repository, commit: str, name: str, digest: str, size: int, bar: Any) -> None:
    """Bring one large file into the cache if its checksum is right, going on where an earlier call stopped.

    hf_hub_download (2.4.0) resumes a broken transfer only within one call, and compares sizes only.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import WeakFileLock, build_hf_headers  # type: ignore[attr-defined]

    blob = repo.folder / "blobs" / digest
    begun = blob.with_name(f"{digest}.partial")
    lock = repo.cache / ".locks" / repo.folder.name / f"{digest}.lock"
    for folder in (blob.parent, lock.parent):
        folder.mkdir(parents=True, exist_ok=True)
    url = hf_hub_url(repo.name, name, repo_type=repo.kind, revision=commit, endpoint=repo.endpoint)
    headers = build_hf_headers(library_name="saccade")
    shown: dict[str, Any] = {"displayed_filename": name, "tqdm_class": bar}
    with WeakFileLock(lock):
        if blob.exists():  # another process was faster
            return
        with begun.open("ab") as file:
            done = file.tell() if file.tell() <= size else file.seek(file.truncate(0))
            free = shutil.disk_usage(blob.parent).free
            if size - done > free:
                raise ResourceError(
                    f"{name} needs {(size - done) / 1e6:.0f} MB; {repo.cache} has {free / 1e6:.0f} MB left; "
                    f"make room, or {ELSEWHERE}"
                )
            http_get(url, file, resume_size=done, headers=headers, expected_size=size, **shown)
        _check(begun, name, digest, repo.error)
        begun.replace(blob)


def _list(path: Path, names: Iterable[str]) -> None:
    """Keep the names of a repository's files, all or none of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = path.with_name(f"{path.name}.{os.getpid()}")
    begun.write_text(json.dumps(sorted(names)), encoding="utf-8")
    begun.replace(path)


def _download(repo: _Repository, bar: Any) -> Path:
    """Ask the hub which commit the revision is, and fetch and check what is missing of it."""
    from huggingface_hub import HfApi, constants, hf_hub_download

    api, wait = HfApi(endpoint=repo.endpoint, library_name="saccade"), constants.HF_HUB_ETAG_TIMEOUT
    try:
        ask = api.dataset_info if repo.kind == "dataset" else api.model_info
        info = ask(repo.name, revision=repo.revision, files_metadata=True, timeout=wait)
        commit, listing = info.sha or "", {file.rfilename: file for file in info.siblings or ()}
    except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError):
        commit, listing = "", {}
    if not COMMIT.fullmatch(commit):
        raise repo.error(
            f"{repo.place} did not answer as a hub does; expected a listing of {repo.name}; "
            "check HF_ENDPOINT, and whether a login page of the network answers in its place"
        )
    snapshot, ref = repo.folder / "snapshots" / commit, repo.folder / "refs" / repo.revision
    where: dict[str, Any] = {"endpoint": repo.endpoint, "cache_dir": repo.cache, "tqdm_class": bar}
    where |= {"repo_type": repo.kind, "revision": commit, "library_name": "saccade"}
    needed = repo.choose(listing, repo.name)
    if repo.kind == "dataset":
        _list(repo.listing(commit), listing)
    for name in needed:
        large, path = listing[name].lfs, snapshot / name
        digest = (large.sha256 if large else listing[name].blob_id) or ""
        known = DIGEST.fullmatch(digest) is not None  # a mirror may keep no checksums
        if large and known and not path.exists():
            _transfer(repo, commit, name, digest, large.size, bar)
        hf_hub_download(repo.name, name, **where)
        # a large file was checked on its way in; to hash gigabytes at each load would be slow
        if known and (not large or path.stat().st_size != large.size):
            _check(path, name, digest, repo.error)
    if commit != repo.revision and not (ref.is_file() and ref.read_text() == commit):
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(commit)  # last: until here the revision means the older copy, which is whole
    return snapshot


@contextmanager
def _hushed() -> Iterator[None]:
    """Keep huggingface_hub from sending telemetry and from warning; its switches were read at import."""
    from huggingface_hub import constants

    logger = logging.getLogger("huggingface_hub")
    switches = ("HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_SYMLINKS_WARNING")
    before, level = {switch: getattr(constants, switch) for switch in switches}, logger.level
    vars(constants).update(dict.fromkeys(switches, True))
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        vars(constants).update(before)
        logger.setLevel(level)


def _sentence(error: BaseException, status: int, repo: _Repository) -> SaccadeError:
    """Say what went wrong on the way to the hub, and what to do."""
    from huggingface_hub import errors

    reason = " ".join(str(error).split())[:200] or type(error).__name__
    number = error.errno if isinstance(error, OSError) and not status else None
    if isinstance(error, errors.RevisionNotFoundError):
        return UsageError(f"no revision {repo.revision!r} of {repo.name} on {repo.place}; check the spelling")
    if isinstance(error, errors.RepositoryNotFoundError) and not isinstance(error, errors.GatedRepoError):
        hint = "check the spelling (a private repository needs HF_TOKEN)"
        noun = "data set" if repo.kind == "dataset" else "repository"
        return UsageError(f"no {noun} named {repo.name} on {repo.place}; {hint}")
    if status in (401, 403):
        page = f"{'datasets/' * (repo.kind == 'dataset')}{repo.name}"
        return repo.error(
            f"{repo.place} does not give {repo.name} to everyone (answer {status}); it expects a token; "
            f"ask for access on {repo.place}/{page} and set HF_TOKEN"
        )
    if status:
        return repo.error(f"{repo.place} answered {status} when asked for {repo.name}; try again in a while")
    if number in (errno.ENOSPC, errno.EDQUOT):
        return ResourceError(f"no space is left in {repo.cache} for {repo.name}; make room, or {ELSEWHERE}")
    if number is not None:
        return ResourceError(f"cannot keep {repo.name} in {repo.cache}: {reason}; {ELSEWHERE}")
    return repo.error(
        f"{repo.place} could not be reached for {repo.name} ({reason}); check the network and HF_ENDPOINT, "
        "and run the command again: what has arrived is kept"
    )


def fetch(
    name: str,
    *,
    revision: str | None = None,
    cache: Path | None = None,
    progress: bool = True,
    kind: str = "model",
    choose: Choose = choose,
) -> Path:
    """Return the folder of a repository such as google/vit-base-patch16-224, fetching what is missing.

    With HF_HUB_OFFLINE nothing is asked of the hub; if the hub does not answer, the copy in the cache is used
    and a line on stderr says so. Files are checked when they arrive, and small ones at each call.

    Args:
        kind: "model" or "dataset", the two places of the hub where a name can stand.
        choose: Which of its files are needed.
    """
    repo_id, wanted = read_name(name, revision, kind)
    try:
        import httpx2
        from huggingface_hub import constants, errors
        from huggingface_hub.utils.tqdm import tqdm
    except ImportError as error:
        hint = "models and data sets on the hub need it; run pip install 'saccade[hub]'"
        raise UsageError(f"huggingface_hub is not installed; {hint}") from error
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    cache = cache or _cache_folder()
    repo = _Repository(
        name=repo_id, revision=wanted, endpoint=endpoint, cache=cache, kind=kind, choose=choose
    )
    flags = {os.environ.get(flag, "").upper() for flag in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    offline = constants.HF_HUB_OFFLINE or not flags.isdisjoint({"1", "ON", "YES", "TRUE"})
    if offline:
        if (copy := _cached(repo)) is not None:
            return copy
        raise repo.error(
            f"{repo_id} is not, or not wholly, in {repo.cache}; HF_HUB_OFFLINE expects it there; "
            "unset HF_HUB_OFFLINE and run the command once with a connection"
        )
    try:
        with _hushed():
            return _download(repo, partial(tqdm, disable=not (progress and sys.stderr.isatty())))
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) else error
        status = getattr(getattr(cause, "response", None), "status_code", 0)
        sentence = _sentence(cause or error, status, repo)
        unanswered = isinstance(cause, httpx2.TransportError) or status in (408, 429) or status >= 500
        if unanswered and (copy := _cached(repo)) is not None:
            print(f"{str(sentence).split(';')[0]}; using the copy in {copy}", file=sys.stderr)
            return copy
        raise sentence from error
