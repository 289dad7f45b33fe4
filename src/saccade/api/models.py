"""Image models: load or create one, then predict, evaluate, explain, embed, prune, export or save it."""

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence, Sized
from copy import deepcopy
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar, overload

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image

from saccade.api.bench import BenchResult
from saccade.api.display import Predictions, TrainedRun
from saccade.api.text_models import TextModel
from saccade.data.class_names import name_labels
from saccade.data.image.formats import Stream
from saccade.data.image.preprocess import PictureSource, Preprocess
from saccade.engine.stream import BATCH, stream
from saccade.errors import ModelError, SaccadeError, UsageError, check_number, check_word
from saccade.explain.heatmap import Heatmap
from saccade.explain.target import class_index
from saccade.files.atomic import fresh
from saccade.files.paths import shown
from saccade.models import names
from saccade.models.build import Vision, build
from saccade.models.modules import device_of
from saccade.models.text import names as words
from saccade.models.text.names import Text
from saccade.task import Evaluation
from saccade.text.model import load_text
from saccade.vision.model import VisionFeatures, VisionModel
from saccade.weights.identify import Identified, identify, locate
from saccade.weights.load import Loaded
from saccade.weights.load import load as load_path
from saccade.weights.save import save_folder

T = TypeVar("T")
ONE = (str, bytes, Path, np.ndarray, Image.Image, Stream)
"""What is a single image; anything else holds several."""


