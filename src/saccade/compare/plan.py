"""Plan a comparison, and read and write its records: the plan, the results, the cost of each model."""

import csv
import hashlib
import io
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from saccade import __version__, values
from saccade.data.pictures import Pictures
from saccade.data.readers.open import open_images
from saccade.data.splits import Splits
from saccade.errors import ModelError, UsageError, check_number, check_word
from saccade.files.atomic import new_folder, run_path, write_text
from saccade.files.strict_json import read_json, write_json
from saccade.files.tables import to_cell
from saccade.models import cost, names
from saccade.models.build import blank
from saccade.models.hybrid import HybridConfig
from saccade.models.resnet import ResNetConfig
from saccade.tasks import find_task
from saccade.train.start import default_recipe
from saccade.vision.backbone import small_name, typical_side
from saccade.wording import percent

EQUAL = ("params", "time")
BATCH = 32
"""Batch size for throughput and memory."""
NEAR = 0.05
"""Parameter counts that differ by no more than this share are called equal."""
WIDEST = 4096
FILE = "compare.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What is compared, and how; enough to resume it."""

    data: str
    kind: str = "auto"
    models: tuple[str, ...]
    """As they are trained; the others are scaled to the size of the first ViT, or of the first model."""
    fractions: tuple[float, ...] = (0.1, 0.3, 1.0)
    equal: tuple[str, ...] = ()
    minutes: float = 0.0
    changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What was done to make the models comparable, in sentences."""
    pictures: str = ""
    """A hash of all images, so that a resume notices changes."""
    content: str = ""
    """A hash of the files' content; "" for a comparison made by an older version."""

    @property
    def trainings(self) -> list[tuple[str, float]]:
        """Model and fraction of each, the smallest fraction first."""
        return [(model, fraction) for fraction in self.fractions for model in self.models]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """The result of one training run."""

    model: str
    fraction: float
    pictures: int
    """Training images."""
    held_out: int
    correct: int
    accuracy: float
    low: float
    high: float
    epochs: float
    seconds: float
    """Training and evaluation time, without pauses and, under a time budget, without saving."""
    largest: float = 0.0
    """Share of the held-out images that are of the largest class."""
    effective: tuple[float, ...] = ()
    """Radius in pixels that holds each of `SHARES` of the middle unit's gradient (Luo et al. 2016)."""
    attention: tuple[tuple[float, ...], ...] = ()
    """Mean attention distance in pixels of every head of every block; nothing for a CNN."""

    @property
    def learnt(self) -> bool:
        """Whether the model is clearly better than always answering the largest class."""
        return self.low > self.largest

    @property
    def blocks(self) -> list[float]:
        """Mean attention distance of each block."""
        return [sum(heads) / len(heads) for heads in self.attention]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """The cost of a model, whatever it was trained on."""

    model: str
    parameters: int
    macs: int
    latency: float
    """Median seconds for one image."""
    throughput: float
    """Images per second, in batches of `BATCH`."""
    forward: int
    """Peak bytes of a forward pass of `BATCH` images, without the weights."""
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
    """Read and check everything before the first training run, and make the folder."""
    for word in equal:
        check_word("--equal", word, EQUAL)
    for fraction in fractions:
        check_number("a fraction of the images", fraction, 0.0001, 1)
    if ("time" in equal) != (minutes > 0):
        raise UsageError("--equal time gives each model the same --minutes; give both options, or neither")
    found = open_images(data, kind)
    models = list(dict.fromkeys(models)) or _usual(typical_side(found.train))
    if minutes:
        changes = [*changes, f"budget.minutes={minutes:g}"]
    recipe, why = default_recipe(find_task(), found, models[0], changes)
    configs = _configs(models, len(found.train.classes), getattr(recipe, "image", 0))
    notes = [why]
    if found.test is None:
        notes.append("no test split: the last epoch is evaluated, not the best, to avoid selection bias")
    if "params" in equal:
        models, changed = alike(models, configs)
        notes += changed
    folder = new_folder(out or run_path(data, "compare-"))
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
        content=hashed_content(found),
    )
    write_text(folder / "command.txt", shlex.join(sys.argv) + "\n")
    write(folder, made, [], [])
    return folder, made


def _usual(side: int) -> list[str]:
    """Return a ViT and a ResNet for images of that side, where no models are named."""
    vit = small_name(side)
    image = names.config(vit).image[0]  # type: ignore[union-attr]
    return [vit, f"resnet18_small_{image}" if image <= 64 else f"resnet18_{image}"]


