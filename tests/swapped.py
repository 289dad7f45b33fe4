"""Pictures of which some lie in the wrong class folder on purpose, and runs that were trained on them."""

from pathlib import Path

import numpy as np
from pictures import encode

from saccade.api.train import start_run

COLOURS = {"blue": (30, 60, 200), "green": (40, 180, 60), "red": (200, 40, 40)}
RECIPE = [
    "optim.lr=3e-3",
    "augment.flip=0",
    "augment.pad=0",
    "augment.crop=0.8,1.0",
    "augment.ratio=0.9,1.1",
    "augment.policy=none",
    "mix.mixup=0",
    "mix.cutmix=0",
    "droppath=0",
    "workers=0",
]


def coloured(root: Path, each: int = 40, wrong: int = 3) -> set[str]:
    """Class folders of red, green and blue noise; return the names of those that lie in the next folder."""
    source, swapped = np.random.default_rng(0), set()
    names = list(COLOURS)
    for k, (colour, mean) in enumerate(COLOURS.items()):
        for i in range(each):
            folder = names[(k + 1) % 3] if i < wrong else colour
            name = f"{folder}/{colour[0]}{i}.png"
            pixels = source.normal(mean, 25, (8, 8, 3)).clip(0, 255).astype(np.uint8)
            (root / folder).mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(encode(pixels))
            swapped |= {name} if i < wrong else set()
    return swapped


def digits(root: Path, share: float = 0.05) -> set[str]:
    """Write scikit-learn's digits as class folders; return the names of the share in a wrong one."""
    from sklearn.datasets import load_digits

    found, source, swapped = load_digits(), np.random.default_rng(0), set()
    count = len(found.target)
    chosen = set(source.choice(count, round(count * share), replace=False).tolist())
    for i, (pixels, label) in enumerate(zip(found.images, found.target.tolist(), strict=True)):
        folder = (label + int(source.integers(1, 10))) % 10 if i in chosen else label
        name = f"{folder}/{i:04}.png"
        (root / str(folder)).mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(encode((pixels * 255 / 16).round().astype(np.uint8)))
        swapped |= {name} if i in chosen else set()
    return swapped


def trained(data: Path, out: Path, epochs: int, *changes: str) -> Path:
    """Train a very small ViT on class folders and return its run folder."""
    words = [*RECIPE, f"budget.epochs={epochs}", *changes]
    run = start_run(str(data), "vit_xs2_8", out, words, quiet=True)
    run.go()
    return run.folder
