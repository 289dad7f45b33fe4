"""An image model with everything it needs to answer; an exported one loads without torch."""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from PIL import Image

from saccade.data.class_names import name_labels
from saccade.data.image.preprocess import PictureSource, Preprocess, open_rgb
from saccade.data.pictures import Pictures
from saccade.engine.engine import LOGITS, Engine, available, softmax
from saccade.engine.exported import read_exported
from saccade.engine.select import MANY, open_exported, open_loaded
from saccade.engine.stream import BATCH, Arrays, stream
from saccade.errors import DataError, ModelError, NotFiniteError, SaccadeError, UsageError, not_finite
from saccade.progress import track
from saccade.weights.identify import Identified, identify

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

V = TypeVar("V", bound="VisionModel")
_lazy = threading.Lock()
"""A Pillow image reads its file when first used, and two threads may be given the same one."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One class and how sure the model is of it."""

    label: str
    score: float
    """A probability: the scores of all classes sum to 1."""
    index: int
    """The number of the class."""


class VisionModel:
    """Preprocessing, labels, and a torch module or an engine; an answer is the outputs of an image by name.

    Args:
        network: A saccade module in evaluation mode, or an `Engine`.
        takes: floats (what `Preprocess` gives) or bytes (decoded images of any size).
        top: How many alternatives an answer names, if there are several.
    """

    outputs: ClassVar[tuple[str, ...]] = (LOGITS,)
    """What the network returns, by name."""

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

    @property
    def module(self) -> Any:
        """The torch module; an exported graph has none."""
        if not self.on_torch:
            raise ModelError("this model runs on an engine and has no torch module; load its run instead")
        return self.network

    def prepare(self, source: PictureSource) -> tuple[Arrays, None]:
        """Return the pixels of an image as the network reads them."""
        if isinstance(source, Image.Image):
            with _lazy:
                source = open_rgb(source, self.preprocess.background)
        if self.takes == "floats":
            return {"image": self.preprocess(source)}, None
        return {"image": np.asarray(open_rgb(source, self.preprocess.background))}, None

    def run(self, inputs: Arrays) -> Arrays:
        """Return the outputs of a batch by name."""
        if not self.on_torch:
            return self.network.arrays(inputs["image"])
        from saccade.engine.torch import Eager

        return Eager(self.network, self.outputs).arrays(inputs["image"])

    def answer(self, outputs: Arrays, back: None) -> Any:
        """Return the outputs of an image; refuse numbers that are not finite."""
        if not all(np.isfinite(value).all() for value in outputs.values()):
            raise not_finite()
        return outputs

    def example(self, batch: int) -> Arrays:
        """Return a batch of noise."""
        noise, (height, width) = np.random.default_rng(0), self.preprocess.size
        if self.takes == "bytes":
            return {"image": noise.integers(0, 256, (batch, height, width, 3), dtype=np.uint8)}
        return {"image": noise.standard_normal((batch, 3, height, width), dtype=np.float32)}

    def label(self, index: int) -> str:
        """Return the name of a class; "class 3" if it has none."""
        return self.labels[index] if self.labels else f"class {index}"

    def predict(self, source: PictureSource) -> Any:
        """Return the answer to one image."""
        inputs, back = self.prepare(source)
        outputs = self.run({key: each[None] for key, each in inputs.items()})
        return self.answer({key: each[0] for key, each in outputs.items()}, back)


class Classifier(VisionModel):
    """A model of classes; an answer is the likeliest ones."""

    def run(self, inputs: Arrays) -> Arrays:
        """Return the probabilities of a batch; a row is NaN where the network's answer is not finite."""
        if not self.on_torch:
            logits = self.network.run(inputs["image"])
            p = softmax(logits)
            p[~np.isfinite(logits).all(-1)] = np.nan
            return {"probabilities": p}
        import torch

        from saccade.models.modules import device_of

        with torch.inference_mode():
            z = self.network.encode(torch.from_numpy(inputs["image"]).to(device_of(self.network)))
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


