"""A hub on 127.0.0.1 that speaks the protocol of huggingface.co, keeps a diary and fails on request.

    with Hub({"owner/name": {"config.json": b"{}"}}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)

Large kinds of files (LARGE) are answered as git-lfs files are: a redirect to a second origin, `hub.store`.
The name of a data set begins with "datasets/".
"""

import hashlib
import json
import os
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

LARGE = (".safetensors", ".npz", ".bin", ".h5", ".msgpack", ".onnx", ".pt", ".parquet")
REPO = r"(?P<repo>(?:datasets/)?[^/]+/[^/]+)"
API = re.compile(rf"/api/(?:models/)?{REPO}(?:/(?P<what>revision|tree)/(?P<revision>[^/]+))?")
RESOLVE = re.compile(rf"/{REPO}/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
STORE = re.compile(r"/store/(?P<digest>[0-9a-f]{64})")


def is_large(name: str) -> bool:
    return name.endswith(LARGE)


def digest(name: str, content: bytes) -> str:
    """Return the ETag of a file: SHA-256 if it is large, else git's id of a blob."""
    if is_large(name):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""


@dataclass
class Cut:
    """The next `times` transfers of a file end after so many bytes, politely or with a reset."""

    after: int
    reset: bool
    times: int


@dataclass
class Failure:
    """The next `times` requests whose method and path match are answered with this status."""

    pattern: str
    status: int
    times: int


@dataclass
class Hub:
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    token: str = "hf_right"
    """Opens gated repositories."""
    delay: float = 0.0
    """Seconds before each answer."""

    def __post_init__(self) -> None:
        self.requests: list[Request] = []
        self.branches: dict[tuple[str, str], str] = {}
        self.commits: dict[tuple[str, str], dict[str, bytes]] = {}
        self.gated: dict[str, int] = {}
        self.cuts: dict[str, Cut] = {}
        self.damaged: set[str] = set()
        self.failures: list[Failure] = []
        self.without_checksums = False
        self.lies: dict[str, str] = {}
        """Headers that replace those of each file, such as ETag and X-Repo-Commit."""
        self.tricks: list[tuple[str, Callable[[Handler], None]]] = []
        self.page: bytes | None = None
        """What a login page of a hotel would answer to everything."""
        self._servers: list[Server] = []
        for repo, files in self.repositories.items():
            self.push(repo, files)

    def push(self, repo: str, files: dict[str, bytes], branch: str = "main") -> str:
        """Make a commit the head of a branch, and return its id."""
        text = json.dumps([repo, sorted((name, digest(name, content)) for name, content in files.items())])
        commit = hashlib.sha1(text.encode()).hexdigest()
        self.commits[repo, commit] = dict(files)
        self.branches[repo, branch] = commit
        return commit

    def gate(self, repo: str, status: int = 401) -> None:
        """Show the listing to everyone, but give the files only to who sends `token`."""
        self.gated[repo] = status

    def cut(self, name: str, after: int, *, reset: bool = False, times: int = 1) -> None:
        """End the next transfers of a file early."""
        self.cuts[name] = Cut(after, reset, times)

    def damage(self, name: str) -> None:
        """Send a file with its last byte changed, under the ETag of the right one; undone by `heal`."""
        self.damaged.add(name)

    def heal(self) -> None:
        """Be a good hub again."""
        self.cuts, self.damaged, self.failures, self.delay, self.page = {}, set(), [], 0.0, None
        self.lies, self.tricks = {}, []

    def trick(self, pattern: str, act: "Callable[[Handler], None]") -> None:
        """Let `act` answer the requests whose "METHOD path" holds the pattern."""
        self.tricks.append((pattern, act))

    def fail(self, pattern: str = "", *, status: int = 500, times: int = 1) -> None:
        """Answer the next requests whose "METHOD path" holds the pattern with an error."""
        self.failures.append(Failure(pattern, status, times))

    def asked(self, pattern: str) -> list[Request]:
        """Return the requests whose "METHOD path" holds the pattern (a regular expression)."""
        return [one for one in self.requests if re.search(pattern, f"{one.method} {one.path}")]

    def failing(self, line: str) -> int:
        """Return the status that was ordered for this request, 0 if none was."""
        for failure in self.failures:
            if failure.times > 0 and re.search(failure.pattern, line):
                failure.times -= 1
                return failure.status
        return 0

    def cutting(self, name: str) -> Cut | None:
        """Return the cut that was ordered for this transfer, if any."""
        cut = self.cuts.get(name)
        if cut is None or cut.times == 0:
            return None
        cut.times -= 1
        return cut

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._servers[0].server_port}"

    @property
    def store(self) -> str:
        """The other origin, which stands for the storage that serves large files; no token belongs here."""
        return f"http://127.0.0.1:{self._servers[1].server_port}"

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", server.server_port) for server in self._servers]

    def __enter__(self) -> Self:
        for _ in range(2):
            server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": self}))
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            self._servers.append(server)
        return self

    def stop(self) -> None:
        """Go away, so that connections are refused; `address` stays readable."""
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away or was shown out; several tests are about that."""
        if not isinstance(sys.exception(), ConnectionError | ValueError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One request; HTTP/1.0, so that no connection outlives a test."""

    hub: Hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        hub, path = self.hub, urlsplit(self.path).path
        hub.requests.append(Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
        time.sleep(hub.delay)
        line = f"{self.command} {self.path}"
        if act := next((act for pattern, act in hub.tricks if re.search(pattern, line)), None):
            act(self)
        elif status := hub.failing(line):
            self.refuse(status, "")
        elif hub.page is not None:
            self.give(hub.page, {"Content-Type": "text/html"})
        elif match := STORE.fullmatch(path):
            self.store(match["digest"])
        elif match := API.fullmatch(path):
            self.api(match["repo"], match["what"], unquote(match["revision"] or "main"))
        elif match := RESOLVE.fullmatch(path):
            self.resolve(match["repo"], unquote(match["revision"]), unquote(match["file"]))
        else:
            self.refuse(404, "")

    def commit(self, repo: str, revision: str) -> str | None:
        """Return the commit, or refuse in the hub's way and return None."""
        if not any(known == repo for known, _ in self.hub.commits):
            self.refuse(404, "RepoNotFound")
            return None
        commit = self.hub.branches.get((repo, revision), revision)
        if (repo, commit) not in self.hub.commits:
            self.refuse(404, "RevisionNotFound")
            return None
        return commit

    def api(self, repo: str, what: str | None, revision: str) -> None:
        commit = self.commit(repo, revision)
        if commit is None:
            return None
        files = self.hub.commits[repo, commit]
        if what == "tree":
            rows = [self.row(name, content, "path", "oid", "oid") for name, content in files.items()]
            return self.give(json.dumps([{"type": "file", **row} for row in rows]).encode(), {})
        rows = [self.row(name, content, "rfilename", "blobId", "sha256") for name, content in files.items()]
        if self.hub.without_checksums:
            rows = [{"rfilename": row["rfilename"]} for row in rows]
        return self.give(json.dumps({"id": repo, "sha": commit, "siblings": rows}).encode(), {})

    @staticmethod
    def row(name: str, content: bytes, path: str, blob: str, sha: str) -> dict[str, object]:
        row: dict[str, object] = {path: name, "size": len(content), blob: digest("pointer", content)}
        if is_large(name):
            row["lfs"] = {sha: digest(name, content), "size": len(content), "pointerSize": 134}
        return row

    def resolve(self, repo: str, revision: str, file: str) -> None:
        commit = self.commit(repo, revision)
        if commit is None:
            return None
        content = self.hub.commits[repo, commit].get(file)
        if content is None:
            return self.refuse(404, "EntryNotFound", {"X-Repo-Commit": commit})
        if repo in self.hub.gated and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            return self.refuse(self.hub.gated[repo], "GatedRepo")
        tag = digest(file, content)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{tag}"'}
        if not is_large(file):
            return self.give(content, headers | self.hub.lies, file)
        headers |= {"X-Linked-Etag": f'"{tag}"', "X-Linked-Size": str(len(content))}
        self.send_response(302)
        for key, value in (
            headers | {"Location": f"{self.hub.store}/store/{tag}", "Content-Length": "0"} | self.hub.lies
        ).items():
            self.send_header(key, value)
        self.end_headers()
        return None

    def store(self, tag: str) -> None:
        for files in self.hub.commits.values():
            for name, content in files.items():
                if digest(name, content) == tag:
                    return self.give(content, {"ETag": f'"{tag}"'}, name)
        return self.refuse(404, "")

    def refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"X-Error-Code": code, **(headers or {}), "Content-Length": "0"}.items():
            if value:
                self.send_header(key, value)
        self.end_headers()

    def give(self, content: bytes, headers: dict[str, str], name: str = "") -> None:
        """Send a body, or the part that Range asks for, with the faults that were ordered for this file."""
        whole, start = len(content), 0
        if name in self.hub.damaged:
            content = content[:-1] + bytes([content[-1] ^ 1])
        if (wanted := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")) and name:
            start = int(wanted[1])
            headers = {**headers, "Content-Range": f"bytes {start}-{whole - 1}/{whole}"}
        self.send_response(206 if start else 200)
        length = {"Accept-Ranges": "bytes", "Content-Length": str(whole - start)}
        for key, value in (headers | length).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = self.hub.cutting(name)
        self.wfile.write(content[start : cut.after if cut else None])
        if cut and cut.reset:
            self.wfile.flush()
            time.sleep(0.5)  # a reset throws away what the client has not read yet, and a busy client is slow
            # lingering for no time makes close() send a reset instead of an end
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def isolate(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Nothing of the machine's own settings, and no token of anyone, takes part."""
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGINGFACE", "HUGGING_FACE", "TRANSFORMERS_", "TQDM")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(home / "home"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "no-token"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(home / "no-tokens"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for proxy in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(proxy, raising=False)
        monkeypatch.delenv(proxy.upper(), raising=False)
