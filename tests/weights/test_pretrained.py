"""Published weights by name: the table, the cache, a stand-in for the hub, and what a run records of them."""

import hashlib
import json
import time
from dataclasses import replace

import forked
import numpy as np
import pytest
import torch
from hub import Hub, isolate
from pictures import encode
from terminal import run

import saccade
from saccade.api.doctor import check_model
from saccade.api.models import Model
from saccade.data.image.preprocess import Preprocess
from saccade.errors import ModelError, UsageError
from saccade.hub import fetch as client
from saccade.models import names
from saccade.models.build import build
from saccade.models.cost import count
from saccade.models.vit import ViTConfig
from saccade.nn.block import BlockStyle
from saccade.tasks import find_task
from saccade.train.start import default_recipe
from saccade.vision import backbone
from saccade.weights.identify import identify, locate
from saccade.weights.lineage import ancestors, descent, read_lineage, words_for
from saccade.weights.pretrained import PRETRAINED, SMALL, obtain, rows

SMALL_VIT = ViTConfig(
    image=(32, 32), patch=16, width=16, depth=1, heads=2, hidden=32, classes=5,
    block=BlockStyle(gelu="erf", eps=1e-6),
)  # fmt: skip
HUB = PRETRAINED[SMALL].hub
LICENCES = {"Apache-2.0", "MIT"}


def photo(label, number, side=16):
    """A noisy image whose colour tells its class."""
    rng = np.random.default_rng((label, number))
    tint = np.array([[200, 60, 60], [60, 200, 60], [60, 60, 200]])[label]
    return encode(np.clip(tint + rng.normal(0, 60, (side, side, 3)), 0, 255).astype(np.uint8), "PNG")


def photos(root, classes=3, each=8, side=16):
    for label in range(classes):
        folder = root / ["red", "green", "blue"][label]
        folder.mkdir(parents=True)
        for i in range(each):
            (folder / f"{i}.png").write_bytes(photo(label, i, side))
    return root


