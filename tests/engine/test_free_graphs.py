"""One graph answers every size as its model does, on ONNX Runtime and on OpenVINO; others are refused."""

import json
from functools import partial

import jaxtyping
import numpy as np
import onnx
import pytest
import torch
from graphs import CONFIGS, SIZES, make
from PIL import Image

from saccade.data.image.preprocess import Preprocess
from saccade.engine import verify
from saccade.engine.export import export_model
from saccade.engine.exported import engine_for, is_exported, read_exported
from saccade.engine.graph.drawing import draw
from saccade.engine.graph.model import build_graph
from saccade.engine.graph.resizing import fit_images, resample
from saccade.engine.onnx import Onnx
from saccade.engine.openvino import OpenVino
from saccade.engine.torch import Eager
from saccade.errors import ModelError, UsageError
from saccade.models.vit import ViT
from saccade.nn.resample import WAYS
from saccade.weights.known_answer import picture
from saccade.weights.load import Loaded

PREPROCESS = Preprocess(size=(32, 32))
FEW = ("vit", "vit merged", "vit merged as published", "vit pruned")
MANY = (
    *("google", "registers", "distilled", "map", "relative", "rotary", "post-norm", "hybrid", "resnet"),
    *("vit dropped", "vit chunked", "relative merged", "rotary pruned", "hybrid merged", "registers pruned"),
    *("distilled merged as published", "relative merged as published", "registers merged as published"),
)


def chance(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def far(name, folder, engine):
    module = make(name)
    path = folder / "model.onnx"
    onnx.save(build_graph(module, PREPROCESS), path)
    made, model = engine(path), Eager(module)
    return max(float(np.abs(made.run(chance(s)) - model.run(chance(s))).max()) for s in SIZES)


@pytest.mark.parametrize("name", FEW)
def test_one_graph_answers_five_sizes_as_its_model_does(name, tmp_path):
    assert far(name, tmp_path, Onnx) < 1e-4


@pytest.mark.parametrize("name", ["vit merged", "vit merged as published", "registers"])
def test_openvino_reads_the_same_graph(name, tmp_path):
    assert far(name, tmp_path, partial(OpenVino, kept=1)) < 1e-4


@pytest.mark.parametrize("engine", [Onnx, OpenVino])
def test_patches_merge_until_one_is_left_in_a_graph_as_in_the_model(engine, tmp_path):
    from saccade.tokens.merge import merge

    module = merge(make("google"), (1, 16, 16))  # the mean is read, so that the last block merges too
    onnx.save(build_graph(module, PREPROCESS), tmp_path / "model.onnx")
    made, model = engine(tmp_path / "model.onnx"), Eager(module)
    for height, width in ((8, 8), (8, 16), (16, 8), (8, 24), (16, 16), (32, 32)):
        x = chance((2, 3, height, width))
        assert np.abs(made.run(x) - model.run(x)).max() < 1e-4, (height, width)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [Onnx, OpenVino])
@pytest.mark.parametrize("name", FEW + MANY)
def test_every_kind_of_model_is_one_graph_for_all_sizes(name, engine, tmp_path):
    assert far(name, tmp_path, engine) < 1e-4


@pytest.mark.parametrize("way", WAYS)
def test_resampling_by_matrices_is_torchs(way):
    x = torch.from_numpy(chance((1, 5, 7, 4)))
    for rows, cols in ((7, 4), (3, 9), (16, 2), (1, 5)):
        expected = torch.nn.functional.interpolate(x, size=(rows, cols), **WAYS[way])
        found = resample(x, rows, cols, WAYS[way]["mode"], WAYS[way]["antialias"])
        assert (found - expected).abs().max() < 1e-5


@pytest.mark.parametrize("fit", ["crop", "squash", "squash+crop", "pad"])
@pytest.mark.parametrize("how", ["bicubic", "bilinear", "lanczos"])
def test_preprocessing_as_part_of_a_graph_is_pillows_to_a_grey_level(fit, how):
    for size in ((24, 40), (32, 32)):
        preprocess = Preprocess(size=size, fit=fit, interpolation=how, crop=0.8, background=(9, 99, 199))
        for height, width in ((61, 47), (20, 90), (32, 32)):
            pixels = picture(height, width)
            found = fit_images(torch.from_numpy(pixels)[None], preprocess)[0].numpy()
            apart = np.abs(found - preprocess(pixels)) * 127.5
            assert apart.max() < 2.01, (size, height, width)  # Pillow may go down the columns first
            assert apart.mean() < 0.4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "graph"
    found = export_model(out, Loaded(make("vit"), PREPROCESS, list("abcde")), "onnx", "bytes")
    assert found.sizes == 5
    return out


