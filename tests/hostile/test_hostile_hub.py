"""A hub, or a mirror of it, that means harm: nothing that it says chooses a path."""

import gzip
import json
import os
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import httpx2
import pytest
from hub import Hub, digest, isolate
from promise import keeps_promise
from terminal import picture, run

from saccade.data.readers.hub import choose as choose_data
from saccade.data.readers.open import open_images
from saccade.errors import ModelError, ResourceError, UsageError
from saccade.hub import connection, transfer
from saccade.hub import fetch as fetching
from saccade.hub.fetch import fetch
from saccade.hub.listing import read_listing
from saccade.hub.names import is_plain

REPO = "google/vit-tiny"
FILES = {
    "config.json": b'{"hidden_size": 24}',
    "labels.txt": b"import os; os.system('echo planted')\n",
    "model.safetensors": b"eight by" * 5000,
}
DATA = "someone/pets"
PARQUET = {"data/train-0.parquet": b"PAR1" * 5000}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)
    with Hub({REPO: FILES, f"datasets/{DATA}": PARQUET}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        yield hub


@pytest.fixture
def thesis(tmp_path):
    path = tmp_path / "documents" / "thesis.docx"
    path.parent.mkdir()
    path.write_text("years of work")
    return path


@pytest.fixture
def photo(tmp_path):
    return picture(tmp_path / "photo.png")


def outside(tmp_path):
    """Every file that is not in the cache."""
    paths = sorted(path for path in tmp_path.rglob("*") if (tmp_path / "home") not in (path, *path.parents))
    return {path.relative_to(tmp_path): path.is_file() and path.read_bytes() for path in paths}


def commands(word, photo):
    return {"pull": ("pull", word), "predict": ("predict", word, photo)}


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("verb", ["pull", "predict"])
def test_an_etag_deletes_and_replaces_nothing(hub, thesis, tmp_path, photo, verb, checksums):
    hub.without_checksums = not checksums
    before = outside(tmp_path)
    for etag in (str(thesis), "../../../../documents/thesis.docx"):
        hub.lies = {"ETag": f'"{etag}"', "X-Linked-Etag": f'"{etag}"'}
        for _ in range(2):
            run(*commands(REPO, photo)[verb])
            assert outside(tmp_path) == before


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("verb", ["pull", "predict"])
def test_an_etag_plants_nothing(hub, tmp_path, photo, verb, checksums):
    (tmp_path / "site-packages").mkdir()
    hub.without_checksums = not checksums
    before = outside(tmp_path)
    for etag in (str(tmp_path / "site-packages" / "evil.pth"), "../../../../site-packages/evil.pth"):
        hub.lies = {"ETag": f'"{etag}"', "X-Linked-Etag": f'"{etag}"'}
        run(*commands(REPO, photo)[verb])
        assert outside(tmp_path) == before


@pytest.mark.parametrize("checksums", [True, False])
def test_an_etag_of_a_data_set_touches_nothing(hub, thesis, tmp_path, checksums):
    hub.without_checksums = not checksums
    before = outside(tmp_path)
    for etag in (str(thesis), "../../../../documents/evil.pth"):
        hub.lies = {"ETag": f'"{etag}"', "X-Linked-Etag": f'"{etag}"'}
        for _ in range(2):
            run("check", f"hf:{DATA}")
            assert outside(tmp_path) == before


@pytest.mark.parametrize("commit", ["../../../../documents", "/etc", "0" * 40, "A" * 40, "x\x7fy", ""])
def test_a_commit_in_a_header_touches_nothing(hub, thesis, tmp_path, commit):
    before = outside(tmp_path)
    hub.lies = {"X-Repo-Commit": commit}
    fetch(REPO)
    assert outside(tmp_path) == before
    [snapshot] = (tmp_path / "home/hub/models--google--vit-tiny/snapshots").iterdir()
    assert snapshot.name == hub.branches[REPO, "main"]


COMMIT = "0123456789" * 4
ROWS = [
    {"rfilename": "config.json", "size": 19, "blobId": "a" * 40},
    {
        "rfilename": "model.safetensors",
        "size": 9,
        "blobId": "b" * 40,
        "lfs": {"sha256": "c" * 64, "size": 9, "pointerSize": 134},
    },
]


def row(**changes):
    return {"sha": COMMIT, "siblings": [ROWS[0], {**ROWS[1], **changes}]}


def large(**changes):
    return row(lfs={**ROWS[1]["lfs"], **changes})


LISTINGS = {
    "size-text": large(size="9"),
    "size-negative": large(size=-1),
    "size-fraction": large(size=9.5),
    "size-true": large(size=True),
    "size-giant": large(size=2**63),
    "size-list": large(size=[9]),
    "small-size-text": {"sha": COMMIT, "siblings": [{**ROWS[0], "size": "19"}, ROWS[1]]},
    "lfs-list": row(lfs=["c" * 64]),
    "lfs-text": row(lfs="c" * 64),
    "digest-path": large(sha256="../../../../documents/thesis.docx"),
    "digest-absolute": large(sha256="/etc/passwd"),
    "digest-short": large(sha256="c" * 40),
    "digest-capital": large(sha256="C" * 64),
    "digest-newline": large(sha256="c" * 64 + "\n"),
    "digest-arabic": large(sha256="\u0661" * 64),
    "digest-number": large(sha256=7),
    "blob-path": {"sha": COMMIT, "siblings": [{**ROWS[0], "blobId": "../../x"}, ROWS[1]]},
    "name-null": row(rfilename=None),
    "name-number": row(rfilename=7),
    "name-list": row(rfilename=["model.safetensors"]),
    "name-twice": {"sha": COMMIT, "siblings": [*ROWS, ROWS[1]]},
    "row-null": {"sha": COMMIT, "siblings": [None]},
    "rows-object": {"sha": COMMIT, "siblings": {"model.safetensors": 1}},
    "rows-text": {"sha": COMMIT, "siblings": "model.safetensors"},
    "commit-number": {"sha": 7, "siblings": ROWS},
    "commit-list": {"sha": [COMMIT], "siblings": ROWS},
    "commit-path": {"sha": "../../../../documents", "siblings": ROWS},
    "commit-short": {"sha": "abc", "siblings": ROWS},
    "commit-newline": {"sha": COMMIT + "\n", "siblings": ROWS},
    "commit-capital": {"sha": COMMIT[:-1] + "F", "siblings": ROWS},
    "number": 7,
    "null": None,
    "nested": b'{"sha":' * 100_000,
    "lists": b"[" * 100_000,
    "lists-inside": b'{"sha": "%s", "siblings": %s%s}' % (COMMIT.encode(), b"[" * 90_000, b"]" * 90_000),
    "digits": b'{"sha": %s}' % (b"9" * 5000),
    "many-values": b'{"siblings": [%s]}' % (b"[]," * 2_000_000),
    "surrogate": b'{"sha": "%s", "siblings": [{"rfilename": "\\ud800"}]}' % COMMIT.encode(),
    "open-text": b'{"sha": "' + b"\\" * 3_000_001,
    "empty": b"",
    "zeros": bytes(1000),
    "utf-16": '{"sha": 1}'.encode("utf-16"),
    "gzip": gzip.compress(b"{}", mtime=0),
}


@pytest.mark.parametrize("listing", LISTINGS.values(), ids=LISTINGS)
@pytest.mark.parametrize(("word", "code"), [(REPO, 4), (f"hf:{DATA}", 3)])
def test_a_listing_that_is_none_gets_a_sentence(hub, tmp_path, listing, word, code):
    if code == 3 and isinstance(listing, dict) and isinstance(listing.get("siblings"), list):
        listing = json.loads(json.dumps(listing).replace("model.safetensors", "a.parquet"))
    hub.page = listing if isinstance(listing, bytes) else json.dumps(listing).encode()
    before = outside(tmp_path)
    refused = keeps_promise(
        partial(fetch, REPO) if code == 4 else partial(open_images, word),
        tmp_path / "home",
        servers=hub.addresses,
    )
    assert refused.exit_code == code
    assert outside(tmp_path) == before
    assert not hub.asked("resolve|store")


def test_a_file_of_settings_beyond_its_limit_is_not_begun(hub, tmp_path):
    hub.page = json.dumps({"sha": COMMIT, "siblings": [{**ROWS[0], "size": 64_000_001}, ROWS[1]]}).encode()
    refused = keeps_promise(partial(fetch, REPO), tmp_path / "home", servers=hub.addresses)
    assert "it lists config.json with 64,000,001 bytes, more than the limit of 64,000,000" in str(refused)
    assert not hub.asked("resolve|store")


def test_a_size_beyond_the_disk_is_not_begun(hub, tmp_path):
    rows = [{**ROWS[1], "lfs": {"sha256": "c" * 64, "size": 10**13}}]
    hub.page = json.dumps({"sha": COMMIT, "siblings": rows}).encode()
    refused = keeps_promise(partial(fetch, REPO), tmp_path / "home", servers=hub.addresses)
    assert refused.exit_code == 5
    assert "model.safetensors needs 10000000 MB" in str(refused)


@pytest.mark.parametrize("extra", [{"lastModified": "the day before"}, {"createdAt": 7}, {"likes": "x"},
                                   {"cardData": 7}, {"tags": None}, {"gated": [1]}, {"id": 3}])  # fmt: skip
def test_what_is_not_needed_of_a_listing_is_not_read(hub, extra):
    rows = [{"rfilename": name, **extra} for name in FILES]
    body = json.dumps({"sha": hub.branches[REPO, "main"], "siblings": rows, **extra}).encode()
    hub.trick("/api/", lambda handler: handler.give(body, {}))
    assert (fetch(REPO) / "config.json").read_bytes() == FILES["config.json"]


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/x", "a/../../x", "a//x", "./x", ".x", "a/.x", "~/x", "a\\x", "C:x", "a\nx", "a\x1bx",
     "a\u202ex", "a\x00x", "", "/", "a/", "x" * 201, "é" * 101, "a/" * 600 + "x", "\ud800"],
)  # fmt: skip
def test_a_name_that_is_no_plain_path_is_left_out(name):
    rows = [{"rfilename": name, "size": 1}, *ROWS]
    assert set(read_listing(json.dumps({"sha": COMMIT, "siblings": rows}).encode(), "main").files) == {
        "config.json",
        "model.safetensors",
    }


