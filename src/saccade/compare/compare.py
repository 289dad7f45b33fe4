"""Models against each other on the same pictures: same recipe, same seed, same held-out pictures."""

from collections.abc import Callable
from pathlib import Path

import torch

from saccade.compare.page import verdict
from saccade.compare.plan import BATCH, Comparison, Cost, Row, hashed, recorded, write
from saccade.data.image.preprocess import Preprocess
from saccade.data.pictures import Images
from saccade.data.readers.listing import Collection
from saccade.data.readers.open import open_images
from saccade.data.splits import spread
from saccade.engine import measure
from saccade.errors import DataError
from saccade.metrics.interval import wilson
from saccade.models import cost
from saccade.models.build import Vision
from saccade.models.receptive_field import (
    SHARES,
    attention_distances,
    effective_field,
    layers,
    receptive_field,
)
from saccade.models.resnet import ResNet
from saccade.nn.patch import Image
from saccade.report.history import read_history
from saccade.tasks.classify.evaluate import evaluate
from saccade.tasks.classify.job import Pictures, Source, gather, judged, settle
from saccade.train import start
from saccade.train.checkpoint import latest
from saccade.train.material import StoppedError
from saccade.train.run import Run
from saccade.weights.load import load
from saccade.wording import count, duration, percent

LOOKS = 16
"""Held-out pictures on which is measured how far a model looks."""

Say = Callable[[str], None]


def go(folder: Path, say: Say) -> tuple[Comparison, list[Row], list[Cost]]:
    """Train what is not trained yet, measure, and write the report."""
    made, rows = recorded(folder)
    found = open_images(made.data, made.kind)
    if hashed(found) != made.pictures:
        raise DataError(f"the pictures in {made.data} are not those that {folder} began with; start anew")
    done = {(row.model, row.fraction) for row in rows}
    for number, (model, fraction) in enumerate(made.trainings, 1):
        if (model, fraction) in done:
            continue
        run = _run(folder, made, found, model, fraction)
        told = f"{number}/{len(made.trainings)}  {model} on {fraction * 100:g} % of the data"
        assert isinstance(run.material, Pictures)
        say(f"{told}: {count(len(run.material.train), 'picture')} to learn from")
        row = _trained(folder, run, found, model, fraction)
        rows.append(row)
        say(
            f"{told}: right {percent(row.accuracy)} ({percent(row.low)} to {percent(row.high)}) "
            f"after {row.epochs:.4g} epochs in {duration(row.seconds)}"
        )
        write(folder, made, rows, [])
    say("measuring time and memory")
    costs = _costs(folder, made)
    write(folder, made, rows, costs)
    verdict(folder, made, rows, costs)
    return made, rows, costs


def _run(folder: Path, made: Comparison, found: Collection, model: str, fraction: float) -> Run:
    """The training's own run, begun or, where one was stopped, gone on with."""
    place = folder / f"{model}-{fraction * 100:g}"
    if (place / "recipe.json").is_file() and latest(place / "checkpoints")[0] is not None:
        return start.resume(place, quiet=True)
    place.mkdir(exist_ok=True)
    source = Source(data=made.data, kind=made.kind, fraction=fraction, blind=found.test is None)
    recipe, _ = settle(found.train, model, made.changes)
    parted = source.part(found, recipe)
    return start.begin(place, gather(recipe, parted, source), quiet=True)


def _trained(folder: Path, run: Run, found: Collection, model: str, fraction: float) -> Row:
    """Train to the end, score, and look how far it looks."""
    try:
        run.go()
    except StoppedError as error:
        raise StoppedError(f"stopped; go on with: saccade compare --resume {folder}") from error
    scores, _ = judged(run)
    assert isinstance(run.material, Pictures)
    best, held = load(run.folder), found.test or run.material.val
    assert held is not None
    if scores is None or held is found.test:
        scores, _ = evaluate(best.module, best.preprocess, held, "test")
    low, high = wilson(scores.correct, scores.count)
    pictures = _pictures(held, best.preprocess)
    vit = None if isinstance(best.module, ResNet) else best.module
    effective = effective_field(best.module, pictures)
    history = read_history(run.folder / "events.jsonl", {})
    return Row(
        model=model,
        fraction=fraction,
        pictures=len(run.material.train),
        held_out=scores.count,
        correct=scores.correct,
        accuracy=scores.accuracy,
        low=low,
        high=high,
        epochs=run.state.step / run.per_epoch,
        seconds=round(run.pace.spent if run.pace.seconds else history.seconds, 3),
        effective=tuple(effective[share] for share in SHARES),
        attention=() if vit is None else tuple(map(tuple, attention_distances(vit, pictures))),
    )


def _pictures(images: Images, preprocess: Preprocess) -> Image:
    """Some pictures, evenly spread over the set, as a model sees them."""
    made = []
    for i in spread(len(images), LOOKS).tolist():
        try:
            made.append(torch.from_numpy(preprocess(images.read(i))))
        except DataError:
            continue
    return torch.stack(made)


def _costs(folder: Path, made: Comparison) -> list[Cost]:
    modules = [load(folder / f"{model}-{made.fractions[-1] * 100:g}").module for model in made.models]
    image = modules[0].config.image
    alone = measure.latencies(modules, image, 1)
    together = measure.latencies(modules, image, BATCH)
    return [
        _cost(model, module, one, many)
        for model, module, one, many in zip(made.models, modules, alone, together, strict=True)
    ]


def _cost(model: str, module: Vision, one: float, many: float) -> Cost:
    image = module.config.image
    return Cost(
        model=model,
        parameters=cost.parameters(module),
        macs=cost.macs(module, image),
        latency=one,
        throughput=BATCH / many,
        forward=measure.forward_memory(module, image, BATCH),
        field=receptive_field(layers(module)) if isinstance(module, ResNet) else 0,
        step=measure.step_memory(module, image, BATCH),
    )
