"""A linear probe: an exact head on features that are computed once, whatever the body."""

import hashlib
import json
import time
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from pictures import encode
from sklearn.linear_model import LogisticRegression
from terminal import run

import saccade
from saccade.api.models import Model
from saccade.data.image.preprocess import Preprocess
from saccade.data.readers.open import open_images
from saccade.errors import DataError, ModelError
from saccade.files.atomic import new_folder
from saccade.models.build import build
from saccade.models.hybrid import HybridConfig
from saccade.models.resnet import ResNetConfig
from saccade.models.vit import ViTConfig
from saccade.tasks import find_task
from saccade.tasks.classify.probe import fit, probe, start_probe
from saccade.train.log import Log
from saccade.train.selection import Selection
from saccade.vision import features, logistic
from saccade.vision.backbone import prepare_frozen

TINY = ViTConfig(image=(16, 16), patch=8, width=16, depth=1, heads=2, hidden=32, classes=4)
BODIES = {
    "token": TINY,
    "no head": replace(TINY, classes=0),
    "pair": replace(TINY, pool="pair"),
    "token+mean": replace(TINY, pool="token+mean"),
    "map": replace(TINY, pool="map"),
    "prelogits": replace(TINY, prelogits=12),
    "hybrid": HybridConfig(vit=TINY, layers=(1,)),
    "resnet": ResNetConfig(layers=(1, 1), bottleneck=False, width=8, classes=4, image=(16, 16)),
}
QUICK = ["workers=0"]
WEIGHTS = "vit_tiny_patch16_224.fp16.safetensors"


def photo(label, number):
    """A noisy picture whose colour tells its class."""
    rng = np.random.default_rng((label, number))
    tint = np.array([[200, 60, 60], [60, 200, 60], [60, 60, 200]])[label]
    return encode(np.clip(tint + rng.normal(0, 60, (16, 16, 3)), 0, 255).astype(np.uint8), "PNG")


def photos(root, classes=3, train=12, val=5):
    for split, count, first in (("train", train, 0), ("val", val, 100)):
        for label in range(classes):
            place = root / split / ["red", "green", "blue"][label]
            place.mkdir(parents=True)
            for i in range(count):
                (place / f"{i}.png").write_bytes(photo(label, first + i))
    return root


def body(config, folder):
    """Weights that nobody trained, but far enough from zero to tell pictures apart."""
    torch.manual_seed(0)
    module = build(config)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    classes = module.config.classes
    return Model(module, Preprocess(size=(16, 16), fit="squash"), [str(i) for i in range(classes)]).save(
        folder
    )


