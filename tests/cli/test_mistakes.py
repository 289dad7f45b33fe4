"""What newcomers type, coming from other tools: each message names what to type instead."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from terminal import picture, run, small

from saccade.libraries import EXTRAS, missing
from saccade.models import names
from saccade.models.text import names as text
from saccade.spellings import FIELDS, HUB_IDS, OPTIONS, VERBS, architecture
from saccade.tasks.classify.recipe import ClassifyRecipe
from saccade.values import flatten

ARCHITECTURE = "vit_ti16 is an architecture and has no weights"
MISTAKES = [
    # the words of timm, ultralytics and Hugging Face for options
    ("train photos --batch-size 16", 2, "`saccade train` calls it --batch"),
    ("train photos --batch_size 16", 2, "`saccade train` calls it --batch"),
    ("train photos --bs 16", 2, "`saccade train` calls it --batch"),
    ("train photos --imgsz 224", 2, "`saccade train` calls it --image"),
    ("train photos --img-size 224", 2, "`saccade train` calls it --image"),
    ("train photos --learning-rate 0.1", 2, "`saccade train` calls it --lr"),
    ("train photos --lr0 0.1", 2, "`saccade train` calls it --lr"),
    ("train photos --num-epochs 3", 2, "`saccade train` calls it --epochs"),
    ("train photos --n-epochs 3", 2, "`saccade train` calls it --epochs"),
    ("train photos --pretrained", 2, "`saccade train` calls it --model"),
    ("train photos --weights vit.npz", 2, "`saccade train` calls it --model"),
    ("train photos --output runs/a", 2, "`saccade train` calls it --out"),
    ("train photos --project runs --name a", 2, "`saccade train` calls it --out"),
    ("train --data photos", 2, "give DATA without an option: `saccade train DATA`"),
    ("train photos --workers 4", 2, "it is a recipe field: --set workers=VALUE"),
    ("train photos --weight-decay 0.1", 2, "it is a recipe field: --set optim.decay=VALUE"),
    ("train photos --freeze body", 2, "it is a recipe field: --set freeze=VALUE"),
    ("train photos --mixup 0.2", 2, "it is a recipe field: --set mix.mixup=VALUE"),
    ("train photos --modle vit_ti16", 2, "did you mean --model?"),
    ("train photos --gravity 9", 2, "--set NAME=VALUE, and --show-recipe lists them"),
    ("evaluate model photos --batch-size 8", 2, "`saccade evaluate` has none (`saccade train` has --batch)"),
    ("evaluate model photos --lr 1", 2, "`saccade evaluate` has none (`saccade train` has --lr)"),
    ("predict --weights model cat.png", 2, "give MODEL without an option: `saccade predict MODEL PICTURE`"),
    ("predict model --source cat.png", 2, "give PICTURE without an option: `saccade predict MODEL PICTURE`"),
    ("predict model cat.png --topk 3", 2, "`saccade predict` calls it --top"),
    ("train data=photos epochs=3 imgsz=64", 2, "try `saccade train photos --epochs 3 --image 64`"),
    ("train data=photos learning_rate=1 workers=0", 2, "`saccade train photos --lr 1 --set workers=0`"),
    ("predict model=model source=cat.png", 2, "try `saccade predict model cat.png`"),
    ("train photos vit_tiny", 2, "name an architecture with --model vit_ti16"),
    # commands
    ("trian photos", 2, "no such command 'trian'; did you mean 'train'? See `saccade --help`"),
    ("val model photos", 2, "did you mean `saccade evaluate`?"),
    ("test model photos", 2, "did you mean `saccade evaluate`?"),
    ("fit photos", 2, "did you mean `saccade train`?"),
    ("benchmark model", 2, "did you mean `saccade bench`?"),
    ("classify train data=photos", 2, "did you mean `saccade train`?"),
    ("help", 2, "did you mean `saccade --help`?"),
    # recipe fields
    ("train photos --set epochs=3", 2, "did you mean 'budget.epochs'?"),
    ("train photos --set batch_size=3", 2, "did you mean 'budget.batch'?"),
    ("train photos --set learning_rate=3", 2, "did you mean 'optim.lr'?"),
    ("train photos --set weight_decay=3", 2, "did you mean 'optim.decay'?"),
    ("train photos --set epochz=3", 2, "did you mean 'epochs'?"),
    ("train photos --epochs 3 --set budget.epochs=5", 2, "--set budget.epochs=5 contradict each other"),
    ("train photos --epochs 3 --minutes 5", 2, "budget.epochs and budget.minutes both say how long to train"),
    ("train photos --epochs 3 --set budget.steps=5", 2, "budget.epochs and budget.steps both say how long"),
    ("train book.txt --image 64", 2, "a text model has no setting 'image'; leave it out"),
    ("train photos --probe --model model --lr 1", 2, "a linear probe has no setting 'lr'; leave it out"),
    ("train photos --probe --model model --device cpu", 2, "a linear probe has no setting 'device'"),
    ("train photos --probe --model model --show-recipe", 2, "--probe and --show-recipe were both given"),
    ("train photos --lr 1000", 2, "optim.lr is 1000.0; expected a number from"),
    ("train --resume runs/a --epochs 3", 2, "leave out the other options"),
    # devices
    ("train photos --device gpu", 2, "choose one of auto, cpu"),
    ("predict model cat.png --device cuda:77", 2, "device is 'cuda:77', which is not available here"),
    ("evaluate model photos --device abacus", 2, "choose one of auto, cpu"),
    ("explain model cat.png --device abacus", 2, "choose one of auto, cpu"),
    ("embed model photos --device abacus", 2, "choose one of auto, cpu"),
    # names of models
    ("train photos --model vit-ti16", 4, "saccade calls this architecture vit_ti16"),
    ("train photos --model vit_tiny", 4, "`saccade train DATA --model vit_ti16` trains it"),
    ("train photos --model vit_tiny_patch16_224", 4, "saccade calls this architecture vit_ti16"),
    ("train photos --model ViT-B/16", 4, "saccade calls this architecture vit_b16"),
    ("train photos --model deit_small", 4, "saccade calls this architecture deit_s16"),
    ("train photos --model swin_tiny", 4, "is not an architecture of saccade (`saccade models` lists them)"),
    ("models vit_tiny_patch16_224", 2, "did you mean 'vit_ti16'?"),
    ("predict google/vit-bsae-patch16-224 cat.png", 4, "did you mean 'google/vit-base-patch16-224'?"),
    ("predict vit_ti16 cat.png", 4, ARCHITECTURE),
    ("explain vit_ti16 cat.png", 4, ARCHITECTURE),
    ("evaluate vit_ti16 photos", 4, "`saccade models --pretrained` lists published weights"),
    ("embed vit_ti16 photos", 4, ARCHITECTURE),
    ("export vit_ti16", 4, ARCHITECTURE),
    ("complete gpt2 hello", 4, "gpt2 is an architecture and has no weights"),
    # something else where a model or an image belongs
    ("predict cat.png model", 3, "'model' is a model, not images; the model comes first"),
    ("evaluate cat.png photos", 4, "cat.png is an image; expected a run folder"),
    ("evaluate dog.jpg photos", 4, "'dog.jpg' is the name of an image; the model comes first"),
    ("evaluate photos model", 4, "photos is a folder of images; expected a run folder"),
    ("predict photos cat.png", 4, "the model comes first, the data after it"),
    ("predict runs cat.png", 4, "runs is a folder of runs; expected one of them: runs/a"),
    ("predict https://example.com/vit.npz cat.png", 4, "download the file and give its path"),
    ("predict https://huggingface.co/google/vit-b cat.png", 4, "give its hub id, google/vit-b"),
    ("predict model https://example.com/cat.jpg", 2, "download it: `curl -LO https://example.com/cat.jpg`"),
    ("explain model https://example.com/cat.jpg", 2, "is a web address; expected a file or a folder"),
    ("train https://example.com/photos.zip", 3, "is a web address"),
    # export
    ("export model --format openvino", 2, "give --to openvino"),
    ("export model ov --format onnx", 2, "--format is 'onnx', but it says what DATA is"),
    ("export model openvino", 2, "that is the folder to write; to export to openvino, give --to openvino"),
    ("export model --format folders", 2, "there is no --data; leave it out"),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, photographs, a text and a folder of runs."""
    made = tmp_path_factory.mktemp("mistakes")
    small().save(made / "model")
    draw = np.random.default_rng(0)
    for i, label in enumerate(("cat", "dog") * 4):
        (made / "photos" / label).mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 256, (32, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(made / "photos" / label / f"{i}.png")
    picture(made / "cat.png")
    (made / "book.txt").write_text("the cat sat on the mat\n" * 50)
    (made / "runs" / "a").mkdir(parents=True)
    (made / "runs" / "a" / "recipe.json").write_text("{}")
    return made


@pytest.mark.parametrize(("words", "code", "told"), MISTAKES, ids=[words for words, _, _ in MISTAKES])
def test_a_mistake_is_answered_with_what_to_type(words, code, told, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    before = sorted(folder.rglob("*"))
    done = run(*words.split())
    assert (done.code, done.out) == (code, "")
    *_, last = done.err.splitlines()
    assert last.startswith("error: ")
    assert told in last
    assert done.err.count("error: ") == 1
    assert sorted(folder.rglob("*")) == before


def test_there_are_25_mistakes_and_more():
    assert len({words for words, _, _ in MISTAKES}) >= 25


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("vit_base_patch16_384", "vit_b16_384"), ("vit_b_16", "vit_b16"), ("ViT-L/32", "vit_l32"),
        ("vit_small_patch14_dinov2", "dinov2_s14"), ("dinov2_vits14_reg", "dinov2_s14_reg"),
        ("dinov2-small", "dinov2_s14"), ("deit_tiny_distilled_patch16_224", "deit_ti16_distilled"),
        ("vit_large_patch16_224.augreg_in21k_ft_in1k", "vit_l16"), ("ResNet-50", "resnet50"),
        ("vit_huge", "vit_h14"), ("google/vit-base-patch16-224", ""), ("my_vit", ""), ("runs/vit", ""),
    ],
)  # fmt: skip
def test_the_names_of_others_are_read(theirs, ours):
    assert architecture(theirs) == ours


