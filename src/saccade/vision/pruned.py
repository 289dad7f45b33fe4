"""Compare a model that drops or merges patches with its dense original: accuracy, work and time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from saccade import values
from saccade.data.image.preprocess import Preprocess
from saccade.data.pictures import Pictures
from saccade.data.splits import Splits, stratified
from saccade.engine.stream import Arrays
from saccade.engine.timing import Timing, forward_times
from saccade.errors import DataError, ModelError, SaccadeError
from saccade.files.strict_json import read_json, write_json
from saccade.metrics.interval import interval_words
from saccade.models.build import config_of
from saccade.models.looped import Looped
from saccade.models.vit import ViT
from saccade.report.html import Html, soft, table, tag
from saccade.tokens.cost import Config, lengths, macs
from saccade.tokens.plan import describe_plan
from saccade.vision.model import ImagesByNumber, VisionModel
from saccade.weights.identify import locate
from saccade.weights.load import load

BATCHES = (1, 32)
"""Batch sizes to time: 1 shows the latency, 32 the throughput."""
FILE = "pruning.json"
TITLE = "Fewer patches"


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Times of two models that took turns, so that a slow moment of the machine hits both."""

    batch: int
    dense: float
    """Median seconds for a batch."""
    slim: float
    ratio: float
    """The median over rounds of dense / slim: above 1, the pruned model is faster."""
    low: float
    high: float
    """Its quartiles."""
    rounds: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunedComparison:
    """A pruned model against its dense original, as `saccade prune` reports it."""

    plan: str
    dense: str
    """Path of the dense model."""
    split: str
    pictures: int
    dense_right: int
    right: int
    same: int
    """Images to which both give the same answer."""
    dense_macs: int
    macs: int
    tokens: tuple[int, ...]
    """How many enter each block."""
    speeds: tuple[Speed, ...]
    predicted: float = 0.0
    """Seconds that the search expected for its batch; 0 if nothing was searched."""
    wanted: float = 0.0
    """The speed-up that was asked for; 0 if none was."""

    @property
    def lost(self) -> float:
        """Accuracy lost, as a share."""
        return (self.dense_right - self.right) / self.pictures


def speed(batch: int, dense: Sequence[float], slim: Sequence[float]) -> Speed:
    """Summarise the times of both models, round by round."""
    by = Timing.ratio(dense, slim)
    return Speed(
        batch=batch,
        dense=median(dense),
        slim=median(slim),
        ratio=by.median,
        low=by.low,
        high=by.high,
        rounds=by.rounds,
    )


class _SideBySide(VisionModel):
    """Several modules asked about the same image; an answer is the class that each of them predicts."""

    def run(self, inputs: Arrays) -> Arrays:
        with torch.inference_mode():
            image = torch.from_numpy(inputs["image"])
            return {"classes": torch.stack([module(image).argmax(-1) for module in self.network], 1).numpy()}

    def answer(self, outputs: Arrays, back: None) -> np.ndarray:
        return outputs["classes"]


def right_of(
    modules: Sequence[nn.Module], preprocess: Preprocess, images: Pictures
) -> tuple[int, list[int], list[int]]:
    """Return the number of images and, for each module, how many it got right and answered like the first."""
    from saccade.progress import track

    asked = ImagesByNumber(_SideBySide(modules, preprocess), images).answers()
    found = list(track(asked, len(images), "evaluating"))
    if not found:
        raise DataError("no images to evaluate on; expected one or more")
    answers = np.stack([classes for _, classes in found])
    labels = images.labels[[number for number, _ in found]]
    right, same = (answers == labels[:, None]).sum(0), (answers == answers[:, :1]).sum(0)
    return len(found), right.tolist(), same.tolist()


def apart(found: Splits[Pictures], enough: int) -> tuple[Pictures, str, Pictures]:
    """Return images to choose on, the name of the split to evaluate on, and its images.

    These are val and test where both exist; otherwise the held-out images are split: `enough` to choose on,
    at most half. If there are too few to split, all serve for both, and the name says so.
    """
    split, images = found.unseen()
    if split == "test" and found.val is not None:
        return found.val, split, images
    share = min(0.5, max(enough / len(images), 0.001))
    keys = ~images.keys()  # not the hashes by which they were held out
    others, some = stratified(images.labels, share, 0, keys=keys)
    if not len(others) or not len(some):
        return images, f"twice used {split}", images
    return images.take(some), f"other {split}", images.take(others)


