"""An exported folder: graph, preprocessing and labels, read and diagnosed without torch."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from saccade.data.image.preprocess import Preprocess, most_tokens, tokens
from saccade.engine.engine import LOGITS, Engine, check_installed, distance, installed, release
from saccade.engine.graph.examine import examine
from saccade.errors import ModelError, SaccadeError, UsageError
from saccade.files.digest import changed
from saccade.files.paths import open_file
from saccade.files.strict_json import read_json
from saccade.weights.formats.tensors import INDEX
from saccade.weights.identify import LABELS, OURS, PREPROCESS, THEIRS, Identified, read_labels
from saccade.wording import printable

GRAPHS = {"onnx": "model.onnx", "openvino": "model.xml"}
"""Each format and its graph file."""
ENGINES = {"onnx": ("onnx", "openvino"), "openvino": ("openvino",)}
"""The engines that run each format."""
TAKES = ("floats", "bytes")
"""What a graph takes: the output of `Preprocess`, or decoded images of any size."""
APART = 0.1
"""How far two engines may differ, as a share of the answer's length; int8 differs by some hundredths."""
PRECISIONS = ("float32", "int8")
DIGEST = re.compile("[0-9a-f]{64}")
PATCH = 1024
CLASSES = 2**20
PIXELS = 2048**2
"""Most pixels of an input image: 16,384 tokens with 16-pixel patches."""
FORMAT = 1
WEIGHTS = ("*.safetensors", "*.npz", "*.bin", "*.pt", "*.pth")