def test_a_plain_name_is_kept():
    for name in ("data/train-00000-of-00001.parquet", "é/猫 (1).parquet", "a.b-c_d/1+2=3.txt"):
        assert is_plain(name)


def test_another_commit_than_the_one_asked_for_is_refused(hub):
    body = json.dumps({"sha": COMMIT, "siblings": ROWS}).encode()
    hub.trick("/api/", lambda handler: handler.give(body, {}))
    with pytest.raises(
        ModelError, match=r"did not answer as a hub does \(its listing is for another commit\)"
    ):
        fetch(REPO, revision=hub.branches[REPO, "main"])


def lead_out(path, target):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize(
    "link",
    ["refs", "blobs", "snapshots", "snapshots/{commit}", "blobs/{digest}", "blobs/{digest}.partial",
     "snapshots/{commit}/config.json", "../.locks", "../models--google--vit-tiny",
     "../.locks/models--google--vit-tiny", "../.locks/models--google--vit-tiny/{digest}.lock"],
)  # fmt: skip
@pytest.mark.parametrize("absolute", [True, False])
def test_a_link_in_the_cache_that_leads_out_is_not_followed(hub, thesis, tmp_path, link, absolute):
    folder = tmp_path / "home/hub/models--google--vit-tiny"
    file = digest("config.json", FILES["config.json"])
    place = Path(os.path.normpath(folder / link.format(commit=hub.branches[REPO, "main"], digest=file)))
    target = thesis if place.suffix or place.name == file else thesis.parent
    lead_out(place, target if absolute else os.path.relpath(target, place.parent))
    before = outside(tmp_path)
    refused = keeps_promise(partial(fetch, REPO), tmp_path / "home", servers=hub.addresses)
    assert outside(tmp_path) == before
    assert "is a link that leads out of the cache" in str(refused)