def test_a_graph_takes_the_bytes_of_a_picture_of_any_size(folder):
    made, module = read_exported(folder), make("vit")
    for height, width in ((40, 33), (90, 50)):
        pixels = picture(height, width)
        found = Onnx(made.graph).run(pixels[None])
        expected = Eager(module).run(PREPROCESS(pixels)[None])
        assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


def test_an_exported_folder_tells_labels_and_preprocessing_twice(folder):
    made = read_exported(folder)
    assert is_exported(folder)
    assert (made.labels, made.preprocess, made.takes) == (tuple("abcde"), PREPROCESS, "bytes")
    told = {entry.key: entry.value for entry in onnx.load(made.graph).metadata_props}
    assert json.loads(told["labels"]) == list("abcde")
    assert Preprocess.from_json(json.loads(told["preprocess"])) == PREPROCESS


def test_an_exported_folder_tells_its_work(folder):
    from saccade.api.bench import open_bench_model
    from saccade.tokens.cost import macs_of

    assert open_bench_model(str(folder), folder / "none").macs == macs_of(make("vit"), (32, 32)) > 10**5


def test_openvino_has_its_own_files(tmp_path):
    export_model(tmp_path / "out", Loaded(make("vit"), PREPROCESS, list("abcde")), "openvino")
    made = read_exported(tmp_path / "out")
    assert sorted(p.suffix for p in made.folder.iterdir()) == [".bin", ".json", ".json", ".txt", ".xml"]
    x = chance((2, 3, 40, 24))
    assert np.abs(OpenVino(made.graph).run(x) - Eager(make("vit")).run(x)).max() < 1e-4
    assert "saccade" in made.graph.read_text()


