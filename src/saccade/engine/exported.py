"""An exported model is a model folder too: graph, preprocessing and labels, read without torch."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saccade.data.image.preprocess import Preprocess
from saccade.engine.engine import Engine, check_installed
from saccade.errors import ModelError, SaccadeError, UsageError, check_word
from saccade.files.paths import shown
from saccade.weights.formats.tensors import INDEX, read_json
from saccade.weights.identify import LABELS, OURS, PREPROCESS, THEIRS, read_labels

GRAPHS = {"onnx": "model.onnx", "openvino": "model.xml"}
"""Each format and the file that holds its graph."""
ENGINES = {"onnx": ("onnx", "openvino"), "openvino": ("openvino",)}
"""Who can run each format."""
WEIGHTS = ("*.safetensors", "*.npz", "*.bin", "*.pt", "*.pth")


@dataclass(frozen=True, slots=True)
class Exported:
    """What lies in an exported folder."""

    folder: Path
    to: str
    """onnx or openvino."""
    takes: str
    """floats (what `Preprocess` gives) or bytes (decoded pictures of any size)."""
    precision: str
    """float32 or int8."""
    patch: int
    """The sides of a picture must be multiples of it."""
    classes: int
    preprocess: Preprocess
    labels: tuple[str, ...]
    digest: str
    """Of the graph, so that what is known of it can be remembered."""
    facts: Mapping[str, Any]
    """All of model.json."""

    @property
    def graph(self) -> Path:
        return self.folder / GRAPHS[self.to]


def digest(files: Iterable[Path]) -> str:
    """Of the names and contents of files."""
    whole = hashlib.sha256()
    for file in sorted(files):
        with file.open("rb") as opened:
            whole.update(file.name.encode(errors="surrogateescape") + b"\0")
            whole.update(hashlib.file_digest(opened, "sha256").digest())
    return whole.hexdigest()


def read_of(path: Path) -> list[Path]:
    """All that a model at a path is read from: every file of weights in a folder, and what describes them."""
    folder = path if path.is_dir() else path.parent
    beside = [folder / name for name in (OURS, PREPROCESS, LABELS, *THEIRS, INDEX)]
    weights = [file for ending in WEIGHTS for file in path.glob(ending)] if path.is_dir() else [path]
    return [file for file in {*beside, *weights} if file.is_file()]


def is_exported(path: Path) -> bool:
    """Is this a folder that `saccade export` wrote?"""
    if not path.is_dir() or not (path / OURS).is_file():
        return False
    return "export" in read_json(path / OURS)


def exported(path: Path) -> Exported:
    """Read an exported folder; whatever is amiss is refused in words."""
    facts = read_json(path / OURS)
    told = facts.get("export")
    where = shown(path)
    if not isinstance(told, Mapping):
        raise ModelError(f"{where} is not an exported model; run `saccade export` on it first")
    try:
        check_word("its format", str(told.get("to")), GRAPHS)
        made = Exported(
            path,
            str(told["to"]),
            str(told["pixels"]),
            str(told["precision"]),
            int(told["patch"]),
            int(told["classes"]),
            Preprocess.from_json(read_json(path / PREPROCESS)),
            tuple(read_labels(path / LABELS)),
            str(told["digest"]),
            facts,
        )
    except (KeyError, TypeError, ValueError, SaccadeError) as error:
        raise ModelError(
            f"{where} is no exported model of this version ({error}); export it again"
        ) from error
    if not made.graph.is_file():
        raise ModelError(f"{where} has no {GRAPHS[made.to]}; it was damaged; export it again")
    height, width = made.preprocess.size
    if made.patch < 1 or height % made.patch or width % made.patch:
        raise ModelError(
            f"{where} asks for {height} x {width} pixels; expected whole patches "
            f"of {made.patch} x {made.patch}; mend {PREPROCESS} or export it again"
        )
    if made.labels and len(made.labels) != made.classes:
        raise ModelError(f"{where} has {len(made.labels)} labels for {made.classes} classes; export it again")
    return made


def engine_for(made: Exported, name: str, kept: int = 2) -> Engine:
    """An exported graph on one engine by name; for `kept` see `OpenVino`."""
    if name not in ENGINES[made.to]:
        raise UsageError(
            f"the engine {name} cannot run {made.graph.name}; choose {' or '.join(ENGINES[made.to])}, "
            f"or export the model again with another --to"
        )
    check_installed(name)
    if name == "onnx":
        from saccade.engine.onnx import Onnx

        return Onnx(made.graph, fuse=made.precision == "int8")
    from saccade.engine.openvino import OpenVino

    return OpenVino(made.graph, kept=kept)


def described(path: Path) -> Exported:
    """What an exported folder would say of a model that is none: for engines that run it from the cache."""
    from saccade.engine.export import patch_of
    from saccade.weights.load import load

    loaded = load(path)
    module, labels = loaded.module, tuple(loaded.labels)
    if not module.config.classes:
        raise ModelError("this model has no head, so it has no classes to choose from; use embed()")
    sizes = patch_of(module), module.config.classes
    return Exported(path, "onnx", "floats", "float32", *sizes, loaded.preprocess, labels, "", {})
