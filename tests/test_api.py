import io
import json
import math
import shutil
import subprocess
import sys
from contextlib import closing
from itertools import cycle, islice

import forked
import numpy as np
import pytest
import torch
from PIL import Image
from terminal import NAMES, picture, small
from trees import tree

import saccade
from saccade.data.image.preprocess import Preprocess
from saccade.errors import DataError, ModelError, UsageError


@pytest.fixture
def photo(tmp_path):
    return picture(tmp_path / "photo.png")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small().save(tmp_path_factory.mktemp("api") / "model")


def test_the_public_names_are_few_and_come_when_they_are_called():
    assert dir(saccade) == [
        "Model",
        "Prediction",
        "Preprocess",
        "SaccadeError",
        "TextModel",
        "__version__",
        "create",
        "load",
        "train",
    ]
    for name in dir(saccade):
        assert getattr(saccade, name) is not None
    with pytest.raises(AttributeError, match=r"saccade has no 'laod'; it has Model, Prediction"):
        saccade.laod  # noqa: B018
    assert saccade.SaccadeError.exit_code == 2


@pytest.mark.slow
def test_importing_all_names_works_in_a_fresh_process():
    code = "from saccade import *; print(load, create)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).returncode == 0


def test_predictions_are_sorted_probabilities(folder, photo):
    best = saccade.load(folder).predict(photo, top=5)
    assert sum(p.score for p in best) == pytest.approx(1, abs=1e-5)
    assert [p.score for p in best] == sorted((p.score for p in best), reverse=True)
    assert [p.label for p in best] == [NAMES[p.index] for p in best]
    assert isinstance(best[0], saccade.Prediction)


def test_every_kind_of_picture_gives_the_same_answer(folder, photo):
    model = saccade.load(folder)
    opened = Image.open(photo)
    kinds = [
        photo,
        str(photo),
        photo.read_bytes(),
        io.BytesIO(photo.read_bytes()),
        opened,
        np.asarray(opened),
    ]
    answers = [model.predict(kind) for kind in kinds]
    assert all(answer == answers[0] for answer in answers)


def test_a_list_gives_a_list_of_answers_and_a_single_picture_one(folder, tmp_path):
    model = saccade.load(folder)
    photos = [picture(tmp_path / f"{i}.png", i) for i in range(20)]  # more than one batch
    alone = [model.predict(photo, top=2) for photo in photos]
    for several in (photos, tuple(photos), iter(photos)):
        together = list(model.predict(several, top=2))
        assert [[p.index for p in one] for one in together] == [[p.index for p in one] for one in alone]
        assert [one[0].score for one in together] == pytest.approx([one[0].score for one in alone], abs=1e-6)
    assert model.predict([]) == []


@pytest.mark.parametrize("top", [0, -3])
def test_top_must_be_positive(folder, photo, top):
    with pytest.raises(UsageError, match=f"top is {top}; expected 1 or more"):
        saccade.load(folder).predict(photo, top=top)


def test_what_is_no_picture_is_told_in_words(folder, tmp_path):
    model = saccade.load(folder)
    with pytest.raises(DataError, match="does not exist; expected an image"):
        model.predict(tmp_path / "none.png")
    with pytest.raises(DataError, match="expected uint8 RGB of shape"):
        model.predict(np.zeros((4, 4)))


def test_embeddings_are_rows_of_numbers(folder, tmp_path):
    model = saccade.load(folder)
    photos = [picture(tmp_path / f"{i}.png", i) for i in range(18)]
    rows = model.embed(photos)
    assert (rows.shape, rows.dtype) == ((18, 32), np.float32)
    np.testing.assert_allclose(rows[17], model.embed([photos[17]])[0], atol=1e-5)
    assert model.embed([]).shape == (0, 32)
    with pytest.raises(UsageError, match=r"embed was given one image; expected a list of them"):
        model.embed(str(photos[0]))


@pytest.mark.parametrize(
    ("change", "width"),
    [
        ({}, 32),
        ({"pool": "pair"}, 32),
        ({"pool": "token+mean"}, 64),
        ({"pool": "mean"}, 32),
        ({"classes": 0}, 32),
    ],
    ids=str,
)
def test_an_embedding_is_one_vector_whatever_the_pool(change, width, photo):
    model = small(**change)
    assert model.embed([photo]).shape == (1, width)
    assert model.embed([]).shape == (0, width)


