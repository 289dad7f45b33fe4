"""Image models: load or create one, then predict, evaluate, explain, embed, prune, export or save it."""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence, Sized
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, overload

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from PIL import Image

from saccade.api.bench import BenchResult
from saccade.api.display import Predictions, TrainedRun
from saccade.data.class_names import name_labels
from saccade.data.image.formats import Stream
from saccade.data.image.preprocess import PictureSource, Preprocess
from saccade.engine.stream import BATCH, stream
from saccade.errors import SaccadeError, UsageError, check_number
from saccade.explain.heatmap import Heatmap
from saccade.explain.target import class_index
from saccade.files.atomic import fresh
from saccade.models.build import Vision
from saccade.models.modules import device_of
from saccade.task import Evaluation
from saccade.tasks import find_task
from saccade.vision.model import VisionFeatures, check_head
from saccade.weights.identify import Identified, identify
from saccade.weights.load import Loaded
from saccade.weights.load import load as load_path
from saccade.weights.save import save_folder

T = TypeVar("T")
ONE = (str, bytes, Path, np.ndarray, Image.Image, Stream, torch.Tensor)
"""Types of a single image; anything else holds several."""
ImageInput = PictureSource | torch.Tensor


class Model:
    """A network together with its preprocessing and labels: all it needs to answer."""

    def __init__(
        self, module: Vision, preprocess: Preprocess, labels: Sequence[str] = (), task: str = ""
    ) -> None:
        self.module = module.eval()
        self.task = find_task(task).name
        """What it answers: a name that `saccade train --task` takes."""
        self.preprocess = preprocess
        self.labels = name_labels(labels)
        self.layout = "saccade"
        """Whose layout the weights were read from."""
        self.folder: Path | None = None
        """The run that trained it, if there is one."""
        self.origin: Identified | None = None
        """What it was loaded from."""

    @property
    def lineage(self) -> Sequence[dict[str, str]]:
        """What its weights were made from, the newest first: name, hub id, licence, digest."""
        from saccade.weights.lineage import lineage_of

        return lineage_of(self)

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
        self, source: ImageInput, top: int = 5, *, batch: int = BATCH, progress: bool = False
    ) -> Predictions: ...
    @overload
    def predict(  # type: ignore[overload-overlap]
        self, source: Iterator[ImageInput], top: int = 5, *, batch: int = BATCH, progress: bool = False
    ) -> Iterator[Predictions]: ...
    @overload
    def predict(
        self, source: Iterable[ImageInput], top: int = 5, *, batch: int = BATCH, progress: bool = False
    ) -> list[Predictions]: ...
    def predict(
        self,
        source: ImageInput | Iterable[ImageInput],
        top: int = 5,
        *,
        batch: int = BATCH,
        progress: bool = False,
    ) -> Predictions | Iterator[Predictions] | list[Predictions]:
        """Return the likeliest classes of an image (path, bytes, PIL image, array), or of each in a list.

        A generator of images gives a generator of answers, which reads only a few batches ahead. A folder
        gives a list: an answer to each image below it, sorted by path. A tensor of shape (3, H, W) is one
        image and (b, 3, H, W) several, uint8 from 0 to 255 or float from 0 to 1, in RGB; they are resized,
        cropped and normalised as the model wants. A tensor that is normalised already goes to
        `model.module`.

        Args:
            batch: Images to compute together.
            progress: Show a progress bar.
        """
        self.check_classes()
        if top < 1:
            raise UsageError(f"top is {top}; expected 1 or more")
        check_number("batch", batch, 1, 10**6)
        source = _several(source)
        if isinstance(source, ONE):
            return self.predict([source], top)[0]
        answers = self._answers(source, top, batch)
        if progress:
            answers = _with_progress(answers, len(source) if isinstance(source, Sized) else None)
        return answers if isinstance(source, Iterator) else list(answers)

    def _answers(self, sources: Iterable[ImageInput], top: int, batch: int) -> Iterator[Predictions]:
        task = find_task(self.task)
        for answer in task.predict(task.wrap(self, top), map(_image, sources), batch):
            found = _unless_error(answer)
            yield Predictions(found) if isinstance(found, list) else found

    def evaluate(self, data: str | Path = "", split: str = "", format: str = "auto") -> Evaluation:
        """Score the model on labelled images; by default on the first of test, val, train.

        Without `data`, a trained model is scored on what its run held out.
        """
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
        made = Loaded(module, self.preprocess, self.labels, self.layout, task=self.task, origin=self.origin)
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
        from saccade.api.load import load

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
        check_head(self.module)

    @overload
    def explain(  # type: ignore[overload-overlap]
        self, picture: ImageInput, method: str = "relevance", target: str | int | None = None
    ) -> Heatmap: ...
    @overload
    def explain(
        self, picture: Iterable[ImageInput], method: str = "relevance", target: str | int | None = None
    ) -> list[Heatmap]: ...
    def explain(
        self,
        picture: ImageInput | Iterable[ImageInput],
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
        picture = _several(picture)
        find_method(method, self.module)  # refuses the method before the target
        index = None if target is None else self.index(target)
        if isinstance(picture, ONE):
            return heat_maps(self, [_image(picture)], method, index)[0]
        return heat_maps(self, map(_image, picture), method, index)

    def embed(self, sources: Iterable[ImageInput]) -> Float[np.ndarray, "n d"]:
        """Return one vector per image: what the head reads (of a pair of heads, the class token)."""
        sources = _several(sources)
        if isinstance(sources, ONE):
            raise UsageError("embed was given one image; expected a list of them, such as [image]")
        model = VisionFeatures(self.module, self.preprocess)
        rows = [_unless_error(answer) for answer in stream(model, map(_image, sources))]
        if not rows:
            blank = np.zeros((*self.preprocess.size, 3), dtype=np.uint8)
            return self.embed([blank])[:0]
        return np.stack(rows)

    def save(self, folder: str | Path, layout: str = "saccade") -> Path:
        """Write a model folder; `layout` may also be timm, hf or google. Nothing is overwritten."""
        with fresh(Path(folder)) as made:
            save_folder(made, self.module, self.preprocess, self.labels, layout, self.task, self.lineage)
        return made

    def __repr__(self) -> str:
        count = sum(p.numel() for p in self.module.parameters())
        return (
            f"Model({type(self.module).__name__}, {count:,} parameters, {self.module.config.classes} classes)"
        )


def _several(source: Any) -> Any:
    """Return a folder as the images below it, and a tensor of several as a list; all else unchanged."""
    if isinstance(source, torch.Tensor) and source.ndim == 4:
        return list(source)
    if isinstance(source, str | Path) and os.path.isdir(source):
        from saccade.api.predict import find

        return [image for _, image in find([str(source)])]
    return source


def _image(source: Any) -> Any:
    """Return a tensor as an array of RGB bytes; anything else unchanged."""
    if not isinstance(source, torch.Tensor):
        return source
    lead = f"the tensor is {str(source.dtype).removeprefix('torch.')} of shape {tuple(source.shape)}"
    if source.ndim != 3 or source.shape[0] != 3 or not source.numel():
        raise UsageError(f"{lead}; expected (3, H, W) or (b, 3, H, W); permute it first")
    if source.dtype != torch.uint8:
        low, high = float(source.min()), float(source.max())
        if not (source.is_floating_point() and low >= 0 and high <= 1):
            raise UsageError(
                f"{lead}, with values from {low:.4g} to {high:.4g}; expected uint8 from 0 to 255 or float "
                "from 0 to 1; if it is normalised already, call model.module(tensor)"
            )
        source = (source * 255).round().to(torch.uint8)
    return rearrange(source.detach().cpu(), "c h w -> h w c").contiguous().numpy()


def _unless_error(answer: T | SaccadeError) -> T:
    if isinstance(answer, SaccadeError):
        raise answer
    return answer


def _with_progress(answers: Iterator[Predictions], total: int | None) -> Iterator[Predictions]:
    from rich.console import Console
    from rich.progress import track

    yield from track(answers, "predicting", total=total, console=Console(stderr=True))
