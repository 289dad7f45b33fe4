"""`saccade pull`, and models by their name on the hub, against a hub on 127.0.0.1."""

import os
import pickle

import pytest
from hub import Hub, isolate
from terminal import NAMES, run, small

from saccade.api.load import load


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    repositories = {
        "google/vit-small": files(small().save(tmp_path / "hf", "hf")),
        "timm/vit_small.augreg": files(small().save(tmp_path / "timm", "timm")),
        "us/pets": files(small().save(tmp_path / "ours")),
        "old/pickled": {"config.json": b"{}", "pytorch_model.bin": pickle.dumps({"a": 1})},
        "evil/cut": {"config.json": b"{}", "model.safetensors": b"\x08\0\0\0\0\0\0\0{"},
    }
    with Hub(repositories) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        yield hub


REPOSITORIES = ["google/vit-small", "timm/vit_small.augreg", "us/pets"]


@pytest.mark.parametrize("name", REPOSITORIES)
def test_a_model_is_fetched_once_and_answers_from_the_cache_without_a_connection(
    name, hub, photo, monkeypatch
):
    done = run("pull", name)
    assert done.code == 0, done.err
    folder = done.out.strip()
    assert os.path.isdir(folder)
    assert load(folder).labels == NAMES
    hub.stop()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    asked = len(hub.requests)
    for word in (name, f"hf:{name}", folder):
        told = run("predict", word, photo, "--csv")
        assert told.code == 0, told.err
        assert told.err == ""
    assert len(hub.requests) == asked


@pytest.mark.parametrize("name", REPOSITORIES)
def test_out_writes_a_folder_of_ours_with_the_same_answers(name, hub, photo, tmp_path):
    done = run("pull", name, "--out", tmp_path / "mine")
    assert (done.code, done.out) == (0, f"{tmp_path / 'mine'}\n")
    assert (tmp_path / "mine" / "model.json").is_file()
    assert run("predict", tmp_path / "mine", photo, "--json").out == run("predict", name, photo, "--json").out


def test_out_is_checked_before_anything_is_fetched(hub, tmp_path):
    (tmp_path / "mine").write_text("work")
    done = run("pull", "us/pets", "--out", tmp_path / "mine")
    assert done.code == 2
    assert "exists and is not empty" in done.err
    assert hub.requests == []


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("google/vit-smal", 2, "no repository named google/vit-smal on http://127.0.0.1:"),
        ("google/vit-small@v9", 2, "no revision 'v9' of google/vit-small"),
        ("vit-small", 2, "is not a name on the hub; names look like google/vit-base-patch16-224"),
        ("../../etc", 2, "is not a name on the hub"),
        ("https://huggingface.co/google/vit", 2, "is not a name on the hub"),
        ("old/pickled", 4, "run `saccade convert "),
        ("evil/cut", 4, "announces a header of"),
    ],
)
def test_what_cannot_be_pulled_is_told_in_one_sentence(name, code, told, hub):
    done = run("pull", name)
    assert (done.code, done.out) == (code, "")
    if "header" not in told:
        assert told in done.err
    assert done.err.count("\n") == 1


def test_an_option_in_the_place_of_a_name_is_refused(hub):
    assert run("pull", "-x/y").code == 2
    assert hub.requests == []


def test_a_gated_model_asks_for_a_token_and_takes_it(hub, monkeypatch):
    hub.gate("us/pets")
    done = run("pull", "us/pets")
    assert done.code == 4
    assert "restricts access to us/pets (answer 401); it expects a token" in done.err
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert run("pull", "us/pets").code == 0


def test_a_model_that_is_not_in_the_cache_is_told_when_offline(hub, photo, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = run("predict", "us/pets", photo)
    assert done.code == 4
    assert "HF_HUB_OFFLINE expects it there" in done.err
    assert hub.requests == []


def test_a_revision_is_fetched_by_its_name(hub):
    hub.push("us/pets", hub.commits["us/pets", hub.branches["us/pets", "main"]], branch="v1")
    assert run("pull", "us/pets", "--revision", "v1").code == 0
    assert run("pull", "us/pets@v1", "--revision", "v2").code == 2
