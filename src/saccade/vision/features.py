"""Compute what the head of a frozen model reads of each image, and cache it in verified files."""

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from saccade import __version__
from saccade.data.image.preprocess import Preprocess
from saccade.data.pictures import Pictures
from saccade.errors import DataError, ModelError, SaccadeError
from saccade.models.build import Vision, config_of, to_json
from saccade.models.modules import device_of
from saccade.models.vit import ViT
from saccade.nn.patch import Image
from saccade.vision.batches import scoring
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


def read_by_head(module: Vision, image: Image) -> Float[Tensor, "b e"]:
    """Return the input of the head; for a pair of heads, the two vectors concatenated."""
    y = module.features(module.encode(image))
    y = module.prelogits(y) if isinstance(module, ViT) else y
    return rearrange(y, "b ... e -> b (... e)")


@dataclass(frozen=True, slots=True)
class Extract:
    """Computes the features of a set of images, or reads them from the cache folder."""

    module: Vision
    preprocess: Preprocess
    folder: Path
    batch: int
    workers: int
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
        code = [__version__, torch.__version__, to_json(config_of(self.module)), self.preprocess.to_json()]
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
        parts = list(self._batches(images, done))
        if not parts:
            raise DataError(f"none of {len(images)} images can be read; run `saccade check` to see why")
        vectors, places = (np.concatenate(column) for column in zip(*parts, strict=True))
        if not np.isfinite(vectors).all():
            raise ModelError(
                "the model's features of these images are not all finite, so it cannot be probed; "
                "inspect it with `saccade doctor`"
            )
        return Features(vectors, places)

    def _batches(self, images: Pictures, done: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        device, began, seen = device_of(self.module), time.monotonic(), 0
        for number, batch in enumerate(scoring(images, self.preprocess, self.batch, self.workers), done + 1):
            with torch.inference_mode():
                vectors = read_by_head(self.module, batch["image"].to(device)).float().cpu()
            yield vectors.numpy(), batch["index"].numpy().astype(np.int64)
            seen += len(vectors)
            pace = seen / max(time.monotonic() - began, 1e-9)
            self.log.move(number, f"features  {pace:.0f} images/s")


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