def test_a_note_in_place_of_which_a_link_leads_out_is_not_followed(hub, thesis, tmp_path):
    folder = tmp_path / "home/hub/models--google--vit-tiny"
    lead_out(folder / "refs/main", thesis)
    with pytest.raises(
        ResourceError, match=r"is a link that leads out of the cache; expected .*; remove the"
    ):
        fetch(REPO)
    assert thesis.read_text() == "years of work"


def test_a_link_out_and_back_in_does_not_remove_what_is_outside(hub, thesis, tmp_path):
    snapshot = fetch(REPO)
    away = thesis.parent / "snapshot"
    away.mkdir()
    for path in snapshot.iterdir():
        (away / path.name).symlink_to(path.resolve())
        path.unlink()
    (away / "config.json").resolve().write_bytes(b"damaged")
    snapshot.rmdir()
    snapshot.symlink_to(away)
    before = outside(tmp_path)
    with pytest.raises(ResourceError, match="leads out of the cache"):
        fetch(REPO)
    assert outside(tmp_path) == before


def test_a_file_with_a_second_name_is_not_written_to(hub, thesis, tmp_path):
    file = digest("config.json", FILES["config.json"])
    blobs = tmp_path / "home/hub/models--google--vit-tiny/blobs"
    blobs.mkdir(parents=True)
    os.link(thesis, blobs / f"{file}.partial")
    with pytest.raises(
        ResourceError, match="a file with a second name; expected a file that only the cache holds"
    ):
        fetch(REPO)
    assert thesis.read_text() == "years of work"