@pytest.mark.parametrize("name", [*names.EXAMPLES, *text.EXAMPLES, "vit_xs2_8", "resnet18_small_w8_32"])
def test_our_own_names_are_architectures(name):
    assert architecture(name) == name


def test_what_the_table_leads_to_exists():
    from cli.test_app import listed

    options = {line.split()[-1] for line in listed()}
    fields = flatten(ClassifyRecipe())
    for word, targets in OPTIONS.items():
        for each in targets:
            assert each in options or each in fields or each in ("MODEL", "DATA", "PICTURE"), (word, each)
    assert set(FIELDS.values()) <= set(fields)
    assert {found[0] for found in VERBS.values()} <= {"--help", *(line.split()[1] for line in listed())}
    assert all(word.count("/") == 1 for word in HUB_IDS)


def test_words_that_are_files_or_texts_are_left_alone(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "model=1").mkdir(exist_ok=True)
    assert "options are written" not in run("predict", "model=1", "cat.png").err
    assert "options are written" not in run("complete", "model", "data=3").err
    (folder / "model=1").rmdir()


def test_an_option_wins_over_a_recipe_file_and_may_repeat_set(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    (tmp_path / "r.toml").write_text("[budget]\nepochs = 9\nsteps = 100\n")
    words = ["--recipe", tmp_path / "r.toml", "--epochs", "3", "--set", "budget.epochs=3", "--batch", "2"]
    done = run("train", "photos", *words, "--show-recipe")
    assert done.code == 0, done.err
    rows = {line.split()[0]: line.split()[1:] for line in done.out.splitlines()}
    assert rows["budget.epochs"] == ["3", "option"]
    assert rows["budget.steps"] == ["0", "option"]
    assert rows["budget.batch"] == ["2", "option"]


def test_the_recipe_is_shown_with_the_origin_of_each_value(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    (tmp_path / "r.toml").write_text("droppath = 0.2\n")
    before = sorted(folder.rglob("*"))
    words = ["--recipe", tmp_path / "r.toml", "--set", "mix.mixup=0.3", "--lr", "0.01"]
    done = run("train", "photos", *words, "--show-recipe")
    assert (done.code, done.err) == (0, "")
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in done.out.splitlines()}
    assert rows.pop("field") == ["value", "from"]
    assert rows.keys() == flatten(ClassifyRecipe()).keys()
    assert rows["droppath"] == ["0.2", f"--recipe {tmp_path / 'r.toml'}"]
    assert rows["mix.mixup"] == ["0.3", "--set"]
    assert rows["optim.lr"] == ["0.01", "option"]
    assert rows["budget.epochs"] == ["100", "data"]
    assert rows["seed"] == ["0", "default"]
    done = run("train", "book.txt", "--seed", "3", "--show-recipe")
    assert done.code == 0, done.err
    assert any(line.split() == ["seed", "3", "option"] for line in done.out.splitlines())
    assert sorted(folder.rglob("*")) == before


def test_each_option_is_the_recipe_field_of_its_name(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    words = [
        "--epochs",
        "2",
        "--batch",
        "4",
        "--lr",
        "0.02",
        "--seed",
        "5",
        "--device",
        "cpu",
        "--image",
        "16",
    ]
    done = run("train", "photos", "--model", "vit_xs8_32", *words, "--show-recipe")
    rows = {line.split()[0]: line.split()[1:] for line in done.out.splitlines()}
    wanted = {
        "budget.epochs": "2",
        "budget.batch": "4",
        "optim.lr": "0.02",
        "seed": "5",
        "device": "cpu",
        "image": "16",
    }
    assert {name: rows[name] for name in wanted} == {
        name: [value, "option"] for name, value in wanted.items()
    }


def test_a_probe_takes_batch_seed_and_image(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    words = ["--probe", "--model", "model", "--batch", "2", "--seed", "5", "--image", "32"]
    done = run("train", "photos", *words, "--set", "workers=0", "--out", tmp_path / "run")
    assert done.code == 0, done.err
    kept = (tmp_path / "run" / "recipe.json").read_text()
    assert all(f'"{name}": {value}' in kept for name, value in (("batch", 2), ("seed", 5), ("image", 32)))


def test_a_missing_package_is_named_with_its_command():
    assert missing("sklearn.linear_model") == (
        "the package scikit-learn is not installed; run `pip install scikit-learn`"
    )
    assert missing("onnxruntime").endswith("run `pip install 'saccade[onnx]'`")
    assert missing("saccade.nowhere") == ""
    assert set(EXTRAS.values()) == {"hub", "onnx", "openvino", "shards", "text", "track", "embed"}


@pytest.mark.parametrize("module", ["jaxtyping", "typer"])
def test_without_a_package_the_command_names_it(module):
    code = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv = ['saccade', 'predict', 'model', 'cat.png']\n"
        "from saccade.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == f"error: the package {module} is not installed; run `pip install {module}`\n"
    assert done.returncode == 2
