"""From a loaded model to an exported folder that was checked against it."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saccade import __version__
from saccade.data.image.preprocess import Preprocess
from saccade.engine import verify as check
from saccade.engine.engine import check_installed
from saccade.engine.export import Answer, check_exportable, fewest, graph, merging, patch_of
from saccade.engine.exported import GRAPHS, Exported, digest, engine_for
from saccade.engine.torch import Eager
from saccade.errors import UsageError
from saccade.files.atomic import write_bytes, write_text
from saccade.models.build import Vision, config_of, to_json
from saccade.models.vit import ViT
from saccade.tokens.cost import macs_of
from saccade.tokens.merge import Merged
from saccade.weights.identify import LABELS, OURS, PREPROCESS
from saccade.weights.load import FORMAT, Loaded
from saccade.weights.load import write as write_model

NONE = check.Samples()


def write_graph(
    path: Path, module: Vision, preprocess: Preprocess, labels: Sequence[str], takes: str = "floats"
) -> None:
    """Write a model as an ONNX file, whole or not at all."""
    write_bytes(path, graph(module, preprocess, labels, takes).SerializeToString())


def _to_openvino(source: Path, target: Path, facts: dict[str, Any]) -> None:
    """By OpenVINO's own reader; weights stay in full precision."""
    import openvino

    model: Any = openvino.Core().read_model(os.fspath(source))
    for name, value in facts.items():
        model.set_rt_info(value if isinstance(value, str) else json.dumps(value), ["saccade", name])
    openvino.save_model(model, os.fspath(target), compress_to_fp16=False)


def write(
    out: Path,
    loaded: Loaded,
    to: str,
    takes: str = "floats",
    samples: check.Samples = NONE,
    calibration: Sequence[np.ndarray] | None = None,
) -> check.Verdict:
    """Export a model to a new folder, checked on `samples` and on five sizes; nothing is left of a failure.

    Args:
        calibration: batches to quantise with; None keeps float32.
    """
    check_exportable(loaded.module)
    if to == "torch":
        _check_patches(loaded)
    else:
        check_installed(to)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        room = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise UsageError(f"{out} cannot be made ({error.strerror}); choose another place") from error
    try:
        if to == "torch":
            verdict = _torch(room, loaded, samples)
        else:
            verdict = _graph(room, loaded, to, takes, samples, calibration)
        room.chmod(0o755)
        if out.is_dir():
            out.rmdir()
        room.rename(out)
    except BaseException:
        shutil.rmtree(room, ignore_errors=True)
        raise
    return verdict


def _graph(
    room: Path,
    loaded: Loaded,
    to: str,
    takes: str,
    samples: check.Samples,
    calibration: Sequence[np.ndarray] | None,
) -> check.Verdict:
    module, preprocess = loaded.module, loaded.preprocess
    drawn = room / GRAPHS["onnx"]
    write_graph(drawn, module, preprocess, loaded.labels, takes)
    if calibration is not None:
        from saccade.engine.int8 import quantize

        quantize(drawn, calibration)
    if to == "openvino":
        facts = {"labels": loaded.labels, "preprocess": preprocess.to_json(), "pixels": takes}
        _to_openvino(drawn, room / GRAPHS["openvino"], facts)
        drawn.unlink()
    made = Exported(
        room,
        to,
        takes,
        "float32" if calibration is None else "int8",
        patch_of(module),
        module.config.classes,
        preprocess,
        tuple(loaded.labels),
        "",
        {},
    )
    verdict = _checked(made, module, samples)
    told = {
        "to": to,
        "pixels": takes,
        "precision": made.precision,
        "patch": made.patch,
        "classes": made.classes,
        "macs": macs_of(module, preprocess.size),
        "digest": digest(room.iterdir()),
        "check": asdict(verdict),
        "saccade": __version__,
    }
    described = {"format": FORMAT, "task": "classify", "export": told, "model": to_json(config_of(module))}
    write_text(room / OURS, json.dumps(described, indent=2) + "\n")
    write_text(room / PREPROCESS, json.dumps(preprocess.to_json(), indent=2) + "\n")
    write_text(room / LABELS, "".join(f"{label}\n" for label in loaded.labels))
    return verdict