@pytest.mark.parametrize(
    "where", ["blobs/{digest}", "blobs/{digest}.partial", "snapshots/{commit}/config.json"]
)
def test_a_pipe_in_the_cache_is_not_waited_for(hub, tmp_path, where):
    folder = tmp_path / "home/hub/models--google--vit-tiny"
    file = digest("config.json", FILES["config.json"])
    place = folder / where.format(commit=hub.branches[REPO, "main"], digest=file)
    place.parent.mkdir(parents=True)
    os.mkfifo(place)
    keeps_promise(partial(fetch, REPO), tmp_path / "home", servers=hub.addresses)


@pytest.mark.parametrize(
    "note", [b"\xff\xfe", b"[" * 100_000, b"7", b"null", b"[7]", b'{"a": 1}', b'["../x"]', b""]
)
def test_a_damaged_note_in_the_cache_is_no_copy(hub, tmp_path, monkeypatch, note):
    folder = fetch(DATA, kind="dataset", choose=choose_data).parents[1]
    [listing] = (folder / "listings").iterdir()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert keeps_promise(partial(fetch, DATA, kind="dataset", choose=choose_data), tmp_path / "home") is None
    listing.write_bytes(note)
    refused = keeps_promise(partial(fetch, DATA, kind="dataset", choose=choose_data), tmp_path / "home")
    assert refused.exit_code == 3
    (folder / "refs/main").write_bytes(note)
    refused = keeps_promise(partial(fetch, DATA, kind="dataset", choose=choose_data), tmp_path / "home")
    assert "missing or incomplete" in str(refused)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(connection, "SPELL", 0.3)
    monkeypatch.setattr(fetching, "LISTING_SECONDS", 1.0)
    monkeypatch.setattr(transfer, "TRIES", 2)
    monkeypatch.setattr(transfer, "PAUSE", 0.0)


def drip(handler, start, piece=b"x", pause=0.05):
    handler.wfile.write(start)
    for _ in range(400):
        handler.wfile.write(piece)
        time.sleep(pause)


OK = b"HTTP/1.1 200 OK\r\n"
DRIPS = {
    "status": b"HTTP/1.1 200 ",
    "header": OK + b"X-Long: ",
    "length": OK + b"Content-Length: 1000000000\r\n\r\n",
    "no-length": OK + b"\r\n",
    "chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n1;",
}


