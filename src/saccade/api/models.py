"""The Python face: load or create a model, ask it, keep it. Models of text are in saccade/text.py."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from saccade.api.text_models import TextModel
from saccade.data.image.formats import Stream
from saccade.data.image.preprocess import Picture, Preprocess
from saccade.errors import ModelError, UsageError, check_number, check_word
from saccade.explain.heatmap import Heatmap
from saccade.explain.target import class_index
from saccade.files.folder import fresh
from saccade.models import names
from saccade.models.build import Vision, build
from saccade.models.text import names as words
from saccade.models.text.names import Text
from saccade.types import Prediction
from saccade.weights.identify import locate, look, named
from saccade.weights.load import Loaded, write
from saccade.weights.load import load as load_path
from saccade.weights.load_text import load as load_text

BATCH = 16
EXPLAINED = 4
"""Pictures that are explained together: their gradients take more memory than an answer."""
ONE = (str, bytes, Path, np.ndarray, Image.Image, Stream)
"""What is a single picture; anything else is a list of them."""


class Model:
    """A network together with its preprocessing and labels: all it needs to answer."""

    def __init__(self, module: Vision, preprocess: Preprocess, labels: Sequence[str] = ()) -> None:
        self.module = module.eval()
        self.preprocess = preprocess
        self.labels = named(list(labels))
        self.layout = "saccade"
        """Whose layout the weights were read from."""
        self.folder: Path | None = None
        """The run that made it, if `train` did."""

    @property
    def device(self) -> torch.device:
        """Where the weights are; pictures are sent there."""
        return next(self.module.parameters()).device

    def label(self, index: int) -> str:
        """The name of a class, or its number in words where nobody named it."""
        return self.labels[index] if self.labels else f"class {index}"

    def index(self, target: str | int) -> int:
        """The number of a class, from its label (capitals do not matter) or the number itself."""
        return class_index(target, self.labels, self.module.config.classes)

    @overload  # a str is one picture, though Python calls it an iterable of str
    def predict(self, source: Picture, top: int = 5) -> list[Prediction]: ...  # type: ignore[overload-overlap]
    @overload
    def predict(self, source: Iterable[Picture], top: int = 5) -> list[list[Prediction]]: ...
    def predict(
        self, source: Picture | Iterable[Picture], top: int = 5
    ) -> list[Prediction] | list[list[Prediction]]:
        """The likeliest classes of a picture (path, bytes, PIL image, array), or of each in a list."""
        self.check_classes()
        if top < 1:
            raise UsageError(f"top is {top}; expected 1 or more")
        if isinstance(source, ONE):
            return self.predict([source], top)[0]
        return [self._ranked(p, top) for p in self._map(source, lambda z: self.module.read(z).softmax(-1))]

    def check_classes(self) -> None:
        """Refuse to choose from no classes."""
        if not self.module.config.classes:
            raise ModelError("this model has no head, so it has no classes to choose from; use embed()")

    @overload
    def explain(  # type: ignore[overload-overlap]
        self, picture: Picture, method: str = "relevance", target: str | int | None = None
    ) -> Heatmap: ...
    @overload
    def explain(
        self, picture: Iterable[Picture], method: str = "relevance", target: str | int | None = None
    ) -> list[Heatmap]: ...
    def explain(
        self,
        picture: Picture | Iterable[Picture],
        method: str = "relevance",
        target: str | int | None = None,
    ) -> Heatmap | list[Heatmap]:
        """Which places of a picture, or of each in a list, speak for a class.

        Args:
            method: a name in `saccade.explain.methods.table.METHODS`.
            target: a label or the number of a class; the predicted class of each picture if none is given.
        """
        from saccade.explain.methods import table as methods

        self.check_classes()
        how = methods.method(method, self.module)
        index = None if target is None else self.index(target)
        if isinstance(picture, ONE):
            return self.explain([picture], method, index)[0]
        made: list[Heatmap] = []
        waiting = iter(picture)
        while chunk := list(islice(waiting, EXPLAINED)):
            pixels = [self.preprocess.pixels(source) for source in chunk]
            image = np.stack([self.preprocess.normalise(each) for each in pixels])
            made += methods.heatmaps(
                how, self.module, torch.from_numpy(image).to(self.device), pixels, self.label, index
            )
        return made

    def embed(self, sources: Iterable[Picture]) -> Float[np.ndarray, "n d"]:
        """One vector a picture: what the head reads, before the head (of a pair, the class token)."""
        if isinstance(sources, ONE):
            raise UsageError("embed was given one picture; expected a list of them, such as [picture]")
        rows = [row if row.ndim == 1 else row[0] for row in self._map(sources, self.module.features)]
        if not rows:
            blank = np.zeros((*self.preprocess.size, 3), dtype=np.uint8)
            return self.embed([blank])[:0]
        return torch.stack(rows).numpy()

    def save(self, folder: str | Path, layout: str = "saccade") -> Path:
        """Write a model folder; `layout` may also be timm, hf or google. Nothing is overwritten."""
        with fresh(Path(folder)) as made:
            write(made, self.module, self.preprocess, self.labels, layout)
        return made

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


@overload
def load(
    source: str | Path,
    *,
    image: int | tuple[int, int] | None = None,
    patch: int | None = None,
    preprocess: Preprocess | None = None,
    labels: Sequence[str] | None = None,
    device: str | torch.device = "cpu",
    text: Literal[False] = False,
) -> Model: ...
@overload
def load(source: str | Path, *, device: str | torch.device = "cpu", text: Literal[True]) -> TextModel: ...
def load(
    source: str | Path,
    *,
    image: int | tuple[int, int] | None = None,
    patch: int | None = None,
    preprocess: Preprocess | None = None,
    labels: Sequence[str] | None = None,
    device: str | torch.device = "cpu",
    text: bool = False,
) -> Model | TextModel:
    """Load a model folder, a .safetensors or .npz file, a folder of timm's or Hugging Face's, or a hub id.

    Args:
        image: another size of picture to work at; positions are resampled.
        patch: another size of patch; the kernel is resampled.
        preprocess, labels: what to use in the place of what stands beside the weights.
        text: whether it must be a model of text; such a one is loaded anyway, this is for a type checker.
    """
    if patch is not None:
        check_number("patch", patch, 1, 1024)
    _check_device(device)
    path = locate(source)
    if look(path).text or text:
        if any(given is not None for given in (image, patch, preprocess, labels)):
            raise UsageError(f"{path} is a model of text; image, patch, preprocess, labels are of pictures")
        spoken = load_text(path)
        spoken.module.to(device)
        return TextModel(spoken)
    loaded: Loaded = load_path(path, _pair(image), patch)
    if labels is not None and len(labels) != loaded.module.config.classes:
        raise UsageError(f"{len(labels)} labels for {loaded.module.config.classes} classes; give one a class")
    model = Model(loaded.module, preprocess or loaded.preprocess, labels or loaded.labels)
    model.layout = loaded.layout
    model.module.to(device)
    return model


def _pair(image: int | tuple[int, int] | None) -> tuple[int, int] | None:
    return (image, image) if isinstance(image, int) else image


def _check_device(device: str | torch.device) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        found = str(error).split("\n")[0]
        raise UsageError(f"device {str(device)!r} cannot be used here ({found}); cpu always can") from error


@overload
def create(name: str, *, classes: int = 1000, **changes: object) -> Vision: ...
@overload
def create(name: str, *, vocabulary: int, **changes: object) -> Text: ...
def create(name: str, *, classes: Any = 1000, vocabulary: Any = 0, **changes: object) -> Vision | Text:
    """An untrained network by name (`saccade models` lists some); `changes` replace fields of its config.

    Args:
        classes, vocabulary: what it chooses from; pictures have classes, text has a vocabulary.
    """
    config: Any = (
        words.config(name, vocabulary or None) if words.is_text(name) else names.config(name, classes)
    )
    for change in changes:
        check_word(f"a field of {name}", change, [field.name for field in fields(config)])
    if isinstance(side := changes.get("image"), int):
        changes["image"] = side, side
    try:
        made = replace(config, **changes)
        return words.build(made) if words.is_text(name) else build(made)
    except (TypeError, AttributeError) as error:
        found = ", ".join(f"{field}={value!r}" for field, value in changes.items())
        raise UsageError(f"cannot make {name} with {found}: {error}") from error


@overload
def train(  # type: ignore[overload-overlap]
    data: str | Path,
    *,
    task: Literal["translate", "language"],
    model: str | Path = "",
    out: str | Path | None = None,
    minutes: float | None = None,
    quiet: bool = False,
    **changes: object,
) -> TextModel: ...
@overload
def train(
    data: str | Path,
    *,
    model: str | Path = "",
    out: str | Path | None = None,
    minutes: float | None = None,
    quiet: bool = False,
    **changes: object,
) -> Model: ...
def train(
    data: str | Path,
    *,
    model: str | Path = "",
    out: str | Path | None = None,
    minutes: float | None = None,
    quiet: bool = False,
    **changes: object,
) -> Model | TextModel:
    """Train on pictures or text as `saccade train` does; return the best model, with its run as `folder`.

    Args:
        task: translate or language for text; pictures are classified.
        model: a name, or weights to start from.
        changes: fields of the recipe, with two underscores for a dot: `budget__epochs=10`, `freeze="body"`.
    """
    from saccade.train import start

    said = [f"{name.replace('__', '.')}={_typed(value)}" for name, value in changes.items()]
    said += [] if minutes is None else [f"budget.minutes={minutes}"]
    run = start.start(str(data), str(model), None if out is None else Path(out), said, quiet=quiet)
    run.go()
    start.finish(run)
    made = load(run.folder)
    made.folder = run.folder
    return made


def _typed(value: object) -> str:
    """As one would type it after --set."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
