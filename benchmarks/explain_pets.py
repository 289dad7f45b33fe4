"""How well each method of explanation finds the pet, and how true it is: the table of docs/explanations.md.

    python benchmarks/explain_pets.py WEIGHTS PETS [--each 5] [--write]

WEIGHTS is a ViT for ImageNet, PETS a folder with val/BREED/*.jpg and trimaps/*.png (1 pet, 2 background, 3 a
border that counts for nothing). The target is the class that the model answers with. With --write the table
goes between the markers of docs/explanations.md; the whole ranking is printed as JSON either way.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import saccade
from saccade import values
from saccade.explain.ask import Maps, Target
from saccade.explain.methods import METHODS, fitting
from saccade.explain.perturb import cells_of
from saccade.explain.ranking import Ranking, rank
from saccade.models.build import Vision
from saccade.nn.patch import Image as Pictures

PAGE = Path(__file__).parents[1] / "docs" / "explanations.md"
BEGIN, END = "<!-- explain_pets: begin -->", "<!-- explain_pets: end -->"
HEADS = (
    *("method", "mIoU", "pixel accuracy", "mAP", "pointing", "insertion", "deletion", "gain"),
    *("gain of randomised weights", "verdict"),
)
TRIMAP = {1: 1, 2: 0, 3: -1}


def centre(module: Vision, image: Pictures, target: Target) -> Maps:  # noqa: ARG001
    """A blob in the middle, where photographers put things: it knows nothing of the model."""
    rows, columns = (torch.linspace(-1, 1, side) for side in cells_of(module, image))
    return (-(rows.square()[:, None] + columns.square())).expand(image.shape[0], -1, -1)


def chosen(pets: Path, each: int) -> Iterator[Path]:
    """The first few pictures of each breed."""
    for breed in sorted((pets / "val").iterdir()):
        yield from sorted(breed.iterdir())[:each]


def mask_of(model: saccade.Model, pets: Path, picture: Path) -> np.ndarray:
    """The trimap, fitted as the picture is, without mixing its values."""
    with Image.open(pets / "trimaps" / f"{picture.stem}.png") as file:
        trimap = np.asarray(file.convert("L"))
    made = np.full(model.preprocess.size, TRIMAP[3], dtype=np.int8)
    for value in (1, 2):
        alone = Image.fromarray(((trimap == value) * 255).astype(np.uint8)).convert("RGB")
        made[np.asarray(model.preprocess.view(alone))[..., 0] > 127] = TRIMAP[value]
    return made


def table(ranking: Ranking) -> str:
    """Markdown, the best first."""
    lines = [
        f"| {' | '.join(HEADS)} |",
        f"|{'---|' * len(HEADS)}",
    ]
    for row, seen in zip(ranking.rows, ranking.segmentation, strict=True):
        shares = (seen.iou, seen.pixel_accuracy, seen.average_precision, seen.pointing)
        numbers = (row.score.insertion, row.score.deletion, row.score.gain, row.randomised)
        cells = [*(f"{share * 100:.1f}" for share in shares), *(f"{value:.3f}" for value in numbers)]
        lines.append(f"| {row.method} | {' | '.join(cells)} | {row.verdict.word} |")
    return "\n".join(lines)


def write(ranking: Ranking, said: str) -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{said}\n\n{table(ranking)}\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path)
    parser.add_argument("pets", type=Path)
    parser.add_argument("--each", type=int, default=5, help="pictures of each breed")
    parser.add_argument("--only", default="", help="methods, with commas")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    model = saccade.load(options.weights)
    pictures = list(chosen(options.pets, options.each))
    images = torch.from_numpy(model.preprocess.batch(pictures))
    masks = np.stack([mask_of(model, options.pets, picture) for picture in pictures])
    with torch.inference_mode():
        targets = torch.cat([model.module(part).argmax(-1) for part in torch.split(images, 16)])
    names = options.only.split(",") if options.only else fitting(model.module)
    methods = {**{name: METHODS[name].function for name in names}, "centre": centre}

    def say(done: int, all_: int) -> None:
        print(f"{done} of {all_} pictures", file=sys.stderr)

    ranking = rank(model.module, images, targets, methods, masks, say=say)
    said = (
        f"{ranking.pictures} pictures ({options.each} of each breed), {datetime.now(UTC):%Y-%m-%d}, "
        f"`{options.weights.name}`, {ranking.draws} random maps of each picture."
    )
    print(json.dumps(values.to_json(ranking), allow_nan=False))
    print(f"{said}\n\n{table(ranking)}", file=sys.stderr)
    if options.write:
        write(ranking, said)


if __name__ == "__main__":
    main()