@pytest.mark.parametrize("start", DRIPS.values(), ids=DRIPS)
@pytest.mark.parametrize("which", ["/api/", "resolve/.*config", "/store/"])
def test_an_answer_that_drips_is_hung_up_on(hub, tmp_path, impatient, start, which):
    hub.trick(which, lambda handler: drip(handler, start))
    began = time.monotonic()
    refused = keeps_promise(partial(fetch, REPO), tmp_path / "home", servers=hub.addresses)
    assert "timed out: " in str(refused)
    assert refused.exit_code == 4
    assert time.monotonic() - began < 8


def test_informational_answers_without_end_are_hung_up_on(hub, tmp_path, impatient):
    hub.trick("/api/", lambda handler: drip(handler, b"", b"HTTP/1.1 100 Continue\r\n\r\n"))
    assert "timed out: " in str(keeps_promise(partial(fetch, REPO), tmp_path / "home", servers=hub.addresses))


def test_chunks_that_drip_are_hung_up_on(hub, tmp_path, impatient):
    start = OK + b"Transfer-Encoding: chunked\r\n\r\n"
    hub.trick("/api/", lambda handler: drip(handler, start, b"1\r\nx\r\n"))
    assert "timed out: " in str(keeps_promise(partial(fetch, REPO), tmp_path / "home", servers=hub.addresses))


def test_a_listing_that_keeps_its_pace_but_never_ends_is_hung_up_on(hub, tmp_path, impatient, monkeypatch):
    monkeypatch.setattr(connection, "LEAST", 10)
    hub.trick("/api/", lambda handler: drip(handler, OK + b"\r\n", b"x" * 50, 0.02))
    refused = keeps_promise(partial(fetch, REPO), tmp_path / "home", servers=hub.addresses)
    assert "timed out: it took longer than 1 seconds" in str(refused)


def test_a_drip_leaves_the_copy(hub, impatient, capfd):
    folder = fetch(REPO)
    hub.trick("/api/", lambda handler: drip(handler, OK + b"\r\n"))
    assert fetch(REPO) == folder
    assert "using the copy in" in capfd.readouterr().err


def flood(handler, start, most=10_000):
    handler.wfile.write(start)
    for _ in range(most):
        handler.wfile.write(b"x" * 65536)


@pytest.mark.parametrize("start", [OK + b"\r\n", OK + b"Content-Length: 900000000000\r\n\r\n"])
def test_a_listing_without_end_is_cut_off(hub, tmp_path, start):
    hub.trick("/api/", lambda handler: flood(handler, start))
    refused = keeps_promise(partial(fetch, REPO), tmp_path / "home", servers=hub.addresses)
    assert "its answer is longer than 16,000,000 bytes" in str(refused)


@pytest.mark.parametrize("which", ["resolve/.*config", "/store/"])
def test_a_file_gets_not_one_byte_more_than_its_size(hub, tmp_path, which):
    hub.trick(which, lambda handler: flood(handler, OK + b"\r\n"))
    refused = keeps_promise(partial(fetch, REPO), tmp_path / "home", servers=hub.addresses)
    assert "continues beyond the" in str(refused)
    sizes = [path.stat().st_size for path in (tmp_path / "home").rglob("*.partial")]
    assert sizes == [0]


def test_a_file_of_unknown_size_has_an_end_too(hub, tmp_path, monkeypatch):
    hub.without_checksums = True
    monkeypatch.setattr(transfer, "UNLISTED", 1_000_000)
    monkeypatch.setattr(transfer, "SMALL", 1_000_000)
    for which in ("/store/", "resolve/.*config"):
        hub.trick(which, lambda handler: flood(handler, OK + b"\r\n"))
        refused = keeps_promise(partial(fetch, REPO), tmp_path / "home", servers=hub.addresses)
        assert "continues beyond the expected 1,000,000 bytes" in str(refused)
    assert {path.stat().st_size for path in (tmp_path / "home").rglob("*.partial")} == {0}


