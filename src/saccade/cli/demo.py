"""`saccade demo`: the main job on scikit-learn's handwritten digits, from pictures to a report."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.predict import show_table
from saccade.errors import check_number
from saccade.files.atomic import new_folder

SHOWN = 6
MODEL = "vit_xs2_8"
RECIPE = [
    "optim.lr=3e-3",
    "budget.batch=64",
    "augment.flip=0",  # a mirrored 2 is no 2
    "augment.pad=0",
    "augment.crop=0.8,1.0",
    "augment.ratio=0.9,1.1",
    "augment.policy=none",
    "mix.mixup=0.1",
    "mix.cutmix=0.5",
    "droppath=0",
    "workers=0",
]


def demo(
    out: Annotated[Path, typer.Option(help="Where to put the run; -2, -3 are added if it exists.")] = Path(
        "runs/demo"
    ),
    epochs: Annotated[int, typer.Option(help="How often to go through the digits.")] = 70,
) -> None:
    """Train a small ViT on handwritten digits, score it and ask it: `saccade demo --epochs 70`."""
    check_number("epochs", epochs, 1, 10_000)
    folder = new_folder(out)
    tree = folder / "digits"
    _write(tree)
    _say(f"1. the pictures: scikit-learn's digits, written to {tree} as class folders")
    from saccade.check.examine import examine
    from saccade.data.readers.open import open_images

    seen = examine(open_images(tree), full=False)
    _say(f"2. saccade check {tree}: {'all can be read' if not seen.unreadable else 'some cannot be read'}")
    _say(f"3. saccade train {tree} --model {MODEL}")
    from saccade.train import start

    run = start.start(str(tree), MODEL, folder, [f"budget.epochs={epochs}", *RECIPE], made=True)
    run.go()
    start.finish(run)
    _say(f"4. saccade evaluate {folder} {tree}, on digits that played no part in training:")
    from saccade.api.models import load
    from saccade.tasks.classify.evaluate import evaluate

    test = open_images(tree).splits["test"]
    model = load(folder)
    scores, _ = evaluate(model.module, model.preprocess, test, "test")
    _say(f"   right {scores.accuracy:.1%} of {scores.count}")
    _say(f"5. saccade predict {folder} {folder / 'pictures'}")
    samples = _samples(folder / "pictures", tree / "test")
    show_table([(str(path), model.predict(path, top=2)) for path in samples])
    _say(
        f"\n6. a first look inside: where the class token looks in {samples[0].name} (last block, all heads)"
    )
    _say(_look(model, samples[0]))
    _say(f"7. saccade explain {folder} {samples[0].parent} --all")
    told, method = _rank(model, samples)
    _say(f"   {told}")
    page = folder / "explain.html"
    _say(f"8. saccade explain {folder} {samples[0]} --method {method} --html {page}")
    _say(f"   {_explain(model, samples[0], method, page)}")
    _say("   open the page, click a patch and see where it looks")
    _say("\nnow with pictures of your own, a folder for each class:")
    _say("  saccade check photos\n  saccade train photos\n  saccade predict runs/photos photos")
    typer.echo(folder)


def _say(words: str) -> None:
    print(words, file=sys.stderr)


def _write(tree: Path) -> None:
    """The digits as train/ and test/ of class folders of PNG files; a fifth is for the test."""
    from PIL import Image
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    pictures = (digits.images * 255 / 16).round().astype("uint8")
    numbers = list(range(len(pictures)))
    parts = train_test_split(numbers, test_size=0.2, stratify=digits.target, random_state=0)
    for split, chosen in zip(("train", "test"), parts, strict=True):
        for i in chosen:
            place = tree / split / str(digits.target[i])
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pictures[i]).save(place / f"{i:04}.png")


def _samples(folder: Path, test: Path) -> list[Path]:
    """A few unseen digits, large enough to look at."""
    from PIL import Image

    folder.mkdir()
    paths = []
    for i, label in enumerate((7, 6, 3, 0, 9, 2)[:SHOWN]):
        source = sorted((test / str(label)).iterdir())[i]
        paths.append(folder / f"unseen-{i}-is-{label}.png")
        with Image.open(source) as picture:
            picture.resize((96, 96), Image.Resampling.NEAREST).save(paths[-1])
    return paths


def _look(model: object, path: Path) -> str:
    """The attention of the class token as a small grid of shades."""
    import torch

    from saccade.api.models import Model
    from saccade.explain.replay import grid_of, moments
    from saccade.models.vit import ViT

    assert isinstance(model, Model)
    vit = model.module
    assert isinstance(vit, ViT)
    with torch.inference_mode():
        image = torch.from_numpy(model.preprocess(path))[None]
        *_, last = moments(vit, image)
        p = last.attention.mean(1)[0, 0, vit.config.front :]
    rows = (p / p.max()).reshape(grid_of(vit, image)).tolist()
    return "\n".join("   " + "".join(" ░▒▓█"[min(4, int(value * 5))] * 2 for value in row) for row in rows)


def _rank(model: object, paths: list[Path]) -> tuple[str, str]:
    """What is said of all methods of explanation on some pictures, and the name of the one to use."""
    import torch

    from saccade.api.models import Model
    from saccade.explain.faithfulness.ranking import rank
    from saccade.explain.methods.table import DEFAULT, METHODS, fitting

    assert isinstance(model, Model)
    images = torch.from_numpy(model.preprocess.batch(paths))
    with torch.inference_mode():
        targets = model.module(images).argmax(-1)
    methods = {name: METHODS[name].function for name in fitting(model.module)}
    ranking = rank(model.module, images, targets, methods)
    return str(ranking), next(iter(ranking.better()), DEFAULT)


def _explain(model: object, path: Path, method: str, page: Path) -> str:
    """Write the page about an answer; what is said of its first map."""
    import torch

    from saccade.api.models import Model
    from saccade.explain.explanation import Question
    from saccade.explain.page.tell import story
    from saccade.explain.write import Keeper

    assert isinstance(model, Model)
    pixels = model.preprocess.pixels(path)
    image = torch.from_numpy(model.preprocess.normalise(pixels))[None]
    question = Question(name=path.name, method=method)
    told, account = story(model.module, image, pixels, model.label, question, page.parent.name)
    Keeper(page.parent.name, page).keep(account, told)
    return f"{method} is {account.verdict}"
