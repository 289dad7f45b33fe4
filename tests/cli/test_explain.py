"""`saccade explain`: the same numbers in Python, on the screen, in JSON and in the page; clear refusals."""

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.cells import cell_len
from terminal import picture, run

import saccade
from saccade.explain.faithfulness.meter import measure
from saccade.explain.methods.table import METHODS


@pytest.fixture(scope="module")
def cnn(tmp_path_factory):
    """A model folder of a small ResNet."""
    torch.manual_seed(0)
    module = saccade.create("resnet18_small_32", classes=3, image=16, width=4)
    torch.nn.init.normal_(list(module.parameters())[-2], std=0.3)
    made = saccade.Model(module, saccade.Preprocess(size=(16, 16)), ["cat", "dog", "bird"])
    return made.save(tmp_path_factory.mktemp("cnn") / "small")


def known(html):
    """What the script of a page reads."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1])


def test_the_same_numbers_in_python_on_the_screen_in_json_and_in_the_page(model, photo, tmp_path):
    done = run("explain", model, photo, "--out", tmp_path / "out", "--html", tmp_path / "why.html")
    assert done.code == 0, done.err
    python = saccade.load(model).explain(photo)
    told = json.loads((tmp_path / "out" / "photo.json").read_text())
    assert (np.float32(told["grid"]) == python.grid).all()
    assert (told["label"], told["target"], told["method"]) == (python.label, python.target, "relevance")
    assert told["probability"] == pytest.approx(python.probability, abs=1e-7)
    html = known((tmp_path / "why.html").read_text(encoding="utf-8"))
    one = next(m for m in html["maps"] if (m["method"], m["target"]) == ("relevance", python.target))
    values = np.frombuffer(base64.b64decode(one["values"]), "<f4")
    assert (values.reshape(one["rows"], one["columns"]) == python.grid).all()
    assert one["alt"] == told["alt"]
    head, row, _, *words = done.out.splitlines()
    assert re.split(r"  +", head)[1:] == ["answer", "confidence", "hottest", "faithful?"]
    assert f"{python.probability:.1%}" in row
    assert told["where"] in row
    assert row.endswith(told["truth"]["verdict"])
    assert max(map(len, done.out.splitlines())) <= 100
    effect, said = told["truth"]["effect"], " ".join(words)
    assert f"{told['truth']['reason']}." in said
    assert f"the hottest {effect['share']:.0%} of the image" in said
    assert f"random parts: {effect['random']:.0%}." in said
    assert told["truth"]["fill"] in ("blur", "drop", "mean")
    assert f"{told['truth']['reason']}." in one["verdict"]
    printed = json.loads(run("explain", model, photo, "--json").out)
    assert printed[0] | {"picture": "photo.png"} == told
    with Image.open(tmp_path / "out" / "photo.png") as made:
        assert made.width > made.height  # the image and its map, side by side


def test_the_table_fits_100_columns_whatever_the_names_are(tmp_path, model):
    for name in ("a" * 150, "猫" * 40, "x y" * 30):
        picture(tmp_path / f"{name}.png", seed=1)
    done = run("explain", model, tmp_path, "--quick", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert max(map(cell_len, done.out.splitlines())) <= 100


def test_the_truth_is_that_of_the_truth_meter(model, photo):
    network = saccade.load(model)
    (told,) = json.loads(
        run("explain", model, photo, "--method", "gradcam", "--target", "fish", "--json").out
    )
    image = torch.from_numpy(network.preprocess(photo))[None]
    found = measure(network.module, image, torch.tensor([3]), {"gradcam": METHODS["gradcam"].function})
    assert told["truth"]["gain"] == pytest.approx(found.score("gradcam").gain, abs=1e-6)
    assert told["truth"]["verdict"] == found.verdict("gradcam").word
    assert told["score"] == told["truth"]["gain"]
    assert (told["label"], told["target"]) == ("fish", 3)


def test_a_target_may_be_a_number(model, photo):
    words = ("explain", model, photo, "--quick", "--json", "--target")
    assert run(*words, "3").out == run(*words, "fish").out
    assert json.loads(run(*words, "3").out)[0]["truth"] is None


def test_without_wishes_pictures_and_numbers_go_to_a_folder_of_their_own(model, photo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("explained", "explained-2"):
        done = run("explain", model, photo, "--quick")
        assert done.code == 0
        assert f"images and numbers: {name}" in done.err
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == ["photo.json", "photo.png"]
        assert "not measured" in done.out


def test_several_pictures_have_a_folder_of_pages_and_an_index(model, tmp_path):
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        picture(tmp_path / place / "index.png", seed=ord(place))
    done = run("explain", model, tmp_path / "a", tmp_path / "b", "--quick", "--html", tmp_path / "pages")
    assert done.code == 0, done.err
    files = sorted(path.name for path in (tmp_path / "pages").iterdir())
    assert files == ["index-2.html", "index-3.html", "index.html"]
    index = (tmp_path / "pages" / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'<a href="(index-\d.html)">', index) == files[:2]
    assert index.count("Heat map of relevance") == 2
    assert "<script" not in index


def test_count_takes_pictures_evenly(model, tmp_path):
    for i in range(6):
        picture(tmp_path / f"{i}.png", seed=i)
    told = json.loads(run("explain", model, tmp_path, "--count", 3, "--quick", "--json").out)
    assert [each["picture"][-5:] for each in told] == ["0.png", "2.png", "4.png"]


def test_a_picture_may_come_from_stdin(model, photo, tmp_path):
    words = ("explain", model, "-", "--quick", "--out", tmp_path / "out")
    assert run(*words, stdin=photo.read_bytes()).code == 0
    grid = json.loads((tmp_path / "out" / "stdin.json").read_text())["grid"]
    assert (np.float32(grid) == saccade.load(model).explain(photo).grid).all()


def test_all_ranks_every_method_that_fits_beside_the_control(model, tmp_path):
    for i in range(2):
        picture(tmp_path / f"{i}.png", seed=i)
    done = run("explain", model, tmp_path, "--all", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    found = json.loads((tmp_path / "out" / "ranking.json").read_text())
    methods, gains = ([row[i] for row in found["rows"]] for i in (0, found["columns"].index("gain")))
    assert set(methods) == set(METHODS)
    assert gains == sorted(gains, reverse=True)
    head, *rows = done.out.split("\n\n")[0].splitlines()
    verdict = " ".join(done.out.split("\n\n")[1].split())
    assert [row.split()[0] for row in rows] == methods
    assert re.split(r"  +", head)[:3] == ["method", "verdict", "gain"]
    assert "etter than random" in verdict or "can be judged" in verdict
    assert max(map(len, done.out.splitlines())) <= 100
    assert (tmp_path / "out" / "ranking.png").is_file()


def test_masks_say_how_well_a_method_finds_the_object(model, tmp_path):
    photos, masks = tmp_path / "photos", tmp_path / "masks"
    photos.mkdir()
    masks.mkdir()
    for i in range(2):
        picture(photos / f"{i}.png", seed=i)
        mask = np.full((40, 48), 2, np.uint8)
        mask[:, :24], mask[:, 24:30] = 1, 3
        Image.fromarray(mask).save(masks / f"{i}.png")
    done = run("explain", model, photos, "--all", "--masks", masks, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert {row["method"] for row in found["rows"]} == set(METHODS)
    assert [each["count"] for each in found["segmentation"]][:1] == [2]
    (masks / "1.png").unlink()
    missing = run("explain", model, photos, "--all", "--masks", masks)
    assert missing.code == 3
    assert "1.png has no mask in" in missing.err


def test_inside_shows_what_the_model_has_learnt(model, photo, tmp_path):
    done = run("explain", model, photo, "--quick", "--inside", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert (tmp_path / "out" / "inside" / "inside.html").is_file()
    assert "inside the model: " in done.err


def test_only_inside_can_do_without_pictures(model, tmp_path):
    done = run("explain", model, "--inside", "--out", tmp_path / "out")
    assert (done.code, done.out) == (0, ""), done.err
    assert "No images were given" in (tmp_path / "out" / "inside" / "inside.html").read_text()
    done = run("explain", model)
    assert (done.code, done.out) == (2, "")
    assert (
        done.err == "error: no image was given; expected files, folders or -; only --inside works without\n"
    )


def test_a_picture_that_cannot_be_read_does_not_stop_the_others(model, photo, tmp_path):
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no picture")
    done = run("explain", model, bad, photo, "--quick", "--out", tmp_path / "out")
    assert done.code == 1
    assert "bad.jpg is not an image" in done.err
    assert done.err.endswith("1 of 2 images could not be read\n")
    assert "(not read)" in done.out.splitlines()[1]
    assert (tmp_path / "out" / "photo.json").is_file()
    told = json.loads(run("explain", model, bad, photo, "--quick", "--json").out)
    assert "is not an image" in told[0]["error"]
    assert run("explain", model, bad, "--all").code == 3
    assert run("explain", model, bad, "--quick", "--out", tmp_path / "nothing").code == 1
    assert not (tmp_path / "nothing").exists()


def test_a_cnn_is_explained_by_gradcam_and_has_a_page_without_attention(cnn, photo, tmp_path):
    done = run("explain", cnn, photo, "--quick", "--html", tmp_path / "why.html", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)[0]["method"] == "gradcam"
    html = (tmp_path / "why.html").read_text(encoding="utf-8")
    assert known(html)["attention"] is None
    assert "A ResNet has no patches and no attention" in html


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--method", "relevnce"], "the method is 'relevnce', which is not known; did you mean 'relevance'?"),
        (["--target", "dgo"], "the target is 'dgo', which is not a label of this model; did you mean 'dog'?"),
        (["--target", "9"], "the target is class 9; expected a number from 0 to 4"),
        (["--count", "-1"], "count is -1; expected a number from 0"),
        (["--masks", "x"], "there is no folder of masks at 'x'"),
        (["--masks", ".", "--quick"], "--quick and --masks were both given"),
        (["--all", "--quick"], "--quick and --all were both given"),
        (["--all", "--masks", "nowhere"], "there is no folder of masks at 'nowhere'"),
        (["--html", "nowhere/why.html"], "the folder nowhere does not exist"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_exit_code_two(model, photo, words, told):
    done = run("explain", model, photo, *words)
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert done.err.count("\n") == 1


def test_a_cnn_asked_for_rollout_is_told_what_it_can(cnn, photo):
    done = run("explain", cnn, photo, "--method", "rollout")
    assert done.code == 2
    assert "the method is 'rollout', and this model is a CNN, which has no attention; use gradcam" in done.err


def test_nothing_is_overwritten(model, photo, tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("mine")
    for words in (["--out", kept], ["--html", kept]):
        done = run("explain", model, photo, *words)
        assert done.code == 2
        assert "kept exists and is not empty; nothing was written; give another name" in done.err
    page = tmp_path / "why.html"
    page.write_text("mine")
    done = run("explain", model, photo, "--html", page)
    assert (done.code, page.read_text()) == (2, "mine")
    assert "why.html exists; nothing was written" in done.err
    done = run("explain", model, photo, photo, "--html", tmp_path / "both.html")
    assert done.code == 2
    assert "2 images were given, and" in done.err


def test_a_model_without_a_head_has_nothing_to_explain(model, photo, tmp_path):
    network = saccade.load(model)
    config = replace(network.module.config, classes=0)
    headless = saccade.Model(type(network.module)(config), network.preprocess).save(tmp_path / "headless")
    done = run("explain", headless, photo)
    assert done.code == 4
    assert "this model has no head" in done.err
