"""`saccade bench` as a newcomer types it: every engine in a process of its own, measured, scored, drawn."""

import json

import pytest
import torch
from PIL import Image
from terminal import run
from trees import tree

from saccade.api.bench import files_of
from saccade.api.models import Model
from saccade.cli.output import table
from saccade.data.image.preprocess import Preprocess
from saccade.data.readers.open import open_images
from saccade.data.splits import evenly
from saccade.engine import bench
from saccade.engine.bench import BenchCell
from saccade.errors import DataError
from saccade.models.vit import ViT, ViTConfig
from saccade.tokens.prune import prune

TINY = ViTConfig(image=(16, 16), patch=2, width=24, depth=4, heads=3, hidden=48, classes=2)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    tree(folder / "pictures", {"train/cat": 4, "train/dog": 4, "test/cat": 4, "test/dog": 4})
    tree(folder / "others", {"ant": 4, "bee": 4})
    torch.manual_seed(0)
    vit = ViT(TINY)
    small = Preprocess(size=(16, 16), fit="squash")
    Model(vit, small, ["dog", "cat"]).save(folder / "dense")
    Model(prune(vit, 0.5, by="attention"), small, ["dog", "cat"]).save(folder / "pruned")
    return folder


@pytest.fixture(scope="module")
def measured(place):
    """Two models on torch as it is, with labelled pictures."""
    return run(
        *("bench", place / "dense", place / "pruned", "--engine", "eager", "--seconds", "0.05"),
        *("--batch", "2,1", "--data", place / "pictures", "--out", place / "plot.png", "--json"),
    )


def test_every_model_and_batch_is_measured(measured, place):
    assert measured.code == 0, measured.err
    found = json.loads(measured.out)
    cells = found["cells"]
    assert {(cell["model"], cell["batch"]) for cell in cells} == {
        (str(place / name), batch) for name in ("dense", "pruned") for batch in (1, 2)
    }
    for cell in cells:
        assert cell["engine"] == "eager"
        assert 0 < cell["p50"] <= cell["p95"]
        assert cell["rate"] == pytest.approx(cell["batch"] / cell["p50"])
        assert cell["memory"] > 2**26, "a process with torch in it holds more than this"
        assert cell["share"] == pytest.approx(cell["macs"] * cell["rate"] / found["peak_macs_per_second"])
    work = {cell["model"]: cell["macs"] for cell in cells}
    assert work[str(place / "pruned")] < work[str(place / "dense")]
    assert found["before"]["decode"] > 0
    assert found["before"]["preprocess"] > 0


def test_answers_are_scored_as_evaluate_scores_them(measured, place):
    for cell in json.loads(measured.out)["cells"]:
        other = json.loads(run("evaluate", cell["model"], place / "pictures", "--json").out)
        assert cell["right"] == other["scores"]["accuracy"]


def test_accuracy_against_speed_is_drawn(measured, place):
    with Image.open(place / "plot.png") as picture:
        assert picture.format == "PNG"
        assert picture.width > 600
    assert "is the most accurate" in measured.err