def compare(
    dense: ViT,
    slim: Looped,
    preprocess: Preprocess,
    images: Pictures,
    split: str,
    place: str,
    batches: Sequence[int] = BATCHES,
) -> PrunedComparison:
    """Measure both models on the same images and the same machine."""
    dense.eval()
    slim.eval()
    size = dense.config.image
    count, right, same = right_of([dense, slim], preprocess, images)
    speeds = tuple(speed(batch, *forward_times([dense, slim], size, batch)) for batch in batches)
    before = config_of(dense)
    assert isinstance(before, Config)
    return PrunedComparison(
        plan=describe_plan(slim.loop),
        dense=place,
        split=split,
        pictures=count,
        dense_right=right[0],
        right=right[1],
        same=same[1],
        dense_macs=macs(before),
        macs=macs(slim.loop),
        tokens=lengths(slim.loop),
        speeds=speeds,
    )


def comparison_rows(found: PrunedComparison) -> list[list[str]]:
    """Return a table of the dense model, the pruned one, and what changed."""
    count, work = found.pictures, found.dense_macs / found.macs
    lines = [
        ["", "dense", "pruned", "change"],
        [
            f"accuracy ({count:,} {found.split} images)",
            f"{found.dense_right / count:.2%}",
            f"{found.right / count:.2%}",
            f"{0.0 - 100 * found.lost:+.2f} points ({interval_words(found.right, count)})",
        ],
        ["same answer as dense", "", f"{found.same / count:.1%}", ""],
        [
            "multiply-accumulates",
            f"{found.dense_macs / 1e6:,.1f} M",
            f"{found.macs / 1e6:,.1f} M",
            f"{work:.2f} x fewer",
        ],
    ]
    for each in found.speeds:
        spread = f"{each.ratio:.2f} x as fast (quartiles {each.low:.2f} to {each.high:.2f})"
        times = f"{1e3 * each.dense:.2f} ms", f"{1e3 * each.slim:.2f} ms"
        lines.append([f"time, batch {each.batch}", *times, spread])
    if found.predicted:
        lines.append(["time, predicted", "", f"{1e3 * found.predicted:.2f} ms", ""])
    return lines


def write_comparison(folder: Path, found: PrunedComparison) -> None:
    """Write the comparison into the model folder."""
    write_json(folder / FILE, values.to_json(found))


def compare_with_dense(folder: Path, dense: str, found: Splits[Pictures]) -> None:
    """Measure the pruned model in a run folder against the model it started from; write what was found."""
    before, after = load(locate(dense)), load(folder)
    assert isinstance(before.module, ViT)
    assert isinstance(after.module, Looped)
    split, images = found.unseen()
    write_comparison(folder, compare(before.module, after.module, after.preprocess, images, split, dense))


def read_comparison(folder: Path) -> PrunedComparison:
    """Read what `write_comparison` wrote; anything else is a ModelError."""
    try:
        return values.from_json(PrunedComparison, read_json(folder / FILE))
    except ValueError as error:
        raise ModelError(f"{folder / FILE} cannot be used: {error}") from error


def comparison_facts(found: PrunedComparison) -> dict[str, Any]:
    """Return the comparison for `--json`, with both accuracies."""
    count = found.pictures
    shares = {"dense_accuracy": found.dense_right / count, "accuracy": found.right / count}
    return {**values.to_json(found), **shares}


def comparison_section(folder: Path) -> Iterator[Html]:
    """Yield the section of a report, or a note on why it is left out."""
    try:
        found = read_comparison(folder)
        lines = comparison_rows(found)
    except (SaccadeError, ArithmeticError):
        yield soft(f"The comparison with the dense model is left out: {FILE} cannot be read.")
        return
    yield tag("p", f"Plan: {found.plan}. Tokens that enter each block: {', '.join(map(str, found.tokens))}.")
    shown = [[(cell, cell) for cell in line] for line in lines[1:]]
    yield table("dense-and-pruned", "Compared with the dense model, on this machine", lines[0], shown)