class ImagesByNumber:
    """A model asked about the images of a dataset by their numbers, so that workers read them."""

    def __init__(self, model: VisionModel, images: Pictures) -> None:
        self.model, self.images = model, images
        self.run, self.answer, self.example = model.run, model.answer, model.example

    def prepare(self, source: int) -> tuple[Arrays, None]:
        """Return the pixels of an image by number."""
        return self.model.prepare(self.images.read(source))

    def answers(self, workers: int | None = None) -> "Iterator[tuple[int, Any]]":
        """Yield the number and the answer of each image that can be read; for `workers` see `stream`."""
        for number, answer in enumerate(stream(self, range(len(self.images)), workers=workers)):
            if isinstance(answer, NotFiniteError):
                raise answer
            if not isinstance(answer, SaccadeError):
                yield number, answer


class Probabilities(Classifier):
    """The same classifier; an answer is the probabilities of all classes, finite or not."""

    def __init__(self, model: Classifier) -> None:
        super().__init__(model.network, model.preprocess, model.labels, model.takes)

    def answer(self, outputs: Arrays, back: None) -> np.ndarray:  # type: ignore[override]
        """Return the probabilities of an image's classes."""
        return outputs["probabilities"]


def probabilities_of(model: Classifier, images: Pictures) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return probabilities, labels and numbers of the images that can be read."""
    asked = ImagesByNumber(Probabilities(model), images).answers()
    found = list(track(asked, len(images), "evaluating"))
    if not found:
        raise DataError("none of the images can be read; expected one or more")
    numbers = np.array([number for number, _ in found])
    rows = np.stack([row for _, row in found]).astype(np.float64)
    return rows, np.asarray(images.labels)[numbers], numbers


class VisionFeatures(VisionModel):
    """A module asked for what its head reads, before the head (of a pair, the class token)."""

    def run(self, inputs: Arrays) -> Arrays:
        """Return the features of a batch."""
        import torch

        from saccade.models.modules import device_of

        with torch.inference_mode():
            z = self.network.encode(torch.from_numpy(inputs["image"]).to(device_of(self.network)))
            found = self.network.features(z)
            return {"features": (found if found.ndim == 2 else found[:, 0]).float().cpu().numpy()}

    def answer(self, outputs: Arrays, back: None) -> np.ndarray:
        """Return the features of an image."""
        if not np.isfinite(outputs["features"]).all():
            raise not_finite()
        return outputs["features"]


def load_vision(
    source: Path | Identified,
    kind: type[V],
    outputs: "Mapping[str, float]",
    engine: str = "",
    images: int | float = MANY,
    top: int = 5,
) -> V:
    """Load an image model: an exported one without torch, others on torch or on `engine`.

    Args:
        kind: What turns the outputs into answers.
        outputs: The outputs of the graph, each with its tolerance.
        engine: auto is the one that finishes first; default: torch, and auto for an exported model.
        images: How many will be asked about; beyond one batch, each core computes its own images.
    """
    found = identify(source) if isinstance(source, Path) else source
    streams = available() if images > BATCH else 1
    if found.exported:
        made = read_exported(found)
        network: Any = open_exported(made, engine or "auto", batches=images, streams=streams)
        return kind(network, made.preprocess, made.labels, made.takes, top)
    found.check_images()
    from saccade.weights.load import load

    loaded = load(found)
    check_head(loaded.module)
    network = loaded.module.eval()
    if engine:
        network = open_loaded(found, loaded, engine, outputs=outputs, streams=streams)
    return kind(network, loaded.preprocess, name_labels(loaded.labels), top=top)


def wrap_vision(loaded: Any, kind: type[V], top: int = 5, network: Any = None) -> V:
    """Return loaded weights, or another `network` in their place, ready to answer."""
    if network is None:
        network = loaded.module
        check_head(network)
    return kind(network, loaded.preprocess, loaded.labels, getattr(loaded, "takes", "floats"), top)


def check_head(module: Any) -> None:
    """Refuse a module without a head."""
    if not module.config.classes:
        raise ModelError("this model has no head, so it has no classes to choose from; use embed()")