def _configs(models: Sequence[str], classes: int, image: int) -> list[names.Config]:
    """Return the configs behind the names; refuse models that would not see the same pixels."""
    found = [names.config(model, classes) for model in models]
    sizes = [(c.vit if isinstance(c, HybridConfig) else c).image for c in found]
    for model, size in zip(models, sizes, strict=True):
        if size != sizes[0] and not image:
            raise UsageError(
                f"{model} takes images of {size[0]}x{size[1]} pixels and {models[0]} of "
                f"{sizes[0][0]}x{sizes[0][1]}; expected the same for all; write the side after each name "
                "(vit_ti4_32,resnet18_small_32), or set it for all with --set image=32"
            )
    return found


def alike(models: Sequence[str], configs: Sequence[names.Config]) -> tuple[list[str], list[str]]:
    """Return the models, each ResNet widened to the size of the first ViT, and a sentence on each change."""
    first = next((i for i, c in enumerate(configs) if not isinstance(c, ResNetConfig)), 0)
    target, made, notes = size(configs[first]), [], []
    for i, (model, config) in enumerate(zip(models, configs, strict=True)):
        if isinstance(config, ResNetConfig) and i != first:
            width = nearest_width(config, target)
            now = size(replace(config, width=width))
            away = now / target - 1
            said = f"{percent(abs(away))} {'more' if away > 0 else 'fewer'} than {models[first]} ({target:,})"
            nearer = "; no width comes closer" if abs(away) > NEAR else ""
            notes.append(f"{model} at width {width} has {now:,} parameters, {said}{nearer}")
            model = _widened(model, width)
        elif i != first and abs(size(config) / target - 1) > NEAR:
            raise UsageError(
                f"{model} has {size(config):,} parameters and {models[first]} {target:,}, and only ResNets "
                "can be rescaled; compare ViTs of one size, or leave out --equal params"
            )
        made.append(model)
    return made, notes


def _widened(model: str, width: int) -> str:
    match = names.RESNET.fullmatch(model)
    assert match is not None
    side = f"_{match['side']}" if match["side"] else ""
    return f"resnet{match['depth']}{match['small'] or ''}_w{width}{side}"


def nearest_width(config: ResNetConfig, target: int) -> int:
    """Return the width whose parameter count is closest to the target.

    The count is quadratic in the width: a convolution has width times width parameters, a norm has width.
    """
    one, two, three = (size(replace(config, width=width)) for width in (1, 2, 3))
    bend = three - 2 * two + one
    widths = range(1, WIDEST + 1)
    return min(
        widths, key=lambda w: abs(one + (w - 1) * (two - one) + bend * (w - 1) * (w - 2) // 2 - target)
    )


def size(config: names.Config) -> int:
    """Count the parameters of a model without allocating them."""
    return cost.parameters(blank(config))


def hashed(found: Splits[Pictures]) -> str:
    """Return a hash of all images of all splits."""
    parts = (f"{name} {images.fingerprint()}" for name, images in found.by_name.items())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def hashed_content(found: Splits[Pictures]) -> str:
    """Return a hash of the content of all splits."""
    parts = (f"{name} {images.content()}" for name, images in found.by_name.items())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def recorded(folder: Path) -> tuple[Comparison, list[Row]]:
    """Read the comparison and the results so far from its folder."""
    if not (folder / FILE).is_file():
        raise UsageError(
            f"{folder} is not a comparison (it has no {FILE}); give a folder that `saccade compare` made"
        )
    found = read_json(folder / FILE)
    try:
        rows = [values.from_json(Row, row) for row in found["rows"]]
        return values.from_json(Comparison, found["comparison"]), rows
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{folder / FILE} cannot be used: {error}") from error


def write(folder: Path, made: Comparison, rows: Sequence[Row], costs: Sequence[Cost]) -> dict[str, Any]:
    """Write compare.json and, once everything is measured, compare.csv; return what compare.json holds."""
    machine = {"platform": platform.platform(), "threads": torch.get_num_threads()}
    machine |= {"torch": torch.__version__, "saccade": __version__}
    record = {
        "comparison": values.to_json(made),
        "rows": [values.to_json(row) for row in rows],
        "costs": [values.to_json(each) for each in costs],
        "machine": machine,
    }
    write_json(folder / FILE, record, indent=1, finite=True)
    if costs:
        write_text(folder / "compare.csv", _csv(rows, costs))
    return record


def _csv(rows: Sequence[Row], costs: Sequence[Cost]) -> str:
    """Return a line per training with the cost of its model; attention is averaged over heads."""
    by_model = {each.model: each for each in costs}
    lines = []
    for row in rows:
        line = {**values.to_json(row), **values.to_json(by_model[row.model])}
        line["effective"] = " ".join(f"{radius:.4g}" for radius in row.effective)
        line["attention"] = " ".join(f"{distance:.4g}" for distance in row.blocks)
        lines.append({key: to_cell(each) if isinstance(each, str) else each for key, each in line.items()})
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()