def _checked(made: Exported, module: Vision, samples: check.Samples) -> check.Verdict:
    engine, model = engine_for(made, made.to, kept=1), Eager(module)  # a graph for one size is checked too
    loose = float("inf") if made.precision == "int8" else check.TOLERANCE
    given, labels = len(samples.sources), samples.labels
    if made.takes == "floats":
        inputs = check.batches(made.preprocess, made.patch, samples.sources)
        return check.compare(engine, model.run, inputs, loose, given, labels)
    inputs = check.decoded(samples.sources, made.preprocess)
    loose = max(loose, check.BYTES_TOLERANCE)

    def fitted(x: np.ndarray) -> np.ndarray:
        return model.run(made.preprocess.batch(list(x)))

    return check.compare(engine, fitted, inputs, loose, given, labels)


def _patches(loaded: Loaded, height: int, width: int) -> int:
    return height * width // patch_of(loaded.module) ** 2


def _check_patches(loaded: Loaded) -> None:
    """Refuse, before any work, a merged model that no program of `torch.export` holds."""
    if 1 in merging(loaded.module):
        raise UsageError(
            "a block of this model merges a single patch, which torch.export holds for two pictures or more "
            "only; merge 0 or 2 there, or choose --to onnx or --to openvino, which hold it"
        )
    found, needed = _patches(loaded, *loaded.preprocess.size), fewest(loaded.module)
    if found < needed:
        raise UsageError(
            f"this model has {found} patches and merges so many that torch.export needs {needed}; "
            f"merge fewer, or choose --to onnx or --to openvino, which hold it"
        )


@contextmanager
def _plenty() -> Iterator[None]:
    """Let each block merge as many as it should, without a look at how many there are.

    With `fewest` patches or more that is the same; torch.export would carry the question from block to block,
    and take four times as long for six of them.
    """
    place: Any = torch
    smaller = place.sym_min
    place.sym_min = lambda a, b: a if isinstance(a, int) else smaller(a, b)
    try:
        yield
    finally:
        place.sym_min = smaller


def _torch(room: Path, loaded: Loaded, samples: check.Samples) -> check.Verdict:
    """A model folder of ours with model.pt2 beside the weights, for programs that know only torch."""
    module, patch = loaded.module, patch_of(loaded.module)
    write_model(room, module, loaded.preprocess, loaded.labels)
    batch, rows, cols = (torch.export.Dim(name, min=2, max=1024) for name in ("batch", "rows", "cols"))
    free: Any = {0: batch, 2: patch * rows, 3: patch * cols} if isinstance(module, ViT) else {0: batch}
    small = isinstance(module, ViT) and not isinstance(module, Merged)
    height, width = (3 * patch, 4 * patch) if small else loaded.preprocess.size
    with torch.no_grad(), _plenty() if isinstance(module, Merged) else nullcontext():
        program = torch.export.export(
            Answer(module), (torch.randn(2, 3, height, width),), dynamic_shapes={"image": free}
        )
    torch.export.save(program, room / "model.pt2")
    held = program.module()

    class Held:
        name = "eager"

        def run(self, pixels: np.ndarray) -> np.ndarray:
            with torch.no_grad():
                return held(torch.from_numpy(pixels)).numpy()

    inputs = check.batches(loaded.preprocess, patch, samples.sources)
    if not isinstance(module, ViT):
        inputs = [x for x in inputs if x.shape[-2:] == loaded.preprocess.size]
    inputs = [x for x in inputs if _patches(loaded, *x.shape[-2:]) >= fewest(module)]
    given = len(samples.sources)
    return check.compare(Held(), Eager(module).run, inputs, given=given, labels=samples.labels)
