"""Engines behind one interface: chosen by measurement, remembered, replaced where they fail."""

import json
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from graphs import make

from saccade.api.models import Model
from saccade.data.image.preprocess import Preprocess
from saccade.engine import select
from saccade.engine.engine import NAMES, PACKAGES, Engine, check_installed, installed, softmax
from saccade.engine.export import export_model
from saccade.engine.exported import engine_for, model_files, read_exported
from saccade.engine.graph import model as graph_model
from saccade.engine.graph.model import write_graph
from saccade.engine.int8 import compensate, inverse, losses, quantize, round_weights, smoothing
from saccade.engine.onnx import Onnx
from saccade.engine.openvino import OpenVino
from saccade.engine.torch import Eager
from saccade.errors import ModelError, UsageError
from saccade.files.digest import digest_files
from saccade.weights.load import Loaded
from saccade.weights.save import save_folder

PREPROCESS = Preprocess(size=(32, 32))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "graph"
    export_model(out, Loaded(make("vit"), PREPROCESS, list("abcde")), "onnx")
    return out


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "saccade"


def pixels(batch=2):
    return np.random.default_rng(0).normal(size=(batch, 3, 32, 32)).astype(np.float32)


@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_an_engine_without_torch_answers_as_the_model_does(name, folder):
    engine = engine_for(read_exported(folder), name)
    assert isinstance(engine, Engine)
    assert engine.name == name
    assert np.abs(engine.run(pixels()) - Eager(make("vit")).run(pixels())).max() < 1e-4


@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_an_engine_alone_imports_nothing_slow(name):
    slow = "{'torch', 'jaxtyping', 'pydantic', 'unittest.mock', 'asyncio'}"
    program = f"import sys, saccade.engine.{name}, saccade.vision.model; print({slow} & set(sys.modules))"
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert told.stdout == "set()\n"


def test_torch_compile_is_no_engine():
    assert NAMES == ("eager", "onnx", "openvino")
    with pytest.raises(UsageError, match="'compiled', which is not known"):
        check_installed("compiled")


def test_the_choice_is_measured_once_and_remembered(folder, cache, monkeypatch):
    made = read_exported(folder)
    first = select.open_exported(made)
    (kept,) = (cache / "engines").iterdir()
    told = json.loads(kept.read_text())
    assert set(told) == {"onnx", "openvino"}
    assert told[first.name][1] == min(run for _, run in told.values())
    assert all(load > 0 for load, _ in told.values())
    monkeypatch.setattr(select, "measure_engines", lambda *_: pytest.fail("measured again"))
    assert select.open_exported(made).name == first.name


def test_one_picture_goes_to_the_engine_that_is_soonest_ready(folder, cache):
    made = read_exported(folder)
    word = select.choice_key(made.digest, ["onnx", "openvino"], made.example().shape)
    (cache / "engines").mkdir(parents=True)
    (cache / "engines" / f"{word}.json").write_text('{"onnx": [0.2, 0.03], "openvino": [0.5, 0.02]}')
    assert select.open_exported(made, batches=1).name == "onnx"
    assert select.open_exported(made, batches=1000).name == "openvino"


def test_an_engine_that_fails_is_left_out_with_a_sentence(cache, capsys):
    def broken():
        raise RuntimeError("no such instruction\nand more")

    class Still:
        name = "onnx"

        def run(self, pixels):
            return np.zeros((len(pixels), 2), np.float32)

        def arrays(self, pixels):
            return {"logits": self.run(pixels)}

    found = select.open_fastest({"openvino": broken, "onnx": Still}, pixels(), "word")
    assert found.name == "onnx"
    told = capsys.readouterr().err
    assert told == "note: openvino cannot run this model here (no such instruction); continuing without it\n"


