"""Predictions of an exported model, without torch."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from saccade.data.image.preprocess import Picture, opened
from saccade.data.pictures import Images
from saccade.engine.engine import Engine, softmax
from saccade.engine.exported import Exported, described, exported, is_exported
from saccade.engine.select import MANY, open_engine, open_exported
from saccade.errors import DataError, UsageError
from saccade.types import Prediction

BATCH = 16


class Answering:
    """An exported model on an engine: pictures in, predictions out."""

    def __init__(self, made: Exported, engine: Engine) -> None:
        self.made, self.engine = made, engine

    @property
    def at_once(self) -> int:
        """Pictures in a batch; a graph that takes them as they are sees one at a time, whatever its size."""
        return 1 if self.made.takes == "bytes" else BATCH

    def input(self, sources: list[Picture]) -> np.ndarray:
        """What the graph reads of pictures; several of different sizes only fit one that takes floats."""
        if self.made.takes == "floats":
            return self.made.preprocess.batch(sources)
        return np.stack([np.asarray(opened(source, self.made.preprocess.background)) for source in sources])

    def table(self, images: Images) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Probabilities, labels and numbers of the pictures that can be read."""
        numbers: list[int] = []

        def inputs() -> Iterator[np.ndarray]:
            for number in range(len(images)):
                try:
                    (x,) = self.input([images.read(number)])
                except DataError:
                    continue
                numbers.append(number)
                yield x

        waiting, parts = inputs(), []
        while chunk := list(islice(waiting, self.at_once)):
            parts.append(softmax(self.engine.run(np.stack(chunk))))
        if not parts:
            raise DataError("there is no picture to be scored on; expected one or more")
        found = np.array(numbers)
        return np.concatenate(parts).astype(np.float64), np.asarray(images.labels)[found], found

    def predict(self, source: Picture, top: int = 5) -> list[Prediction]:
        """The likeliest classes of a picture."""
        if top < 1:
            raise UsageError(f"top is {top}; expected 1 or more")
        (p,) = softmax(self.engine.run(self.input([source])))
        order = np.argsort(-p, kind="stable")[:top]
        return [Prediction(label=self.label(int(i)), score=float(p[i]), index=int(i)) for i in order]

    def label(self, index: int) -> str:
        """The name of a class, or its number in words where nobody named it."""
        return self.made.labels[index] if self.made.labels else f"class {index}"


def answering(path: Path, engine: str = "auto", pictures: int | float = MANY) -> Answering:
    """Whatever lies at a path on the engine asked for, or on the one that is first done with the pictures."""
    if is_exported(path):
        made = exported(path)
        return Answering(made, open_exported(made, engine, batches=pictures))
    return Answering(described(path), open_engine(path, engine))