def test_a_pair_of_heads_answers_with_probabilities(photo, tmp_path):
    model = small(pool="pair")
    best = model.predict(photo)
    assert sum(p.score for p in best) == pytest.approx(1, abs=1e-5)
    assert saccade.load(model.save(tmp_path / "pair")).predict(photo) == best


def test_a_model_without_a_head_embeds_but_does_not_predict(photo, tmp_path):
    model = saccade.load(small(classes=0).save(tmp_path / "headless"))
    assert model.embed([photo]).shape == (1, 32)
    with pytest.raises(ModelError, match=r"no classes to choose from; use embed\(\)"):
        model.predict(photo)


@pytest.mark.parametrize("layout", ["saccade", "timm", "hf"])
def test_a_saved_model_gives_identical_logits(layout, tmp_path):
    model = small()
    image = torch.randn(2, 3, 32, 32)
    assert model.save(str(tmp_path / "there"), layout) == tmp_path / "there"
    back = saccade.load(tmp_path / "there")
    assert back.layout == layout
    with torch.inference_mode():
        assert torch.equal(back.module(image), model.module(image))
    assert not back.module.training


def test_saving_never_overwrites(folder, tmp_path):
    with pytest.raises(UsageError, match="exists and is not empty; nothing was written"):
        small().save(folder)
    (tmp_path / "file").write_text("work")
    with pytest.raises(UsageError, match="exists and is not empty"):
        small().save(tmp_path / "file")
    with pytest.raises(UsageError, match="cannot be written"):
        small().save(tmp_path / "file" / "below")
    with pytest.raises(UsageError, match="layout is 'onnx', which is not known"):
        small().save(tmp_path / "onnx", "onnx")
    with pytest.raises(UsageError, match="would give wrong answers there"):
        small().save(tmp_path / "google", "google")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_labels_are_kept_on_one_line_and_never_empty(tmp_path):
    model = saccade.Model(small().module, Preprocess(size=(32, 32)), ["a\nb", "", " c ", "\x1b[31m", "e"])
    assert model.labels == ["a b", "class 1", "c", r"\x1b[31m", "e"]
    assert saccade.load(model.save(tmp_path / "labels")).labels == model.labels
    assert saccade.Model(small().module, Preprocess(size=(32, 32))).label(3) == "class 3"


def test_load_takes_another_size_of_picture_and_patch(folder, photo):
    wide = saccade.load(folder, image=(32, 64))
    assert wide.module.config.image == wide.preprocess.size == (32, 64)
    assert saccade.load(folder, image=64).preprocess.size == (64, 64)
    assert saccade.load(folder, image=64, patch=16).module.config.grid == (4, 4)
    assert len(wide.predict(photo)) == 5
    for patch in (0, -1, 5000):
        with pytest.raises(UsageError, match=f"patch is {patch}; expected a number from 1 to 1024"):
            saccade.load(folder, patch=patch)
    with pytest.raises(UsageError, match="not a whole number of 8-pixel patches"):
        saccade.load(folder, image=33)


def test_load_takes_another_preprocessing_and_other_labels(folder, photo):
    other = Preprocess(size=(32, 32), fit="squash")
    model = saccade.load(folder, preprocess=other, labels=list("abcde"))
    assert model.preprocess == other
    assert {p.label for p in model.predict(photo)} == set("abcde")
    with pytest.raises(UsageError, match="2 labels for 5 classes; give one for each"):
        saccade.load(folder, labels=["a", "b"])


def test_load_refuses_a_device_that_is_not_there(folder):
    assert saccade.load(folder, device="cpu").device == torch.device("cpu")
    assert saccade.load(folder).device.type == str(torch.accelerator.current_accelerator() or "cpu")
    for device in ("cuda:99", "nonsense"):
        with pytest.raises(
            UsageError, match=f"device is '{device}', which is not available here .* auto, cpu"
        ):
            saccade.load(folder, device=device)


@pytest.mark.parametrize("name", ["", "no/such/model", "x.safetensors", "a\0b", "x" * 9999, "missing.pth"])
def test_a_model_that_is_not_there_is_told_in_words(name):
    with pytest.raises(ModelError, match=r"no model found at|cannot be a model"):
        saccade.load(name)