def test_a_server_that_gives_a_byte_at_a_time_is_not_asked_forever(hub, impatient):
    hub.push("a/big", {"model.safetensors": b"x" * 5000})
    for after in range(1, 5000):
        hub.cut("model.safetensors", after=after)
    hub.trick("/store/", lambda handler: handler.wfile.write(OK + b"Content-Length: 5000\r\n\r\nx"))
    with pytest.raises(ModelError, match="could not be reached"):
        fetch("a/big")
    assert len(hub.asked("GET /store/")) == 2


def redirect(handler, target):
    handler.send_response(302)
    handler.send_header("Location", target)
    handler.send_header("Content-Length", "0")
    handler.end_headers()


@pytest.mark.parametrize("which", ["/api/", "resolve/.*config", "resolve/.*model"])
@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("file:///etc/passwd", "which is neither http nor https"),
        ("ftp://127.0.0.1/x", "which is neither http nor https"),
        ("data://x/y", "which is neither http nor https"),
        ("javascript:alert(1)", "could not be reached"),
        ("http://[", "which is neither http nor https"),
        ("http://a b/", ""),
        ("http://127.0.0.1:0/", "which is neither http nor https"),
        ("http://127.0.0.1:99999999/", "which is neither http nor https"),
        ("http://[::1%eth0]/", ""),
        ("/" + "a" * 5000, ""),
        ("/" + "a" * 70_000, "could not be reached"),
        ("", "more than 5 times"),
        ("?again", "more than 5 times"),
    ],
)
def test_a_redirect_that_leads_nowhere_is_refused(hub, tmp_path, impatient, which, target, says):
    hub.trick(which, lambda handler: redirect(handler, target))
    refused = keeps_promise(partial(fetch, REPO), tmp_path / "home", servers=hub.addresses)
    assert refused.exit_code == 4
    assert says in str(refused)


def test_a_redirect_from_https_to_http_is_refused():
    request = httpx2.Request("GET", "https://hub.example/x")
    answer = httpx2.Response(302, headers={"location": "http://hub.example/x"}, request=request)
    with pytest.raises(connection.AnswerError, match=r"from https to http, to hub\.example"):
        connection._next(answer)
    answer = httpx2.Response(302, headers={"location": "https://me:word@cdn.example/x#y"}, request=request)
    assert str(connection._next(answer)) == "https://cdn.example/x"


@pytest.mark.parametrize(
    ("url", "given"),
    [
        ("http://hub.example:81/x", True),
        ("http://hub.example/x", False),
        ("https://hub.example/x", False),
        ("http://hub.example.evil:81/x", False),
        ("http://evil:81/hub.example", False),
        ("https://hub.example:81/x", False),
    ],
)
def test_the_token_goes_to_the_origin_of_the_hub_alone(monkeypatch, tmp_path, url, given):
    isolate(monkeypatch, tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    with closing(connection.Connection("http://hub.example:81")) as one:
        assert ("Authorization" in one._headers(httpx2.URL(url), 0)) is given


def test_the_password_of_the_endpoint_goes_to_the_hub_alone(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.address.replace("//", "//me:se%20cret@"))
    fetch(REPO)
    assert {one.headers["authorization"] for one in hub.asked(REPO)} == {"Basic bWU6c2UgY3JldA=="}
    assert {one.headers.get("authorization") for one in hub.asked("/store/")} == {None}


@pytest.mark.parametrize("token", ["hf_é", "hf_\x07", "hf_猫"])
def test_a_token_that_is_none_is_not_printed(hub, monkeypatch, token):
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(UsageError, match="set HF_TOKEN to the token that the hub shows") as told:
        fetch(REPO)
    assert "hf_é" not in str(told.value)
    assert not hub.requests


@pytest.mark.parametrize("which", ["/api/", "resolve/.*config", "/store/"])
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 \x1b[31mfine\r\n\r\n",
        b"HTTP/1.1 999 \r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1e9\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nxxxxxx",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(b"{}", mtime=0),
        b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\n\r\nx",
        b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 9-\r\n\r\n",
        b"HTTP/1.1 204 Nothing\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\n\r\n",
        b"HTTP/1.1 401 No\r\nX-Error-Code: \x1b[31m\r\n\r\n",
        b"HTTP/1.1 404 No\r\nX-Error-Message: " + b"x" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nSet-Cookie: \xff\xfe=\x80; expires=never; max-age=x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n",
        b"HTTP/0.9 200\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        b"\x00" * 1000,
        b"",
    ],
    ids=range(19),
)
def test_an_answer_that_is_none_gets_a_sentence(hub, tmp_path, impatient, which, answer):
    hub.trick(which, lambda handler: handler.wfile.write(answer))
    refused = keeps_promise(partial(fetch, REPO), tmp_path / "home", servers=hub.addresses)
    assert refused.exit_code == 4


