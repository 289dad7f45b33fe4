"""Model repositories of the Hugging Face hub, fetched into its own cache and checked by their checksums."""

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from saccade.errors import ModelError, ResourceError, SaccadeError, UsageError

WORD = r"\w(?:[\w.-]*\w)?"
NAME = re.compile(rf"(?:hf-hub:|hf_hub:|hf:)?({WORD}/{WORD})(?:@(.+))?", re.ASCII)
REVISION = re.compile(rf"{WORD}(?:/{WORD})*", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")
DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
SETTINGS = {"config.json", "preprocessor_config.json", "model.json", "preprocess.json", "labels.txt"}
WEIGHTS = (  # the first kind that is there is taken: a single file, or shards together with their index
    (r"model\.safetensors", ""),
    (r"model(-\d+-of-\d+\.safetensors|\.safetensors\.index\.json)", "model.safetensors.index.json"),
    (r"(?!.*-\d+-of-)[\w.-]+\.safetensors", ""),
    (r"[\w.-]+\.npz", ""),
    (r"pytorch_model\.bin", ""),
    (r"pytorch_model(-\d+-of-\d+\.bin|\.bin\.index\.json)", "pytorch_model.bin.index.json"),
    (r"(?!training_args|optimizer|scheduler|.*-\d+-of-)[\w.-]+\.bin", ""),
)
ELSEWHERE = "set HF_HOME to a folder on another disk"


def read_name(name: str, revision: str | None = None) -> tuple[str, str]:
    """Read "owner/name", "hf-hub:owner/name" or "owner/name@revision" into owner/name and a revision."""
    match = NAME.fullmatch(name)
    if match is None or len(match[1]) > 96 or re.search(r"--|\.\.|\.git$", match[1]):
        raise UsageError(
            f"{name[:60]!r} is not a name on the hub; names look like google/vit-base-patch16-224 or "
            "owner/name@revision; give the two words that its page shows, without an address or a path"
        )
    wanted = sorted({text for text in (revision, match[2]) if text is not None}) or ["main"]
    if len(wanted) > 1 or len(wanted[0]) > 100 or ".." in wanted[0] or not REVISION.fullmatch(wanted[0]):
        raise UsageError(
            f"{' and '.join(repr(text[:60]) for text in wanted)} is not a revision of {match[1]}; "
            "expected one branch, tag or commit, such as main; leave it out for the newest"
        )
    return match[1], wanted[0]


def choose(names: Iterable[str], repo: str) -> list[str]:
    """Return the files that a model needs: its settings, then its weights, of the safest kind there is.

    Only files at the top count, so no listing can lead out of the folder. A repository that has nothing but
    pickles gives its .bin, which the loader refuses, naming `saccade convert`.
    """
    names = sorted(names)
    for kind, index in WEIGHTS:
        found = [name for name in names if re.fullmatch(kind, name, re.ASCII)]
        if index in found or (not index and len(found) == 1):
            return [name for name in names if name in SETTINGS] + found
        if not index and found:
            raise ModelError(
                f"{repo} holds {len(found)} files of weights ({', '.join(found[:5])}); expected one, or "
                "model.safetensors; download the one you want by hand and give its path"
            )
    raise ModelError(
        f"{repo} holds no weights among its {len(names)} files; expected model.safetensors or an .npz "
        "at the top; choose a repository that has one"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Repository:
    """Where a repository is on the hub, and where in the cache."""

    name: str
    revision: str
    endpoint: str
    cache: Path

    @property
    def folder(self) -> Path:
        return self.cache / f"models--{self.name.replace('/', '--')}"

    @property
    def place(self) -> str:
        return re.sub("//[^/@]*@", "//", self.endpoint)  # a password in HF_ENDPOINT is not for the screen


def _cache_folder() -> Path:
    """Return what huggingface_hub would use if it were imported now: it reads the environment only once."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{home}/huggingface"
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    return Path(os.path.expandvars(hub)).expanduser()


def _check(path: Path, name: str, digest: str) -> None:
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
    raise ModelError(
        f"{name} is damaged: its checksum begins with {found[:12]}; expected {digest[:12]}; "
        "it has been removed from the cache, so run the command again to fetch it anew"
    )


def _cached(repo: _Repository) -> Path | None:
    """Return the snapshot folder if it is whole, without a connection.

    It is whole if its weights are there: `choose` puts them after the settings, the index after the shards,
    and `_download` fetches in this order.
    """
    ref = repo.folder / "refs" / repo.revision
    commit = ref.read_text().strip() if ref.is_file() else repo.revision
    snapshot = repo.folder / "snapshots" / commit
    if not COMMIT.fullmatch(commit) or not snapshot.is_dir():
        return None
    try:
        choose([path.name for path in snapshot.iterdir() if path.is_file()], repo.name)
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
    url = hf_hub_url(repo.name, name, revision=commit, endpoint=repo.endpoint)
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
        _check(begun, name, digest)
        begun.replace(blob)


def _download(repo: _Repository, bar: Any) -> Path:
    """Ask the hub which commit the revision is, and fetch and check what is missing of it."""
    from huggingface_hub import HfApi, constants, hf_hub_download

    api, wait = HfApi(endpoint=repo.endpoint, library_name="saccade"), constants.HF_HUB_ETAG_TIMEOUT
    try:
        info = api.model_info(repo.name, revision=repo.revision, files_metadata=True, timeout=wait)
        commit, listing = info.sha or "", {file.rfilename: file for file in info.siblings or ()}
    except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError):
        commit, listing = "", {}
    if not COMMIT.fullmatch(commit):
        raise ModelError(
            f"{repo.place} did not answer as a hub does; expected a listing of {repo.name}; "
            "check HF_ENDPOINT, and whether a login page of the network answers in its place"
        )
    snapshot, ref = repo.folder / "snapshots" / commit, repo.folder / "refs" / repo.revision
    where: dict[str, Any] = {"endpoint": repo.endpoint, "cache_dir": repo.cache, "tqdm_class": bar}
    for name in choose(listing, repo.name):
        large, path = listing[name].lfs, snapshot / name
        digest = (large.sha256 if large else listing[name].blob_id) or ""
        known = DIGEST.fullmatch(digest) is not None  # a mirror may keep no checksums
        if large and known and not path.exists():
            _transfer(repo, commit, name, digest, large.size, bar)
        hf_hub_download(repo.name, name, revision=commit, library_name="saccade", **where)
        # a large file was checked on its way in; to hash gigabytes at each load would be slow
        if known and (not large or path.stat().st_size != large.size):
            _check(path, name, digest)
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
        return UsageError(f"no repository named {repo.name} on {repo.place}; {hint}")
    if status in (401, 403):
        return ModelError(
            f"{repo.place} does not give {repo.name} to everyone (answer {status}); it expects a token; "
            f"ask for access on {repo.place}/{repo.name} and set HF_TOKEN"
        )
    if status:
        return ModelError(f"{repo.place} answered {status} when asked for {repo.name}; try again in a while")
    if number in (errno.ENOSPC, errno.EDQUOT):
        return ResourceError(f"no space is left in {repo.cache} for {repo.name}; make room, or {ELSEWHERE}")
    if number is not None:
        return ResourceError(f"cannot keep {repo.name} in {repo.cache}: {reason}; {ELSEWHERE}")
    return ModelError(
        f"{repo.place} could not be reached for {repo.name} ({reason}); check the network and HF_ENDPOINT, "
        "and run the command again: what has arrived is kept"
    )


def fetch(
    name: str, *, revision: str | None = None, cache: Path | None = None, progress: bool = True
) -> Path:
    """Return the folder of a model repository such as google/vit-base-patch16-224, fetching what is missing.

    With HF_HUB_OFFLINE nothing is asked of the hub; if the hub does not answer, the copy in the cache is used
    and a line on stderr says so. Files are checked when they arrive, and small ones at each call.
    """
    repo_id, wanted = read_name(name, revision)
    try:
        import httpx2
        from huggingface_hub import constants, errors
        from huggingface_hub.utils.tqdm import tqdm
    except ImportError as error:
        hint = "models on the hub need it; run pip install 'saccade[hub]'"
        raise UsageError(f"huggingface_hub is not installed; {hint}") from error
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    repo = _Repository(name=repo_id, revision=wanted, endpoint=endpoint, cache=cache or _cache_folder())
    flags = {os.environ.get(flag, "").upper() for flag in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    offline = constants.HF_HUB_OFFLINE or not flags.isdisjoint({"1", "ON", "YES", "TRUE"})
    if offline:
        if (copy := _cached(repo)) is not None:
            return copy
        raise ModelError(
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
