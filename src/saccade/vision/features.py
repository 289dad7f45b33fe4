"""Compute what the head of a frozen model reads of each image, and cache it in verified files."""

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn

from saccade import __version__
from saccade.data.image.preprocess import Preprocess
from saccade.data.pictures import Pictures
from saccade.engine.stream import Arrays
from saccade.errors import DataError, ModelError, SaccadeError
from saccade.models.build import Known, Vision, config_of, to_json
from saccade.models.looped import vit_of, with_vit
from saccade.models.modules import device_of
from saccade.models.resnet import ResNetConfig
from saccade.models.vit import ViT
from saccade.nn.head import PairHead
from saccade.nn.patch import Image
from saccade.vision.logistic import Line
from saccade.vision.model import ImagesByNumber, VisionModel
from saccade.weights.formats.tensors import read_tensors, write_safetensors

FOLDER = ".features"
"""Next to the run folders, so that the next run finds what this one computed."""


class Features(NamedTuple):
    """A vector for each image that could be read."""

    vectors: Float32[np.ndarray, "n e"]
    places: Int64[np.ndarray, "n"]
    """The indices of these images in their set, ascending."""


@runtime_checkable
class Teller(Protocol):
    """Shows progress: a log, or nothing."""

    def say(self, words: str) -> None:
        """Print a line."""

    def move(self, step: int, status: str) -> None:
        """Show that `step` steps are done."""

    def event(self, kind: str, step: int, **numbers: Any) -> None:
        """Add to the log file."""


def read_by_head(module: Vision, image: Image) -> Float[Tensor, "b e"]:
    """Return the input of the head; for a pair of heads, the two vectors concatenated."""
    y = module.features(module.encode(image))
    y = module.prelogits(y) if isinstance(module, ViT) else y
    return rearrange(y, "b ... e -> b (... e)")


def answer_by_head(module: Vision, vectors: Float32[np.ndarray, "n e"]) -> Float[Tensor, "n classes"]:
    """Return the logits of features from `read_by_head`."""
    y = torch.from_numpy(vectors)
    if isinstance(module.head, PairHead):
        y = rearrange(y, "n (pair e) -> n pair e", pair=2)
    with torch.inference_mode():
        return module.head(y.to(device_of(module))).float().cpu()


def set_head(head: nn.Module, line: Line) -> None:
    """Copy a logistic regression on features into a head; the two heads of a pair each read their half."""
    layers = [head.token, head.teacher] if isinstance(head, PairHead) else [head]
    weight, bias = (torch.from_numpy(numbers).float() for numbers in (line.weight, line.bias))
    for layer, part in zip(layers, weight.chunk(len(layers), dim=1), strict=True):
        assert isinstance(layer, nn.Linear)
        with torch.no_grad():
            layer.weight.copy_(part * len(layers))  # the answer of a pair is the mean of its heads
            layer.bias.copy_(bias)


class HeadInputs(VisionModel):
    """A module asked for the input of its head."""

    def run(self, inputs: Arrays) -> Arrays:
        """Return the features of a batch."""
        with torch.inference_mode():
            image = torch.from_numpy(inputs["image"]).to(device_of(self.network))
            return {"features": read_by_head(self.network, image).float().cpu().numpy()}

    def answer(self, outputs: Arrays, back: None) -> np.ndarray:
        """Return the features of an image."""
        return outputs["features"]


def without_dropout(config: Known) -> Known:
    """Return the config of a model as it is when it only answers."""
    if isinstance(config, ResNetConfig):
        return config
    vit = vit_of(config)
    return with_vit(config, replace(vit, block=replace(vit.block, dropout=0.0, droppath=0.0)))


