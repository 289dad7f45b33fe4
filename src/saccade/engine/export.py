"""Export a model as one graph for any batch and image size, compared with the model before it is kept."""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from saccade import __version__
from saccade.data.image.preprocess import Preprocess
from saccade.engine import verify
from saccade.engine.engine import LOGITS, Arrays, check_installed
from saccade.engine.exported import GRAPHS, Exported, check_size, engine_for
from saccade.engine.graph.drawing import draw
from saccade.engine.graph.resizing import fit_images
from saccade.engine.torch import Eager
from saccade.errors import UsageError
from saccade.files.atomic import write_bytes, write_text
from saccade.files.digest import KEY, digest_files, digests
from saccade.libraries import import_runtime
from saccade.models.build import Vision, config_of, to_json
from saccade.models.hybrid import Hybrid
from saccade.models.vit import ViT
from saccade.nn import pool
from saccade.tokens.cost import macs_of
from saccade.tokens.light import Light
from saccade.tokens.merge import Merged
from saccade.tokens.prune import Pruned
from saccade.tokens.walk import Walk, Walker, run
from saccade.weights.identify import FORMAT, LABELS, OURS, PREPROCESS
from saccade.weights.load import Loaded
from saccade.weights.save import save_folder

NO_SAMPLES = verify.Samples()
LARGEST = 2_000_000_000
"""Bytes of weights; an ONNX file is a protobuf message, which has at most 2 GiB."""
_Outputs = Float[Tensor, "b classes"] | tuple[Tensor, ...]


class _Answer(nn.Module):
    """The outputs of a model by name, without what nobody reads of a ViT's last block."""

    def __init__(self, module: Vision, outputs: Sequence[str]) -> None:
        super().__init__()
        self.module, self.outputs = module, tuple(outputs)

    def forward(self, image: Float[Tensor, "b 3 height width"]) -> _Outputs:
        module = self.module
        if self.outputs != (LOGITS,):
            found: Any = module(image)
            return tuple(found[name] for name in self.outputs)
        if not isinstance(module, ViT) or (isinstance(module, Walker) and not isinstance(module, Light)):
            return module(image)
        # attention in chunks gives what attention gives; a graph has no use for the chunks
        asked = pool.KINDS[module.config.pool] if module.config.pool in ("token", "pair") else None
        return module.read(run(module, Walk(module, image), module.embed(image), asked))


class _BytesIn(nn.Module):
    """A model on decoded images: the preprocessing is part of the graph."""

    def __init__(self, answer: _Answer, preprocess: Preprocess) -> None:
        super().__init__()
        self.answer, self.preprocess = answer, preprocess

    def forward(self, picture: UInt8[Tensor, "b height width 3"]) -> _Outputs:
        return self.answer(fit_images(picture, self.preprocess))


def patch_of(module: Vision) -> int:
    """Return the number of which the sides of an image must be multiples."""
    return module.config.patch if isinstance(module, ViT) else 1


def check_exportable(module: Vision, to: str = "onnx", outputs: Mapping[str, float] = verify.OUTPUTS) -> None:
    """Refuse, before any work, a model that no graph can hold."""
    if isinstance(module, Pruned) and module.plan.by == "random":
        raise UsageError(
            "random dropping is drawn anew for each size, so no graph can hold it; prune by attention"
        )
    if isinstance(module, Light) and module.plan.attention == "windowed":
        raise UsageError(
            "windowed attention is laid out for one size, so no graph with free sizes can hold it"
        )
    if isinstance(module, Merged) and to == "torch":
        raise UsageError(
            "this model merges patches, which torch.export cannot hold for free sizes; "
            "choose --to onnx or --to openvino"
        )
    if LOGITS in outputs and not module.config.classes:
        raise UsageError("this model has no head, so its graph would have no classes to choose from")