class Baked(torch.nn.Module):
    """Takes the number of rows for a constant, as a careless model would."""

    def forward(self, image):
        return image.mean(1)[:, : int(image.shape[2]) // 2].flatten(1)[:, :5] * int(image.shape[2])


def test_a_size_that_got_baked_in_is_refused(tmp_path):
    path = tmp_path / "baked.onnx"
    module = Baked()
    example = torch.randn(2, 3, 24, 32)
    onnx.save(draw(module, example, "image", ["b", 3, "h", "w"], ["logits"]), path)
    inputs = verify.float_trials(PREPROCESS, 8)
    with pytest.raises(ModelError, match=r"the graph's logits differ from the model's by .*nothing was"):
        verify.compare(Onnx(path).arrays, lambda x: {"logits": module(torch.from_numpy(x)).numpy()}, inputs)


def scripted(*answers):
    """An engine that gives these answers, one after another."""
    left = [np.array(answer, dtype=np.float32) for answer in answers]
    return lambda _: {"logits": left.pop(0)}


def test_an_answer_that_is_no_number_is_refused():
    x = [np.zeros((1, 3, 32, 32), np.float32)] * 2
    with pytest.raises(ModelError, match=r"with nan or infinite numbers; nothing was written; please report"):
        verify.compare(scripted([[0, 1]], [[np.nan, 1]]), scripted([[0, 1]], [[0, 1]]), x)
    with pytest.raises(ModelError, match="so does the model: see `saccade doctor`"):
        verify.compare(scripted([[np.nan, 1]]), scripted([[np.nan, 1]]), x[:1])


def test_in_int8_the_answers_to_given_pictures_are_counted():
    loose, x = (
        {"logits": float("inf")},
        [np.zeros((10, 3, 32, 32), np.float32), np.zeros((3, 3, 32, 40), np.float32)],
    )
    same, other = [[0.0, 1.0]], [[0.2, 0.1]]
    given, tried = same * 10, same * 3
    found = verify.compare(
        scripted(other + same * 9, other * 3), scripted(given, tried), x, loose, 10, [1] * 9 + [0]
    )
    assert (found.agreement, found.right, found.before) == (0.9, 0.8, 0.9)
    with pytest.raises(ModelError, match=r"changes for 2 of 10 images \(allowed: 10%\); nothing was written"):
        verify.compare(scripted(other * 2 + same * 8, tried), scripted(given, tried), x, loose, 10)


def test_a_tie_that_the_model_itself_breaks_both_ways_is_no_fault_of_the_graph():
    x = [np.zeros((1, 3, 32, 32), np.float32), np.ones((1, 3, 32, 32), np.float32)]

    def jumpy(x):  # as where two patches are equally close
        first = x.sum((1, 2, 3)) > 0
        return {"logits": np.stack([first, ~first], 1).astype(np.float32)}

    found = verify.compare(scripted([[1, 0]], [[1, 0]]), jumpy, x)
    assert (found.ties, found.difference, found.agreement) == (1, 0.0, 0.5)
    with pytest.raises(ModelError, match=r"differ from the model's by 5\.0e-01"):
        verify.compare(scripted([[0.5, 0.5]], [[1, 0]]), jumpy, x)
    with pytest.raises(ModelError, match=r"differ from the model's by 1\.0e\+00"):
        verify.compare(scripted([[1, 0]], [[0, 1]]), jumpy, x)


def broken(path, batches):
    """A quantiser that turns the answers round."""
    made = onnx.load(path)
    made.graph.node.append(onnx.helper.make_node("Neg", ["logits"], ["turned"]))
    made.graph.output[0].name = "turned"
    onnx.save(made, path)


@pytest.mark.parametrize("takes", ["floats", "bytes"])
def test_an_int8_graph_with_other_answers_is_refused(takes, tmp_path, monkeypatch):
    from saccade.engine import int8

    monkeypatch.setattr(int8, "quantize", broken)
    samples = verify.Samples([picture(32 + i, 40) for i in range(9)])
    loaded = Loaded(make("vit"), PREPROCESS, [])
    with pytest.raises(ModelError, match="in int8 the top-1 answer changes for 9 of 9 images"):
        export_model(
            tmp_path / "out",
            loaded,
            "onnx",
            takes,
            samples,
            verify.graph_inputs(PREPROCESS, takes, samples.sources),
        )
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_takes_bytes_is_rounded_too(tmp_path):
    from saccade.tasks import find_task

    samples = verify.Samples([picture(32 + i, 40) for i in range(9)], [0] * 9)
    some = verify.graph_inputs(PREPROCESS, "bytes", samples.sources)
    found = export_model(
        tmp_path / "out", Loaded(make("vit"), PREPROCESS, []), "onnx", "bytes", samples, some
    )
    assert found.agreement == 1
    assert found.right == found.before >= 0
    assert b"MatMulInteger" in (tmp_path / "out" / "model.onnx").read_bytes()
    assert find_task().load(tmp_path / "out", "onnx", top=1).predict(picture(50, 33))


class Two(ViT):
    """A model with two outputs."""

    def forward(self, image):
        logits = super().forward(image)
        return {"logits": logits, "boxes": logits[:, :4].unflatten(-1, (2, 2)).tanh()}


def two():
    module = Two(CONFIGS["vit"])
    module.load_state_dict(make("vit").state_dict())
    return module


@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_a_graph_with_several_outputs_is_compared_by_name(to, tmp_path):
    loaded, outputs = Loaded(two(), PREPROCESS, list("abcde")), {"logits": 1e-4, "boxes": 1e-3}
    found = export_model(tmp_path / "out", loaded, to, outputs=outputs)
    assert found.difference < 1e-4
    made = read_exported(tmp_path / "out")
    assert made.outputs == ("logits", "boxes")
    x = chance((2, 3, 40, 24))
    answers, expected = engine_for(made, to).arrays(x), Eager(two(), tuple(outputs)).arrays(x)
    for name in outputs:
        assert np.abs(answers[name] - expected[name]).max() < 1e-4
    assert answers["boxes"].shape == (2, 2, 2)


def test_each_output_has_a_tolerance_of_its_own():
    x = [np.zeros((1, 3, 32, 32), np.float32)]
    graph = {"logits": np.ones((1, 2), np.float32), "boxes": np.full((1, 2, 4), 0.5, np.float32)}
    model = {**graph, "boxes": np.full((1, 2, 4), 0.52, np.float32)}
    found = verify.compare(lambda _: graph, lambda _: model, x, {"logits": 1e-4, "boxes": 0.1})
    assert found.difference == pytest.approx(0.02, rel=1e-4)
    with pytest.raises(ModelError, match=r"the graph's boxes differ from the model's by 2\.0e-02"):
        verify.compare(lambda _: graph, lambda _: model, x, {"logits": 1e-4, "boxes": 1e-3})
    model["boxes"] = model["boxes"][:, :1]
    with pytest.raises(ModelError, match=r"the graph's boxes for .* have the shape \(1, 2, 4\); expected"):
        verify.compare(lambda _: graph, lambda _: model, x, {"logits": 1e-4, "boxes": 0.1})


def test_outputs_without_classes_are_compared_too():
    x = [np.zeros((2, 3, 32, 32), np.float32)]
    dots = {"dots": np.ones((2, 1), np.float32)}
    found = verify.compare(lambda _: dots, lambda _: dots, x, {"dots": 1e-3})
    assert (found.pictures, found.difference, found.agreement, found.right) == (2, 0.0, 1.0, -1.0)


def test_a_graph_with_other_outputs_is_refused(tmp_path):
    onnx.save(build_graph(make("vit"), PREPROCESS), tmp_path / "model.onnx")
    for engine in (Onnx, OpenVino):
        with pytest.raises(ModelError, match="has 1 inputs and 1 outputs; expected one and 2; export it"):
            engine(tmp_path / "model.onnx", outputs=("logits", "boxes"))
    onnx.save(build_graph(two(), PREPROCESS, outputs={"logits": 1.0, "boxes": 1.0}), tmp_path / "model.onnx")
    for engine in (Onnx, OpenVino):
        with pytest.raises(ModelError, match="has the outputs logits, boxes; expected logits, masks"):
            engine(tmp_path / "model.onnx", outputs=("logits", "masks"))


@pytest.mark.parametrize("engine", ["onnx", "openvino"])
def test_padding_and_lanczos_filter_are_part_of_a_graph(engine, tmp_path):
    fit = Preprocess(size=(32, 32), fit="pad", interpolation="lanczos", background=(9, 99, 199))
    export_model(tmp_path / "out", Loaded(make("vit"), fit, list("abcde")), engine, "bytes")
    pixels = picture(70, 45)
    found = engine_for(read_exported(tmp_path / "out"), engine).run(pixels[None])
    expected = Eager(make("vit")).run(fit(pixels)[None])
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


def test_random_dropping_is_refused():
    from saccade.tokens.prune import prune

    with pytest.raises(UsageError, match="random dropping is drawn anew for each size"):
        build_graph(prune(make("vit"), 0.7, (1,), by="random"), PREPROCESS)


def test_windows_are_refused():
    from saccade.tokens.light import lighten

    with pytest.raises(UsageError, match="windowed attention is laid out for one size"):
        build_graph(lighten(make("vit"), "windowed", 2), PREPROCESS)


def test_nothing_is_left_of_an_export_that_failed(tmp_path):
    with pytest.raises(ModelError, match="nothing was written"):
        export_model(tmp_path / "out", Loaded(make("vit"), PREPROCESS, []), "onnx", outputs={"logits": -1.0})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "vit pruned", "vit dropped", "rotary", "hybrid", "resnet"])
def test_torchs_own_export_lies_beside_the_weights(name, tmp_path, monkeypatch):
    from saccade.weights.load import load

    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # its sizes are symbols, not int
    found = export_model(tmp_path / "out", Loaded(make(name), PREPROCESS, list("abcde")), "torch")
    assert found.difference < 1e-4
    assert not is_exported(tmp_path / "out")
    again = torch.export.load(tmp_path / "out" / "model.pt2").module()
    x = torch.from_numpy(chance((3, 3, 48, 24) if name.startswith("vit") else (3, 3, 32, 32)))
    with torch.no_grad():
        assert (again(x) - load(tmp_path / "out").module(x)).abs().max() < 1e-4


@pytest.mark.slow
def test_a_picture_file_and_its_samples_get_the_same_answer(folder, tmp_path):
    from saccade.tasks import find_task

    Image.fromarray(picture(50, 70)).save(tmp_path / "a.png")
    found = find_task().load(folder, "onnx").predict(tmp_path / "a.png")
    again = find_task().load(folder, "openvino").predict(picture(50, 70))
    assert [p.label for p in found] == [p.label for p in again]