def test_a_part_that_was_not_asked_for_is_refused(hub, tmp_path):
    hub.push("a/big", {"model.safetensors": b"x" * 5000})
    hub.cut("model.safetensors", after=1000)
    part = b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 999-4999/5000\r\nContent-Length: 4001\r\n\r\n"

    def answer(handler):
        if handler.headers.get("Range"):
            return handler.wfile.write(part + b"y" * 4001)
        return handler.wfile.write(OK + b"Content-Length: 5000\r\n\r\n" + b"x" * 1000)

    hub.trick("/store/", answer)
    refused = keeps_promise(partial(fetch, "a/big"), tmp_path / "home", servers=hub.addresses)
    assert "it sent a different part of the file than requested" in str(refused)


def test_a_server_that_ignores_where_to_start_starts_over(hub):
    hub.push("a/big", {"model.safetensors": b"x" * 5000})
    answers = [b"x" * 1000, b"x" * 5000]
    hub.trick(
        "/store/", lambda handler: handler.wfile.write(OK + b"Content-Length: 5000\r\n\r\n" + answers.pop(0))
    )
    assert (fetch("a/big") / "model.safetensors").read_bytes() == b"x" * 5000
    assert [one.headers.get("range") for one in hub.asked("/store/")] == [None, "bytes=1000-"]


@pytest.mark.parametrize("cookie", ["track=me", "\xff\xfe", "a=b; Domain=127.0.0.1; Path=/"])
def test_no_cookie_is_sent_back(hub, cookie):
    hub.lies = {"Set-Cookie": cookie}
    hub.fail("config.json", status=503)
    fetch(REPO)
    assert not [one for one in hub.requests if "cookie" in one.headers]


@pytest.mark.parametrize("start", DRIPS.values(), ids=DRIPS)
def test_a_drip_on_a_connection_that_was_kept_is_hung_up_on(hub, tmp_path, impatient, start):
    def keep(handler):
        rows = [{"rfilename": name} for name in FILES]
        body = json.dumps({"sha": hub.branches[REPO, "main"], "siblings": rows}).encode()
        handler.wfile.write(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        handler.close_connection = False

    hub.trick("/api/", keep)
    hub.trick("resolve", lambda handler: drip(handler, start))
    began = time.monotonic()
    refused = keeps_promise(partial(fetch, REPO), tmp_path / "home", servers=hub.addresses)
    assert "timed out: " in str(refused)
    assert time.monotonic() - began < 8


def test_long_names_of_a_data_set_make_no_long_sentence(hub, tmp_path):
    long = "/".join(["x" * 190] * 4)
    for ending in ("/{}.zip", "/{}.tar", "{}/a.parquet", "/{}.jpg"):
        hub.push(f"datasets/{DATA}", {long + ending.format(number): b"x" for number in range(9)})
        for source in (f"hf:{DATA}", f"hf:{DATA}/" + "y" * 900):
            refused = keeps_promise(partial(open_images, source), tmp_path / "home", servers=hub.addresses)
            assert refused.exit_code == 3


def test_long_names_of_weights_make_no_long_sentence(hub, tmp_path):
    hub.push(REPO, {f"{'x' * 180}{number}.safetensors": b"x" for number in range(9)})
    assert keeps_promise(partial(fetch, REPO), tmp_path / "home", servers=hub.addresses).exit_code == 4