def build_graph(
    module: Vision,
    preprocess: Preprocess,
    labels: Sequence[str] = (),
    takes: str = "floats",
    outputs: Mapping[str, float] = verify.OUTPUTS,
) -> onnx.ModelProto:
    """Return a model as ONNX with free batch, height and width; its metadata has labels and preprocessing.

    Args:
        takes: floats (the output of `Preprocess`) or bytes (decoded images).
        outputs: Names of the outputs; a model with several returns a tensor for each by name.
    """
    check_exportable(module, outputs=outputs)
    answer, names = _Answer(module.eval(), list(outputs)), list(outputs)
    if takes == "bytes":
        pixels = torch.randint(0, 256, (2, 37, 53, 3), dtype=torch.uint8)
        made = draw(_BytesIn(answer, preprocess), pixels, "picture", ["batch", "height", "width", 3], names)
    else:
        # the example may be small, except that a merged model needs as many patches as it merges away
        small = isinstance(module, ViT) and not isinstance(module, Hybrid | Merged)
        height, width = (3 * patch_of(module), 4 * patch_of(module)) if small else preprocess.size
        image = torch.randn(2, 3, height, width)
        made = draw(answer, image, "image", ["batch", 3, "height", "width"], names)
    notes = _notes(preprocess, labels, takes) | {"saccade": __version__}
    for name, value in notes.items():
        made.metadata_props.add(key=name, value=value)
    return made


def _notes(preprocess: Preprocess, labels: Sequence[str], takes: str) -> dict[str, str]:
    """Return what a graph says about itself, for programs that have only the graph."""
    return {
        "labels": json.dumps(list(labels)),
        "preprocess": json.dumps(preprocess.to_json()),
        "pixels": takes,
    }


def write_graph(
    path: Path,
    module: Vision,
    preprocess: Preprocess,
    labels: Sequence[str],
    takes: str = "floats",
    outputs: Mapping[str, float] = verify.OUTPUTS,
) -> None:
    """Write a model as an ONNX file, completely or not at all."""
    drawn = build_graph(module, preprocess, labels, takes, outputs)
    size = sum(len(weight.raw_data) for weight in drawn.graph.initializer)
    if size > LARGEST:
        raise UsageError(
            f"the weights take {size:,} bytes; an ONNX file holds at most {LARGEST:,}; "
            f"choose --to torch or a smaller model"
        )
    write_bytes(path, drawn.SerializeToString())


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
    outputs: Mapping[str, float] = verify.OUTPUTS,
) -> verify.Agreement:
    """Export a model to a new folder, checked on `samples` and on five sizes; leave nothing after a failure.

    Args:
        calibration: Batches to quantise with; None keeps float32.
        outputs: The graph's outputs, each with its tolerance.
    """
    check_exportable(loaded.module, to, outputs)
    if to != "torch":
        check_installed(to)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        room = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise UsageError(f"{out} cannot be made ({error.strerror}); choose another folder") from error
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
        _to_openvino(drawn, room / GRAPHS["openvino"], _notes(preprocess, loaded.labels, takes))
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
    described = {"format": FORMAT, "task": "classify", "export": export, **facts}
    write_text(room / PREPROCESS, json.dumps(preprocess.to_json(), indent=2) + "\n")
    write_text(room / LABELS, "".join(f"{label}\n" for label in loaded.labels))
    described[KEY] = digests(room, (PREPROCESS, LABELS))
    write_text(room / OURS, json.dumps(described, indent=2) + "\n")
    return agreement


def _check(
    made: Exported, module: Vision, samples: verify.Samples, outputs: Mapping[str, float]
) -> verify.Agreement:
    # kept=1: OpenVINO answers the first shape with a graph of its own and the rest with the general one
    engine, model, preprocess = engine_for(made, made.to, kept=1), Eager(module), made.preprocess
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
    save_folder(room, module, loaded.preprocess, loaded.labels)
    batch, rows, cols = (torch.export.Dim(name, min=2, max=1024) for name in ("batch", "rows", "cols"))
    free: Any = {0: batch, 2: patch * rows, 3: patch * cols} if isinstance(module, ViT) else {0: batch}
    height, width = (3 * patch, 4 * patch) if isinstance(module, ViT) else loaded.preprocess.size
    example = torch.randn(2, 3, height, width)
    with torch.no_grad():
        program = torch.export.export(
            _Answer(module, list(outputs)), (example,), dynamic_shapes={"image": free}
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
    return verify.compare(ask, Eager(module).arrays, inputs, outputs, len(samples.sources), samples.labels)
