"""Small exported folders, and what a stranger makes of them."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import forked
import onnx
import onnxruntime  # noqa: F401 (what a runtime does when it is imported is not a graph's doing)
import openvino  # noqa: F401
from onnx import TensorProto, helper

from saccade.engine.exported import GRAPHS
from saccade.files.digest import digest_files
from saccade.tasks import task_of
from saccade.vision.model import VisionModel
from saccade.weights.identify import identify

PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from graphs import make
from saccade.data.image.preprocess import Preprocess
from saccade.engine.export import export_model
from saccade.weights.load import Loaded
from saccade.weights.save import save_folder
out, preprocess = Path(sys.argv[2]), Preprocess(size=(32, 32))
save_folder(out / "run", make("vit"), preprocess, list("abcde"))
for name, takes in (("onnx", "floats"), ("bytes", "bytes"), ("openvino", "floats")):
    to = "openvino" if name == "openvino" else "onnx"
    export_model(out / name, Loaded(make("vit"), preprocess, list("abcde")), to, takes)
"""
FILES = {"onnx": ("model.onnx",), "openvino": ("model.bin", "model.xml")}


def make_exports(out: Path) -> Path:
    """A model folder `run` and its exports `onnx`, `bytes` and `openvino`, by a process of its own."""
    tests = os.fspath(Path(__file__).parent.parent)
    forked.run(tests, out, code=PROGRAM, check=True)
    return out


def copy_of(source: Path, target: Path) -> Path:
    """A copy to be hurt."""
    shutil.rmtree(target, ignore_errors=True)
    return shutil.copytree(source, target)


def change(folder: Path, **fields: object) -> Path:
    """Set fields of an export in model.json; the digest is that of the files unless another is given."""
    path = folder / "model.json"
    model = json.loads(path.read_text())
    to = str(model["export"]["to"])
    files = [folder / name for name in FILES.get(to, ()) if (folder / name).is_file()]
    model["export"] |= {"digest": digest_files(files), **fields}
    path.write_text(json.dumps(model))
    return folder


def put(folder: Path, data: bytes, name: str = "model.onnx") -> Path:
    """Another graph, as a stranger would put it there: with the digest that fits it."""
    (folder / name).write_bytes(data)
    return change(folder)


def graph_of(
    *nodes: onnx.NodeProto,
    weights: Mapping[str, Any] | None = None,
    asked: tuple[tuple[str, int, list[Any]], ...] = (("image", TensorProto.FLOAT, ["b", 3, "h", "w"]),),
    given: tuple[tuple[str, int, list[Any]], ...] = (("logits", TensorProto.FLOAT, ["b", 5]),),
    edit: Callable[[onnx.ModelProto], None] = lambda _: None,
    opset: int = 20,
) -> bytes:
    """An ONNX file of these operations, which nobody checks."""
    held = [onnx.numpy_helper.from_array(value, name) for name, value in (weights or {}).items()]
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(*each) for each in asked],
        [helper.make_tensor_value_info(*each) for each in given],
        held,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 9
    edit(model)
    return model.SerializeToString()


def ask(folder: Path, engine: str, image: Any) -> VisionModel:
    """Open a folder and ask it about an image."""
    known = identify(folder)
    found = task_of(known).load(known, engine)
    found.predict(image)
    return found


def flipped(path: Path, bit: int) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


__all__ = ["GRAPHS", "ask", "change", "copy_of", "flipped", "graph_of", "make_exports", "put"]