def test_an_engine_that_answers_otherwise_is_left_out_with_a_sentence(cache, capsys):
    class Says:
        def __init__(self, name, answer):
            self.name, self.answer = name, np.array([answer], np.float32)

        def run(self, pixels):
            return self.answer

        def arrays(self, pixels):
            return {"logits": self.answer}

    makers = {"openvino": partial(Says, "openvino", [1, 2]), "onnx": partial(Says, "onnx", [2, 1])}
    assert select.open_fastest(makers, pixels(), "word").name == "onnx"
    assert capsys.readouterr().err == "note: openvino disagrees with onnx (by 63%); continuing without it\n"
    makers["onnx"] = partial(Says, "onnx", [1.02, 2])
    select.open_fastest(makers, pixels(), "another word")
    assert capsys.readouterr().err == ""
    makers["openvino"] = partial(Says, "openvino", [np.nan, 2])
    assert select.open_fastest(makers, pixels(), "a third word").name == "onnx"
    assert "openvino disagrees with" in capsys.readouterr().err


def test_a_run_is_drawn_once_for_engines_without_torch(tmp_path, cache):
    save_folder(tmp_path / "run", make("vit"), PREPROCESS, list("abcde"))
    engine = select.open_engine(tmp_path / "run", "onnx")
    (graph,) = (cache / "graphs").glob("*.onnx")
    before = graph.stat().st_mtime_ns
    assert np.abs(engine.run(pixels()) - Eager(make("vit")).run(pixels())).max() < 1e-4
    select.open_engine(tmp_path / "run", "onnx")
    assert graph.stat().st_mtime_ns == before


@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_a_graph_damaged_in_the_cache_is_drawn_again(name, tmp_path, cache):
    save_folder(tmp_path / "run", make("vit"), PREPROCESS, list("abcde"))
    expected = select.open_engine(tmp_path / "run", name).run(pixels())
    (graph,) = (cache / "graphs").glob("*.onnx")
    whole = graph.read_bytes()
    for data in (whole[:-9], bytes([*whole[:5000], whole[5000] ^ 64, *whole[5001:]]), b""):
        graph.write_bytes(data)
        assert np.array_equal(select.open_engine(tmp_path / "run", name).run(pixels()), expected)
        assert graph.read_bytes() == whole
    graph.with_suffix(".sha256").write_text("nothing of the kind")
    assert np.array_equal(select.open_engine(tmp_path / "run", name).run(pixels()), expected)
    assert graph.with_suffix(".sha256").read_text() == digest_files([graph])


@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_a_graph_is_compared_with_its_model_before_it_is_cached(name, tmp_path, cache, monkeypatch):
    save_folder(tmp_path / "run", make("vit"), PREPROCESS, list("abcde"))

    def other(path, module, *rest, **more):
        write_graph(path, make("google"), *rest, **more)

    monkeypatch.setattr(graph_model, "write_graph", other)
    with pytest.raises(ModelError, match="the graph's logits differ from the model's by"):
        select.open_engine(tmp_path / "run", name)
    assert not list(cache.glob("graphs/*"))


@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_the_graph_of_another_model_in_the_cache_is_drawn_again(name, tmp_path, cache):
    save_folder(tmp_path / "run", make("vit"), PREPROCESS, list("abcde"))
    expected = select.open_engine(tmp_path / "run", name).run(pixels())
    (graph,) = (cache / "graphs").glob("*.onnx")
    whole = graph.read_bytes()
    write_graph(graph, make("google"), PREPROCESS, list("abcde"))
    graph.with_suffix(".sha256").write_text(digest_files([graph]))
    assert np.array_equal(select.open_engine(tmp_path / "run", name).run(pixels()), expected)
    assert graph.read_bytes() == whole


def digest_of(path):
    return digest_files(model_files(path))


