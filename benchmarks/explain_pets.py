"""How well each method of explanation finds the pet, and how true it is: the table of docs/explanations.md.

    python benchmarks/explain_pets.py WEIGHTS PETS [--each 5] [--outlines] [--write]

WEIGHTS is a ViT for ImageNet, PETS a folder with train/BREED/*.jpg and trimaps/*.png (1 pet, 2 background, 3
a border that counts for nothing). The target is the class that the model answers with. Beside the methods
stand two variants of relevance (docs/decisions/0021-relevance.md). With --outlines only the outlines are
compared, by the quick methods, which takes seconds a picture instead of a minute. With --write the table goes
between the markers of docs/explanations.md; the whole ranking is printed as JSON either way.

The pictures of val/ were looked at when relevance was made steady, so these here are those of train/.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from PIL import Image

import saccade
from saccade import values
from saccade.explain.faithfulness.fills import cell_grid
from saccade.explain.faithfulness.ranking import Masks, Ranking, rank
from saccade.explain.methods import lrp
from saccade.explain.methods.relevance import levels, rollout_row
from saccade.explain.methods.table import METHODS, fitting_methods
from saccade.explain.target import Maps, MethodFunction, Target, evaluation_mode
from saccade.metrics.localisation import LocalisationScores, Overlap, localisation_scores, overlap
from saccade.models.build import Vision
from saccade.models.vit import ViT
from saccade.nn.patch import Image as Pictures

PAGE = Path(__file__).parents[1] / "docs" / "explanations.md"
SHARES = ("mIoU", "pixel accuracy", "mAP", "pointing")
HEADS = ("method", *SHARES, "insertion", "deletion", "gain", "gain of randomised weights", "verdict")
SLOW = ("occlusion", "integrated")
AT_ONCE = 4
TRIMAP = {1: 1, 2: 0, 3: -1}


def centre(module: Vision, image: Pictures, target: Target) -> Maps:  # noqa: ARG001
    """A blob in the middle, where photographers put things: it knows nothing of the model."""
    rows, columns = (torch.linspace(-1, 1, side) for side in cell_grid(module, image))
    return (-(rows.square()[:, None] + columns.square())).expand(image.shape[0], -1, -1)


def exact(module: Vision, image: Pictures, target: Target) -> Maps:
    """Relevance by the same rule for every token, and not only for those that are read."""
    assert isinstance(module, ViT)
    found = levels(module, image, target, attrgetter("relevance", "means"), exact=True)
    rows, _ = cell_grid(module, image)
    return rearrange(rollout_row(found, probed=False)[:, module.config.front :], "b (r c) -> b r c", r=rows)


def bare(module: Vision, image: Pictures, target: Target) -> Maps:
    """The same without what keeps quotients from exploding."""
    with patch.object(lrp, "STEADY", 0.0):
        return exact(module, image, target)


VARIANTS = {
    "relevance, exact": evaluation_mode(exact),
    "relevance, exact and bare": evaluation_mode(bare),
    "centre": centre,
}


def chosen(pets: Path, each: int, step: int = 1) -> Iterator[Path]:
    """The first few pictures of each breed, or of every second, third, ... one."""
    for breed in sorted((pets / "train").iterdir())[::step]:
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


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows))


def shares(seen: LocalisationScores) -> list[str]:
    found = (seen.iou, seen.pixel_accuracy, seen.average_precision, seen.pointing)
    return [f"{share * 100:.1f}" for share in found]


def ranked(ranking: Ranking) -> str:
    """All that was measured, the best first."""
    rows = []
    for row, seen in zip(ranking.rows, ranking.segmentation, strict=True):
        numbers = (row.score.insertion, row.score.deletion, row.score.gain, row.randomised)
        rows.append([row.method, *shares(seen), *(f"{value:.3f}" for value in numbers), row.verdict.word])
    return table(HEADS, rows)


def outlines(
    module: Vision,
    images: Pictures,
    targets: Target,
    methods: Mapping[str, MethodFunction],
    masks: Masks,
) -> dict[str, LocalisationScores]:
    """How well each method finds the pets, the best first."""
    found: dict[str, list[Overlap]] = {name: [] for name in methods}
    for name, method in methods.items():
        for at in range(0, len(images), AT_ONCE):
            part = slice(at, at + AT_ONCE)
            maps = rearrange(method(module, images[part], targets[part]), "b r c -> b 1 r c")
            large = F.interpolate(maps, masks.shape[-2:], mode="bilinear").numpy()[:, 0]
            found[name] += [overlap(one, mask) for one, mask in zip(large, masks[part], strict=True)]
        print(f"{name}: {localisation_scores(found[name])}", file=sys.stderr)
    made = {name: localisation_scores(each) for name, each in found.items()}
    return dict(sorted(made.items(), key=lambda item: -item[1].iou))


def nudged(module: Vision, images: Pictures, targets: Target) -> dict[str, list[float]]:
    """How far maps move, as a share of their length: each variant if a picture is made 1e-6 brighter."""

    def far(found: Maps, beside: Maps) -> list[float]:
        lengths = torch.linalg.vector_norm((found - beside).flatten(1), dim=1)
        return sorted((lengths / torch.linalg.vector_norm(beside.flatten(1), dim=1)).tolist())

    ways = {"relevance": METHODS["relevance"].function, **VARIANTS}
    made = {name: ways[name](module, images, targets) for name in ways if name != "centre"}
    moved = {name: far(ways[name](module, images * (1 + 1e-6), targets), made[name]) for name in made}
    return {**moved, "relevance beside exact": far(made["relevance"], made["relevance, exact"])}


def write(name: str, said: str) -> None:
    """Between the markers of that name."""
    begin, end = (f"<!-- explain_pets {name}: {which} -->" for which in ("begin", "end"))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    assert after, f"{PAGE} has no markers {begin} and {end}"
    PAGE.write_text(f"{before}{begin}\n{said}\n{end}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path)
    parser.add_argument("pets", type=Path)
    parser.add_argument("--each", type=int, default=5, help="pictures of each breed")
    parser.add_argument("--step", type=int, default=1, help="2 takes every second breed only")
    parser.add_argument("--only", default="", help="methods, with commas")
    parser.add_argument("--outlines", action="store_true")
    parser.add_argument("--nudge", action="store_true", help="only see how maps move when pictures hardly do")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    model = saccade.load(options.weights)
    pictures = list(chosen(options.pets, options.each, options.step))
    images = torch.from_numpy(model.preprocess.batch(pictures))
    masks = np.stack([mask_of(model, options.pets, picture) for picture in pictures])
    with torch.inference_mode():
        targets = torch.cat([model.module(part).argmax(-1) for part in torch.split(images, 16)])
    if options.nudge:
        print(json.dumps(nudged(model.module, images, targets)))
        return
    quick = set(SLOW) if options.outlines else set()
    names = (
        options.only.split(",")
        if options.only
        else [n for n in fitting_methods(model.module) if n not in quick]
    )
    methods = {**{name: METHODS[name].function for name in names}, **VARIANTS}
    said = (
        f"{len(pictures)} images (`--each {options.each} --step {options.step}`), "
        f"{datetime.now(UTC):%Y-%m-%d}, `{options.weights.name}`"
    )
    if options.outlines:
        found = outlines(model.module, images, targets, methods, masks)
        print(json.dumps({name: values.to_json(seen) for name, seen in found.items()}, allow_nan=False))
        text = table(("method", *SHARES), ([name, *shares(seen)] for name, seen in found.items()))
        said = f"{said}.\n\n{text}"
    else:
        ranking = rank(model.module, images, targets, methods, masks, say=say)
        print(json.dumps(values.to_json(ranking), allow_nan=False))
        said = f"{said}, {ranking.draws} random maps of each picture.\n\n{ranked(ranking)}"
    print(said, file=sys.stderr)
    if options.write:
        write("outlines" if options.outlines else "ranking", said)


def say(done: int, all_: int) -> None:
    print(f"{done} of {all_} pictures", file=sys.stderr)


if __name__ == "__main__":
    main()