@dataclass(frozen=True, slots=True)
class Extract:
    """Computes the features of a set of images, or reads them from the cache folder."""

    module: Vision
    preprocess: Preprocess
    folder: Path
    batch: int
    """Images per step of the progress bar."""
    workers: int
    """0 reads and computes in this thread; otherwise there is one thread per core."""
    log: Teller

    def __call__(self, images: Pictures, done: int = 0) -> tuple[Features, bool]:
        """Return the features and whether they were cached; `done` batches were computed for other sets."""
        path = self.folder / f"{self.key(images)}.safetensors"
        if path.exists():
            try:
                return read(path, len(images)), True
            except ModelError as error:
                self.log.say(f"note: the cached features are computed again, because {error}")
        found = self.compute(images, done)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write(path, found)
        except (OSError, SaccadeError) as error:
            self.log.say(
                f"note: the features could not be cached ({error}); the next run computes them again"
            )
        return found, False

    def key(self, images: Pictures) -> str:
        """Return a hash of all that decides the features: code, model, preprocessing and image bytes."""
        code = [
            __version__,
            torch.__version__,
            to_json(without_dropout(config_of(self.module))),
            self.preprocess.to_json(),
        ]
        total = hashlib.sha256(json.dumps(code, sort_keys=True).encode())
        for name, tensor in sorted(self.module.state_dict().items()):
            if not name.startswith("head."):
                total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                total.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
        for i in range(len(images)):
            try:
                total.update(hashlib.sha256(images.read(i)).digest())
            except DataError:
                total.update(b"unreadable")
        return total.hexdigest()

    def compute(self, images: Pictures, done: int) -> Features:
        """Run every image through the body once."""
        found = list(self._vectors(images, done))
        if not found:
            raise DataError(f"none of the {len(images)} images can be read; run `saccade check` to see why")
        vectors, places = np.stack([row for _, row in found]), np.array([n for n, _ in found], np.int64)
        if not np.isfinite(vectors).all():
            raise ModelError(
                "the model's features of these images are not all finite, so it cannot be probed; "
                "inspect it with `saccade doctor`"
            )
        return Features(vectors, places)

    def _vectors(self, images: Pictures, done: int) -> Iterator[tuple[int, np.ndarray]]:
        began = time.monotonic()
        model = ImagesByNumber(HeadInputs(self.module, self.preprocess), images)
        answers = model.answers(None if self.workers else 0)
        for seen, (number, vector) in enumerate(answers, 1):
            yield number, vector
            if seen % self.batch == 0 or number == len(images) - 1:
                pace = seen / max(time.monotonic() - began, 1e-9)
                self.log.move(done + -(-seen // self.batch), f"features  {pace:.0f} images/s")


def _digest(found: Features) -> Tensor:
    total = hashlib.sha256(found.vectors.data)
    total.update(found.places.data)
    return torch.frombuffer(bytearray(total.digest()), dtype=torch.uint8)


def write(path: Path, found: Features) -> None:
    """Write features with their own hash, so that the file is whole or not there."""
    named = {"features": torch.from_numpy(found.vectors), "places": torch.from_numpy(found.places)}
    write_safetensors(path, {**named, "sha256": _digest(found)}, {"format": "pt"})


def read(path: Path, pictures: int) -> Features:
    """Read what `write` wrote for a set of this many images; anything else is a ModelError."""
    held = read_tensors(path)
    shapes = {name: (tensor.dtype, tensor.ndim) for name, tensor in held.items()}
    wanted = {"features": (torch.float32, 2), "places": (torch.int64, 1), "sha256": (torch.uint8, 1)}
    if shapes != wanted or len(held["features"]) != len(held["places"]):
        raise ModelError(f"{path} does not hold features in the form that saccade writes")
    found = Features(held["features"].numpy().copy(), held["places"].numpy().copy())
    rising = bool((np.diff(found.places, prepend=-1) > 0).all())
    if (
        not torch.equal(held["sha256"], _digest(found))
        or not rising
        or found.places.max(initial=-1) >= pictures
    ):
        raise ModelError(f"{path} is damaged")
    return found