@pytest.mark.parametrize(
    "name", ["S_16.npz", "model-00002-of-00002.safetensors", "weights.pth", "config.json", "model.json"]
)
def test_models_that_differ_in_any_file_that_is_read_have_digests_of_their_own(name, tmp_path):
    for folder, content in (("a", b"one"), ("b", b"two"), ("c", b"two")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.safetensors.index.json").write_bytes(b"{}")
        (tmp_path / folder / name).write_bytes(content)
        (tmp_path / folder / "results.csv").write_text(folder)
    a, b, c = (digest_of(tmp_path / folder) for folder in "abc")
    assert a != b == c


def test_a_file_is_known_by_what_describes_it_too(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_text("1")
    before = digest_of(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("2")
    assert digest_of(tmp_path / "model.safetensors") != before


def test_a_changed_config_does_not_get_the_graph_of_the_old_one(tmp_path, cache):
    folder = Model(make("vit"), PREPROCESS, list("abcde")).save(tmp_path / "run", "hf")
    before = select.open_engine(folder, "onnx").run(pixels())
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**told, "layer_norm_eps": 0.1}))
    after = select.open_engine(folder, "onnx").run(pixels())
    assert np.abs(after - before).max() > 1e-3
    assert np.abs(after - select.open_engine(folder, "eager").run(pixels())).max() < 1e-4


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    save_folder(tmp_path / "run", make("vit"), PREPROCESS, list("abcde"))
    for name in ("onnx", "openvino"):
        engine = select.open_engine(tmp_path / "run", name)
        assert np.abs(engine.run(pixels()) - Eager(make("vit")).run(pixels())).max() < 1e-4


def test_two_that_draw_one_graph_at_once_do_not_meet(tmp_path):
    (tmp_path / "m.partial").mkdir()
    write_graph(tmp_path / "m.onnx", make("vit"), PREPROCESS, [])
    assert {path.name for path in tmp_path.iterdir()} == {"m.partial", "m.onnx"}


def test_a_model_that_is_damaged_is_told_as_such_by_whoever_chooses(cache, capsys):
    def damaged(name):
        raise ModelError(f"{name} cannot read it")

    def weak():
        raise RuntimeError("no such instruction")

    makers = {"openvino": weak, "onnx": partial(damaged, "onnx"), "eager": partial(damaged, "eager")}
    with pytest.raises(ModelError, match="onnx cannot read it"):
        select.open_fastest(makers, pixels(), "word")
    (cache / "engines").mkdir(parents=True)
    (cache / "engines" / "word.json").write_text('{"onnx": [0.2, 0.03]}')
    with pytest.raises(ModelError, match="onnx cannot read it"):
        select.open_fastest(makers, pixels(), "word")
    with pytest.raises(UsageError, match="openvino: no such instruction; install another"):
        select.open_fastest({"openvino": weak}, pixels(), "word")


def test_a_merged_model_is_no_program_of_torchs(tmp_path):
    for name in ("vit merged", "vit merged as published", "rotary merged"):
        with pytest.raises(UsageError, match="this model merges patches, which"):
            export_model(tmp_path / "out", Loaded(make(name), PREPROCESS, []), "torch")
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_is_not_installed_names_the_command_that_brings_it(monkeypatch):
    monkeypatch.setitem(PACKAGES, "openvino", "a_package_that_is_nowhere")
    assert not installed("openvino")
    with pytest.raises(UsageError, match=r"not installed; run `pip install 'saccade\[openvino\]'`"):
        check_installed("openvino")
    monkeypatch.setitem(PACKAGES, "eager", "another_that_is_nowhere")
    with pytest.raises(UsageError, match="run `pip install another_that_is_nowhere`, or choose one of"):
        check_installed("eager")
    with pytest.raises(UsageError, match="did you mean 'onnx'"):
        installed("onx")


def test_a_graph_that_is_none_is_refused(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"nothing of the kind")
    for engine in (Onnx, OpenVino):
        with pytest.raises(ModelError, match=r"model\.onnx is not an ONNX graph; export the model again"):
            engine(tmp_path / "model.onnx")


def test_an_engine_that_cannot_read_a_format_is_refused(folder):
    with pytest.raises(UsageError, match=r"the engine eager cannot run model\.onnx; choose onnx or openvino"):
        engine_for(read_exported(folder), "eager")


def test_softmax_sums_to_one():
    p = softmax(np.array([[1000.0, 1000.0], [-5.0, 0.0]], dtype=np.float32))
    assert np.allclose(p.sum(1), 1)
    assert np.allclose(p[0], 0.5)


def test_rounded_weights_fit_into_seven_bits():
    weight = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    whole, scale = round_weights(weight)
    assert np.abs(whole).max() == 63
    assert np.abs(whole * scale - weight).max() <= scale.max() / 2 + 1e-6