class Model:
    """A network together with its preprocessing and labels: all it needs to answer."""

    def __init__(self, module: Vision, preprocess: Preprocess, labels: Sequence[str] = ()) -> None:
        self.module = module.eval()
        self.preprocess = preprocess
        self.labels = name_labels(labels)
        self.layout = "saccade"
        """Whose layout the weights were read from."""
        self.folder: Path | None = None
        """The run that trained it, if there is one."""

    @property
    def run(self) -> TrainedRun | None:
        """The run that trained it, which a notebook shows as a table."""
        return None if self.folder is None else TrainedRun(self.folder)

    @property
    def device(self) -> torch.device:
        """Where the weights are; images are sent there."""
        return device_of(self.module)

    def label(self, index: int) -> str:
        """Return the name of a class; "class 3" if it has none."""
        return self.labels[index] if self.labels else f"class {index}"

    def index(self, target: str | int) -> int:
        """Return the number of a class, from its label (in any case) or the number itself."""
        return class_index(target, self.labels, self.module.config.classes)

    @overload  # a str is one image, though Python calls it an iterable of str
    def predict(  # type: ignore[overload-overlap]
        self, source: PictureSource, top: int = 5, *, batch: int = BATCH, progress: bool = False
    ) -> Predictions: ...
    @overload
    def predict(  # type: ignore[overload-overlap]
        self, source: Iterator[PictureSource], top: int = 5, *, batch: int = BATCH, progress: bool = False
    ) -> Iterator[Predictions]: ...
    @overload
    def predict(
        self, source: Iterable[PictureSource], top: int = 5, *, batch: int = BATCH, progress: bool = False
    ) -> list[Predictions]: ...
    def predict(
        self,
        source: PictureSource | Iterable[PictureSource],
        top: int = 5,
        *,
        batch: int = BATCH,
        progress: bool = False,
    ) -> Predictions | Iterator[Predictions] | list[Predictions]:
        """Return the likeliest classes of an image (path, bytes, PIL image, array), or of each in a list.

        A generator of images gives a generator of answers, which reads only a few batches ahead.

        Args:
            batch: Images to compute together.
            progress: Show a progress bar.
        """
        self.check_classes()
        if top < 1:
            raise UsageError(f"top is {top}; expected 1 or more")
        check_number("batch", batch, 1, 10**6)
        if isinstance(source, ONE):
            return self.predict([source], top)[0]
        answers = self._answers(source, top, batch)
        if progress:
            answers = _with_progress(answers, len(source) if isinstance(source, Sized) else None)
        return answers if isinstance(source, Iterator) else list(answers)

    def _answers(self, sources: Iterable[PictureSource], top: int, batch: int) -> Iterator[Predictions]:
        model = VisionModel(self.module, self.preprocess, self.labels, top=top)
        for answer in stream(model, sources, batch):
            yield Predictions(_unless_error(answer))

    def evaluate(self, data: str | Path, split: str = "", format: str = "auto") -> Evaluation:
        """Score the model on labelled images; by default on the first of test, val, train."""
        from saccade.api.evaluate import evaluate_loaded

        self.check_classes()
        return evaluate_loaded(self, str(data), split, format)

    def export(
        self,
        folder: str | Path,
        to: str = "onnx",
        *,
        pixels: str = "floats",
        int8: bool = False,
        data: str | Path = "",
    ) -> Path:
        """Write a graph that `saccade predict` runs without torch, checked against the model.

        Args:
            to: onnx, openvino or torch (torch.export).
            pixels: floats, or bytes: resizing and normalising become part of the graph.
            data: images to check on and, with `int8`, to calibrate on.
        """
        from saccade.api.export import export

        module = self.module if self.device.type == "cpu" else deepcopy(self.module).cpu()
        made = Loaded(module, self.preprocess, self.labels, self.layout)
        return export(made, Path(folder), to, pixels, int8, str(data)).folder

    def bench(
        self,
        *,
        engine: str = "all",
        batches: Sequence[int] = (1, 8),
        seconds: float = 2.0,
        data: str | Path = "",
    ) -> BenchResult:
        """Measure how fast the model answers here, on each engine; with `data`, its accuracy too."""
        from saccade.api.bench import bench

        with TemporaryDirectory() as scratch:
            saved = self.save(Path(scratch) / "model")
            found = bench([str(saved)], lambda _: None, str(data), engine, batches, seconds)
        name = type(self.module).__name__
        return found._replace(cells=[replace(cell, model=name) for cell in found.cells])

    def prune(
        self,
        data: str | Path,
        *,
        keep: float | None = None,
        target_ms: float | None = None,
        speed_up: float | None = None,
        how: str = "drop",
        out: str | Path | None = None,
        minutes: float | None = None,
    ) -> "Model":
        """Return a faster model that looks at fewer patches, with its folder as `folder`.

        Args:
            keep: share of the patches kept at each pruning stage; or give `target_ms` or `speed_up`.
            how: with `keep`: drop (trains), or without training merge, merge-paper, attention or random.
        """
        from saccade.api.prune import prune

        say = partial(print, file=sys.stderr, flush=True)
        where = None if out is None else Path(out)
        with TemporaryDirectory() as scratch:
            source = self.folder
            if source is None or not self._is_saved(source):
                source = self.save(Path(scratch) / ("model" if self.folder is None else self.folder.name))
                for name in ("recipe.json", "data.json"):  # they tell which images were not trained on
                    if self.folder is not None and (self.folder / name).is_file():
                        shutil.copy(self.folder / name, source)
            found = prune(str(source), str(data), say, keep, target_ms, speed_up, how, 1, minutes, where)
        if found is None or found.comparison is None:
            return self
        return load(found.folder)

    def _is_saved(self, folder: Path) -> bool:
        """Return whether a folder holds the weights as they are now."""
        try:
            kept = load_path(identify(folder)).module.state_dict()
        except SaccadeError:
            return False
        here = self.module.state_dict()
        return kept.keys() == here.keys() and all(torch.equal(kept[k], here[k].cpu()) for k in here)

    def check_classes(self) -> None:
        """Refuse a model without a head."""
        if not self.module.config.classes:
            raise ModelError("this model has no head, so it has no classes to choose from; use embed()")

    @overload
    def explain(  # type: ignore[overload-overlap]
        self, picture: PictureSource, method: str = "relevance", target: str | int | None = None
    ) -> Heatmap: ...
    @overload
    def explain(
        self, picture: Iterable[PictureSource], method: str = "relevance", target: str | int | None = None
    ) -> list[Heatmap]: ...
    def explain(
        self,
        picture: PictureSource | Iterable[PictureSource],
        method: str = "relevance",
        target: str | int | None = None,
    ) -> Heatmap | list[Heatmap]:
        """Return a heat map of the evidence for a class in an image, or in each of a list.

        Args:
            method: a name in `saccade.explain.methods.table.METHODS`.
            target: a label or the number of a class; default: the predicted class of each image.
        """
        from saccade.api.explain import heat_maps
        from saccade.explain.methods.table import find_method

        self.check_classes()
        find_method(method, self.module)  # refuses the method before the target
        index = None if target is None else self.index(target)
        if isinstance(picture, ONE):
            return heat_maps(self, [picture], method, index)[0]
        return heat_maps(self, picture, method, index)

    def embed(self, sources: Iterable[PictureSource]) -> Float[np.ndarray, "n d"]:
        """Return one vector per image: what the head reads (of a pair of heads, the class token)."""
        if isinstance(sources, ONE):
            raise UsageError("embed was given one image; expected a list of them, such as [image]")
        model = VisionFeatures(self.module, self.preprocess)
        rows = [_unless_error(answer) for answer in stream(model, sources)]
        if not rows:
            blank = np.zeros((*self.preprocess.size, 3), dtype=np.uint8)
            return self.embed([blank])[:0]
        return np.stack(rows)

    def save(self, folder: str | Path, layout: str = "saccade") -> Path:
        """Write a model folder; `layout` may also be timm, hf or google. Nothing is overwritten."""
        with fresh(Path(folder)) as made:
            save_folder(made, self.module, self.preprocess, self.labels, layout)
        return made

    def __repr__(self) -> str:
        count = sum(p.numel() for p in self.module.parameters())
        return (
            f"Model({type(self.module).__name__}, {count:,} parameters, {self.module.config.classes} classes)"
        )