def test_a_created_model_is_untrained_and_has_the_classes_asked_for():
    vit = saccade.create("vit_ti16", classes=7, depth=2, image=64)
    assert vit(torch.zeros(1, 3, 64, 64)).shape == (1, 7)
    assert vit.config.depth == 2
    assert saccade.create("resnet18", classes=3).config.classes == 3


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("vit_b_16", {}, "no model is named 'vit_b_16'; did you mean 'vit_b16'"),
        ("", {}, "no model is named ''"),
        ("vit_b16", {"widht": 3}, "a field of vit_b16 is 'widht', which is not known; did you mean 'width'"),
        ("vit_b16", {"width": 0}, "width is 0; expected a number from 1 to"),
        ("vit_b16", {"width": "3"}, "cannot make vit_b16 with width='3'"),
        ("vit_b16", {"image": 225}, "not a whole number of 16-pixel patches"),
        ("vit_b16", {"pool": "maen"}, "pool is 'maen', which is not known; did you mean 'mean'"),
        ("vit_b16", {"block": 3}, "cannot make vit_b16 with block=3"),
        ("vit_b16", {"classes": -1}, "classes is -1; expected a number from 0"),
    ],
)
def test_a_model_that_cannot_be_created_is_told_in_words(name, changes, told):
    with pytest.raises(UsageError, match=told):
        saccade.create(name, **changes)


def test_a_width_that_does_not_split_into_heads_is_told_in_words():
    with pytest.raises(ValueError, match="does not split into 12 heads"):
        saccade.create("vit_b16", width=100)


def test_a_model_says_what_it_is():
    assert repr(small()) == "Model(ViT, 24,037 parameters, 5 classes)"


def test_training_returns_the_model_and_can_be_called_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tree(tmp_path / "pictures", {"cat": 8, "dog": 8})
    settings = {"budget__epochs": 1, "budget__batch": 4, "augment__crop": (0.5, 1.0), "workers": 0}
    for name in ("run", "runs/pictures-vit_xs4_12", "runs/pictures-vit_xs4_12-2"):
        out = tmp_path / "run" if name == "run" else None
        model = saccade.train(tmp_path / "pictures", model="vit_xs4_12", out=out, quiet=True, **settings)
        assert model.labels == ["cat", "dog"]
        assert model.folder.resolve() == tmp_path / name
        assert (model.folder / "report.html").is_file()
    assert model.evaluate().count == 4  # what its run held out
    with pytest.raises(UsageError, match="run holds a run already; nothing was written"):
        saccade.train(tmp_path / "pictures", out=tmp_path / "run")
    with pytest.raises(UsageError, match="Recipe has no field 'colour'"):
        saccade.train(tmp_path / "pictures", colour=3)


def test_a_picture_is_explained_for_what_is_predicted_or_for_a_class(folder, photo):
    model = saccade.load(folder)
    best = model.predict(photo, top=1)[0]
    made = model.explain(photo)
    assert (made.method, made.target, made.label) == ("relevance", best.index, best.label)
    assert made.probability == pytest.approx(best.score, abs=1e-6)
    assert made.grid.shape == (4, 4)
    assert np.array_equal(made.picture, model.preprocess.view(photo))
    for target in ("bird", "Bird", 2, "2"):
        other = model.explain(photo, target=target)
        assert (other.target, other.label) == (2, "bird")
        assert not np.array_equal(other.grid, made.grid)
    (bird,) = (p for p in model.predict(photo, top=5) if p.label == "bird")
    assert other.probability == pytest.approx(bird.score, abs=1e-6)


def test_a_list_of_pictures_is_explained_as_each_alone(folder, photo):
    model = saccade.load(folder)
    rng = np.random.default_rng(0)
    photos = [photo, *rng.integers(0, 256, (5, 40, 30, 3)).astype(np.uint8)]
    made = model.explain(photos, method="gradient_rollout")
    assert len(made) == 6
    for one, source in zip(made, photos, strict=True):
        alone = model.explain(source, method="gradient_rollout")
        assert one.target == alone.target
        assert np.allclose(one.grid, alone.grid, atol=1e-5)
    assert model.explain([], method="rollout") == []
    with io.BytesIO(photo.read_bytes()) as stream:
        assert np.array_equal(model.explain(stream, "rollout").grid, model.explain(photo, "rollout").grid)


