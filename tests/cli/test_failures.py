"""What can go wrong with `saccade train`: one sentence, the right code, and nobody's files are touched."""

import json
import shutil
import zipfile
from pathlib import Path

import pytest
from terminal import forget_digest, picture, run
from trees import picture as bytes_of
from trees import state, tar, tree

from saccade.api.models import Model
from saccade.data.image.preprocess import Preprocess
from saccade.models.vit import ViT, ViTConfig

QUICK = ["--set", "budget.epochs=1", "--set", "budget.batch=4", "--set", "workers=0"]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder as somebody has it: pictures, a model, and a run of them."""
    folder = tmp_path_factory.mktemp("failures") / "mine"
    tree(folder / "pictures", {"cat": 6, "dog": 6})
    vit = ViT(ViTConfig(image=(12, 12), patch=4, width=24, depth=1, heads=3, hidden=48, classes=2))
    Model(vit, Preprocess(size=(12, 12), fit="squash"), ["ant", "bee"]).save(folder / "model")
    picture(folder / "photo.png")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        done = run("train", "pictures", "--model", "model", "--out", "run", *QUICK)
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def mine(home, tmp_path, monkeypatch) -> Path:
    """A copy of it, to be spoilt; new runs are made beside it."""
    folder = Path(shutil.copytree(home, tmp_path / "mine"))
    described = json.loads((folder / "run/data.json").read_text())
    described["source"] = str(folder / "pictures")
    (folder / "run/data.json").write_text(json.dumps(described))
    (folder / "run/report.html").unlink()  # it is not finished
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(folder)
    return folder


def fails(mine: Path, code: int, told: str, *words: object) -> None:
    """`saccade train WORDS` says this one sentence and leaves all as it was."""
    before = state(mine)
    done = run("train", *words)
    assert (done.code, done.out) == (code, ""), done.err
    lines = done.err.splitlines()
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:], done.err
    assert told in lines[-1]
    assert "Traceback" not in done.err
    assert state(mine) == before


def change(path: Path, **fields: object) -> None:
    """Change fields of a JSON file, also inner ones: budget__epochs=3."""
    found = json.loads(path.read_text())
    for name, value in fields.items():
        inner, *outer = reversed(name.split("__"))
        (found[outer[0]] if outer else found)[inner] = value
    path.write_text(json.dumps(found))


WORDS = {
    "": "give either DATA to start a run or --resume RUN",
    "pictures --resume run": "give either DATA to start a run or --resume RUN",
    "--resume run --model model": "leave out the other options",
    "--resume run --set seed=1": "leave out the other options",
    "--resume nowhere": "nowhere is not a run folder",
    "--resume pictures": "pictures is not a run folder",
    "--resume photo.png": "photo.png is not a run folder",
    "pictures --epohcs 3": "no such option: --epohcs; did you mean --epochs? See `saccade train --help`",
    "pictures more": "unexpected extra argument",
    "pictures --out": "requires an argument",
    "pictures --format folder": "did you mean 'folders'?",
    "pictures --set seed": "--set was given 'seed'; expected name=value",
    "pictures --set =3": "Recipe has no field ''",
    "pictures --set lr=3": "ClassifyRecipe has no field 'lr'",
    "pictures --set optim.rate=3": "Optim has no field 'rate'",
    "pictures --set optim=3": "optim is a group of fields",
    "pictures --set seed.x=3": "seed of ClassifyRecipe is 0 and has no field 'x'",
    "pictures --set optim.lr=big": "cannot become 'big'",
    "pictures --set optim.lr=nan": "optim.lr is nan; expected a number from",
    "pictures --set optim.lr=-1": "optim.lr is -1.0; expected a number from",
    "pictures --set budget.epochs=1e3": "cannot become '1e3'",
    "pictures --set budget.epochs=0": "budget.epochs is 0; expected a number from 1",
    "pictures --set budget.batch=0": "budget.batch is 0; expected a number from 1",
    "pictures --set budget.accumulate=0": "budget.accumulate is 0",
    "pictures --set budget.save=-1": "budget.save is -1",
    "pictures --set workers=-1": "workers is -1; expected a number from 0",
    "pictures --set precision=fp8": "precision is 'fp8', which is not known",
    "pictures --set device=abacus": "device is 'abacus', which is not available",
    "pictures --set device=meta": "device is 'meta', which is not available",
    "pictures --set freeze=all": "freeze is 'all', which is not known",
    "pictures --set seed=-1": "seed is -1",
    "pictures --set val=2": "val is 2.0; expected a number from",
    "pictures --set bad=1": "bad is 1.0; expected a number from",
    "pictures --set augment.policy=none-such": "none-such",
    "pictures --set augment.crop=2,1": "crop",
    "pictures --set augment.crop=1": "crop",
    "pictures --set mix.mixup=-1": "mixup",
    "pictures --set image=9 --model vit_xs2_8": "9",
    "pictures --set image=99999": "image is 99999",
    "pictures --out photo.png": "photo.png is a file; expected a folder",
    "pictures --out photo.png/run": "cannot be created",
    "pictures --out /proc/run": "cannot be created",
    "pictures --set teacher=model --model vit_xs2_12": "does not have the 2 classes of the data",
    "pictures --set track=tensorbord": "did you mean 'tensorboard'?",
    "hf:pets": "is not a name on the hub; names look like uoft-cs/cifar10",
}


@pytest.mark.parametrize("words", WORDS)
def test_words_that_cannot_work(mine, words):
    fails(mine, 2, WORDS[words], *words.split())


DATA = {
    "nowhere": "there is nothing at nowhere",
    "picture": "did you mean pictures?",
    "photo.png": "photo.png is a single file",
    "https://example.org/pets": "is a web address",
    "pictures/cat": "6 images directly in",
    "/dev/null": "is neither a folder nor a file",
    "pictures --format manifest": "pictures has no manifest",
    "pictures --format parquet": "parquet",
    "pictures --format shards": "tar",
    "'*.tar'": "tar",
}


@pytest.mark.parametrize("words", DATA)
def test_data_that_is_no_data(mine, words):
    fails(mine, 3, DATA[words], *words.replace("'", "").split())


def empty(mine):
    (mine / "data").mkdir()


def empty_classes(mine):
    tree(mine / "data", {"cat": 0, "dog": 0})


def one_class(mine):
    tree(mine / "data", {"cat": 5, "dog": 0})


def one_picture(mine):
    tree(mine / "data", {"cat": 1})


def one_of_each(mine):
    tree(mine / "data", {"cat": 1, "dog": 1})


def only_val(mine):
    tree(mine / "data", {"train": 0, "val/cat": 3, "val/dog": 3})


def stray_class(mine):
    tree(mine / "data", {"train/cat": 3, "train/dog": 3, "val/cat": 1, "val/cow": 1})


def two_trains(mine):
    tree(mine / "data", {"train/cat": 1, "training/dog": 1})


def a_zip(mine):
    with zipfile.ZipFile(mine / "data.zip", "w") as archive:
        archive.write(mine / "photo.png")
    (mine / "data").mkdir()
    return "data.zip"


def text_for_pictures(mine, bad=12):
    for path in sorted(tree(mine / "data", {"cat": 6, "dog": 6}).rglob("*.png"))[:bad]:
        path.write_text("not a picture at all")


def half_of_them_text(mine):
    text_for_pictures(mine, 6)


def table(mine, text, name="data.csv"):
    (mine / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return name


LINES = "path,label\npictures/cat/0.png,cat\npictures/dog/0.png,dog\n"
MANIFESTS = {
    "no such column": ("file,kind\na.png,cat\n", "has the columns file, kind"),
    "nothing": ("", "has the columns nothing"),
    "only a head": ("path,label\n", "lists no images"),
    "no file": ("path,label\nx.png,cat\ny.png,dog\n", "none of the 2 files in data.csv exists"),
    "no label": (LINES + "photo.png,\n", "line 4 of data.csv has no label"),
    "too many cells": (LINES + "photo.png,cat,1\n", "line 4 of data.csv has 3 columns"),
    "two labels": (LINES + "pictures/cat/0.png,dog\n", "twice, as 'cat' (line 2) and as 'dog' (line 4)"),
    "an unknown split": ("path,label,split\npictures/cat/0.png,cat,tset\n", "has the split 'tset'"),
    "half UTF-16": (b"\xff\xfep", "is not a text file"),
    "an open quote": (LINES + '"photo.png,cat\n', "cannot be read as a table"),
    "a zero byte": (LINES + "a\0b.png,cat\n", "line 4 of data.csv"),
    "one class": ("path,label\npictures/cat/0.png,cat\npictures/cat/1.png,cat\n", "has only one class, cat"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_cannot_be_used(mine, name):
    text, told = MANIFESTS[name]
    fails(mine, 3, told, table(mine, text))


OBJECTS = {
    "no JSON": ('{"path": "photo.png"\n', "line 1 of data.jsonl is not JSON"),
    "no object": ("[1]\n", "line 1 of data.jsonl is not a JSON object"),
    "no label": ('{"path": "photo.png"}\n', "line 1 of data.jsonl has the columns path"),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_a_list_of_objects_that_cannot_be_used(mine, name):
    text, told = OBJECTS[name]
    fails(mine, 3, told, table(mine, text, "data.jsonl"))


def test_shards_and_parquet_that_cannot_be_used(mine):
    table(mine, b"garbage" * 200, "garbage.tar")
    fails(mine, 3, "garbage.tar", "garbage.tar")
    table(mine, b"PAR1 garbage PAR1", "garbage.parquet")
    fails(mine, 3, "garbage.parquet", "garbage.parquet")
    cut = tar(
        mine / "cut.tar", {f"{i}.{e}": d for i in range(4) for e, d in (("png", bytes_of(i)), ("cls", b"1"))}
    )
    cut.write_bytes(cut.read_bytes()[:-11000])
    fails(mine, 3, "cut.tar", "cut.tar")


SOURCES = {
    empty: "data is empty",
    empty_classes: "data holds 2 folders but no image",
    one_class: "data has only one class, cat",
    one_picture: "data has only one class, cat",
    one_of_each: "every class has a single image",
    only_val: "data has images only for val",
    stray_class: "class 'cow' of data is only in val, never in train",
    two_trains: "data has both train and training",
    a_zip: "data.zip is a packed archive",
}


@pytest.mark.parametrize("spoil", SOURCES, ids=lambda spoil: spoil.__name__)
def test_pictures_that_cannot_be_learnt_from(mine, spoil):
    source = spoil(mine) or "data"
    fails(mine, 3, SOURCES[spoil], source)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("spoil", [text_for_pictures, half_of_them_text])
def test_too_many_pictures_that_cannot_be_read(mine, spoil, workers):
    spoil(mine)
    words = ["--out", "../runs/x", *QUICK, "--set", f"workers={workers}"]
    told = {text_for_pictures: "none of the 9 images can be read; run `saccade check` to see why"}
    otherwise = "4 of 9 images cannot be read (limit 1%); run `saccade check` to see which, or raise `bad`"
    fails(mine, 3, told.get(spoil, otherwise), "data", "--model", "model", *words)
    told = "images cannot be read (limit 1%). Run `saccade check`"
    words[1] = "../runs/y"
    fails(mine, 3, told, "data", "--model", "model", *words, "--set", "probe_first=false")


def cut_model(mine):
    path = mine / "model/model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def without_weights(mine):
    (mine / "model/model.safetensors").unlink()


def a_page_for_weights(mine):
    (mine / "model/model.safetensors").write_text("<html>Please log in</html>")


def not_a_number(mine):
    from saccade.weights.formats.tensors import read_tensors, write_safetensors

    path = mine / "model/model.safetensors"
    found = {name: tensor.clone() for name, tensor in read_tensors(path).items()}
    found["head.bias"][0] = float("nan")
    write_safetensors(path, found, {"format": "pt"})
    forget_digest(path.parent)


def another_format(mine):
    change(mine / "model/model.json", format=99)


def too_few_labels(mine):
    (mine / "model/labels.txt").write_text("ant\n")


MODELS = {
    cut_model: "model.safetensors",
    without_weights: "model",
    a_page_for_weights: "is a web page",
    not_a_number: "hold NaN or infinite numbers (head.bias)",
    another_format: "is of format 99",
    too_few_labels: "has 1 labels for 2 classes",
}


@pytest.mark.parametrize("spoil", MODELS, ids=lambda spoil: spoil.__name__)
def test_a_model_that_cannot_be_begun_from(mine, spoil):
    spoil(mine)
    fails(mine, 4, MODELS[spoil], "pictures", "--model", "model")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--model vit_b_16", "no model found at 'vit_b_16'"),
        ("--model ./nowhere/model", "nowhere/model"),
        ("--model photo.png", "photo.png"),
        ("--model pictures", "pictures"),
        ("--model vit_xs2_12 --set teacher=nowhere", "no model found at 'nowhere'"),
    ],
)
def test_a_model_that_is_not_there(mine, words, told):
    fails(mine, 4, told, "pictures", *words.split())


def a_cut_recipe(mine):
    path = mine / "run/recipe.json"
    path.write_text(path.read_text()[:40])


def a_recipe_of_the_future(mine):
    change(mine / "run/recipe.json", gravity=9.81)


def a_recipe_out_of_range(mine):
    change(mine / "run/recipe.json", budget__epochs=0)


def a_recipe_of_another_type(mine):
    change(mine / "run/recipe.json", seed="zero")


def a_recipe_of_another_model(mine):
    change(mine / "run/recipe.json", model="vit_xs2_12")


def a_list_for_a_recipe(mine):
    (mine / "run/recipe.json").write_text("[]")


def no_data_file(mine):
    (mine / "run/data.json").unlink()


def an_empty_data_file(mine):
    (mine / "run/data.json").write_text("{}")


def data_without_fingerprint(mine):
    change(mine / "run/data.json", train={})


def data_of_another_kind(mine):
    change(mine / "run/data.json", kind=3)


def no_checkpoint(mine):
    shutil.rmtree(mine / "run/checkpoints")


def cut_checkpoints(mine):
    for path in (mine / "run/checkpoints").rglob("state.json"):
        path.write_text("{")


def a_forged_state(mine):
    """Whole by its hashes, but of another version."""
    from saccade.train.checkpoint import digest

    for place in (mine / "run/checkpoints").iterdir():
        (place / "state.json").write_text('{"step": 1}')
        manifest = json.loads((place / "manifest.json").read_text())
        manifest["sha256"]["state.json"] = digest(place / "state.json")
        (place / "manifest.json").write_text(json.dumps(manifest, indent=1))


RUNS = {
    a_cut_recipe: "recipe.json",
    a_recipe_of_the_future: "Recipe has no field 'gravity'",
    a_recipe_out_of_range: "budget.epochs is 0",
    a_recipe_of_another_type: "seed is 'zero'; expected int",
    a_recipe_of_another_model: "does not match the model in recipe.json",
    a_list_for_a_recipe: "recipe.json",
    no_data_file: "data.json",
    an_empty_data_file: "data.json",
    data_of_another_kind: "data.json",
    no_checkpoint: "has no complete checkpoint to resume from; start a new run",
    cut_checkpoints: "has no complete checkpoint to resume from; start a new run",
    a_forged_state: "state.json",
}


@pytest.mark.parametrize("spoil", RUNS, ids=lambda spoil: spoil.__name__)
def test_a_run_that_cannot_be_gone_on_with(mine, spoil):
    spoil(mine)
    fails(mine, 4, RUNS[spoil], "--resume", "run")


def a_picture_more(mine):
    shutil.copy(mine / "photo.png", mine / "pictures/cat/new.png")


def a_picture_less(mine):
    (mine / "pictures/dog/0.png").unlink()


def another_picture(mine):
    for path in (mine / "pictures/dog").iterdir():
        shutil.copy(mine / "photo.png", path)


def no_pictures(mine):
    shutil.rmtree(mine / "pictures")


@pytest.mark.parametrize(
    "spoil",
    [a_picture_more, a_picture_less, another_picture, no_pictures, data_without_fingerprint],
    ids=lambda spoil: spoil.__name__,
)
def test_a_run_whose_pictures_are_not_the_same(mine, spoil):
    spoil(mine)
    fails(mine, 3, "pictures", "--resume", "run")
