"""`saccade demo`: train a small ViT on scikit-learn's digits in seconds, and let it name some pictures."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.predict import show_table
from saccade.errors import UsageError, check_number

if TYPE_CHECKING:
    import numpy as np

SHOWN = 6


def demo(
    out: Annotated[Path, typer.Option(help="Where to put the model; -2, -3 are added if it exists.")] = Path(
        "runs/demo"
    ),
    epochs: Annotated[int, typer.Option(help="How often to go through the digits.")] = 20,
) -> None:
    """Train a small ViT on handwritten digits, save it and ask it: `saccade demo --epochs 20`."""
    check_number("epochs", epochs, 1, 10_000)
    folder = _free(out)
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    pictures = (digits.images * 255 / 16).round().astype("uint8")
    train, test, y_train, y_test = train_test_split(
        pictures, digits.target, test_size=0.2, stratify=digits.target, random_state=0
    )
    print(f"scikit-learn's digits: {len(train)} to learn from, {len(test)} to be tested on", file=sys.stderr)
    _train(folder, epochs, (train, y_train), (test, y_test))
    samples = _samples(folder / "pictures", test, y_test)
    from saccade.api import load

    model = load(folder)
    show_table([(str(path), model.predict(path, top=2)) for path in samples])
    print(f"\nask it yourself: saccade predict {folder} {samples[0]}", file=sys.stderr)
    typer.echo(folder)


def _free(out: Path) -> Path:
    """Make the folder itself, or the first of -2, -3, ... that does not exist."""
    if out.name in ("", ".."):
        raise UsageError(f"the folder to write is {str(out)!r}; expected one with a name of its own")
    path, number = out, 1
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            number += 1
            path = out.with_name(f"{out.name}-{number}")
        except OSError as error:
            raise UsageError(f"{path} cannot be made ({error.strerror}); choose another place") from error


def _train(
    folder: Path,
    epochs: int,
    train: tuple["np.ndarray", "np.ndarray"],
    test: tuple["np.ndarray", "np.ndarray"],
) -> None:
    import numpy as np
    import torch
    import torch.nn.functional as F

    from saccade.api import Model
    from saccade.data.transform import Preprocess
    from saccade.models.vit import ViT, ViTConfig

    torch.manual_seed(0)
    config = ViTConfig(
        image=(8, 8), patch=2, width=64, depth=4, heads=4, hidden=128, classes=10, position="sincos2d"
    )
    preprocess = Preprocess(size=(8, 8), fit="squash", crop=1.0)
    vit = ViT(config)
    rgb = [np.stack([pictures] * 3, axis=-1) for pictures, _ in (train, test)]
    x, x_test = (torch.from_numpy(preprocess.batch(list(pictures))) for pictures in rgb)
    y, y_test = (torch.from_numpy(labels) for _, labels in (train, test))
    steps = epochs * (x.shape[0] // 64)
    optimizer = torch.optim.AdamW(vit.parameters(), lr=2e-3, weight_decay=0.5)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps)
    for epoch in range(epochs):
        vit.train()
        for batch in torch.randperm(x.shape[0])[: steps // epochs * 64].view(-1, 64):
            loss = F.cross_entropy(vit(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        vit.eval()
        with torch.inference_mode():
            right = (vit(x_test).argmax(-1) == y_test).float().mean()
        print(
            f"epoch {epoch + 1:3}/{epochs}  loss {loss.item():.3f}  right {right:.1%} of the unseen",
            file=sys.stderr,
        )
    Model(vit, preprocess, [f"digit {i}" for i in range(10)]).save(folder)


def _samples(folder: Path, pictures: "np.ndarray", labels: "np.ndarray") -> list[Path]:
    """Write a few unseen digits as PNG files, large enough to look at."""
    from PIL import Image

    folder.mkdir()
    paths = []
    for i, (picture, label) in enumerate(zip(pictures[:SHOWN], labels[:SHOWN], strict=True)):
        paths.append(folder / f"unseen-{i}-is-{label}.png")
        Image.fromarray(picture).resize((96, 96), Image.Resampling.NEAREST).save(paths[-1])
    return paths
