"""Pictures that hold the truth about themselves: one small texture decides the class, its box is known.

Class folders of 48-pixel PNG files: coloured noise, one of four textures of 8x8 pixels somewhere, and three
others (plain, slanted, ringed, halved) that belong to no class and stand in every class alike. A fifth class
has only these: without it, one texture could be told by the absence of the rest, and looking at it would be
no reason. Beside the folders, NAME-masks has a mask for each picture (white on the object) and boxes.json:

    python tests/planted.py planted
    saccade train planted --model planted-start --set ...    (SETTINGS)
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from PIL import Image

import saccade
from saccade.data.image.preprocess import Preprocess
from saccade.models.vit import ViT, ViTConfig

SIDE, TEXTURE, CELL = 48, 8, 8
DISTRACTORS = 3
SETTINGS = (
    "augment.flip=0",
    "augment.pad=0",
    "augment.crop=1,1",
    "augment.policy=none",
    "mix.mixup=0",
    "mix.cutmix=0",
    "mix.smoothing=0.1",
    "droppath=0",
    "optim.lr=2e-3",
    "optim.layer_decay=1",
    "budget.epochs=3",
    "budget.batch=64",
    "workers=0",
)
"""Changes to the recipe: what stands where must stay there, and a mirrored slant is another one."""

_y, _x = np.indices((TEXTURE, TEXTURE))
TEXTURES = {
    "rows": _y // 2 % 2,
    "columns": _x // 2 % 2,
    "checks": (_y // 2 + _x // 2) % 2,
    "dots": (_y % 4 == 1) & (_x % 4 == 1) | (_y % 4 == 2) & (_x % 4 == 2),
}
NOTHING = "nothing"
LABELS = sorted([*TEXTURES, NOTHING])
OTHERS = {
    "plain": np.ones((TEXTURE, TEXTURE), dtype=int),
    "slanted": (_y + _x) // 3 % 2,
    "ringed": np.minimum.reduce([_y, _x, TEXTURE - 1 - _y, TEXTURE - 1 - _x]) % 3 == 0,
    "halved": _x + _y < TEXTURE,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Planted:
    """One picture, its class, and where the reason for it is."""

    pixels: np.ndarray
    label: str
    box: tuple[int, int, int, int]
    """Top, left, bottom, right, in pixels; the last two are outside. Empty where there is no object."""

    @property
    def mask(self) -> np.ndarray:
        """True on the object."""
        made = np.zeros((SIDE, SIDE), dtype=bool)
        top, left, bottom, right = self.box
        made[top:bottom, left:right] = True
        return made


def picture(label: str, seed: int) -> Planted:
    """The same label and seed give the same picture."""
    rng = np.random.default_rng([seed, LABELS.index(label)])
    pixels = rng.normal(0.5, 0.12, (SIDE, SIDE, 3))
    places = _places(rng, 1 + DISTRACTORS)
    kinds = [OTHERS[name] for name in rng.permutation(list(OTHERS))[:DISTRACTORS]]
    kinds = kinds if label == NOTHING else [TEXTURES[label], *kinds]
    for (top, left), texture in zip(places, kinds, strict=False):
        light, dark = rng.uniform(0.7, 1, 3), rng.uniform(0, 0.3, 3)
        pixels[top : top + TEXTURE, left : left + TEXTURE] = np.where(texture[..., None] > 0, light, dark)
    top, left = places[0]
    side = 0 if label == NOTHING else TEXTURE
    return Planted(
        pixels=(np.clip(pixels, 0, 1) * 255).astype(np.uint8),
        label=label,
        box=(top, left, top + side, left + side),
    )


def _places(rng: np.random.Generator, count: int) -> list[tuple[int, int]]:
    """Corners on the grid of patches, of squares that do not touch one another."""
    found: list[tuple[int, int]] = []
    while len(found) < count:
        top, left = (int(CELL * rng.integers((SIDE - TEXTURE) // CELL + 1)) for _ in range(2))
        if all(max(abs(top - y), abs(left - x)) >= TEXTURE for y, x in found):
            found.append((top, left))
        elif rng.random() < 0.02:
            found = []  # the first ones may leave no room
    return found


def pictures(count: int, start: int = 0, labels: Sequence[str] = tuple(TEXTURES)) -> Iterator[Planted]:
    """So many of each class."""
    for seed in range(start, start + count):
        for label in labels:
            yield picture(label, seed)


def write(root: Path, train: int = 1200, val: int = 40, test: int = 40) -> Path:
    """Write train/, val/ and test/ with so many pictures of each class, and their masks and boxes."""
    boxes, start = {}, 0
    for split, count in (("train", train), ("val", val), ("test", test)):
        for i, made in enumerate(pictures(count, start, LABELS)):
            name = f"{split}/{made.label}/{i:05}.png"
            for path, pixels in (
                (root / name, made.pixels),
                (root.with_name(root.name + "-masks") / name, made.mask),
            ):
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(path)
            boxes[name] = made.box
        start += count
    root.with_name(root.name + "-masks").joinpath("boxes.json").write_text(json.dumps(boxes))
    return root


def by_hand() -> ViT:
    """A ViT that names these pictures, each weight of it written down: its reasons are no secret.

    Four channels of a patch hold how much it looks like each texture. The class token asks for patches that
    look like any, takes over what they hold, and the head reads it; little of everything is nothing. A large
    constant channel makes each norm nearly the identity.
    """
    config = ViTConfig(
        image=(SIDE, SIDE),
        patch=CELL,
        width=8,
        depth=1,
        heads=1,
        hidden=8,
        classes=len(LABELS),
        position="none",
    )
    vit, constant = ViT(config).eval(), 10.0
    looks = torch.tensor(np.stack([TEXTURES[name] for name in TEXTURES]), dtype=torch.float32)
    looks = looks - looks.mean((1, 2), keepdim=True)
    usual = torch.zeros(8)
    usual[7] = constant
    with torch.no_grad():
        for parameter in vit.parameters():
            parameter.zero_()
        kernel, bias = vit.patches.weight, vit.patches.bias
        kernel[:4] = (looks / looks.square().sum((1, 2), keepdim=True))[:, None] / 3
        bias[7] = vit.front[0, 7] = constant
        vit.front[0, 4] = 1
        for norm in (vit.blocks[0].norm1, vit.blocks[0].norm2, vit.norm):
            norm.weight.fill_(usual.std(correction=0))
            norm.bias.fill_(usual.mean())
        attention = vit.blocks[0].attention
        attention.q.weight[0, 4] = 30
        attention.k.weight[0, :4] = 1
        for layer in (attention.v, attention.out):
            layer.weight[:4, :4] = torch.eye(4)
        vit.head.weight[[LABELS.index(name) for name in TEXTURES], :4] = 16 * torch.eye(4)
        vit.head.bias[LABELS.index(NOTHING)] = 4
    return vit


def inputs(made: Sequence[Planted]) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Pictures as `by_hand` sees them, the numbers of their classes, and their masks."""
    pixels = torch.from_numpy(np.stack([one.pixels for one in made]))
    image = rearrange(pixels, "b h w ch -> b ch h w").float() / 127.5 - 1
    target = torch.tensor([LABELS.index(one.label) for one in made])
    return image, target, np.stack([one.mask for one in made]).astype(np.int8)


def start(folder: Path) -> Path:
    """Write the untrained ViT, which reads the mean of its patches: vit_xs8_48 with pool="mean"."""
    torch.manual_seed(0)
    module = saccade.create("vit_xs8_48", classes=len(LABELS), pool="mean")
    preprocess = Preprocess(size=(SIDE, SIDE), crop=1.0)
    return saccade.Model(module, preprocess, LABELS).save(folder)


if __name__ == "__main__":
    print(write(Path(sys.argv[1])), start(Path(f"{sys.argv[1]}-start")))
