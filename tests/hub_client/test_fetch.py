import errno
import shutil
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from hub import Hub, digest, isolate
from huggingface_hub import constants, set_client_factory
from huggingface_hub.utils._http import default_client_factory

from saccade.errors import ModelError, ResourceError, UsageError
from saccade.hub import transfer
from saccade.hub.fetch import fetch
from saccade.hub.names import choose_files, read_name

REPO = "google/vit-tiny"
FILES = {
    "README.md": b"# A model",
    "config.json": b'{"hidden_size": 24}',
    "preprocessor_config.json": b"{}",
    "model.safetensors": b"eight by" * 5000,
    "pytorch_model.bin": b"pickle" * 5000,
    "tf_model.h5": b"hdf5" * 5000,
    "onnx/model.onnx": b"onnx" * 5000,
}
NEEDED = ["config.json", "model.safetensors", "preprocessor_config.json"]
BIG = bytes(range(256)) * 100_000


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)


@pytest.fixture
def hub(monkeypatch):
    with Hub({REPO: FILES}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        yield hub


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def cached_files(tmp_path):
    return {path.name for path in (tmp_path / "home").rglob("*") if path.is_file() and "blobs" in path.parts}


@pytest.mark.parametrize("prefix", ["", "hf-hub:", "hf_hub:", "hf:"])
def test_a_prefix_and_a_revision_are_read_from_the_name(prefix):
    timm = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    assert read_name(prefix + timm) == (timm, "main")
    assert read_name(f"{prefix}{timm}@v1.0") == (timm, "v1.0")
    assert read_name(prefix + timm, "refs/pr/7") == (timm, "refs/pr/7")
    assert read_name(f"{prefix}{timm}@v1.0", "v1.0") == (timm, "v1.0")


@pytest.mark.parametrize(
    "trick",
    [
        "", "vit_b16", "../../x", "../x", "a/../b", "a/..", "./a", "a/b/c", "/etc/passwd", "~/model",
        "C:\\model", "a\\b",
        "-option", "--token/x", "a/-option", "-a/b", ".a/b", "a/b.", "a/b-", "a--b/c", "a/b..c", "a/b.git",
        "file:///etc/passwd", "https://huggingface.co/google/vit", "http://127.0.0.1/a/b", "hf://google/vit",
        "hf:hf:a/b", "ssh:a/b", "a b/c", "a/b ", " a/b", "a/b\n", "a/b\x00", "a/\x1b[31mb", "a/b?x=1",
        "a/b#c", "a/b%2e%2e", "a/$(id)", "a/b;id", "a/é", "a/b\u202e", "a@b/c",
        "a/" + "b" * 96, "a" * 100_000, "a/" * 100_000,
    ],
)  # fmt: skip
def test_a_trick_in_the_place_of_a_name_is_refused_in_words(trick):
    with pytest.raises(
        UsageError, match="is not a name on the hub; names look like google/vit-base-patch16-224"
    ) as told:
        fetch(trick)
    assert len(str(told.value)) < 500
    assert str(told.value).isprintable()


@pytest.mark.parametrize(
    "revision",
    [
        "",
        "../main",
        "a/../b",
        "/main",
        "main/",
        "-main",
        ".hidden",
        "a//b",
        "a b",
        "main\n",
        "a" * 101,
        "?x",
        "a@b",
    ],
)
def test_a_trick_in_the_place_of_a_revision_is_refused_in_words(revision):
    with pytest.raises(UsageError, match=r"is not a revision of a/b; expected one branch, tag or commit"):
        fetch("a/b", revision=revision)


def test_two_revisions_at_once_are_refused():
    with pytest.raises(UsageError, match="'v1' and 'v2' is not a revision of a/b"):
        fetch("a/b@v1", revision="v2")


def test_a_refused_name_asks_nothing_of_the_hub(hub):
    with pytest.raises(UsageError):
        fetch("../../x")
    assert hub.requests == []


def test_only_what_a_model_needs_is_fetched(hub):
    folder = fetch(REPO)
    assert names(folder) == NEEDED
    assert all((folder / name).read_bytes() == FILES[name] for name in NEEDED)
    assert not hub.asked("pytorch_model|h5|onnx|README")


def test_shards_come_with_their_index():
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    listing = [
        "config.json",
        "adapter.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        *shards,
    ]
    assert choose_files(listing, "a/b") == ["config.json", *shards, "model.safetensors.index.json"]


@pytest.mark.parametrize(
    ("listing", "weights"),
    [
        (["model.safetensors", "model.fp16.safetensors", "adapter.safetensors"], ["model.safetensors"]),
        (
            ["model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"],
            ["model.safetensors"],
        ),
        (["vit.safetensors", "B_16.npz"], ["vit.safetensors"]),
        (["B_16.npz", "pytorch_model.bin"], ["B_16.npz"]),
        (["pytorch_model.bin", "training_args.bin", "tf_model.h5"], ["pytorch_model.bin"]),
        (["weights.bin", "training_args.bin", "optimizer.bin"], ["weights.bin"]),
        (
            ["model.safetensors", "../model.safetensors", "a/model.safetensors", "..\\config.json"],
            ["model.safetensors"],
        ),
    ],
)
def test_the_safest_kind_of_weights_is_chosen(listing, weights):
    assert choose_files([*listing, "labels.txt", "README.md"], "a/b") == ["labels.txt", *weights]


@pytest.mark.parametrize("listing", [["a.npz", "b.npz"], ["fp16.safetensors", "fp32.safetensors"]])
def test_several_weights_of_one_kind_are_asked_about(listing):
    with pytest.raises(ModelError, match=rf"a/b has 2 weight files \({', '.join(listing)}\); expected one"):
        choose_files(listing, "a/b")


@pytest.mark.parametrize(
    "listing",
    [[], ["README.md"], ["tf_model.h5"], ["x/model.safetensors"], ["model-00001-of-00002.safetensors"]],
)
def test_a_repository_without_weights_is_refused_in_words(listing):
    with pytest.raises(
        ModelError, match=r"a/b has no weights among its \d files; expected model.safetensors"
    ):
        choose_files(listing, "a/b")


def test_a_repository_of_pickles_is_fetched_for_the_loader_to_refuse(hub):
    hub.push("old/model", {"config.json": b"{}", "pytorch_model.bin": b"pickle"})
    assert names(fetch("old/model")) == ["config.json", "pytorch_model.bin"]


def test_the_second_call_asks_only_for_the_listing(hub):
    first = fetch(REPO)
    hub.requests.clear()
    assert fetch(f"hf-hub:{REPO}") == first
    assert [(one.method, one.path.split("?")[0]) for one in hub.requests] == [
        ("GET", f"/api/models/{REPO}/revision/main")
    ]


def test_a_new_commit_is_fetched_and_shares_unchanged_files(hub):
    first = fetch(REPO)
    hub.requests.clear()
    commit = hub.push(REPO, FILES | {"config.json": b'{"hidden_size": 48}'})
    second = fetch(REPO)
    assert second != first
    assert second.name == commit
    assert (second / "config.json").read_bytes() == b'{"hidden_size": 48}'
    assert not hub.asked("GET /store")


def test_a_revision_may_be_a_branch_a_tag_or_a_commit(hub):
    commit = hub.push(REPO, FILES | {"labels.txt": b"cat\n"}, branch="refs/pr/7")
    assert fetch(f"{REPO}@refs/pr/7").name == commit
    assert fetch(REPO, revision=commit) == fetch(REPO, revision="refs/pr/7")
    assert fetch(REPO) != fetch(REPO, revision=commit)


def test_the_cache_folder_is_read_when_called(hub, monkeypatch, tmp_path):
    assert fetch(REPO).is_relative_to(tmp_path / "home" / "hub")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "$WHERE"))
    monkeypatch.setenv("WHERE", "second")
    assert fetch(REPO).is_relative_to(tmp_path / "second")
    assert fetch(REPO, cache=tmp_path / "third").is_relative_to(tmp_path / "third")