def sha(folder):
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture
def place(tmp_path):
    """Pictures and weights that a test may change."""
    photos(tmp_path / "photos")
    body(TINY, tmp_path / "weights")
    return tmp_path


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One probe, for the tests that only look."""
    root = tmp_path_factory.mktemp("probe")
    photos(root / "photos")
    body(TINY, root / "weights")
    return probe(str(root / "photos"), str(root / "weights"), root / "runs" / "photos", QUICK, quiet=True)


def again(place, name="again", *changes, data="photos", model="weights", quiet=True):
    """All of a probe but its report, which takes longer than the rest."""
    job = start_probe(Selection(data=str(place / data)), str(place / model), [*QUICK, *changes])
    folder = new_folder(place / "runs" / name)
    fit(job, folder, Log(folder, 9, quiet))
    return folder


def test_the_folder_holds_what_any_run_holds_and_is_a_model(done):
    names = {path.name for path in done.iterdir()}
    assert {"model.safetensors", "model.json", "preprocess.json", "labels.txt", "plots"} <= names
    assert {"recipe.json", "data.json", "env.json", "command.txt", "events.jsonl", "samples.json"} <= names
    assert {"evaluation.json", "report.html"} <= names
    model = saccade.load(done)
    assert model.labels == ["blue", "green", "red"]
    assert model.predict(photo(0, 500), top=1)[0].label == "red"
    described = json.loads((done / "data.json").read_text())
    assert (described["train"]["pictures"], described["val"]["pictures"]) == (36, 15)
    events = [json.loads(line) for line in (done / "events.jsonl").read_text().splitlines()]
    assert [events[0]["kind"], events[-1]["kind"]] == ["start", "end"]


def test_the_body_is_untouched(done):
    before = saccade.load(done.parents[1] / "weights").module.state_dict()
    after = saccade.load(done).module.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[n], after[n]) for n in before if not n.startswith("head."))


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("classes", [2, 3])
def test_the_loaded_model_answers_exactly_like_the_regression(tmp_path, kind, classes):
    data = photos(tmp_path / "photos", classes=classes, train=6, val=3)
    body(BODIES[kind], tmp_path / "weights")
    folder = again(tmp_path, "run", "strengths=0.3")
    model, found = saccade.load(folder), open_images(data)
    x, y, _ = entering(model, found.train)
    mean, spread = x.mean(0), x.std(0)
    spread[spread == 0] = 1  # a ReLU that never fires
    exact = LogisticRegression(C=0.3, max_iter=1000).fit((x - mean) / spread, y)
    for images in (found.train, found.val):
        x, _, logits = entering(model, images)
        expected = exact.predict_log_proba((x - mean) / spread)
        assert np.abs(torch.log_softmax(logits, -1).numpy() - expected).max() < 1e-4
    if kind == "prelogits":
        assert model.module.config.prelogits == 12


def entering(model, images):
    """What the head is given, its labels and its answers, caught at the door of the head itself."""
    caught = []
    handle = model.module.head.register_forward_pre_hook(lambda _, given: caught.append(given[0]))
    with torch.inference_mode():
        batch = model.preprocess.batch([images.read(i) for i in range(len(images))])
        logits = model.module(torch.from_numpy(batch)).double()
    handle.remove()
    return caught[0].flatten(1).double().numpy(), images.labels, logits


def test_the_head_on_kept_features_is_the_whole_model(done):
    model, images = saccade.load(done), open_images(done.parents[1] / "photos").val
    _, _, logits = entering(model, images)
    kept = [features.read(path, 36) for path in (done.parent / features.FOLDER).iterdir()]
    vectors = next(found.vectors for found in kept if len(found.places) == 15)
    assert torch.allclose(features.answer_by_head(model.module, vectors).double(), logits, atol=1e-5)
    scores = find_task().evaluate(find_task().wrap(model), images, "val")
    told = json.loads((done / "evaluation.json").read_text())
    assert told["split"] == "held-out"
    assert told["scores"]["loss"] == pytest.approx(scores.metrics["loss"], abs=1e-5)
    assert told["scores"]["confusion"] == scores.details["scores"]["confusion"]
    assert scores.metrics["accuracy"] > 0.9


def test_the_same_bytes_twice_with_the_features_kept_and_without(place, monkeypatch, capsys):
    first = again(place, "first")
    with monkeypatch.context() as patch:
        patch.setattr(features.Extract, "compute", lambda *_: pytest.fail("computed again"))
        second = again(place, "second", quiet=False)
    assert "features read from" in capsys.readouterr().err
    assert sha(first) == sha(second)
    assert first != second
    for path in (place / "runs" / features.FOLDER).iterdir():
        path.unlink()
    assert sha(again(place, "third", "workers=1")) == sha(first)
    assert len(list((place / "runs" / features.FOLDER).iterdir())) == 2


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1000] ^= 64
    path.write_bytes(data)


def another(path):
    features.write_safetensors(path, {"features": torch.zeros(3, 4)})


def stranger(path):
    path.write_bytes(b"not a model at all")


@pytest.mark.parametrize("damage", [cut, flip, another, stranger])
def test_damaged_features_are_computed_again_with_a_note(place, damage, capsys):
    first = again(place, "first")
    files = sorted((place / "runs" / features.FOLDER).iterdir())
    before = [path.read_bytes() for path in files]
    for path in files:
        damage(path)
    second = again(place, "second", quiet=False)
    assert capsys.readouterr().err.count("note: the cached features are computed again, because") == 2
    assert sha(first) == sha(second)
    assert [path.read_bytes() for path in files] == before


def test_places_that_are_none_of_the_pictures_are_damage(tmp_path):
    kept = features.Features(np.ones((2, 3), np.float32), np.array([0, 9]))
    features.write(tmp_path / "x.safetensors", kept)
    assert np.array_equal(features.read(tmp_path / "x.safetensors", 10).vectors, kept.vectors)
    with pytest.raises(ModelError, match="is damaged"):
        features.read(tmp_path / "x.safetensors", 9)


def test_features_that_cannot_be_kept_stop_nothing(place, capsys):
    (place / "runs").mkdir()
    (place / "runs" / features.FOLDER).write_text("a file in the way")
    folder = again(place, quiet=False)
    assert saccade.load(folder).labels
    assert "the features could not be cached" in capsys.readouterr().err


def test_another_picture_of_the_same_name_and_size_is_seen(place):
    path = place / "photos" / "train" / "red" / "0.png"
    old, new = (data.ljust(2000, b"\0") for data in (photo(0, 0), photo(2, 77)))
    assert len(old) == len(new)
    path.write_bytes(old)
    known = open_images(place / "photos").train.fingerprint()
    first = again(place, "first")
    path.write_bytes(new)
    assert open_images(place / "photos").train.fingerprint() == known
    assert sha(first) != sha(again(place, "second"))


def test_other_weights_or_another_preprocessing_have_features_of_their_own(place):
    module, preprocess, *_ = prepare_frozen(str(place / "weights"), 0, 3)
    images = open_images(place / "photos").val

    def key(changed=preprocess):
        return features.Extract(module, changed, place, 8, 0, Log(place, 1, quiet=True)).key(images)

    first = key()
    assert key(replace(preprocess, mean=(0.4, 0.5, 0.5))) != first
    module.head.weight.data.add_(1)
    assert key() == first
    next(iter(module.parameters())).data.add_(1e-3)
    assert key() != first


def test_the_pictures_held_out_play_no_part(place):
    first = again(place, "first")
    for label in ("red", "green", "blue"):
        for path in (place / "photos" / "val" / label).iterdir():
            path.write_bytes(photo(0, 900 + int(path.stem)))
    assert sha(first) == sha(again(place, "second"))
    assert len(list((place / "runs" / features.FOLDER).iterdir())) == 3


def test_a_share_is_held_out_where_the_data_has_no_val(place):
    found = start_probe(Selection(data=str(place / "photos" / "train")), str(place / "weights")).splits
    assert len(found.train) + len(found.val) == 36
    assert len(found.val) >= 3


def test_an_unreadable_picture_is_left_out_and_many_are_refused(place, capsys):
    train = place / "photos" / "train"
    (train / "red" / "3.png").write_bytes(photo(0, 3)[:60])
    again(place, "one", quiet=False)
    assert "left out: " in capsys.readouterr().err
    (train / "red" / "4.png").write_bytes(photo(0, 4)[:60])
    with pytest.raises(DataError, match=r"2 of 36 images cannot be read \(limit 1%\)"):
        again(place, "two")
    again(place, "borne", "bad=0.1")
    for path in [*(train / "green").iterdir(), *(train / "blue").iterdir()]:
        path.write_bytes(b"no picture")
    with pytest.raises(DataError):
        again(place, "all", "bad=0.9", "batch=64")


def test_a_model_whose_features_are_not_numbers_is_refused(place, monkeypatch):
    monkeypatch.setattr(features, "read_by_head", lambda _, image: torch.full((len(image), 3), torch.nan))
    with pytest.raises(ModelError, match="not all finite"):
        again(place)
    assert not (place / "runs" / features.FOLDER).exists()


def test_the_report_says_what_a_probe_is(done):
    page = (done / "report.html").read_text()
    assert "was frozen and a linear head trained on 36 images of 3 classes" in page
    assert 'id="curves"' not in page  # its head is solved for, not trained step by step
    assert 'id="schedule"' not in page
    assert 'id="next"' in page
    assert "chosen by cross-validation" in page
    assert "best epoch" not in page
    assert "results.csv" not in page


def test_the_command_prints_the_folder_and_the_next_one_finds_the_features(place, monkeypatch):
    monkeypatch.chdir(place)
    words = ["train", "photos", "--model", "weights", "--probe", "--set", "workers=0"]
    first, second = run(*words), run(*words)
    assert (first.code, first.out) == (0, "runs/photos-probe\n")
    assert (second.code, second.out) == (0, "runs/photos-probe-2\n")
    assert "weights at 16x16 pixels, frozen, with a linear head for 3 classes" in first.err
    assert "penalty: C = " in first.err
    assert "held-out images" in first.err
    assert "features cached in runs/.features" in first.err
    assert "features read from runs/.features" in second.err
    refused = run("train", "--resume", "runs/photos-probe")
    assert (refused.code, refused.out) == (2, "")
    assert "runs/photos-probe is a linear probe; probes cannot be resumed" in refused.err


REFUSALS = [
    (
        ["--probe"],
        2,
        "without --model, and the weights vit_ti16.augreg cannot be had (HF_HUB_OFFLINE is set)",
    ),
    (["--probe", "--scratch"], 2, "--probe and --scratch were both given, but a probe needs weights"),
    (["--scratch", "--model", "vit_ti16"], 2, "--scratch was given with the model 'vit_ti16'; expected one"),
    (["--probe", "--model", "vit_ti16"], 2, "--probe was given vit_ti16, a name without weights"),
    (["--probe", "--model", "weights", "--set", "model=resnet18"], 2, "resnet18, a name without weights"),
    (
        ["--probe", "--model", "weights", "--set", "optim.lr=1"],
        2,
        "a linear probe has no setting 'lr'; leave it out",
    ),
    (["--probe", "--model", "weights", "--set", "optim.decay=1"], 2, "Probe has no field 'optim'"),
    (["--probe", "--model", "weights", "--epochs", "3"], 2, "a linear probe has no setting 'epochs'"),
    (["--probe", "--model", "weights", "--set", "folds=1"], 2, "folds is 1; expected a number from 2"),
    (["--probe", "--model", "weights", "--set", "strengths=0"], 2, "strengths is 0.0; expected a number"),
    (["--probe", "--model", "weights", "--set", "method=other"], 2, "method is 'other'"),
    (["--probe", "--model", "weights", "--set", "image=15"], 2, "15"),
    (["--probe", "--model", "nowhere"], 4, "no model found at"),
    (["--probe", "--model", "weights", "--folds", "3"], 2, "--probe and --folds were both given"),
    (["--probe", "--model", "weights", "--minutes", "3"], 2, "--probe and --minutes were both given"),
    (["--minutes", "0"], 2, "minutes is 0.0; expected a number from 0.01"),
]


@pytest.mark.parametrize(("words", "code", "told"), REFUSALS, ids=[" ".join(r[0]) for r in REFUSALS])
def test_what_cannot_be_probed_is_told_in_one_sentence(place, monkeypatch, words, code, told):
    monkeypatch.chdir(place)
    done = run("train", "photos", *words)
    assert (done.code, done.out) == (code, "")
    assert told in done.err
    assert done.err.strip().splitlines()[-1].startswith("error: ")
    assert not (place / "runs").exists()


def test_another_size_of_picture_is_read_at(place):
    assert saccade.load(again(place, "large", "image=32")).preprocess.size == (32, 32)
    body(BODIES["resnet"], place / "cnn")
    assert saccade.load(again(place, "cnn", "image=24", model="cnn")).preprocess.size == (24, 24)


# the regression


def blobs(counts, width=5, apart=2.0):
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(len(counts)), counts)
    return rng.normal(size=(len(y), width)) + apart * np.eye(len(counts), width)[y], y


def test_a_feature_that_never_changes_does_no_harm():
    x, y = blobs([20, 20, 20])
    [line] = logistic.path(x, y, 3, [1.0])
    wide = np.concatenate([x, np.full((60, 1), 1e4), 1e4 + 1e-5 * np.arange(60)[:, None]], axis=1)
    [wider] = logistic.path(wide, y, 3, [1.0])
    moved = wide + np.array([0] * 5 + [1e-3] * 2)  # what rounding in fp32 does to 1e4
    assert np.abs(wider(moved) - line(x)).max() < 1e-3


def test_a_class_without_pictures_is_never_answered():
    x, y = blobs([20, 20, 20])
    [line] = logistic.path(x, y + (y == 2), 5, [1.0])
    assert set(line(x).argmax(1)) == {0, 1, 3}
    assert line.bias[2] == line.bias[4] == logistic.NEVER


def test_the_path_ends_where_a_fresh_fit_ends():
    x, y = blobs([30, 20, 25])
    lines = list(logistic.path(x, y, 3, [1e-3, 1e-2, 0.1, 1.0]))
    [fresh] = logistic.path(x, y, 3, [1.0])
    assert np.abs(lines[-1](x) - fresh(x)).max() < 1e-2
    assert all(line.settled for line in lines)


def test_steps_that_are_used_up_are_told(monkeypatch):
    monkeypatch.setattr(logistic, "MOST", 2)
    x, y = blobs([30, 20, 25])
    assert not next(logistic.path(x, y, 3, [10.0])).settled


def test_strengths_are_tried_until_the_loss_grows():
    x, y = blobs([40, 40], width=30, apart=1.0)
    strengths = [10.0**k for k in range(-4, 6)]
    tried = logistic.trials(x, y, 2, logistic.parts(y, 5, 0), strengths)
    losses = [trial.loss for trial in tried]
    assert 3 <= len(tried) < len(strengths)
    assert losses[-1] > losses[-2] > losses[-3] == min(losses)
    assert [trial.strength for trial in tried] == strengths[: len(tried)]


@pytest.mark.parametrize(
    ("counts", "folds"), [([9, 9], 5), ([3, 3], 3), ([1, 9], 5), ([1, 1], 0), ([2, 1], 1)]
)
def test_there_are_as_many_folds_as_the_pictures_bear(counts, folds):
    x, y = blobs(counts)
    made = logistic.parts(y, 5, 0)
    assert len(made) <= folds
    assert bool(made) == (folds > 0)
    if made:
        assert np.isfinite([trial.loss for trial in logistic.trials(x, y, 2, made, [0.1, 1.0])]).all()


def test_pictures_of_a_group_are_left_out_together():
    _, y = blobs([12, 12])
    groups = np.arange(24) // 3
    for train, held in logistic.parts(y, 4, 0, groups):
        assert not set(groups[train]) & set(groups[held])


def test_too_few_pictures_to_choose_from_leave_the_middle_strength(tmp_path, capsys):
    photos(tmp_path / "photos", classes=2, train=1, val=2)
    body(TINY, tmp_path / "weights")
    again(tmp_path, "run", "strengths=0.1,1,10", quiet=False)
    assert "penalty: C = 1, too few images to choose another" in capsys.readouterr().err


# real pictures and real weights


def unpacked(data, archive, to):
    for name in (archive, WEIGHTS):
        if not (data / name).is_file():
            pytest.skip(f"no {name} in {data}")
    with zipfile.ZipFile(data / archive) as opened:
        opened.extractall(to)
    return to


def scores(folder):
    return json.loads((folder / "evaluation.json").read_text())["scores"]


@pytest.mark.slow
def test_ants_and_bees_are_told_apart_in_two_minutes_and_with_the_features_in_seconds(data, tmp_path):
    pictures = unpacked(data, "ants_bees_256.zip", tmp_path / "ants")
    spent, folders = [], []
    for name in ("cold", "warm"):
        began = time.process_time()
        folders.append(probe(str(pictures), str(data / WEIGHTS), tmp_path / name, QUICK, quiet=True))
        spent.append(time.process_time() - began)
    assert spent[0] <= 120
    assert spent[1] <= 15
    assert sha(folders[0]) == sha(folders[1])
    model, images = saccade.load(folders[0]), open_images(pictures).val
    found = find_task().evaluate(find_task().wrap(model), images, "val")
    assert (found.count, found.metrics["correct"]) == (153, round(scores(folders[0])["accuracy"] * 153))
    assert found.metrics["accuracy"] >= 0.96


@pytest.mark.slow
def test_breeds_of_pets_are_told_apart(data, tmp_path):
    pictures = unpacked(data, "oxford_pets_128_1480.zip", tmp_path / "pets")
    folder = probe(str(pictures), str(data / WEIGHTS), tmp_path / "run", QUICK, quiet=True)
    assert scores(folder)["accuracy"] >= 0.84
    assert (folder / "report.html").is_file()
