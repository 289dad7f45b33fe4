"""The demo: check, train, evaluate, predict and explain on scikit-learn's handwritten digits."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.api.inputs import Say
from saccade.errors import check_number
from saccade.files.atomic import new_folder
from saccade.task import Task

if TYPE_CHECKING:
    from saccade.api.models import Model

SHOWN = (7, 6, 3, 0, 9, 2)
MODEL = "vit_xs2_8"
RECIPE = [
    "optim.lr=3e-3",
    "budget.batch=64",
    "augment.flip=0",  # a mirrored 2 is not a 2
    "augment.pad=0",
    "augment.crop=0.8,1.0",
    "augment.ratio=0.9,1.1",
    "augment.policy=none",
    "mix.mixup=0.1",
    "mix.cutmix=0.5",
    "droppath=0",
    "workers=0",
]


def run_demo(out: Path, epochs: int, say: Say, show: Callable[[Task, Any], None]) -> Path:
    """Run the whole workflow and return the run folder; `show` prints predictions."""
    check_number("epochs", epochs, 1, 10_000)
    folder = new_folder(out)
    tree = folder / "digits"
    _write_digits(tree)
    say(f"1. the images: scikit-learn's digits, written to {tree} as class folders")
    from saccade.check.examine import examine
    from saccade.data.readers.open import open_images

    seen = examine(open_images(tree), full=False)
    say(f"2. saccade check {tree}: {'all can be read' if not seen.unreadable else 'some cannot be read'}")
    say(f"3. saccade train {tree} --model {MODEL}")
    from saccade.api.train import start_run
    from saccade.train import start

    run = start_run(str(tree), MODEL, folder, [f"budget.epochs={epochs}", *RECIPE], empty=True)
    run.go()
    start.finish(run)
    say(f"4. saccade evaluate {folder} {tree}, on digits that were not used in training:")
    from saccade.api.load import load
    from saccade.tasks import find_task

    model, task = load(folder), find_task()
    say(f"   {task.summary(task.evaluate(task.wrap(model), open_images(tree).by_name['test'], 'test'))}")
    say(f"5. saccade predict {folder} {folder / 'pictures'}")
    samples = _write_samples(folder / "pictures", tree / "test")
    show(task, [(str(path), model.predict(path, top=2)) for path in samples])
    say(f"\n6. a first look inside: the class token's attention in {samples[0].name} (last block, all heads)")
    say(_attention(model, samples[0]))
    say(f"7. saccade explain {folder} {samples[0].parent} --all")
    from saccade.api.explain import rank_methods
    from saccade.explain.methods.table import DEFAULT

    ranking = rank_methods(model, samples)
    method = next(iter(ranking.better()), DEFAULT)
    say(f"   {ranking}")
    page = folder / "explain.html"
    say(f"8. saccade explain {folder} {samples[0]} --method {method} --html {page}")
    say(f"   {_explain(model, samples[0], method, page)}")
    say("   open the page and click a patch to see where it looks")
    say("\nnow try your own images, a folder for each class:")
    say("  saccade check photos\n  saccade train photos\n  saccade predict runs/photos photos")
    return folder


def _write_digits(tree: Path) -> None:
    """Write the digits as PNG files in class folders under train/ and, for a fifth of them, test/."""
    from PIL import Image
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = (digits.images * 255 / 16).round().astype("uint8")
    numbers = list(range(len(images)))
    parts = train_test_split(numbers, test_size=0.2, stratify=digits.target, random_state=0)
    for split, chosen in zip(("train", "test"), parts, strict=True):
        for i in chosen:
            folder = tree / split / str(digits.target[i])
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[i]).save(folder / f"{i:04}.png")


def _write_samples(folder: Path, test: Path) -> list[Path]:
    """Write a few unseen digits, enlarged."""
    from PIL import Image

    folder.mkdir()
    paths = []
    for i, label in enumerate(SHOWN):
        source = sorted((test / str(label)).iterdir())[i]
        paths.append(folder / f"unseen-{i}-is-{label}.png")
        with Image.open(source) as image:
            image.resize((96, 96), Image.Resampling.NEAREST).save(paths[-1])
    return paths


def _attention(model: "Model", path: Path) -> str:
    """Return the attention of the class token as a small grid of shades."""
    import torch

    from saccade.explain.replay import grid_of, moments
    from saccade.models.vit import ViT

    vit = model.module
    assert isinstance(vit, ViT)
    with torch.inference_mode():
        image = torch.from_numpy(model.preprocess(path))[None]
        *_, last = moments(vit, image)
        p = last.attention.mean(1)[0, 0, vit.config.front :]
    rows = (p / p.max()).reshape(grid_of(vit, image)).tolist()
    return "\n".join("   " + "".join(" ░▒▓█"[min(4, int(value * 5))] * 2 for value in row) for row in rows)


def _explain(model: "Model", path: Path, method: str, page: Path) -> str:
    """Write the page that explains an answer; return the verdict on its map."""
    from saccade.api.explain import ExplainSettings, explain_one
    from saccade.explain.write import ExplanationWriter

    title = page.parent.name
    explanation, content = explain_one(model, path.name, path, method, ExplainSettings(html=page), title)
    ExplanationWriter(title, page).write(explanation, content)
    return f"{method} is {explanation.verdict}"