def test_huggingface_hub_finds_what_was_fetched(hub, tmp_path):
    from huggingface_hub import scan_cache_dir, snapshot_download

    folder = fetch(REPO, cache=tmp_path)
    found = snapshot_download(REPO, cache_dir=tmp_path, local_files_only=True, allow_patterns=NEEDED)
    assert Path(found) == folder
    scan = scan_cache_dir(tmp_path)
    assert [repo.repo_id for repo in scan.repos] == [REPO]
    assert scan.warnings == []


def test_what_huggingface_hub_fetched_is_not_fetched_again(hub, tmp_path):
    from huggingface_hub import hf_hub_download

    hf_hub_download(REPO, "model.safetensors", cache_dir=tmp_path, endpoint=hub.address)
    hub.requests.clear()
    assert names(fetch(REPO, cache=tmp_path)) == NEEDED
    assert not hub.asked("model.safetensors|store")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_file_is_refused_removed_and_fetched_anew(hub, name, tmp_path):
    hub.damage(name)
    right = digest(name, FILES[name])
    with pytest.raises(
        ModelError, match=rf"{name} is damaged: its checksum starts with \w+; expected {right[:12]}; it "
    ):
        fetch(REPO)
    assert not {file for file in cached_files(tmp_path) if file.startswith(right)}
    hub.heal()
    assert (fetch(REPO) / name).read_bytes() == FILES[name]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_cut_short_in_the_cache_is_noticed(hub, name):
    path = fetch(REPO) / name
    path.write_bytes(FILES[name][:-1])
    with pytest.raises(ModelError, match=f"{name} is damaged"):
        fetch(REPO)
    assert (fetch(REPO) / name).read_bytes() == FILES[name]