def test_what_cannot_be_explained_is_told_in_words(photo):
    with pytest.raises(ModelError, match="this model has no head"):
        small(classes=0).explain(photo)
    with pytest.raises(UsageError, match=r"the target is 'brid', which is not a label.*did you mean 'bird'"):
        small().explain(photo, target="brid")
    with pytest.raises(UsageError, match="the method is 'magic', which is not known"):
        small().explain(photo, method="magic")
    cnn = saccade.Model(saccade.create("resnet18_small_w4_16", classes=3), Preprocess(size=(16, 16)))
    with pytest.raises(UsageError, match="this model is a CNN, which has no attention; use gradcam"):
        cnn.explain(photo)
    assert cnn.explain(photo, "gradcam").grid.shape == (2, 2)


def test_a_generator_of_pictures_gives_a_lazy_generator_of_answers(folder, tmp_path):
    model = saccade.load(folder)
    photos = [picture(tmp_path / f"{i}.png", i) for i in range(7)]
    taken = []
    answers = model.predict((taken.append(photo) or photo for photo in cycle(photos)), top=1, batch=2)
    assert taken == []  # nothing is read before it is asked for
    with closing(answers):
        first = list(islice(answers, 7))
    assert 7 <= len(taken) < 10_000  # a few batches ahead of an endless source
    assert [p[0].index for p in first] == [p[0].index for p in model.predict(photos, top=1, batch=2)]
    with pytest.raises(UsageError, match="batch is 0; expected a number from 1"):
        model.predict(photos, batch=0)


def test_progress_is_shown_on_stderr_and_changes_no_answer(folder, tmp_path, capsys):
    model = saccade.load(folder)
    photos = [picture(tmp_path / f"{i}.png", i) for i in range(3)]
    assert model.predict(photos, progress=True) == model.predict(photos)
    shown = capsys.readouterr()
    assert "predicting" in shown.err
    assert shown.out == ""