def published(folder):
    """Small weights as timm puts them on the hub."""
    torch.manual_seed(0)
    module = build(SMALL_VIT)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    made = Model(module, Preprocess(size=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)).save(folder, "timm")
    return {path.name: path.read_bytes() for path in made.iterdir()}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)
    with Hub({HUB: published(tmp_path / "published")}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        yield hub


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Class folders in the working directory; every side counts as that of a photograph."""
    photos(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(backbone, "SMALLEST", 0)
    return tmp_path


TRAIN = ("train", "photos", "--out", "runs/photos", "--set", "workers=0")
BRIEF = ("--set", "budget.epochs=1")


def test_every_name_is_a_variant_and_an_origin_under_a_permissive_licence():
    for name, known in PRETRAINED.items():
        variant, _, origin = name.partition(".")
        made = names.config(f"{variant}_{known.image}", known.classes)
        assert origin
        assert known.licence in LICENCES
        assert made.image == (known.image, known.image)
        assert known.megabytes == pytest.approx(known.parameters * 4 / 1e6, rel=0.01)


def test_the_parameters_in_the_table_are_those_of_the_architecture():
    for name, known in PRETRAINED.items():
        vit = names.config(f"{name.partition('.')[0]}_{known.image}", known.classes)
        params, _ = count(vit)
        assert known.parameters == pytest.approx(params, abs=2 * vit.width)  # a position for the class token


def test_a_name_is_fetched_once_and_then_read_from_the_cache(hub):
    path = locate(SMALL)
    assert identify(path).headers
    asked = len(hub.requests)
    assert locate(SMALL) == path
    assert len(hub.requests) == asked
    assert saccade.load(SMALL).module.config.width == 16


def test_a_name_works_at_the_command_line(hub, tmp_path):
    (tmp_path / "cat.png").write_bytes(photo(0, 1))
    pulled = run("pull", SMALL)
    assert (pulled.code, "snapshots" in pulled.out) == (0, True)
    assert run("predict", SMALL, tmp_path / "cat.png").code == 0
    assert run("doctor", SMALL).out.count("timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k@") == 1


@pytest.mark.parametrize("words", [("pull", "vit_ti16.augre"), ("predict", "vit_ti16.augre", "cat.png")])
def test_a_slip_in_a_name_gets_the_nearest(hub, words):
    done = run(*words)
    assert done.code in (2, 4)
    assert "did you mean 'vit_ti16.augreg'?" in done.err
    assert not hub.requests


def test_the_table_says_what_is_cached_and_loads_no_torch(hub):
    assert not any(row["cached"] for row in rows())
    locate(SMALL)
    assert [row["name"] for row in rows() if row["cached"]] == [SMALL]
    listed = run("models", "--pretrained")
    assert "Apache-2.0" in listed.out
    assert listed.out.splitlines()[1].split()[:5] == [SMALL, "5.7", "M", "22.9", "224"]
    found = json.loads(run("models", SMALL, "--pretrained", "--json").out)
    assert [row["hub"] for row in found] == [HUB]
    assert "NAME is 'vit_b16'" in run("models", "vit_b16", "--pretrained").err


def test_training_starts_from_published_weights_and_says_so(hub, place):
    done = run(*TRAIN, *BRIEF)
    assert done.code == 0, done.err
    assert f"{SMALL} (Apache-2.0, 22.9 MB, trained on ImageNet-21k" in done.err
    assert "with a new head for 3 classes instead of its 5" in done.err
    assert "a linear probe first, then all layers" in done.err
    assert json.loads((place / "runs/photos/recipe.json").read_text())["model"] == SMALL


def test_scratch_asks_nobody(hub, place):
    done = run(*TRAIN, *BRIEF, "--scratch")
    assert done.code == 0, done.err
    assert "from scratch" in done.err
    assert SMALL not in done.err
    assert not hub.requests
    model = saccade.train(
        place / "photos", scratch=True, out=place / "run", quiet=True, workers=0, budget__epochs=1
    )
    assert not model.lineage
    with pytest.raises(UsageError, match="--scratch was given with the model 'vit_xs4_16'"):
        saccade.train(place / "photos", model="vit_xs4_16", scratch=True)


def test_small_images_start_from_scratch_without_a_word(hub, place, monkeypatch):
    monkeypatch.setattr(backbone, "SMALLEST", 48)
    done = run(*TRAIN, *BRIEF)
    assert (done.code, SMALL in done.err) == (0, False)
    assert not hub.requests


@pytest.mark.parametrize("how", ["offline", "gone", "slow", "without the file"])
def test_without_weights_it_says_what_to_expect_and_how_to_get_them(hub, place, monkeypatch, how):
    reason = {
        "offline": "HF_HUB_OFFLINE is set",
        "gone": "could not be reached",
        "slow": "did not answer within 0.3 seconds",
        "without the file": "has no weights among its 1 files",
    }[how]
    if how == "offline":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    elif how == "gone":
        hub.stop()
    elif how == "slow":
        hub.delay = 2.0
        monkeypatch.setattr(client, "QUICK", 0.3)
    else:
        hub.push(HUB, {"README.md": b"# nothing"})
    began = time.monotonic()
    found = default_recipe(find_task(), find_task().open("photos", find_task().recipe()), "", [])
    assert time.monotonic() - began < 10
    recipe, why = found
    assert recipe.model.startswith("conv_vit")
    assert f"no pretrained weights ({HUB}" in why or f"({reason}" in why or reason in why
    assert "60.6% after 4 minutes from scratch" in why
    assert f"run `saccade pull {SMALL}` on a machine with a network and set HF_HOME" in why
    assert "or give --model FILE" in why
    if how == "offline":
        assert not hub.requests


def test_weights_in_the_cache_need_no_hub(hub, place, monkeypatch):
    assert obtain(SMALL) == ""
    hub.stop()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    recipe, why = default_recipe(find_task(), find_task().open("photos", find_task().recipe()), "", [])
    assert recipe.model == SMALL
    assert "note:" not in why


def test_a_probe_without_a_model_takes_the_same_weights(hub, place):
    done = run("train", "photos", "--probe", "--out", "runs/photos", "--set", "workers=0")
    assert done.code == 0, done.err
    assert f"{SMALL} (Apache-2.0" in done.err
    assert [row["hub"] for row in saccade.load(place / "runs/photos").lineage] == [HUB]


def test_the_lineage_goes_along(hub, place, tmp_path):
    assert run(*TRAIN, *BRIEF).code == 0
    [first] = saccade.load(place / "runs/photos").lineage
    assert (first["name"], first["hub"], first["licence"]) == (SMALL, HUB, "Apache-2.0")
    assert first["revision"] == hub.branches[HUB, "main"]
    assert (
        first["sha256"]
        == hashlib.sha256(hub.commits[HUB, first["revision"]]["model.safetensors"]).hexdigest()
    )
    assert first["trained_on"].startswith("ImageNet-21k")
    assert json.loads((place / "runs/photos/data.json").read_text())["lineage"] == [first]
    page = (place / "runs/photos/report.html").read_text()
    assert "Starting weights" in page
    assert first["sha256"] in page

    second = run("train", "photos", "--model", "runs/photos", "--out", "twice", *BRIEF, "--set", "workers=0")
    assert second.code == 0, second.err
    own, grandparent = saccade.load("twice").lineage
    assert grandparent == first
    assert (own["name"], own["trained_on"]) == ("photos", "photos")
    assert own["sha256"] == hashlib.sha256((place / "runs/photos/model.safetensors").read_bytes()).hexdigest()

    saved = saccade.load("twice").save(tmp_path / "saved")
    assert saccade.load(saved).lineage == [own, grandparent]
    graph = tmp_path / "graph"
    forked.run("export", "twice", graph, check=True)  # not under the shape checker
    assert list(ancestors(identify(graph))) == [own, grandparent]
    told = [row.words for row in check_model("twice") if row.test == "made from"]
    assert told == [words_for(own), words_for(grandparent)]
    assert f"{SMALL} ({HUB}@{first['revision'][:7]}, licence Apache-2.0, trained on ImageNet-21k" in told[1]


def test_a_local_file_is_written_down_by_its_name_digest_and_the_licence_beside_it(tmp_path):
    published(tmp_path / "mine")
    found = descent(identify(tmp_path / "mine"))
    digest = hashlib.sha256((tmp_path / "mine/model.safetensors").read_bytes()).hexdigest()
    assert found == [{"name": "mine", "sha256": digest}]
    assert words_for(found[0]) == f"mine (licence unknown, SHA-256 {digest[:12]})"
    (tmp_path / "mine/README.md").write_text("---\nlicense: mit\ntags: [a]\n---\n# Mine\n")
    assert descent(identify(tmp_path / "mine"))[0]["licence"] == "mit"
    config = json.loads((tmp_path / "mine/config.json").read_text())
    config["pretrained_cfg"]["license"] = "apache-2.0"
    (tmp_path / "mine/config.json").write_text(json.dumps(config))
    assert descent(identify(tmp_path / "mine"))[0]["licence"] == "apache-2.0"
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes((tmp_path / "mine/model.safetensors").read_bytes())
    assert descent(identify(alone)) == [{"name": "alone.safetensors", "sha256": digest}]


@pytest.mark.parametrize("kept", [None, 3, "x", {}, [3, "x", None], [{"name": 3}], [{"other": "x"}]])
def test_a_lineage_that_is_none_is_left_out(kept):
    assert not any(read_lineage(kept))


def test_a_lineage_from_a_stranger_is_one_printable_line_each():
    [row] = read_lineage([{"name": "a\x1b[31m\nb", "licence": "x" * 999}])
    assert row["name"].isprintable()
    assert len(row["licence"]) == 200
    assert len(read_lineage([{"name": "a"}] * 99)) == 20


def test_folds_start_from_the_weights_too(hub, place):
    done = run(*TRAIN, "--folds", "2", *BRIEF)
    assert done.code == 0, done.err
    assert f"{SMALL} (Apache-2.0" in done.err
    assert [row["hub"] for row in saccade.load(place / "runs/photos").lineage] == [HUB]


def test_an_unknown_file_still_says_what_a_model_may_be(hub):
    with pytest.raises(ModelError, match=r"no model found at 'nothing.here'; expected a run folder"):
        locate("nothing.here")


@pytest.fixture
def real(monkeypatch, tmp_path, data):
    """The published ViT-Ti, served as its repository on the hub is."""
    weights = data / "vit_tiny_patch16_224.fp16.safetensors"
    if not weights.is_file():
        pytest.skip(f"no {weights.name} in {data}")
    config = {
        "architecture": "vit_tiny_patch16_224", "num_classes": 1000, "num_features": 192,
        "global_pool": "token",
        "pretrained_cfg": {
            "tag": "augreg_in21k_ft_in1k", "input_size": [3, 224, 224], "interpolation": "bicubic",
            "crop_pct": 0.9, "mean": [0.5] * 3, "std": [0.5] * 3, "num_classes": 1000,
        },
    }  # fmt: skip
    isolate(monkeypatch, tmp_path)
    files = {"config.json": json.dumps(config).encode(), "model.safetensors": weights.read_bytes()}
    with Hub({HUB: files}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        yield hub


def test_the_real_weights_come_from_a_hub_by_name_and_are_fine_tuned(real, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photos(tmp_path / "photos", 2, 6, 64)
    done = run(*TRAIN, *BRIEF, "--set", "budget.steps=1")
    assert done.code == 0, done.err
    assert "vit_ti16.augreg (Apache-2.0, 22.9 MB" in done.err
    assert "epoch 0/1  (before training)" in done.err
    model = saccade.load(tmp_path / "runs/photos")
    assert model.module.config == replace(
        saccade.load(SMALL).module.config, classes=2, block=model.module.config.block
    )
    assert model.lineage[0]["sha256"].startswith("e91dc1d51299")