def test_a_large_file_is_not_hashed_at_each_call(hub):
    path = fetch(REPO) / "model.safetensors"
    path.write_bytes(b"x" * len(FILES["model.safetensors"]))
    assert fetch(REPO) == path.parent


def test_a_mirror_that_keeps_no_checksums_can_be_used(hub):
    hub.without_checksums = True
    assert names(fetch(REPO)) == NEEDED


def test_a_transfer_that_breaks_off_goes_on_where_it_stopped(hub, capfd):
    hub.push("a/big", {"model.safetensors": BIG})
    hub.cut("model.safetensors", after=22_000_000)
    assert (fetch("a/big") / "model.safetensors").read_bytes() == BIG
    ranges = [one.headers.get("range") for one in hub.asked("GET /store")]
    assert ranges == [None, "bytes=22000000-"]
    assert capfd.readouterr() == ("", "")


def test_a_later_call_goes_on_where_an_earlier_one_stopped(hub):
    hub.push("a/big", {"model.safetensors": BIG})
    hub.cut("model.safetensors", after=22_000_000, reset=True, times=99)
    with pytest.raises(ModelError, match=r"could not be reached for a/big .*what has arrived is kept"):
        fetch("a/big")
    hub.heal()
    assert (fetch("a/big") / "model.safetensors").read_bytes() == BIG
    first, *_, last = (one.headers.get("range") for one in hub.asked("GET /store"))
    assert first is None
    assert 0 < int(last.removeprefix("bytes=").removesuffix("-")) <= 22_000_000


def test_a_damaged_beginning_is_not_kept_for_the_next_call(hub, tmp_path):
    content = FILES["model.safetensors"]
    blobs = tmp_path / "home" / "hub" / "models--google--vit-tiny" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{digest('model.safetensors', content)}.partial").write_bytes(b"junk")
    with pytest.raises(ModelError, match=r"model.safetensors is damaged"):
        fetch(REPO)
    assert (fetch(REPO) / "model.safetensors").read_bytes() == content


def test_a_beginning_longer_than_the_file_is_thrown_away(hub, tmp_path):
    content = FILES["model.safetensors"]
    blobs = tmp_path / "home" / "hub" / "models--google--vit-tiny" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{digest('model.safetensors', content)}.partial").write_bytes(content + b"more")
    assert (fetch(REPO) / "model.safetensors").read_bytes() == content


def test_an_interrupted_update_leaves_the_older_copy_in_use(hub, monkeypatch):
    older = fetch(REPO)
    hub.push(REPO, FILES | {"model.safetensors": BIG})
    hub.cut("model.safetensors", after=22_000_000, reset=True, times=99)
    assert fetch(REPO) == older
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch(REPO) == older


