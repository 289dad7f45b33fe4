"""One command examines a model once; what was examined is what is loaded."""

import json
import sys
from collections import Counter

import forked
import pytest
import torch
from spoken import folder
from terminal import picture, run, small

from saccade.data.image.preprocess import TOKENS, most_tokens
from saccade.engine.exported import read_exported
from saccade.errors import ModelError
from saccade.files.strict_json import read_json
from saccade.text.model import load_text
from saccade.weights.formats.tensors import headers_of, write_safetensors
from saccade.weights.identify import identify
from saccade.weights.load import load
from saccade.weights.save import tensors_of

WATCHED = (identify, read_json, headers_of)


def calls(*words):
    """Run a command and count its calls of `WATCHED`, however each module has imported them."""
    codes = {getattr(f, "__wrapped__", f).__code__: f.__name__ for f in WATCHED}
    seen: Counter[str] = Counter()

    def note(frame, event, _):
        if event == "call" and frame.f_code in codes:
            seen[codes[frame.f_code]] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        done = run(*words)
    finally:
        sys.setprofile(before)
    assert done.code == 0, done.err
    return dict(seen)


@pytest.fixture
def model(tmp_path):
    return small().save(tmp_path / "model")


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """Exported by a process of its own, as torch cannot trace through the shape checker."""
    place = tmp_path_factory.mktemp("exported")
    words = ["export", str(small().save(place / "model")), str(place / "graph")]
    forked.run(*words, check=True)
    return place / "graph"


@pytest.fixture
def photo(tmp_path):
    return picture(tmp_path / "a.png")


ONCE = {"identify": 1, "read_json": 2, "headers_of": 2}
"""model.json and preprocess.json; the headers before torch, and again of the file that is loaded."""


@pytest.mark.parametrize("verb", ["predict", "explain"])
def test_a_command_examines_a_model_once(verb, model, photo, tmp_path):
    more = ["--out", tmp_path / "out"] if verb == "explain" else []
    assert calls(verb, model, photo, *more) == ONCE


def test_doctor_examines_a_model_once(model):
    assert calls("doctor", model) == ONCE


def test_a_text_model_is_examined_once(tmp_path):
    assert calls("complete", folder("gpt", tmp_path), "the cat") == {**ONCE, "read_json": 1}


def test_an_exported_graph_is_examined_once(graph, photo):
    assert calls("predict", graph, photo, "--engine", "onnx") == {"identify": 1, "read_json": 2}


def test_what_is_identified_is_known_before_it_is_loaded(model, tmp_path):
    found = identify(model)
    assert (found.path, found.folder, found.task) == (model, model, "classify")
    assert (found.text, found.exported, found.code) == (False, False, [])
    assert found.model == json.loads((model / "model.json").read_text())
    assert found.preprocess == json.loads((model / "preprocess.json").read_text())
    assert found.labels == small().labels
    text = identify(folder("seq2seq", tmp_path))
    assert (text.task, text.text, text.preprocess) == ("translate", True, None)


def test_an_exported_graph_is_identified_and_refused_where_weights_are_needed(graph):
    found = identify(graph)
    assert (found.exported, found.headers) == (True, {})
    assert read_exported(found) == read_exported(graph)
    for opens in (load, load_text):
        with pytest.raises(ModelError, match="is an exported graph; predict, evaluate, bench and doctor can"):
            opens(found)


def test_weights_that_change_after_they_were_examined_are_refused(model):
    found = identify(model)
    (model / "model.json").write_text(json.dumps({**found.model, "sha256": {}}))
    write_safetensors(model / "model.safetensors", {"other": torch.zeros(2)})
    with pytest.raises(ModelError, match="model changed while it was being read; run the command again"):
        load(found)


def test_other_numbers_of_the_same_shapes_are_refused_by_their_digest(model):
    found = identify(model)
    module = load(found).module
    write_safetensors(
        model / "model.safetensors", {n: t + 1 for n, t in tensors_of(module).items()}, {"format": "pt"}
    )
    with pytest.raises(ModelError, match="is not the file that was saved"):
        load(found)


def test_model_json_is_read_strictly(model):
    (model / "model.json").write_text('{"format": 1, "format": 1}')
    with pytest.raises(ModelError, match="the key 'format' twice"):
        identify(model)


def test_a_graph_may_be_given_fewer_patches_than_a_module():
    assert most_tokens(196, "graph") == TOKENS // 4
    assert most_tokens(576, "graph") == 16 * 576
    assert most_tokens(4096, "graph") == TOKENS
    assert most_tokens(4096, "learned") == 16 * 4096
    assert most_tokens(196, "relative") == TOKENS // 4
    assert most_tokens(4096, "rope2d") == TOKENS
