"""Models whose numbers overflow say so: no nan%, no invalid JSON, exit code 4."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from exports import graph_of, make_exports, put
from graphs import make
from onnx import TensorProto, helper
from PIL import Image
from promise import command
from spoken import KINDS, speaker

import saccade
from saccade.api.models import Model
from saccade.data.image.preprocess import Preprocess
from saccade.errors import ModelError, NotFiniteError
from saccade.tasks import find_task
from saccade.text.model import save_text
from saccade.weights.load import load

NAN = "answers with NaN or infinite numbers"
IMAGE = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)


def overflowing():
    module = make("vit")
    with torch.no_grad():
        for block in module.blocks:
            block.mlp.down.weight.fill_(1e38)
            block.mlp.up.weight.fill_(1e38)
    return Model(module, Preprocess(size=(32, 32)), list("abcde"))


def fragile():
    """A graph whose answer is 5 times the square root of what it sees: NaN for dark images only."""
    nodes = [
        helper.make_node("ReduceMean", ["image", "places"], ["mean"], keepdims=0),
        helper.make_node("Sqrt", ["mean"], ["root"]),
        helper.make_node("MatMul", ["root", "heads"], ["logits"]),
    ]
    held = {"places": np.array([2, 3]), "heads": np.eye(3, 5, dtype=np.float32)}
    return graph_of(*nodes, weights=held, given=(("logits", TensorProto.FLOAT, ["b", 5]),))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run that overflows, graphs that do, and labelled images."""
    place = tmp_path_factory.mktemp("answers")
    overflowing().save(place / "run")
    make_exports(place / "exports")
    put(place / "exports" / "onnx", fragile())
    for label in "ab":
        (place / "data" / label).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(IMAGE // (1 if label == "b" else 9)).save(place / "data" / label / f"{i}.png")
    Image.fromarray(IMAGE // 9).save(place / "dark.png")
    Image.fromarray(255 - IMAGE // 9).save(place / "light.png")
    (place / "bad.png").write_bytes(b"no image")
    return place


def test_what_overflows_is_saved_as_json_that_can_be_read(place):
    text = (place / "run" / "model.json").read_text()
    assert "NaN" not in text
    assert "probe" not in json.loads(text)
    load(place / "run")


def test_the_python_api_raises(place):
    model = saccade.load(place / "run")
    for ask in (
        lambda: model.predict(IMAGE),
        lambda: model.predict([IMAGE, IMAGE]),
        lambda: model.embed([IMAGE]),
        lambda: model.explain(IMAGE),
        lambda: model.explain(IMAGE, target="b"),
    ):
        with pytest.raises(ModelError, match=NAN):
            ask()


@pytest.mark.parametrize("engine", ["onnx", "openvino", "auto"])
def test_an_exported_graph_raises_for_the_image_and_answers_the_next(place, engine, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if engine == "auto":  # noise is dark on average in one channel or another: no engine can be measured
        with pytest.raises(NotFiniteError, match=NAN):
            find_task().load(place / "exports" / "onnx", engine)
        return
    found = find_task().load(place / "exports" / "onnx", engine)
    with pytest.raises(NotFiniteError, match=NAN):
        found.predict(place / "dark.png")
    assert found.predict(place / "light.png")[0].score > 0


@pytest.mark.parametrize("form", [(), ("--json",), ("--csv",)])
@pytest.mark.parametrize("model", ["run", "exports/onnx"])
def test_predict_never_prints_nan(place, model, form, tmp_path):
    engine = ("--engine", "onnx") if model != "run" else ()
    words = ("predict", place / model, place / "dark.png", *form, *engine)
    done = command(*words, cwd=tmp_path, code=4)
    assert "nan" not in done.out.lower().replace(NAN.lower(), "")
    assert NAN in done.err
    assert "dark.png" in done.err
    if form == ("--json",):
        (row,) = json.loads(done.out, parse_constant=pytest.fail)
        assert NAN in row["error"]


def test_one_bad_answer_among_many_is_named_and_the_others_are_printed(place, tmp_path):
    images = [place / name for name in ("dark.png", "light.png", "bad.png")]
    words = ("predict", place / "exports" / "onnx", *images, "--engine", "onnx")
    done = command(*words, "--json", cwd=tmp_path, code=4)
    dark, light, bad = json.loads(done.out)
    assert NAN in dark["error"]
    assert light["predictions"]
    assert "error" in bad
    assert "1 of 3 images could not be read" in done.err
    shown = command(*words, cwd=tmp_path, code=4)
    assert "(not finite)" in shown.out
    assert "(not read)" in shown.out


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "run", "data"),
        ("evaluate", "run", "data", "--json"),
        ("evaluate", "exports/onnx", "data", "--engine", "onnx"),
        ("evaluate", "exports/onnx", "data", "--engine", "openvino", "--json"),
        ("explain", "run", "dark.png"),
        ("embed", "run", "data"),
        ("bench", "run", "--engine", "eager"),
        ("bench", "exports/onnx", "--engine", "onnx"),
        ("predict", "run", "dark.png", "--engine", "auto"),
        ("export", "run", "out"),
    ],
    ids=" ".join,
)
def test_every_verb_says_so(place, words, tmp_path):
    given = [place / word if (place / word).exists() else word for word in words]
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = command(*given, cwd=tmp_path, code=4, env=env)
    assert "finite" in done.err
    assert "nan%" not in done.out + done.err
    assert "RuntimeWarning" not in done.err


def test_the_doctor_finds_an_answer_that_is_not_finite(place, tmp_path):
    for folder, test in ((place / "run", "kept answer"), (place / "exports" / "onnx", "onnx")):
        done = command("doctor", folder, "--json", cwd=tmp_path, code=1)
        rows = {row["test"]: row for row in json.loads(done.out, parse_constant=pytest.fail)}
        assert rows[test]["verdict"] == "wrong"
        assert NAN in rows[test]["words"]
    command("doctor", place / "run", "--pictures", place / "data", "--json", cwd=tmp_path, code=1)


@pytest.fixture(scope="module")
def writers(tmp_path_factory):
    """Models of text that overflow, and texts to ask them about."""
    place = tmp_path_factory.mktemp("writers")
    for kind in ("gpt", "bert", "transformer", "seq2seq"):
        known = speaker(kind)
        module = KINDS[kind]().eval()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(1e38)
        save_text(place / kind, replace(known, module=module))
    (place / "text.txt").write_text("the cat sat on the mat\n" * 20)
    (place / "pairs.tsv").write_text("de\ten\n" + "the cat\tthe dog\n" * 20)
    return place


@pytest.mark.parametrize(
    "words",
    [
        ("complete", "gpt", "the cat"),
        ("fill", "bert", "the [MASK] sat"),
        ("translate", "transformer", "the cat"),
        ("translate", "seq2seq", "the cat", "--beams", "3"),
        ("evaluate", "gpt", "text.txt", "--json"),
        ("evaluate", "bert", "text.txt", "--json"),
        ("evaluate", "transformer", "pairs.tsv", "--json"),
        ("explain", "gpt", "the cat", "--json"),
        ("explain", "transformer", "the cat", "--json"),
    ],
    ids=" ".join,
)
def test_a_model_of_text_says_so_too(writers, words, tmp_path):
    given = [writers / word if (writers / word).exists() else word for word in words]
    done = command(*given, cwd=tmp_path, code=4)
    assert NAN in done.err
    assert done.out == ""