def test_pictures_that_cannot_be_read_cost_no_measurement(place, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    tree(tmp_path / "some", {"cat": 40, "dog": 30})
    (images,) = open_images("some", least=1).by_name.values()
    names = [tmp_path / "some" / images.name(i) for i in range(len(images))]
    looked_at = evenly(len(images), 32)
    for i in (*range(16), *looked_at[:-1]):
        names[i].write_bytes(b"\x89PNG nothing")
    assert files_of(images) == [names[-1].read_bytes()]
    names[-1].write_bytes(b"\x89PNG nothing")
    words = ("bench", place / "dense", "--engine", "eager", "--seconds", "0.01", "--batch", "1", "--json")
    done = run(*words, "--data", "some")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["before"]["told"] == "a JPEG of 500 x 375 pixels"
    assert found["cells"][0]["right"] >= 0
    for path in names:
        path.write_bytes(b"\x89PNG nothing")
    done = run(*words, "--data", "some")
    assert (done.code, done.out) == (3, "")
    assert done.err == "error: none of the 70 images of some can be read; expected one or more\n"


FAILING = """
import numpy

class Core:
    def read_model(self, *paths):
        return self

    inputs, outputs = property(lambda self: [self]), property(lambda self: [self])

    def get_element_type(self):
        return self

    def to_dtype(self):
        return numpy.dtype("float32")

    def get_names(self):
        return {"logits"}

    def clone(self):
        return self

    def reshape(self, shape):
        pass

    def compile_model(self, *settings):
        raise RuntimeError("no such instruction")
"""


def test_an_engine_that_fails_at_its_first_batch_is_left_out(place, monkeypatch, tmp_path):
    (tmp_path / "openvino").mkdir()
    (tmp_path / "openvino" / "__init__.py").write_text(FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    done = run("bench", place / "dense", "--engine", "eager,openvino", "--seconds", "0.01", "--batch", "1")
    assert done.code == 0, done.err
    assert f"note: {place / 'dense'} on openvino is left out: " in done.err
    assert "no such instruction" in done.err
    assert "the process" not in done.err


REFUSALS = [
    (["cat_b16"], 4, "no model found at 'cat_b16'"),
    (["dense", "--batch", "a"], 2, "--batch is 'a'; expected comma-separated whole numbers"),
    (["dense", "--batch", "0"], 2, "--batch is 0"),
    (["dense", "--engine", "openvno"], 2, "did you mean 'openvino'?"),
    (["dense", "--out", "x.png"], 2, "needs --data"),
    (["dense", "--data", "pictures", "--out", "x.txt"], 2, "--out is a .png"),
    (["dense", "--data", "pictures", "--out", "no/x.png"], 2, "there is no folder no; create it"),
    (["dense", "--data", "others"], 3, "has 2 classes that the model does not know"),
    (["nowhere"], 4, "no model found at 'nowhere'"),
]


@pytest.mark.parametrize(("words", "code", "told"), REFUSALS)
def test_what_cannot_work_is_refused_in_a_sentence(place, words, code, told, monkeypatch):
    monkeypatch.chdir(place)
    done = run("bench", *words)
    assert (done.code, done.out) == (code, ""), done.err
    assert told in done.err


def cell(model="a", engine="eager", rate=10.0, right=0.5, macs=10**6):
    return BenchCell(
        model=model, engine=engine, batch=1, p50=1 / rate, p95=2 / rate, rate=rate, memory=2**20, macs=macs,
        share=0.25, rounds=9, right=right,
    )  # fmt: skip


def test_the_table_shows_what_is_known():
    lines = table(bench.table_rows([cell(), cell("b", macs=0, right=-1.0)])).splitlines()
    assert lines[0].split()[-1] == "accuracy"
    assert lines[1].split()[-2:] == ["25%", "50.00%"]
    assert "%" not in lines[2]
    assert "accuracy" not in table(bench.table_rows([cell(right=-1.0)]))


def test_the_plot_takes_each_model_and_engine_at_its_fastest():
    made = bench.plot([cell(rate=10.0), cell(rate=20.0), cell("b", rate=5.0, right=0.9)], 8)
    assert [row[3] for row in made.rows] == [20.0, 5.0]
    assert made.message.startswith("b on eager is the most accurate")


def test_the_peak_and_what_comes_before_a_model_are_measured():
    assert bench.peak(0.01) > 1e8
    found = bench.reading_cost(Preprocess(size=(16, 16)), [bench.photograph()] * 2, "a picture")
    assert found.decode > 0
    assert found.preprocess > 0
    assert "a picture" in bench.reading_line(found)
    found = bench.reading_cost(Preprocess(size=(16, 16)), [b"damaged", bench.photograph()], "two files")
    assert found.pictures == 1
    with pytest.raises(DataError, match="none of the images could be read"):
        bench.reading_cost(Preprocess(size=(16, 16)), [b"damaged"], "a file")