def test_offline_uses_the_cache_without_a_connection(hub, monkeypatch):
    folder = fetch(REPO)
    hub.requests.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch(REPO) == fetch(REPO, revision=folder.name) == folder
    assert hub.requests == []


@pytest.mark.parametrize("flag", ["1", "true", "YES", "on"])
def test_offline_without_a_copy_says_what_to_do(hub, monkeypatch, flag):
    monkeypatch.setenv("HF_HUB_OFFLINE", flag)
    with pytest.raises(
        ModelError, match=r"is missing or incomplete in .*unset HF_HUB_OFFLINE and run the command once"
    ):
        fetch(REPO)
    assert hub.requests == []


def test_offline_does_not_give_out_half_a_copy(hub, monkeypatch):
    commit = hub.branches[REPO, "main"]
    hub.fail("GET /store", times=9, status=404)
    with pytest.raises(ModelError, match="answered 404"):
        fetch(REPO)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for revision in ("main", commit):
        with pytest.raises(ModelError, match="missing or incomplete"):
            fetch(REPO, revision=revision)


def test_offline_by_huggingface_hubs_own_switch_is_respected(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE"):
        fetch(REPO)
    assert hub.requests == []


def test_a_hub_that_is_gone_leaves_the_copy_and_one_line(hub, capfd):
    folder = fetch(REPO)
    hub.stop()
    assert fetch(REPO) == folder
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"{hub.address} could not be reached for {REPO} (")
    assert err.endswith(f"; using the copy in {folder}\n")


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429])
def test_a_hub_in_trouble_leaves_the_copy_and_one_line(hub, capfd, status):
    folder = fetch(REPO)
    hub.fail(status=status, times=99)
    assert fetch(REPO) == folder
    assert capfd.readouterr().err == (
        f"{hub.address} answered {status} when asked for {REPO}; using the copy in {folder}\n"
    )


def test_a_hub_that_is_gone_is_told_in_one_sentence(hub):
    hub.stop()
    with pytest.raises(
        ModelError, match=rf"{hub.address} could not be reached for {REPO} .*; check the network"
    ):
        fetch(REPO)


@pytest.mark.parametrize("status", [500, 503, 429, 418])
def test_a_hub_in_trouble_is_told_in_one_sentence(hub, status):
    hub.fail("/api/", status=status, times=99)
    with pytest.raises(ModelError, match=f"answered {status} when asked for {REPO}; try again later"):
        fetch(REPO)


def test_a_hub_that_stumbles_once_over_a_file_is_asked_again(hub):
    hub.fail("GET .*config.json", status=503)
    assert names(fetch(REPO)) == NEEDED


def test_a_slow_hub_is_not_waited_for_without_end(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.2)
    hub.delay = 2.0
    with pytest.raises(ModelError, match=r"could not be reached for google/vit-tiny \(.*timed out"):
        fetch(REPO)


def test_an_unknown_repository_is_a_question_of_spelling(hub):
    with pytest.raises(
        UsageError, match=f"no repository named google/vit-tyni on {hub.address}; check the spelling"
    ):
        fetch("google/vit-tyni")


def test_an_unknown_revision_is_a_question_of_spelling(hub):
    with pytest.raises(UsageError, match=f"no revision 'v9' of {REPO} on {hub.address}; check the spelling"):
        fetch(f"{REPO}@v9")


@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_repository_names_the_token_that_opens_it(hub, monkeypatch, status):
    hub.gate(REPO, status)
    with pytest.raises(ModelError, match=rf"\(answer {status}\); it expects a token; .* set HF_TOKEN"):
        fetch(REPO)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert names(fetch(REPO)) == NEEDED


def test_a_refusal_without_a_reason_names_the_token_too(hub):
    hub.fail("/api/", status=401)
    with pytest.raises(ModelError, match="set HF_TOKEN"):
        fetch(REPO)


def test_a_no_of_the_hub_is_not_answered_from_the_cache(hub):
    fetch(REPO)
    hub.fail("/api/", status=403)
    with pytest.raises(ModelError, match="set HF_TOKEN"):
        fetch(REPO)


