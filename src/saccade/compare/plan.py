"""What is compared, what came out, and what each model takes: the records of a comparison, kept as JSON."""

import csv
import hashlib
import io
import json
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from saccade import __version__, values
from saccade.data.readers.listing import Collection
from saccade.data.readers.open import open_images
from saccade.errors import ModelError, UsageError, check_number, check_word
from saccade.files.atomic import new_folder, write_text
from saccade.models import cost, names
from saccade.models.blank import blank
from saccade.models.hybrid import HybridConfig
from saccade.models.resnet import ResNetConfig
from saccade.recipe import Recipe
from saccade.tasks.classify.job import settle
from saccade.vision.backbone import small_name, typical_side
from saccade.weights.formats.tensors import read_json
from saccade.wording import percent

EQUAL = ("params", "time")
BATCH = 32
"""Pictures at once, where throughput and memory are measured."""
NEAR = 0.05
"""Parameter counts that differ by no more than this share are called equal."""
WIDEST = 4096
FILE = "compare.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What is compared, and how; enough to go on with it."""

    data: str
    kind: str = "auto"
    models: tuple[str, ...]
    """As they are trained; the first ViT, or else the first, is the measure of the others' size."""
    fractions: tuple[float, ...] = (0.1, 0.3, 1.0)
    equal: tuple[str, ...] = ()
    minutes: float = 0.0
    changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What was done to make the models comparable, in sentences."""
    pictures: str = ""
    """A hash of all pictures, to notice on going on that they have changed."""

    @property
    def trainings(self) -> list[tuple[str, float]]:
        """Model and fraction of each, the smallest fraction first."""
        return [(model, fraction) for fraction in self.fractions for model in self.models]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What came out of one training."""

    model: str
    fraction: float
    pictures: int
    """To learn from."""
    held_out: int
    correct: int
    accuracy: float
    low: float
    high: float
    epochs: float
    seconds: float
    """Of training and scoring; pauses are not in it, nor is saving where minutes were given."""
    effective: tuple[float, ...] = ()
    """Radius in pixels that holds each of `SHARES` of the middle unit's gradient (Luo et al. 2016)."""
    attention: tuple[tuple[float, ...], ...] = ()
    """Mean attention distance in pixels of every head of every block; nothing for a CNN."""

    @property
    def blocks(self) -> list[float]:
        """Mean attention distance of each block."""
        return [sum(heads) / len(heads) for heads in self.attention]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a model takes, whatever it was trained on."""

    model: str
    parameters: int
    macs: int
    latency: float
    """Median seconds for one picture."""
    throughput: float
    """Pictures a second, `BATCH` at once."""
    forward: int
    """Peak bytes of a forward pass of `BATCH` pictures, weights not counted."""
    step: int
    """Peak bytes of a training step of as many: activations, gradients and the optimiser's moments."""
    field: int
    """Theoretical receptive field in pixels; 0 for a ViT, whose attention sees everything."""


def begin(
    data: str,
    models: Sequence[str] = (),
    fractions: Sequence[float] = (0.1, 0.3, 1.0),
    equal: Sequence[str] = (),
    minutes: float = 0.0,
    changes: Sequence[str] = (),
    kind: str = "auto",
    out: Path | None = None,
) -> tuple[Path, Comparison]:
    """Read and check everything before the first training, and make the folder."""
    for word in equal:
        check_word("--equal", word, EQUAL)
    for fraction in fractions:
        check_number("a fraction of the pictures", fraction, 0.0001, 1)
    if ("time" in equal) != (minutes > 0):
        raise UsageError(
            "equal time is so many minutes for each training; give --equal time and --minutes, or neither"
        )
    found = open_images(data, kind)
    models = list(dict.fromkeys(models)) or _usual(typical_side(found.train))
    if minutes:
        changes = [*changes, f"budget.minutes={minutes:g}"]
    recipe, why = settle(found.train, models[0], changes)
    configs = _configs(models, len(found.train.classes), recipe)
    notes = [why]
    if found.test is None:
        notes.append(
            "no test split: the last epoch is scored, not the best, so that the score chooses nothing"
        )
    if "params" in equal:
        models, told = alike(models, configs)
        notes += told
    folder = new_folder(out or Path("runs") / f"compare-{Path(data).resolve().name or 'data'}")
    made = Comparison(
        data=str(Path(data).resolve()) if Path(data).exists() else data,
        kind=kind,
        models=tuple(models),
        fractions=tuple(sorted({float(fraction) for fraction in fractions})),
        equal=tuple(equal),
        minutes=float(minutes),
        changes=tuple(changes),
        notes=tuple(notes),
        pictures=hashed(found),
    )
    write_text(folder / "command.txt", shlex.join(sys.argv) + "\n")
    write(folder, made, [], [])
    return folder, made