def test_a_notebook_shows_predictions_as_an_escaped_table(folder, photo):
    model = saccade.load(folder, labels=["<script>", "b", "c", "d", "e"])
    found = model.predict(photo)
    assert found == list(found)
    html = found._repr_html_()
    assert html.count("<tr>") == 6
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    heat = model.explain(photo, target="<script>")._repr_html_()
    assert "data:image/png;base64," in heat
    assert "&lt;script&gt;" in heat
    assert "<script>" not in heat


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model trained for an epoch, in a folder whose name is markup, and its images."""
    place = tmp_path_factory.mktemp("trained")
    tree(place / "pictures", {"cat": 8, "dog": 8})
    model = saccade.train(
        place / "pictures",
        model="vit_xs4_12",
        out=place / "<b>run",
        quiet=True,
        budget__epochs=1,
        budget__batch=4,
        workers=0,
    )
    return model, place / "pictures"


def test_a_notebook_shows_a_run_as_an_escaped_table(trained):
    model, _ = trained
    html = model.run._repr_html_()
    assert "&lt;b&gt;run" in html
    assert "<b>" not in html
    assert "validation accuracy" in html
    assert model.run.summary in html
    assert model.run.report.is_file()
    assert saccade.load(model.folder).run.summary == model.run.summary
    assert small().run is None


def test_evaluate_gives_the_scores_of_the_command(trained):
    from terminal import run

    model, data = trained
    found = model.evaluate(data, split="train")
    assert (found.split, found.count) == ("train", 12)  # without what the run held out
    told = json.loads(run("evaluate", model.folder, data, "--split", "train", "--json").out)
    assert found.details["scores"] == told["scores"]
    with pytest.raises(UsageError, match="has no split 'tset'"):
        model.evaluate(data, split="tset")
    stranger = saccade.Model(small().module, Preprocess(size=(32, 32)), list("abcde"))
    with pytest.raises(DataError, match="2 classes that the model does not know"):
        stranger.evaluate(data)
    with pytest.raises(ModelError, match="has no labels to compare its answers with"):
        saccade.Model(small().module, Preprocess(size=(32, 32))).evaluate(data)


def test_an_exported_model_answers_as_the_model_does(folder, photo, tmp_path):
    from terminal import run

    code = "import saccade, sys; print(saccade.load(sys.argv[1]).export(sys.argv[2]))"  # without shape checks
    done = forked.run(folder, tmp_path / "graph", code=code)
    assert done.stdout == f"{tmp_path / 'graph'}\n", done.stderr
    model = saccade.load(folder)
    (told,) = json.loads(run("predict", tmp_path / "graph", photo, "--json").out)
    for known, found in zip(model.predict(photo), told["predictions"], strict=True):
        assert (known.label, known.score) == (found["label"], pytest.approx(found["score"], abs=1e-4))
    with pytest.raises(UsageError, match="--to is 'onx', which is not known"):
        model.export(tmp_path / "other", to="onx")
    with pytest.raises(UsageError, match="exists and is not empty"):
        model.export(tmp_path / "graph")


def test_bench_measures_the_model_in_memory(folder):
    found = saccade.load(folder).bench(engine="eager", batches=[1], seconds=0.05)
    assert [(cell.model, cell.engine, cell.batch) for cell in found.cells] == [("ViT", "eager", 1)]
    assert found.cells[0].rate > 0
    assert "images/s" in found._repr_html_()


def test_prune_gives_a_model_with_fewer_patches(trained, tmp_path):
    from saccade.tokens.prune import Pruned

    model, data = trained
    made = model.prune(data, keep=0.7, how="attention", out=tmp_path / "pruned")
    assert isinstance(made.module, Pruned)
    assert made.labels == model.labels
    assert (tmp_path / "pruned" / "pruning.json").is_file()
    other = saccade.Model(model.module, model.preprocess, model.labels)  # from no folder
    assert isinstance(
        other.prune(data, keep=0.7, how="attention", out=tmp_path / "other").module, type(made.module)
    )
    with pytest.raises(UsageError, match="no target was given"):
        model.prune(data)


def test_a_tensor_is_an_image_or_several(folder, tmp_path):
    model = saccade.load(folder)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 48, 3), dtype=np.uint8)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    wanted = model.predict(pixels)
    assert model.predict(tensor) == model.predict(tensor / 255) == wanted
    assert (
        model.predict(torch.stack([tensor, tensor]))
        == model.predict([tensor, pixels])
        == model.predict([pixels] * 2)
    )
    assert np.array_equal(model.explain(tensor).grid, model.explain(pixels).grid)
    assert np.array_equal(model.embed(tensor[None]), model.embed([pixels]))


@pytest.mark.parametrize(
    ("shape", "change", "told"),
    [
        ((40, 48), 0, r"float32 of shape \(40, 48\); expected \(3, H, W\) or \(b, 3, H, W\)"),
        ((40, 48, 3), 0, r"of shape \(40, 48, 3\); .* permute it first"),
        ((3, 40, 48), -0.5, r"values from -0.5 to 0.5; .* if it is normalised already, call model.module"),
        ((3, 40, 48), 254, r"expected uint8 from 0 to 255 or float from 0 to 1"),
    ],
)
def test_a_tensor_that_is_no_image_is_refused_in_words(shape, change, told, folder):
    tensor = torch.linspace(0, 1, math.prod(shape)).reshape(shape) + change
    with pytest.raises(UsageError, match=told):
        saccade.load(folder).predict(tensor)


def test_a_folder_gives_an_answer_for_each_of_its_images(folder, photo, tmp_path):
    model = saccade.load(folder)
    (tmp_path / "album" / "more").mkdir(parents=True)
    for name in ("b.png", "more/a.png"):
        shutil.copy(photo, tmp_path / "album" / name)
    assert (
        model.predict(tmp_path / "album")
        == model.predict(str(tmp_path / "album"))
        == model.predict([photo] * 2)
    )
    (tmp_path / "bare").mkdir()
    with pytest.raises(DataError, match="contains no images"):
        model.predict(tmp_path / "bare")


def test_training_takes_the_options_of_the_command(tmp_path):
    data = tree(tmp_path / "data", {"a": 6, "b": 6})
    given = {"epochs": 1, "batch": 4, "lr": 0.01, "seed": 3, "device": "cpu", "image": 16}
    made = saccade.train(data, model="vit_xs8_16", out=tmp_path / "run", quiet=True, workers=0, **given)
    kept = json.loads((made.folder / "recipe.json").read_text())
    assert (kept["budget"]["epochs"], kept["budget"]["batch"], kept["optim"]["lr"]) == (1, 4, 0.01)
    assert (kept["seed"], kept["device"], kept["image"]) == (3, "cpu", 16)
    with pytest.raises(UsageError, match="contradict each other"):
        saccade.train(data, epochs=3, budget__epochs=5)
