"""The Python face: load or create a model, ask it, keep it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import overload

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from saccade.data.transform import Picture, Preprocess
from saccade.errors import ModelError, UsageError
from saccade.models import names
from saccade.models.build import Vision, build
from saccade.types import Prediction
from saccade.weights.load import Loaded, write
from saccade.weights.load import load as load_path
from saccade.weights.look import locate

BATCH = 16


class Model:
    """A network together with its preprocessing and labels: all it needs to answer."""

    def __init__(self, module: Vision, preprocess: Preprocess, labels: Sequence[str] = ()) -> None:
        self.module = module.eval()
        self.preprocess = preprocess
        self.labels = list(labels)
        self.layout = "saccade"
        """Whose layout the weights were read from."""

    @property
    def device(self) -> torch.device:
        """Where the weights are; pictures are sent there."""
        return next(self.module.parameters()).device

    def label(self, index: int) -> str:
        """The name of a class, or its number in words where nobody named it."""
        return self.labels[index] if self.labels else f"class {index}"

    @overload
    def predict(self, source: Picture, top: int = 5) -> list[Prediction]: ...
    @overload
    def predict(self, source: list[Picture], top: int = 5) -> list[list[Prediction]]: ...
    def predict(
        self, source: Picture | list[Picture], top: int = 5
    ) -> list[Prediction] | list[list[Prediction]]:
        """The likeliest classes of a picture (path, bytes, PIL image, array), or of each in a list."""
        if not self.module.config.classes:
            raise ModelError("this model has no head, so it has no classes to choose from; use embed()")
        if top < 1:
            raise UsageError(f"top is {top}; expected 1 or more")
        if not isinstance(source, list):
            return self.predict([source], top)[0]
        return [self._ranked(p, top) for p in self._map(source, lambda z: self.module.read(z).softmax(-1))]

    def embed(self, sources: Iterable[Picture]) -> Float[np.ndarray, "n d"]:
        """One vector a picture: what the head reads, before the head."""
        rows = list(self._map(sources, lambda z: self.module.features(z)))
        if not rows:
            return np.zeros((0, 0), dtype=np.float32)
        return torch.stack([row if row.ndim == 1 else row[0] for row in rows]).numpy()

    def save(self, folder: str | Path, layout: str = "saccade") -> Path:
        """Write a model folder; `layout` may also be timm, hf or google. Nothing is overwritten."""
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} exists and is not empty; nothing was written; give another name")
        write(folder, self.module, self.preprocess, self.labels, layout)
        return folder

    def _map(self, sources: Iterable[Picture], ask: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
        waiting = iter(sources)
        while chunk := list(islice(waiting, BATCH)):
            image = torch.from_numpy(self.preprocess.batch(chunk)).to(self.device)
            with torch.inference_mode():
                yield from ask(self.module.encode(image)).float().cpu()

    def _ranked(self, probabilities: Float[Tensor, "classes"], top: int) -> list[Prediction]:
        scores, indices = probabilities.topk(min(top, probabilities.shape[0]))
        pairs = zip(scores.tolist(), indices.tolist(), strict=True)
        return [Prediction(label=self.label(index), score=score, index=index) for score, index in pairs]

    def __repr__(self) -> str:
        count = sum(p.numel() for p in self.module.parameters())
        return (
            f"Model({type(self.module).__name__}, {count:,} parameters, {self.module.config.classes} classes)"
        )


def load(
    source: str | Path,
    *,
    image: int | tuple[int, int] | None = None,
    patch: int | None = None,
    preprocess: Preprocess | None = None,
    labels: Sequence[str] | None = None,
    device: str | torch.device = "cpu",
) -> Model:
    """Load a model folder, a .safetensors or .npz file, a folder of timm's or Hugging Face's, or a hub id.

    Args:
        image: another size of picture to work at; positions are resampled.
        patch: another size of patch; the kernel is resampled.
        preprocess, labels: what to use in the place of what stands beside the weights.
    """
    size = (image, image) if isinstance(image, int) else image
    loaded: Loaded = load_path(locate(source), size, patch)
    if labels is not None and len(labels) != loaded.module.config.classes:
        raise UsageError(f"{len(labels)} labels for {loaded.module.config.classes} classes; give one a class")
    model = Model(loaded.module, preprocess or loaded.preprocess, labels or loaded.labels)
    model.layout = loaded.layout
    model.module.to(device)
    return model


def create(name: str, *, classes: int = 1000, **changes: object) -> Vision:
    """An untrained network by name (`saccade models` lists some); `changes` replace fields of its config."""
    config = names.config(name, classes)
    try:
        return build(replace(config, **changes))  # type: ignore[arg-type]
    except TypeError as error:
        raise UsageError(f"cannot change {', '.join(changes)} of {name}: {error}") from error
