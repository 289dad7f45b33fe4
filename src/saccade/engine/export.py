"""Export a model as one graph for any batch and image size, compared with the model before it is kept."""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saccade import __version__
from saccade.engine import verify
from saccade.engine.engine import LOGITS, OUTPUTS, Arrays, check_installed
from saccade.engine.exported import GRAPHS, Exported, check_size, engine_for
from saccade.engine.graph.model import GraphOutputs, check_exportable, notes_of, patch_of, write_graph
from saccade.engine.torch import Eager
from saccade.errors import UsageError
from saccade.files.atomic import write_text
from saccade.files.digest import KEY, digest_files, digests
from saccade.files.strict_json import write_json
from saccade.libraries import import_runtime
from saccade.models.build import Vision, config_of, to_json
from saccade.models.vit import ViT
from saccade.tokens.cost import macs_of
from saccade.weights.identify import FORMAT, LABELS, LINEAGE, OURS, PREPROCESS
from saccade.weights.lineage import lineage_of
from saccade.weights.load import Loaded
from saccade.weights.save import save_folder

NO_SAMPLES = verify.Samples()


def _to_openvino(source: Path, target: Path, notes: Mapping[str, str]) -> None:
    """Convert with OpenVINO's own reader, in full precision."""
    openvino: Any = import_runtime("openvino")
    model: Any = openvino.Core().read_model(os.fspath(source))
    for name, value in notes.items():
        model.set_rt_info(value, ["saccade", name])
    openvino.save_model(model, os.fspath(target), compress_to_fp16=False)


def export_model(
    out: Path,
    loaded: Loaded,
    to: str,
    takes: str = "floats",
    samples: verify.Samples = NO_SAMPLES,
    calibration: Sequence[np.ndarray] | None = None,
    outputs: Mapping[str, float] = OUTPUTS,
) -> verify.Agreement:
    """Export a model to a new folder, checked on `samples` and on five sizes; leave nothing after a failure.

    Args:
        calibration: Batches to quantise with; None keeps float32.
        outputs: The graph's outputs, each with its tolerance.
    """
    check_exportable(loaded.module, to)
    if to != "torch":
        check_installed(to)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        room = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise UsageError(f"{out} cannot be created ({error.strerror}); choose another folder") from error
    try:
        if to == "torch":
            agreement = _export_torch(room, loaded, samples, outputs)
        else:
            agreement = _export_graph(room, loaded, to, takes, samples, calibration, outputs)
        room.chmod(0o755)
        if out.is_dir():
            out.rmdir()
        room.rename(out)
    except BaseException:
        shutil.rmtree(room, ignore_errors=True)
        raise
    return agreement


def _export_graph(
    room: Path,
    loaded: Loaded,
    to: str,
    takes: str,
    samples: verify.Samples,
    calibration: Sequence[np.ndarray] | None,
    outputs: Mapping[str, float],
) -> verify.Agreement:
    module, preprocess, drawn = loaded.module, loaded.preprocess, room / GRAPHS["onnx"]
    facts: dict[str, Any] = {"model": to_json(config_of(module))}
    precision = "float32" if calibration is None else "int8"
    sizes, labels = (patch_of(module), module.config.classes), tuple(loaded.labels)
    made = Exported(room, to, takes, precision, *sizes, preprocess, labels, "", facts, tuple(outputs))
    check_size("this model", made)
    write_graph(drawn, module, preprocess, loaded.labels, takes, outputs)
    if calibration is not None:
        from saccade.engine.int8 import quantize

        quantize(drawn, calibration)
    if to == "openvino":
        _to_openvino(drawn, room / GRAPHS["openvino"], notes_of(preprocess, loaded.labels, takes))
        drawn.unlink()
    agreement = _check(made, module, samples, outputs)
    export = {
        "to": to,
        "pixels": takes,
        "precision": made.precision,
        "patch": made.patch,
        "classes": made.classes,
        "macs": macs_of(module, preprocess.size),
        "digest": digest_files(room.iterdir()),
        "check": asdict(agreement),
        "saccade": __version__,
    }
    if made.outputs != (LOGITS,):
        export["outputs"] = list(made.outputs)
    described = {"format": FORMAT, "task": loaded.task, "export": export, **facts}
    if lineage := lineage_of(loaded):
        described[LINEAGE] = list(lineage)
    write_json(room / PREPROCESS, preprocess.to_json(), escape=True)
    write_text(room / LABELS, "".join(f"{label}\n" for label in loaded.labels))
    described[KEY] = digests(room, (PREPROCESS, LABELS))
    write_json(room / OURS, described, escape=True)
    return agreement


def _check(
    made: Exported, module: Vision, samples: verify.Samples, outputs: Mapping[str, float]
) -> verify.Agreement:
    # kept=1: OpenVINO answers the first shape with a graph of its own and the rest with the general one
    engine, model, preprocess = (
        engine_for(made, made.to, kept=1),
        Eager(module, made.outputs),
        made.preprocess,
    )
    if made.precision == "int8":
        outputs = dict.fromkeys(outputs, float("inf"))
    if made.takes == "floats":
        inputs, ask = verify.float_trials(preprocess, made.patch, samples.sources), model.arrays
    else:
        inputs = verify.byte_trials(preprocess, samples.sources)
        outputs = {name: max(tolerance, verify.BYTES_TOLERANCE) for name, tolerance in outputs.items()}

        def ask(pixels: np.ndarray) -> Arrays:
            return model.arrays(preprocess.batch(list(pixels)))

    return verify.compare(engine.arrays, ask, inputs, outputs, len(samples.sources), samples.labels)


def _export_torch(
    room: Path, loaded: Loaded, samples: verify.Samples, outputs: Mapping[str, float]
) -> verify.Agreement:
    """Write a model folder with model.pt2 beside the weights, for programs that know only torch."""
    module, patch = loaded.module, patch_of(loaded.module)
    model = Eager(module, tuple(outputs))
    save_folder(room, module, loaded.preprocess, loaded.labels, task=loaded.task, lineage=lineage_of(loaded))
    batch, rows, cols = (torch.export.Dim(name, min=2, max=1024) for name in ("batch", "rows", "cols"))
    free: Any = {0: batch, 2: patch * rows, 3: patch * cols} if isinstance(module, ViT) else {0: batch}
    height, width = (3 * patch, 4 * patch) if isinstance(module, ViT) else loaded.preprocess.size
    example = torch.randn(2, 3, height, width)
    with torch.no_grad():
        program = torch.export.export(
            GraphOutputs(module, list(outputs)), (example,), dynamic_shapes={"image": free}
        )
    torch.export.save(program, room / "model.pt2")
    held = program.module()

    def ask(pixels: np.ndarray) -> Arrays:
        with torch.no_grad():
            found = held(torch.from_numpy(pixels))
        values = (found,) if isinstance(found, Tensor) else found
        return {name: value.numpy() for name, value in zip(outputs, values, strict=True)}

    inputs = verify.float_trials(loaded.preprocess, patch, samples.sources)
    if not isinstance(module, ViT):
        inputs = [x for x in inputs if x.shape[-2:] == loaded.preprocess.size]
    return verify.compare(ask, model.arrays, inputs, outputs, len(samples.sources), samples.labels)
