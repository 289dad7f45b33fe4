"""The dataset of the demo: digits in the wild, scikit-learn's digits painted on its sample photographs."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

SIDE = 96
SIZES = (0.45, 0.65)
"""Height of a digit, as a share of the image's."""
STRETCH, TURN = (0.85, 1.2), 10
"""Of its width, and by how many degrees it is turned at most."""
INK = (255, 220, 0)
"""Yellow, on photographs at half their brightness."""
EDGE = 3
"""Pixels around a digit's box that its mask covers too: the tolerance of the pointing game."""
SEEN = 0.72
"""The share of each photograph, from the left, that training and validation images are cut from; test images
come from the rest."""
MOST = {"train": 3, "val": 1, "test": 1}
"""Digits of a kind in an image: several teach more than one, and one is enough to be recognised."""
UNSEEN = 60
"""Test images to explain."""


class Scene(NamedTuple):
    """An image, its mask (255 on the digits' boxes) and its class."""

    image: "np.ndarray"
    mask: "np.ndarray"
    label: int


@dataclass(frozen=True, slots=True)
class WildDigits:
    """Where the dataset lies."""

    folder: Path

    @property
    def images(self) -> Path:
        """Class folders under train, val and test."""
        return self.folder / "digits"

    @property
    def masks(self) -> Path:
        """A mask for each test image: white where the digit is."""
        return self.folder / "masks"

    @property
    def unseen(self) -> Path:
        """Some test images, with their class in the name."""
        return self.folder / "unseen"


def write_digits(folder: Path, images: int = 4000, seed: int = 0) -> WildDigits:
    """Write this many training images, and the digits kept for validation and test once each.

    No digit and no part of a photograph is in two splits, but for the photographs of validation images.
    """
    import numpy as np
    from PIL import Image

    made, draws = WildDigits(folder), np.random.default_rng(seed)
    shown = 0
    for split, numbers in _splits(seed).items():
        count = images if split == "train" else len(numbers)
        for i, scene in enumerate(_scenes(split, numbers, count, draws)):
            name = f"{scene.label}/{i:04}.png"
            places = [(made.images / split / name, scene.image)]
            if split == "test":
                places.append((made.masks / name, scene.mask))
                if i % (count // UNSEEN) == 0 and shown < UNSEEN:
                    shown += 1
                    places.append((made.unseen / name, scene.image))
            for path, pixels in places:
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(path, compress_level=1)
    return made


def _splits(seed: int) -> "dict[str, np.ndarray]":
    """Return the numbers of scikit-learn's digits by split, each class alike."""
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    target = load_digits().target
    rest, test = train_test_split(np.arange(len(target)), test_size=360, stratify=target, random_state=seed)
    train, val = train_test_split(rest, test_size=240, stratify=target[rest], random_state=seed)
    return {"train": train, "val": val, "test": test}


def _scenes(split: str, numbers: "np.ndarray", count: int, draws: "np.random.Generator") -> Iterator[Scene]:
    """Yield images, every digit in turn."""
    from sklearn.datasets import load_digits, load_sample_images

    digits, photographs = load_digits(), load_sample_images().images
    order = [i for _ in range(-(-count // len(numbers))) for i in draws.permutation(numbers)][:count]
    for i in order:
        label = int(digits.target[i])
        image = _background(photographs[draws.integers(len(photographs))], split, draws)
        mask = image[..., 0] * 0
        alike = numbers[digits.target[numbers] == label]
        wanted = int(draws.integers(MOST[split])) + 1
        for drawn in (i, *draws.choice(alike, 3 * wanted)):
            wanted -= _paint(image, mask, digits.images[drawn], draws)
            if not wanted:
                break
        yield Scene(image, mask, label)


def _background(photograph: "np.ndarray", split: str, draws: "np.random.Generator") -> "np.ndarray":
    """Return a square cut out of a photograph, at half its brightness, turned and mirrored."""
    import numpy as np
    from PIL import Image

    height, width, _ = photograph.shape
    border = round(SEEN * width)
    low, high = (border, width) if split == "test" else (0, border)
    side = int(draws.integers(SIDE * 2 // 3, SIDE * 5 // 3))
    x, y = int(draws.integers(low, high - side + 1)), int(draws.integers(height - side + 1))
    cut = Image.fromarray(photograph[y : y + side, x : x + side])
    pixels = np.asarray(cut.resize((SIDE, SIDE), Image.Resampling.BICUBIC)) // 2
    pixels = np.rot90(pixels, int(draws.integers(4)))
    return (pixels[:, ::-1] if draws.integers(2) else pixels).copy()


def _paint(
    image: "np.ndarray", mask: "np.ndarray", digit: "np.ndarray", draws: "np.random.Generator"
) -> bool:
    """Paint a digit at a random size and place, unless another one is there; return whether it was."""
    import numpy as np
    from PIL import Image

    filled = np.flatnonzero(digit.max(0) > 4)
    digit = digit[:, filled[0] : filled[-1] + 1]
    height = round(SIDE * draws.uniform(*SIZES))
    width = max(3, round(height * digit.shape[1] / 8 * draws.uniform(*STRETCH)))
    pixels = Image.fromarray((digit * 255 / 16).astype(np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    pixels = pixels.rotate(draws.uniform(-TURN, TURN), Image.Resampling.BICUBIC, expand=True)
    ink = np.asarray(pixels)[..., None] * 1.3 / 255
    height, width, _ = ink.shape
    x, y = int(draws.integers(SIDE - width + 1)), int(draws.integers(SIDE - height + 1))
    there = np.s_[y : y + height, x : x + width]
    if mask[there].any():
        return False
    ink = ink.clip(0, 1)
    image[there] = (image[there] * (1 - ink) + np.array(INK) * ink).round()
    mask[max(0, y - EDGE) : y + height + EDGE, max(0, x - EDGE) : x + width + EDGE] = 255
    return True
