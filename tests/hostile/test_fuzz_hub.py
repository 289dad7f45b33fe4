"""A hub whose every answer may be wrong: listings, statuses, headers, bodies and redirects."""

import json
import shutil
from collections import Counter
from functools import partial

import pytest
from hub import Hub, digest, isolate
from huggingface_hub import constants
from hypothesis import given
from hypothesis import strategies as st
from mutations import NASTY, mutated_bytes, mutated_json_bytes
from promise import fuzz, keeps_promise

from saccade.data.readers.hub import choose as choose_data
from saccade.hub import connection, transfer
from saccade.hub.fetch import fetch
from saccade.hub.names import choose_files

REPO = "google/vit-tiny"
FILES = {
    "config.json": b'{"hidden_size": 24}',
    "model.safetensors": b"eight by" * 40,
    "data/train.parquet": b"PAR1" * 40,
}
COMMIT = "0123456789" * 4
KINDS = {
    "model": ("model.safetensors", partial(fetch, REPO, choose=choose_files)),
    "dataset": ("data/train.parquet", partial(fetch, REPO, kind="dataset", choose=choose_data)),
}


def row(name):
    made = {"rfilename": name, "size": len(FILES[name]), "blobId": digest("pointer", FILES[name])}
    if name != "config.json":
        made["lfs"] = {"sha256": digest(name, FILES[name]), "size": len(FILES[name]), "pointerSize": 134}
    return made


LISTING = {
    "id": REPO,
    "sha": COMMIT,
    "lastModified": "2024-01-01T00:00:00Z",
    "siblings": list(map(row, FILES)),
}
BODIES = {"api": json.dumps(LISTING).encode(), **FILES}
HEADERS = (
    "Content-Length", "ETag", "X-Linked-Etag", "X-Repo-Commit", "X-Linked-Size", "Content-Range", "Warning",
    "Content-Encoding", "Transfer-Encoding", "X-Error-Code", "Set-Cookie", "Connection",
)  # fmt: skip
VALUES = (
    *(str(value) for value in NASTY if not isinstance(value, list | dict)), "chunked", "gzip", "identity",
    "RepoNotFound", "bytes 0-9/10", "../../../../thesis.docx", "/etc/passwd", "a" * 40, "\xff\xfe", "é",
)  # fmt: skip
STATUSES = (
    200, 201, 204, 206, 301, 302, 304, 307, 308, 400, 401, 403, 404, 408, 416, 418, 429, 500, 503, 999,
)  # fmt: skip
TARGETS = (
    "", "/", "?x", "{address}/again", "{store}/store", "file:///etc/passwd", "//", "http:", "http://[", "\\",
    "ftp://127.0.0.1/", "data:,x", "{address}:99999/", "a" * 3000, "\x1b", "{address}/%00%2e%2e/",
)  # fmt: skip


@st.composite
def answers(draw, name):
    """The bytes of an answer, most of them almost right."""
    body = (
        draw(st.one_of(mutated_bytes(BODIES[name]), st.just(BODIES[name]))) if name != "api" else BODIES[name]
    )
    if name == "api" and draw(st.booleans()):
        body = draw(mutated_json_bytes(LISTING))
    headers = {"Content-Length": str(len(body)), "ETag": f'"{"a" * 40}"', "X-Repo-Commit": COMMIT}
    for header in draw(st.lists(st.sampled_from(HEADERS), max_size=2)):
        headers[header] = draw(st.sampled_from(VALUES))
    status = draw(st.sampled_from(STATUSES)) if draw(st.booleans()) else 200
    if status // 100 == 3:
        headers["Location"] = draw(st.sampled_from(TARGETS))
    lines = "".join(f"{key}: {value}\r\n" for key, value in headers.items())
    raw = f"HTTP/1.1 {status} As it is\r\n{lines}\r\n".encode("utf-8", "replace") + body
    redirects = b"Location" in raw  # damaged bytes could name a stranger's machine
    return draw(mutated_bytes(raw)) if draw(st.integers(0, 3)) == 0 and not redirects else raw


GOOD = {
    name: b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body for name, body in BODIES.items()
}


@st.composite
def hubs(draw):
    """What a hub answers: one or two of its answers are wrong."""
    wrong = draw(st.sets(st.sampled_from(sorted(BODIES)), min_size=1, max_size=2))
    return GOOD | {name: draw(answers(name)) for name in sorted(wrong)}


@pytest.fixture
def home(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)
    monkeypatch.setattr(transfer, "TRIES", 2)
    monkeypatch.setattr(transfer, "PAUSE", 0.0)
    monkeypatch.setattr(connection, "SPELL", 1.0)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1.0)
    return tmp_path / "home"


def test_any_answer_of_a_hub_keeps_the_promise(home, tmp_path, monkeypatch):
    current, seen = dict(GOOD), Counter()
    thesis = tmp_path / "thesis.docx"
    thesis.write_text("years of work")

    def answer(handler):
        name = next((name for name in FILES if f"/{name}" in handler.path), "api")
        text = current[name].replace(b"{address}", hub.address.encode())
        handler.wfile.write(text.replace(b"{store}", hub.store.encode()))

    @fuzz
    @given(hubs(), st.sampled_from(sorted(KINDS)))
    def one(wrong, kind):
        current.clear()
        current.update(wrong)
        shutil.rmtree(home, ignore_errors=True)
        hub.requests.clear()
        refused = keeps_promise(KINDS[kind][1], home, servers=hub.addresses)
        seen[type(refused).__name__] += 1
        seen["beyond the listing"] += bool(hub.asked("resolve"))
        assert {path.name for path in tmp_path.iterdir()} <= {"home", "thesis.docx"}
        assert thesis.read_text() == "years of work"
        assert all(path.resolve().is_relative_to(home) for path in home.rglob("*"))
        if refused is None and GOOD["api"] == current["api"]:
            name = KINDS[kind][0]
            assert (
                home / "hub" / f"{kind}s--google--vit-tiny/snapshots" / COMMIT / name
            ).read_bytes() == FILES[name]

    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        hub.trick("", answer)
        one()
    total = sum(seen.values()) - seen["beyond the listing"]
    assert seen["beyond the listing"] > total / 3, seen
    assert seen["NoneType"] > total / 10, seen
    assert seen["ModelError"] > total / 10, seen
