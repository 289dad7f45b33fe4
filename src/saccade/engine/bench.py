"""How fast models answer on this machine: all engines in turns, because it is never quiet.

A slow moment hits all of them. What reading a picture costs is measured apart.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from statistics import median

import numpy as np
from PIL import Image

from saccade.data.image.decode import decode
from saccade.data.image.preprocess import Preprocess
from saccade.data.pictures import Images
from saccade.engine.worker import Worker
from saccade.errors import DataError

LEAST, MOST = 7, 300
SIDE = 1024
"""Of the matrices whose product tells what the machine can do at best."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One model on one engine with so many pictures at once."""

    model: str
    engine: str
    batch: int
    p50: float
    """Seconds for a batch."""
    p95: float
    rate: float
    """Pictures a second, by the median."""
    memory: int
    """Most bytes that the whole process has held so far."""
    macs: int
    share: float
    """Of what a large product of matrices reaches here; 0 if the multiply-accumulates are not known."""
    rounds: int
    right: float = -1.0
    """The share of labelled pictures that were answered rightly; -1 if none were given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Before:
    """Seconds for one picture before a model sees it."""

    decode: float
    preprocess: float
    pictures: int
    told: str
    """Which pictures."""


def peak(seconds: float = 1.0) -> float:
    """Multiply-accumulates a second in the best of many products of large matrices."""
    a, b = np.random.default_rng(0).random((2, SIDE, SIDE), dtype=np.float32)
    taken: list[float] = []
    began = time.perf_counter()
    while len(taken) < LEAST or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        a @ b
        taken.append(time.perf_counter() - start)
    return SIDE**3 / min(taken)


def before(preprocess: Preprocess, pictures: Sequence[bytes], told: str) -> Before:
    """What reading and fitting pictures costs, one after another; those that cannot be read are left out."""
    decoding, fitting = [], []
    for data in pictures:
        start = time.perf_counter()
        try:
            picture = decode(data)
        except DataError:
            continue
        middle = time.perf_counter()
        preprocess(picture)
        decoding.append(middle - start)
        fitting.append(time.perf_counter() - middle)
    if not decoding:
        raise DataError("none of the pictures could be read; expected one or more to be measured on")
    return Before(decode=median(decoding), preprocess=median(fitting), pictures=len(decoding), told=told)


def photograph(height: int = 375, width: int = 500) -> bytes:
    """A JPEG as large as ImageNet's are on average, of blurred noise: for whoever gives no picture."""
    noise = np.random.default_rng(0).integers(0, 256, (height // 8, width // 8, 3)).astype(np.uint8)
    file = BytesIO()
    Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def cells(workers: Sequence[Worker], batches: Sequence[int], seconds: float, most: float) -> list[Cell]:
    """Measure all workers, in turns; `most` is what `peak` gave."""
    made = []
    for batch in batches:
        taken: list[list[float]] = [[] for _ in workers]
        held = [0] * len(workers)
        for worker in workers:
            worker.time(batch)
        began = time.perf_counter()
        for number in range(MOST):
            if number >= LEAST and time.perf_counter() - began > seconds * len(workers):
                break
            for i in range(len(workers)) if number % 2 else reversed(range(len(workers))):
                spent, held[i] = workers[i].time(batch)
                taken[i].append(spent)
        made += [
            _cell(worker, batch, sorted(row), size, most)
            for worker, row, size in zip(workers, taken, held, strict=True)
        ]
    return made


def _cell(worker: Worker, batch: int, taken: list[float], memory: int, most: float) -> Cell:
    middle, rate = median(taken), batch / median(taken)
    return Cell(
        model=worker.subject.name,
        engine=worker.engine,
        batch=batch,
        p50=middle,
        p95=taken[min(len(taken) - 1, int(0.95 * len(taken)))],
        rate=rate,
        memory=memory,
        macs=worker.subject.macs,
        share=worker.subject.macs * rate / most,
        rounds=len(taken),
    )


def scored(workers: Sequence[Worker], images: Images, batch: int = 16) -> list[float]:
    """The share of labelled pictures that each worker answers rightly; each is read once for all of them."""
    known = [images.relabel(worker.subject.labels).labels for worker in workers]
    right, seen = [0] * len(workers), 0
    for first in range(0, len(images), batch):
        numbers, sources = [], []
        for i in range(first, min(first + batch, len(images))):
            with suppress(DataError):
                sources.append(decode(images.read(i)))
                numbers.append(i)
        if not sources:
            continue
        made: dict[str, np.ndarray] = {}
        for i, worker in enumerate(workers):
            key = repr(worker.subject.preprocess)
            if worker.subject.takes == "bytes":
                answers = np.concatenate([worker.answer(np.asarray(source)[None]) for source in sources])
            else:
                if key not in made:
                    made[key] = worker.subject.preprocess.batch(sources)
                answers = worker.answer(made[key])
            right[i] += int((answers == known[i][numbers]).sum())
        seen += len(numbers)
    if not seen:
        raise DataError("no picture could be read; expected one or more to be scored on")
    return [hits / seen for hits in right]