_Row = tuple[str, str, str]
"""A test, its result (ok, unknown, wrong) and the reason."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The contents of an exported folder."""

    folder: Path
    to: str
    """onnx or openvino."""
    takes: str
    """floats or bytes."""
    precision: str
    """float32 or int8."""
    patch: int
    """The sides of an image must be multiples of it."""
    classes: int
    preprocess: Preprocess
    labels: tuple[str, ...]
    digest: str
    """Digest of the graph files."""
    facts: Mapping[str, Any]
    """All of model.json."""
    outputs: tuple[str, ...] = (LOGITS,)

    @property
    def graph(self) -> Path:
        return self.folder / GRAPHS[self.to]

    def example(self, batch: int = 1) -> np.ndarray:
        """Return a batch of noise of the kind that the graph takes."""
        random, (height, width) = np.random.default_rng(0), self.preprocess.size
        if self.takes == "bytes":
            return random.integers(0, 256, (batch, height * 5 // 4, width * 3 // 2, 3), dtype=np.uint8)
        return random.normal(size=(batch, 3, height, width)).astype(np.float32)


def model_files(path: Path) -> list[Path]:
    """Return all files that a model is read from: the weights of a folder, and what describes them."""
    folder = path if path.is_dir() else path.parent
    beside = [folder / name for name in (OURS, PREPROCESS, LABELS, *THEIRS, INDEX)]
    weights = [file for ending in WEIGHTS for file in path.glob(ending)] if path.is_dir() else [path]
    return [file for file in {*beside, *weights} if file.is_file()]


def is_exported(path: Path) -> bool:
    """Return whether `saccade export` wrote this folder."""
    if not path.is_dir() or not (path / OURS).exists():
        return False
    return "export" in read_json(path / OURS)


def read_exported(source: Path | Identified) -> Exported:
    """Read an exported folder; refuse one that is incomplete or contradicts itself."""
    path = source if isinstance(source, Path) else source.path
    facts = read_json(path / OURS) if isinstance(source, Path) else source.model or {}
    export = facts.get("export")
    where = printable(path)
    if not isinstance(export, Mapping):
        raise ModelError(f"{where} is not an exported model; run `saccade export` on it first")
    try:
        made = Exported(
            path,
            _word(export, "to", GRAPHS),
            _word(export, "pixels", TAKES),
            _word(export, "precision", PRECISIONS),
            _number(export, "patch", PATCH),
            _number(export, "classes", CLASSES),
            Preprocess.from_json(read_json(path / PREPROCESS)),
            tuple(read_labels(path / LABELS)),
            _digest(export),
            facts,
            _outputs(export),
        )
        if facts.get("format") != FORMAT:
            found = printable(repr(facts.get("format")), 100)
            raise UsageError(f"its format is {found}; expected {FORMAT}")
    except (ModelError, UsageError) as error:
        raise ModelError(
            f"{where} is not an exported model of this version ({error}); export it again"
        ) from error
    if not made.graph.is_file():
        raise ModelError(f"{where} has no {GRAPHS[made.to]}; export it again")
    if (weights := made.graph.with_suffix(".bin")).exists():
        open_file(weights).close()  # OpenVINO would wait for a pipe
    check_size(where, made)
    if made.labels and len(made.labels) != made.classes:
        raise ModelError(f"{where} has {len(made.labels)} labels for {made.classes} classes; export it again")
    return made


def _word(export: Mapping[str, Any], name: str, known: Iterable[str]) -> str:
    found = export.get(name)
    if not isinstance(found, str) or found not in known:
        raise UsageError(f"{name} is {printable(repr(found), 60)}; expected one of {', '.join(known)}")
    return found


def _number(export: Mapping[str, Any], name: str, most: int) -> int:
    found = export.get(name)
    if type(found) is not int or not 1 <= found <= most:
        raise UsageError(f"{name} is {printable(repr(found), 60)}; expected a whole number from 1 to {most}")
    return found


def _digest(export: Mapping[str, Any]) -> str:
    found = export.get("digest")
    if not isinstance(found, str) or not DIGEST.fullmatch(found):
        raise UsageError(f"digest is {printable(repr(found), 60)}; expected 64 hexadecimal digits")
    return found


def _outputs(export: Mapping[str, Any]) -> tuple[str, ...]:
    found = export.get("outputs", [LOGITS])
    if not isinstance(found, list) or not found or not all(isinstance(name, str) for name in found):
        raise UsageError(f"outputs is {printable(repr(found), 60)}; expected a list of names")
    return tuple(found)


def check_size(where: str, made: Exported) -> None:
    """Refuse image sizes that do not fit the patches, or that take all of the machine's time and memory."""
    height, width = made.preprocess.size
    if height % made.patch or width % made.patch:
        raise ModelError(
            f"{where} asks for {height} x {width} pixels; expected whole patches "
            f"of {made.patch} x {made.patch}; correct {PREPROCESS} or export it again"
        )
    if height * width > PIXELS:
        raise ModelError(
            f"{where} asks for {height} x {width} pixels; expected at most {PIXELS:,} in all; "
            f"correct {PREPROCESS} or export it again"
        )
    model = made.facts.get("model")
    vit = _vit(model if isinstance(model, Mapping) else {})
    if "patch" not in vit:  # the cost of a ResNet grows only linearly with the pixels
        return
    sides = vit.get("image")
    pair = sides if isinstance(sides, list | tuple) and all(type(side) is int for side in sides) else ()
    own = math.prod(pair) // made.patch**2 if len(pair) == 2 else 0
    found, most = tokens(made.preprocess.size, made.patch), most_tokens(own, "graph")
    if found > most:
        raise ModelError(
            f"{where} asks for {height} x {width} pixels ({found:,} patches); expected at most "
            f"{most:,}; correct {PREPROCESS} or export it again"
        )


def _vit(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the Transformer inside the model that model.json describes."""
    inner = model.get("vit")
    return _vit(inner) if isinstance(inner, Mapping) else model


def engine_for(made: Exported, name: str, kept: int = 2, streams: int = 1) -> Engine:
    """Open an exported graph on one engine; for `kept` and `streams` see `OpenVino`."""
    if name not in ENGINES[made.to]:
        raise UsageError(
            f"the engine {name} cannot run {made.graph.name}; choose {' or '.join(ENGINES[made.to])}, "
            f"or export the model again with another --to"
        )
    check_installed(name)
    expected: dict[str, Any] = {"digest": made.digest, "classes": made.classes, "outputs": made.outputs}
    if name == "onnx":
        from saccade.engine.onnx import Onnx

        threads = None if streams == 1 else 1
        return Onnx(made.graph, threads, fuse=made.precision == "int8", **expected)
    from saccade.engine.openvino import OpenVino

    return OpenVino(made.graph, kept=kept, streams=streams, **expected)


def diagnose(found: Identified) -> list[_Row]:
    """Report for `saccade doctor` what a graph is, whether it is unchanged, and how each engine answers."""
    made = read_exported(found)
    size = sum(file.stat().st_size for file in made.folder.iterdir() if file.is_file())
    named = "ok" if made.labels else "unknown"
    rows = [
        ("format", "ok", f"{made.to}, {made.precision}, takes {made.takes}, {size / 1e6:.1f} MB"),
        ("preprocessing", *_side(made, PREPROCESS, str(made.preprocess))),
        ("labels", *_side(made, LABELS, f"{len(made.labels)} of {made.classes}", named)),
    ]
    try:
        with examine(made.graph, made.digest):
            rows.append(("digest", "ok", f"{made.graph.name} is the file that was exported"))
    except ModelError as error:
        return [*rows, ("digest", "wrong", str(error))]
    return rows + list(_engines(made))


def _side(made: Exported, name: str, words: str, verdict: str = "ok") -> tuple[str, str]:
    """Report what a file that people may edit says, and whether it has changed."""
    if changed(made.folder, made.facts, name):
        return "unknown", f"{words}; {name} has been edited or damaged since the export"
    return verdict, words


def _engines(made: Exported) -> Iterator[_Row]:
    pixels, answers = made.example(), dict[str, np.ndarray]()
    for name in ENGINES[made.to]:
        try:
            check_installed(name)
            answers[name] = engine_for(made, name).run(pixels)
        except SaccadeError as error:
            yield name, "wrong" if installed(name) else "unknown", str(error)
            continue
        if np.isfinite(answers[name]).all():
            yield name, "ok", f"{release(name)}, answers with finite numbers"
        else:
            yield name, "wrong", f"{release(name)}, answers with NaN or infinite numbers"
    sound = {name: found for name, found in answers.items() if np.isfinite(found).all()}
    if len(sound) == 2:
        first, second = sound.values()
        far = distance(second, first)
        yield "engines agree", "ok" if far <= APART else "wrong", f"they differ by {far:.1e} of the answer"