def test_compensated_rounding_changes_the_product_less():
    chance = np.random.default_rng(0)
    x = (chance.normal(size=(500, 40)) @ chance.normal(size=(40, 40))).astype(np.float32)
    weight = chance.normal(size=(40, 6)).astype(np.float32)
    errors = []
    for whole, scale in (round_weights(weight), compensate(weight, x.T @ x / 500)):
        errors.append(np.linalg.norm(x @ (whole * scale) - x @ weight))
    assert errors[1] < 0.8 * errors[0]


def test_a_triangular_matrix_is_inverted_by_halves():
    chance = np.random.default_rng(0)
    for size in (1, 7, 90, 161):
        upper = np.triu(chance.normal(size=(size, size))) + 9 * np.eye(size)
        assert np.abs(inverse(upper) @ upper - np.eye(size)).max() < 1e-12


def test_weights_side_by_side_are_rounded_as_each_alone():
    chance = np.random.default_rng(0)
    x = chance.normal(size=(300, 70)).astype(np.float32)
    a, b = (chance.normal(size=(70, n)).astype(np.float32) for n in (5, 9))
    together = compensate(np.concatenate([a, b], 1), x.T @ x)
    for part, place in ((a, slice(5)), (b, slice(5, 14))):
        alone = compensate(part, x.T @ x)
        assert np.array_equal(alone[0], together[0][:, place])
        assert np.array_equal(alone[1], together[1][place])


def test_the_loss_of_a_product_is_what_rounding_changes():
    chance = np.random.default_rng(0)
    x, weight = chance.normal(size=(50, 12)).astype(np.float32), np.eye(12, dtype=np.float32)
    x[:, 3], weight[3, 3] = 100 * x[:, 3], 0.01
    factors = [np.ones(12, np.float32), smoothing(np.abs(x).max(0), weight, 0.5)]
    plain, smooth = losses(x.repeat(2, 0), weight, factors)
    assert plain > 5 * smooth > 0
    step = (x.max() - x.min()) / 255
    exact, rounded = x @ weight, np.rint(x / step) * step @ weight
    by_hand = np.linalg.norm(rounded - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert plain == pytest.approx(by_hand.mean(), rel=1e-4)


def test_factors_shrink_the_channels_that_reach_far():
    weight = np.ones((3, 4), np.float32)
    factor = smoothing(np.array([1.0, 1.0, 100.0], np.float32), weight, 0.5)
    assert factor[2] > factor[0] == factor[1]
    assert np.isclose(np.prod(factor), 1)


@pytest.mark.parametrize("name", ["vit", "vit merged"])
def test_int8_answers_nearly_as_float32(name, tmp_path):
    module = make(name)
    write_graph(tmp_path / "m.onnx", module, PREPROCESS, [])
    whole = Onnx(tmp_path / "m.onnx").run(pixels(8))
    quantize(tmp_path / "m.onnx", [pixels(8)])
    assert b"MatMulInteger" in (tmp_path / "m.onnx").read_bytes()
    rounded = Onnx(tmp_path / "m.onnx", fuse=True).run(pixels(8))
    assert np.abs(rounded - whole).max() < 0.25 * whole.std()


def test_int8_without_pictures_is_refused(tmp_path):
    with pytest.raises(UsageError, match="int8 needs images to calibrate on"):
        quantize(tmp_path / "none.onnx", [])


@pytest.mark.parametrize("wrong", ["a graph for one size", "the graph for all sizes"])
def test_a_graph_that_only_errs_as_it_will_run_is_not_written(wrong, tmp_path, monkeypatch):
    right = OpenVino.arrays

    def arrays(self, pixels):
        found = right(self, pixels)
        if (pixels.shape in self.made) == (wrong == "a graph for one size"):
            found["logits"] = found["logits"] + 1
        return found

    monkeypatch.setattr(OpenVino, "arrays", arrays)
    with pytest.raises(ModelError, match=r"the graph's logits differ from the model's by .*; nothing was"):
        export_model(tmp_path / "made", Loaded(make("vit"), PREPROCESS, []), "openvino")
    assert not (tmp_path / "made").exists()
