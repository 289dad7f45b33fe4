"""Maps of the worst mistakes: beside the image, in bounded time, never a reason for a run to fail."""

import base64
import json
import shutil

import pytest
from PIL import Image
from terminal import NAMES, picture, small

import saccade
from saccade.data.readers.open import open_images
from saccade.errors import ModelError
from saccade.report.thumbnails import enlarged
from saccade.tasks.classify import mistakes
from saccade.tasks.classify.task import Classify


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A model folder with its evaluation, and the images."""
    root = tmp_path_factory.mktemp("mistakes")
    for i, name in enumerate(NAMES):
        (root / "images" / name).mkdir(parents=True)
        for j in range(3):
            picture(root / "images" / name / f"{j}.png", seed=3 * i + j)
    folder = small().save(root / "run")
    images = open_images(str(root / "images"), least=1).train
    task = Classify()
    found = task.evaluate(task.load(folder), images, "val")
    (folder / "evaluation.json").write_text(json.dumps(found.details))
    return folder, images, found.details


@pytest.fixture
def fresh(run, tmp_path):
    folder, images, _ = run
    return shutil.copytree(folder, tmp_path / "run"), images


def told(folder):
    return json.loads((folder / "evaluation.json").read_text())


def test_each_mistake_has_the_map_of_what_was_predicted(fresh):
    folder, images = fresh
    mistakes.explain_mistakes(folder, images)
    found, model = told(folder), saccade.load(folder)
    assert "the evidence for the predicted class (by relevance)" in found["maps"]
    assert "There was time" not in found["maps"]
    for each in found["mistakes"]:
        heatmap = model.explain(images.open([images.name(i) for i in range(len(images))].index(each["path"])))
        assert heatmap.label == each["predicted"]
        assert each["map"] == enlarged(heatmap.overlay())
        assert base64.b64decode(each["map"]).startswith((b"\x89PNG", b"\xff\xd8\xff"))


def test_an_evaluation_has_correct_examples_and_the_worst_mistakes(run):
    details = run[2]
    assert details["mistakes"]
    assert all(card["label"] == card["predicted"] for card in details["correct"])
    assert all(card["label"] != card["predicted"] for card in details["mistakes"])
    assert len(details["correct"]) + len(details["mistakes"]) == details["scores"]["count"]


def test_the_time_for_maps_is_bounded(fresh, monkeypatch):
    folder, images = fresh
    monkeypatch.setattr(mistakes, "SECONDS", -1.0)
    mistakes.explain_mistakes(folder, images)
    assert "There was time for 0 maps; `saccade explain` makes the others." in told(folder)["maps"]
    assert not any("map" in each for each in told(folder)["mistakes"])


@pytest.mark.parametrize("error", [ModelError("no map"), RuntimeError("out of memory")])
def test_a_model_that_cannot_be_explained_has_a_note(fresh, monkeypatch, error):
    def refuse(*_):
        raise error

    folder, images = fresh
    monkeypatch.setattr(mistakes, "heatmaps", refuse)
    mistakes.explain_mistakes(folder, images)
    assert told(folder)["maps"] == "Maps of the evidence could not be made for this model."


def test_without_mistakes_nothing_is_written(fresh):
    folder, images = fresh
    details = told(folder) | {"mistakes": []}
    (folder / "evaluation.json").write_text(json.dumps(details))
    mistakes.explain_mistakes(folder, images)
    assert told(folder) == details


def test_photographs_are_kept_as_jpeg_and_tiny_images_as_squares():
    photo, tiny = (base64.b64decode(enlarged(Image.new("RGB", (side, side)))) for side in (400, 8))
    assert photo.startswith(b"\xff\xd8\xff")
    assert tiny.startswith(b"\x89PNG")
