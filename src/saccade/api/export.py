"""Export a model as one graph that runs without saccade, and without torch."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from saccade.api.inputs import check_free, identify_model, is_run, own_data
from saccade.errors import ModelError, SaccadeError, UsageError, check_number, check_word
from saccade.task import Task
from saccade.tasks import find_task, task_of
from saccade.weights.identify import Identified

if TYPE_CHECKING:
    from saccade.data.pictures import Pictures
    from saccade.data.splits import Splits
    from saccade.engine.verify import Agreement, Samples

FORMATS = ("onnx", "openvino", "torch")
CALIBRATION = 128
FEW = 8
"""With this many images or more left over, int8 is checked on images that it was not calibrated on."""


class ExportResult(NamedTuple):
    """The exported folder, and how far it agrees with the model."""

    folder: Path
    agreement: "Agreement"
    images: int
    """The user's images it was checked on; 0 if they were synthetic."""
    calibrated: bool = False
    """Whether it was calibrated on the same images, for want of others."""


def export(
    model: Any,
    out: Path | None = None,
    to: str = "onnx",
    pixels: str = "floats",
    int8: bool = False,
    data: str = "",
    format: str = "auto",
    most: int = CALIBRATION,
) -> ExportResult:
    """Export a model to a new folder, checked against the model; nothing is left after a failure.

    Args:
        model: A path, a hub id, or a loaded model (saccade.weights.load.Loaded), which needs `out`.
        pixels: floats, or bytes: resizing and normalising become part of the graph.
        data: Images to check on and, with int8, others to calibrate on; at most `most` of each.
    """
    check_word("--to", to, FORMATS)
    check_word("--pixels", pixels, ("floats", "bytes"))
    check_number("--pictures", most, 1, 100_000)
    if to == "torch" and (int8 or pixels == "bytes"):
        raise UsageError(
            "--to torch supports only floats and float32; choose --to onnx or --to openvino instead"
        )
    for what, word in {"--format": format, "OUT": "" if out is None else str(out)}.items():
        if word in FORMATS and word != (to if what == "OUT" else ""):
            use = "it says what DATA is" if what == "--format" else "that is the folder to write"
            raise UsageError(f"{what} is {word!r}, but {use}; to export to {word}, give --to {word}")
    if format != "auto" and not data:
        raise UsageError(
            f"--format is {format!r}, but it says what DATA is and there is no --data; leave it out"
        )
    if not isinstance(model, str):
        assert out is not None
        check_free(out)
        _check_packages(to, int8)
        task, found = find_task(model.task), Identified(out, {})
        folder = getattr(model, "folder", None)
        chosen = _chosen(task, found, folder, "the model", data, format, most, int8)
        return _export(model, out, to, pixels, int8, *chosen)
    from saccade.weights.identify import locate

    path = locate(model)
    out = out or default_folder(model, path, f"-{to}{'-int8' if int8 else ''}")
    check_free(out)
    found = identify_model(path, "any")
    if found.exported:
        raise ModelError(f"{model} is already an exported graph; export the run that it was made from")
    _check_packages(to, int8)
    found.check_images()
    from saccade.weights.load import load

    task = task_of(found)
    if not task.outputs:
        raise ModelError(f"{model} is for the task {task.name}, whose models cannot be exported")
    chosen = _chosen(task, found, found.folder, model, data, format, most, int8)
    loaded = load(found)
    loaded.task = task.name
    return _export(loaded, out, to, pixels, int8, *chosen)


def _export(
    loaded: Any,
    out: Path,
    to: str,
    pixels: str,
    int8: bool,
    calibration: "Pictures | None" = None,
    unseen: "Pictures | None" = None,
) -> ExportResult:
    from saccade.engine.export import NO_SAMPLES, export_model
    from saccade.engine.verify import graph_inputs

    samples = NO_SAMPLES if unseen is None else make_samples(unseen, loaded.labels)
    batches = None
    if int8 and calibration is not None:
        batches = graph_inputs(loaded.preprocess, pixels, make_samples(calibration).sources)
    agreement = export_model(out, loaded, to, pixels, samples, batches, find_task(loaded.task).outputs)
    return ExportResult(out, agreement, len(samples.sources), int8 and calibration is unseen)


def default_folder(model: str, path: Path, ending: str) -> Path:
    """Return the folder for a graph if none was given: beside its model; for a hub id, in this folder."""
    if path != Path(model):
        from saccade.hub.names import read_name

        return Path(read_name(model)[0].split("/")[-1] + ending)
    named = path if path.name.strip(".") else path.resolve()
    return named.with_name((named.stem if path.is_file() else named.name) + ending)


def _check_packages(to: str, int8: bool) -> None:
    from importlib.util import find_spec

    from saccade.engine.engine import check_installed

    if to != "torch":
        check_installed(to)
        if int8:
            check_installed("onnx")
        if find_spec("onnx") is None:
            raise UsageError(
                "exporting needs the package onnx, which is not installed; run `pip install 'saccade[onnx]'`"
            )


def _chosen(
    task: Task,
    model: "Identified",
    run: Path | None,
    name: str,
    data: str,
    format: str,
    most: int,
    int8: bool,
) -> "tuple[Pictures | None, Pictures | None]":
    """Return the images to calibrate and to check on: those given, or the run's own; None if synthetic."""
    if data:
        return choose_images(task.open_for(model, data, format), most, int8)
    if run is None or not is_run(run):
        if int8:
            raise UsageError("--int8 needs images to calibrate on; give some with --data DATA")
        return None, None
    try:
        own = own_data(run, name)
    except SaccadeError as error:
        if int8:
            raise
        print(f"note: {error}; the graph is checked on synthetic images", file=sys.stderr)
        return None, None
    assert own is not None
    return choose_images(own.splits, most, int8)


def choose_images(found: "Splits[Pictures]", most: int, int8: bool) -> "tuple[Pictures, Pictures]":
    """Return images to calibrate on and to check on, spread over their splits; different ones if possible."""
    import numpy as np

    from saccade.data.splits import evenly
    from saccade.vision.batches import keep_readable

    learnt, (_, held) = found.train, found.unseen()
    if not int8:
        return learnt, keep_readable(held.take(evenly(len(held), most)))
    if learnt is not held:
        return keep_readable(learnt.take(evenly(len(learnt), most))), keep_readable(
            held.take(evenly(len(held), most))
        )
    some = evenly(len(held), min(most, max(len(held) * 3 // 4, 1)))
    rest = np.setdiff1d(np.arange(len(held)), some)
    if len(rest) < FEW:
        learnt = keep_readable(held.take(evenly(len(held), most)))
        return learnt, learnt
    return keep_readable(held.take(some)), keep_readable(held.take(rest[evenly(len(rest), most)]))


def make_samples(images: "Pictures", labels: Sequence[str] | None = None) -> "Samples":
    """Return images as they are on disk, with their classes if the model knows all of them."""
    from saccade.engine.verify import Samples

    sources = [images.open(i) for i in range(len(images))]
    if not labels or not images.classes or set(images.classes) - set(labels):
        return Samples(sources)
    return Samples(sources, images.relabel(list(labels)).labels.tolist())