def _unless_error(answer: T | SaccadeError) -> T:
    if isinstance(answer, SaccadeError):
        raise answer
    return answer


def _with_progress(answers: Iterator[Predictions], total: int | None) -> Iterator[Predictions]:
    from rich.console import Console
    from rich.progress import track

    yield from track(answers, "predicting", total=total, console=Console(stderr=True))


@overload
def load(
    source: str | Path | Identified,
    *,
    image: int | tuple[int, int] | None = None,
    patch: int | None = None,
    preprocess: Preprocess | None = None,
    labels: Sequence[str] | None = None,
    device: str | torch.device = "cpu",
    text: Literal[False] = False,
) -> Model: ...
@overload
def load(
    source: str | Path | Identified, *, device: str | torch.device = "cpu", text: Literal[True]
) -> TextModel: ...
def load(
    source: str | Path | Identified,
    *,
    image: int | tuple[int, int] | None = None,
    patch: int | None = None,
    preprocess: Preprocess | None = None,
    labels: Sequence[str] | None = None,
    device: str | torch.device = "cpu",
    text: bool = False,
) -> Model | TextModel:
    """Load a model folder, a .safetensors or .npz file, a timm or Hugging Face folder, or a hub id.

    Args:
        image: another image size; the positions are resampled.
        patch: another patch size; the kernel is resampled.
        preprocess, labels: replace those that are stored with the weights.
        text: tells a type checker to expect a text model.
    """
    if patch is not None:
        check_number("patch", patch, 1, 1024)
    _check_device(device)
    found = source if isinstance(source, Identified) else identify(locate(source))
    if found.text or text:
        if any(given is not None for given in (image, patch, preprocess, labels)):
            raise UsageError(
                f"{shown(found.path)} is a text model; image, patch, preprocess and labels "
                "are for image models"
            )
        spoken = load_text(found)
        spoken.module.to(device)
        return TextModel(spoken)
    loaded = load_path(found, _pair(image), patch)
    if labels is not None and len(labels) != loaded.module.config.classes:
        raise UsageError(
            f"{len(labels)} labels for {loaded.module.config.classes} classes; give one for each"
        )
    model = Model(loaded.module, preprocess or loaded.preprocess, labels or loaded.labels)
    model.layout = loaded.layout
    model.folder = found.folder if (found.folder / "recipe.json").is_file() else None
    model.module.to(device)
    return model


def _pair(image: int | tuple[int, int] | None) -> tuple[int, int] | None:
    return (image, image) if isinstance(image, int) else image


def _check_device(device: str | torch.device) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        found = str(error).split("\n")[0]
        raise UsageError(f"device {str(device)!r} cannot be used here ({found}); use cpu") from error


@overload
def create(name: str, *, classes: int = 1000, **changes: object) -> Vision: ...
@overload
def create(name: str, *, vocabulary: int, **changes: object) -> Text: ...
def create(name: str, *, classes: Any = 1000, vocabulary: Any = 0, **changes: object) -> Vision | Text:
    """Return an untrained network by name (`saccade models` lists some); `changes` replace config fields.

    Args:
        classes, vocabulary: the number of outputs, of an image and of a text model.
    """
    config: Any = (
        words.text_config(name, vocabulary or None) if names.is_text(name) else names.config(name, classes)
    )
    for change in changes:
        check_word(f"a field of {name}", change, [field.name for field in fields(config)])
    if isinstance(side := changes.get("image"), int):
        changes["image"] = side, side
    try:
        made = replace(config, **changes)
        return build(made)
    except (TypeError, AttributeError) as error:
        found = ", ".join(f"{field}={value!r}" for field, value in changes.items())
        raise UsageError(f"cannot make {name} with {found}: {error}") from error