@pytest.mark.parametrize(
    "page", [b"<html>Log in to the hotel</html>", b"[]", b"{}", b'{"id": "a/b"}', b"\xff\xfe\xff"]
)
def test_a_page_that_is_not_the_hubs_is_recognised(hub, page):
    hub.page = page
    with pytest.raises(ModelError, match=r"did not answer as a hub does \(.*\); .*check HF_ENDPOINT"):
        fetch(REPO)


def test_a_wrong_certificate_is_told_in_one_sentence(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.address.replace("http:", "https:"))
    with pytest.raises(ModelError, match=r"could not be reached for google/vit-tiny \(.*SSL"):
        fetch(REPO)


@pytest.mark.parametrize("endpoint", ["huggingface.co", "ftp://127.0.0.1", "http://[", "http://127.0.0.1:1"])
def test_an_endpoint_that_cannot_work_is_told_in_one_sentence(endpoint, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(ModelError, match=r"could not be reached .*HF_ENDPOINT"):
        fetch(REPO)


def test_a_password_in_the_endpoint_stays_off_the_screen(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://me:secret@127.0.0.1:1")
    with pytest.raises(ModelError) as told:
        fetch(REPO)
    assert "secret" not in str(told.value)


def test_a_file_larger_than_the_disk_is_not_begun(hub, monkeypatch):
    hub.push("a/big", {"model.safetensors": BIG})
    usage = shutil.disk_usage("/")._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda *_: usage)
    with pytest.raises(
        ResourceError, match=r"model.safetensors needs 26 MB; .* has 1 MB left; make room, or set"
    ):
        fetch("a/big")
    assert not hub.asked("store")


def test_a_disk_that_fills_up_is_told_in_one_sentence(hub, monkeypatch):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(transfer, "_fill", full)
    with pytest.raises(ResourceError, match=rf"no space is left in .* for {REPO}; make room, or set HF_HOME"):
        fetch(REPO)


def test_a_cache_that_is_no_folder_is_told_in_one_sentence(hub, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match=rf"cannot store {REPO} in .*: .*; set HF_HOME"):
        fetch(REPO, cache=tmp_path / "file")


def test_nothing_is_printed_and_nothing_but_the_model_is_asked_for(hub, capfd, monkeypatch):
    monkeypatch.setenv("CLAUDECODE", "1")
    fetch(REPO)
    assert capfd.readouterr() == ("", "")
    assert all(f"/{REPO}/" in one.path or one.path.startswith("/store/") for one in hub.requests)
    agents = {one.headers["user-agent"] for one in hub.requests}
    assert len(agents) == 1
    assert "torch" not in agents.pop()


def test_a_client_that_a_person_set_for_huggingface_hub_is_used(hub):
    agents = []

    def factory():
        return httpx2.Client(event_hooks={"request": [lambda one: agents.append(one.headers["user-agent"])]})

    set_client_factory(factory)
    try:
        fetch(REPO)
    finally:
        set_client_factory(default_client_factory)
    assert len(agents) == len(hub.requests)


def test_a_token_goes_to_the_hub_and_not_to_the_storage_behind_it(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    fetch(REPO)
    assert {one.headers.get("authorization") for one in hub.asked(REPO)} == {"Bearer hf_mine"}
    assert [one.headers.get("authorization") for one in hub.asked("/store/")] == [None]


@pytest.mark.parametrize(
    ("progress", "terminal", "shown"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_bar_is_drawn_on_a_terminal_unless_unwanted(hub, capsys, monkeypatch, progress, terminal, shown):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    fetch(REPO, progress=progress)
    out, err = capsys.readouterr()
    assert out == ""
    assert ("model.safetensors: 100%" in err) is shown
    assert bool(err) is shown


def test_a_missing_extra_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UsageError, match=r"huggingface_hub is not installed; .*pip install 'saccade\[hub\]'"):
        fetch(REPO)


def test_importing_the_module_imports_neither_torch_nor_huggingface_hub():
    code = "import sys, saccade.hub.fetch; print({'torch', 'huggingface_hub', 'httpx2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_another_version_of_the_library_is_refused_in_words(hub, monkeypatch):
    monkeypatch.delattr("huggingface_hub.utils._http._GLOBAL_CLIENT_FACTORY")
    with pytest.raises(UsageError, match=r"has no utils\._http\._GLOBAL_CLIENT_FACTORY; saccade was"):
        fetch(REPO)