def _usual(side: int) -> list[str]:
    """A ViT and a ResNet for pictures of that side, where none are named."""
    vit = small_name(side)
    image = names.config(vit).image[0]  # type: ignore[union-attr]
    return [vit, f"resnet18_small_{image}" if image <= 64 else f"resnet18_{image}"]


def _configs(models: Sequence[str], classes: int, recipe: Recipe) -> list[names.Config]:
    """The configs behind the names; refuse models that would not see the same pixels."""
    found = [names.config(model, classes) for model in models]
    sizes = [(c.vit if isinstance(c, HybridConfig) else c).image for c in found]
    for model, size in zip(models, sizes, strict=True):
        if size != sizes[0] and not recipe.image:
            raise UsageError(
                f"{model} takes pictures of {size[0]}x{size[1]} pixels and {models[0]} of "
                f"{sizes[0][0]}x{sizes[0][1]}; expected the same for all; write the side after each name "
                "(vit_ti4_32,resnet18_small_32), or set it for all with --set image=32"
            )
    return found


def alike(models: Sequence[str], configs: Sequence[names.Config]) -> tuple[list[str], list[str]]:
    """The models with each ResNet as wide as gives it the size of the first ViT, and a sentence on each."""
    first = next((i for i, c in enumerate(configs) if not isinstance(c, ResNetConfig)), 0)
    target, made, told = size(configs[first]), [], []
    for i, (model, config) in enumerate(zip(models, configs, strict=True)):
        if isinstance(config, ResNetConfig) and i != first:
            width = nearest_width(config, target)
            now = size(replace(config, width=width))
            away = now / target - 1
            said = f"{percent(abs(away))} {'more' if away > 0 else 'fewer'} than {models[first]} ({target:,})"
            nearer = "; no width comes nearer" if abs(away) > NEAR else ""
            told.append(f"{model} at width {width} has {now:,} parameters, {said}{nearer}")
            model = _widened(model, width)
        elif i != first and abs(size(config) / target - 1) > NEAR:
            raise UsageError(
                f"{model} has {size(config):,} parameters and {models[first]} {target:,}, and only ResNets "
                "can be rescaled; compare ViTs of one size, or leave out --equal params"
            )
        made.append(model)
    return made, told


def _widened(model: str, width: int) -> str:
    match = names.RESNET.fullmatch(model)
    assert match is not None
    side = f"_{match['side']}" if match["side"] else ""
    return f"resnet{match['depth']}{match['small'] or ''}_w{width}{side}"


def nearest_width(config: ResNetConfig, target: int) -> int:
    """The width whose number of parameters is nearest to the target.

    The number is a polynomial of the second degree: a convolution has width times width, a norm has width.
    """
    one, two, three = (size(replace(config, width=width)) for width in (1, 2, 3))
    bend = three - 2 * two + one
    widths = range(1, WIDEST + 1)
    return min(
        widths, key=lambda w: abs(one + (w - 1) * (two - one) + bend * (w - 1) * (w - 2) // 2 - target)
    )


def size(config: names.Config) -> int:
    """Parameters of a model, counted without making its numbers."""
    return cost.parameters(blank(config))


def hashed(found: Collection) -> str:
    """A hash of all pictures of all splits."""
    parts = (f"{name} {images.fingerprint()}" for name, images in found.splits.items())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def recorded(folder: Path) -> tuple[Comparison, list[Row]]:
    """What a comparison's folder records."""
    if not (folder / FILE).is_file():
        raise UsageError(f"{folder} is no comparison (it has no {FILE}); give the folder that compare made")
    found = read_json(folder / FILE)
    try:
        rows = [values.from_json(Row, row) for row in found["rows"]]
        return values.from_json(Comparison, found["comparison"]), rows
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{folder / FILE} cannot be used: {error}") from error


def write(folder: Path, made: Comparison, rows: Sequence[Row], costs: Sequence[Cost]) -> dict[str, Any]:
    """Write compare.json and, once all is measured, compare.csv; return what the former holds."""
    machine = {"platform": platform.platform(), "threads": torch.get_num_threads()}
    machine |= {"torch": torch.__version__, "saccade": __version__}
    told = {
        "comparison": values.to_json(made),
        "rows": [values.to_json(row) for row in rows],
        "costs": [values.to_json(each) for each in costs],
        "machine": machine,
    }
    write_text(folder / FILE, json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    if costs:
        write_text(folder / "compare.csv", _csv(rows, costs))
    return told


def _csv(rows: Sequence[Row], costs: Sequence[Cost]) -> str:
    """A line a training, with what its model takes; of the attention, the mean of each block's heads."""
    by_model = {each.model: each for each in costs}
    lines = []
    for row in rows:
        line = {**values.to_json(row), **values.to_json(by_model[row.model])}
        line["effective"] = " ".join(f"{radius:.4g}" for radius in row.effective)
        line["attention"] = " ".join(f"{distance:.4g}" for distance in row.blocks)
        lines.append(line)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()
