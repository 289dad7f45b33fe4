"""An image model with everything it needs to answer; an exported one loads without torch."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from saccade.data.class_names import name_labels
from saccade.data.image.preprocess import PictureSource, Preprocess, open_rgb
from saccade.data.pictures import Pictures
from saccade.engine.engine import Engine, available, softmax
from saccade.engine.exported import describe, read_exported
from saccade.engine.select import MANY, open_engine, open_exported
from saccade.engine.stream import BATCH, Arrays, stream
from saccade.errors import DataError, ModelError, SaccadeError, UsageError, not_finite
from saccade.types import Prediction
from saccade.weights.identify import Identified, identify

if TYPE_CHECKING:
    from collections.abc import Sequence

_lazy = threading.Lock()
"""A Pillow image reads its file when first used, and two threads may be given the same one."""


class VisionModel:
    """A classifier: preprocessing, labels, and a torch module or an engine; answers are ranked classes.

    Args:
        network: A saccade module in evaluation mode, or an `Engine`.
        takes: floats (what `Preprocess` gives) or bytes (decoded images of any size).
        top: How many classes an answer names.
    """

    def __init__(
        self,
        network: Any,
        preprocess: Preprocess,
        labels: "Sequence[str]" = (),
        takes: str = "floats",
        top: int = 5,
    ) -> None:
        if top < 1:
            raise UsageError(f"top is {top}; expected 1 or more")
        self.network, self.preprocess, self.labels = network, preprocess, labels
        self.takes, self.top = takes, top
        self.on_torch = not isinstance(network, Engine)

    def prepare(self, source: PictureSource) -> tuple[Arrays, None]:
        """Return the pixels of an image as the network reads them."""
        if isinstance(source, Image.Image):
            with _lazy:
                source = open_rgb(source, self.preprocess.background)
        if self.takes == "floats":
            return {"image": self.preprocess(source)}, None
        return {"image": np.asarray(open_rgb(source, self.preprocess.background))}, None

    def run(self, inputs: Arrays) -> Arrays:
        """Return the probabilities of a batch; a row is NaN where the network's answer is not finite."""
        if not self.on_torch:
            logits = self.network.run(inputs["image"])
            p = softmax(logits)
            p[~np.isfinite(logits).all(-1)] = np.nan
            return {"probabilities": p}
        import torch

        device = next(self.network.parameters()).device
        with torch.inference_mode():
            z = self.network.encode(torch.from_numpy(inputs["image"]).to(device))
            return {"probabilities": self.network.read(z).softmax(-1).float().cpu().numpy()}

    def answer(self, outputs: Arrays, back: None) -> list[Prediction]:
        """Return the likeliest classes of an image."""
        p = outputs["probabilities"]
        if not np.isfinite(p).all():
            raise not_finite()
        order = self._topk(p) if self.on_torch else np.argsort(-p, kind="stable")[: self.top]
        return [Prediction(label=self.label(int(i)), score=float(p[i]), index=int(i)) for i in order]

    def _topk(self, p: np.ndarray) -> np.ndarray:
        import torch  # orders equal scores in its own way

        return torch.from_numpy(p).topk(min(self.top, len(p))).indices.numpy()

    def example(self, batch: int) -> Arrays:
        """Return a batch of noise."""
        noise, (height, width) = np.random.default_rng(0), self.preprocess.size
        if self.takes == "bytes":
            return {"image": noise.integers(0, 256, (batch, height, width, 3), dtype=np.uint8)}
        return {"image": noise.standard_normal((batch, 3, height, width), dtype=np.float32)}

    def label(self, index: int) -> str:
        """Return the name of a class; "class 3" if it has none."""
        return self.labels[index] if self.labels else f"class {index}"

    def predict(self, source: PictureSource) -> list[Prediction]:
        """Return the answer to one image."""
        inputs, back = self.prepare(source)
        outputs = self.run({key: each[None] for key, each in inputs.items()})
        return self.answer({key: each[0] for key, each in outputs.items()}, back)


class LabelledImages(VisionModel):
    """The same classifier over labelled images by number; answers are the probabilities of all classes."""

    def __init__(self, model: VisionModel, images: Pictures) -> None:
        super().__init__(model.network, model.preprocess, model.labels, model.takes)
        self.images = images

    def prepare(self, source: int) -> tuple[Arrays, None]:  # type: ignore[override]
        """Return the pixels of an image by number."""
        return super().prepare(self.images.read(source))

    def answer(self, outputs: Arrays, back: None) -> np.ndarray:  # type: ignore[override]
        """Return the probabilities of an image's classes."""
        return outputs["probabilities"]

    def table(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return probabilities, labels and numbers of the images that can be read."""
        rows: list[np.ndarray] = []
        numbers: list[int] = []
        for number, answer in enumerate(stream(self, range(len(self.images)))):
            if not isinstance(answer, SaccadeError):
                rows.append(answer)
                numbers.append(number)
        if not rows:
            raise DataError("none of the images can be read; expected one or more")
        found = np.array(numbers)
        return np.stack(rows).astype(np.float64), np.asarray(self.images.labels)[found], found


class VisionFeatures(VisionModel):
    """A module asked for what its head reads, before the head (of a pair, the class token)."""

    def run(self, inputs: Arrays) -> Arrays:
        """Return the features of a batch."""
        import torch

        device = next(self.network.parameters()).device
        with torch.inference_mode():
            found = self.network.features(self.network.encode(torch.from_numpy(inputs["image"]).to(device)))
            return {"features": (found if found.ndim == 2 else found[:, 0]).float().cpu().numpy()}

    def answer(self, outputs: Arrays, back: None) -> np.ndarray:  # type: ignore[override]
        """Return the features of an image."""
        if not np.isfinite(outputs["features"]).all():
            raise not_finite()
        return outputs["features"]


def load_model(
    source: Path | Identified, engine: str = "", images: int | float = MANY, top: int = 5
) -> VisionModel:
    """Load an image model: an exported one without torch, others on torch or on `engine`.

    Args:
        engine: auto is the one that finishes first; default: torch, and auto for an exported model.
        images: How many will be asked about; more than a batch are computed one core each.
    """
    found = identify(source) if isinstance(source, Path) else source
    streams = available() if images > BATCH else 1
    if found.exported:
        made = read_exported(found)
        network = open_exported(made, engine or "auto", batches=images, streams=streams)
        return VisionModel(network, made.preprocess, made.labels, made.takes, top)
    found.check_images()
    if engine:
        made = describe(found)
        return VisionModel(open_engine(found, engine, streams=streams), made.preprocess, made.labels, top=top)
    from saccade.weights.load import load

    loaded = load(found)
    if not loaded.module.config.classes:
        raise ModelError("this model has no head, so it has no classes to choose from; use embed()")
    return VisionModel(loaded.module.eval(), loaded.preprocess, name_labels(loaded.labels), top=top)
