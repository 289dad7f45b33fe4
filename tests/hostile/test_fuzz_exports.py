"""Mutated exported folders: their descriptions, and their graphs in a process that must not crash."""

import json
import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import onnx
import pytest
from exports import ask, change, copy_of, make_exports, put
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import NUMBERS, mutated_bytes, mutated_json
from onnx import numpy_helper
from promise import HANG, fuzz, keeps_promise

from saccade.engine.graph.examine import OPERATORS

IMAGE = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    return make_exports(tmp_path_factory.mktemp("exports"))


class Child:
    """A process that keeps the promise for one folder after another, and is missed if it dies."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other,), daemon=True)
        self.process.start()
        other.close()

    def ask(self, folder: Path, engine: str) -> str:
        """The refusal of a folder, or nothing."""
        self.pipe.send((folder, engine))
        assert self.pipe.poll(HANG), "hangs"
        try:
            word, told = self.pipe.recv()
        except EOFError:
            self.process.join()
            pytest.fail(f"{engine} ended the process with {self.process.exitcode}")
        assert word != "broken", told
        return str(told)


def _serve(pipe: Connection) -> None:
    os.environ["XDG_CACHE_HOME"] = "/nowhere"
    while True:
        folder, engine = pipe.recv()
        try:
            refused = keeps_promise(lambda: ask(folder, engine, IMAGE), folder, mebibytes=600)  # noqa: B023
            pipe.send(("refused" if refused else "fine", str(refused or "")))
        except BaseException as error:
            pipe.send(("broken", f"{type(error).__name__}: {error}"))


CHILDREN: list[Child] = []


def served(folder: Path, engine: str) -> str:
    """Ask a child, a new one after each death."""
    if not CHILDREN or not CHILDREN[0].process.is_alive():
        CHILDREN[:] = [Child()]
    return CHILDREN[0].ask(folder, engine)


SEED: dict[str, object] = {
    "format": 1,
    "task": "classify",
    "export": {
        "to": "onnx",
        "pixels": "floats",
        "precision": "float32",
        "patch": 8,
        "classes": 5,
        "macs": 1000,
        "digest": "",
        "check": {"pictures": 9, "sizes": 5, "difference": 0.0, "agreement": 1.0},
        "saccade": "0.1.0",
    },
    "model": {"kind": "vit", "image": [32, 32], "patch": 8, "width": 24, "depth": 3, "heads": 3},
    "sha256": {"preprocess.json": "0" * 64, "labels.txt": "0" * 64},
}


@fuzz
@given(content=mutated_json(SEED), whole=st.booleans(), engine=st.sampled_from(("onnx", "openvino")))
def test_any_model_json_keeps_the_promise(exports, tmp_path_factory, content, whole, engine):
    folder = copy_of(exports / "onnx", tmp_path_factory.getbasetemp() / "described")
    export = content.get("export")
    if whole and isinstance(export, dict) and export.get("digest") == "":
        real = json.loads((folder / "model.json").read_text())["export"]["digest"]
        export["digest"] = real
    (folder / "model.json").write_text(json.dumps(content))
    keeps_promise(lambda: ask(folder, engine, IMAGE), folder)


PREPROCESS = {
    "size": [32, 32],
    "fit": "crop",
    "crop": 0.9,
    "interpolation": "bicubic",
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
    "background": [255, 255, 255],
}


@fuzz
@given(
    content=mutated_json(PREPROCESS),
    sides=st.lists(st.sampled_from((*NUMBERS, 8, 16, 64, 512, 2048)), max_size=3),
)
def test_any_preprocess_json_keeps_the_promise(exports, tmp_path_factory, content, sides):
    folder = copy_of(exports / "onnx", tmp_path_factory.getbasetemp() / "preprocessed")
    content = {**content, "size": sides} if sides else content
    (folder / "preprocess.json").write_text(json.dumps(content))
    keeps_promise(lambda: ask(folder, "onnx", IMAGE), folder, mebibytes=600)


@fuzz
@given(data=mutated_bytes(b"a\nb\nc\nd\ne\n"))
def test_any_labels_keep_the_promise(exports, tmp_path_factory, data):
    folder = copy_of(exports / "onnx", tmp_path_factory.getbasetemp() / "labelled")
    (folder / "labels.txt").write_bytes(data)
    keeps_promise(lambda: ask(folder, "onnx", IMAGE), folder)


@fuzz
@given(data=st.data(), engine=st.sampled_from(("onnx", "openvino")))
def test_any_bytes_of_a_graph_keep_the_promise(exports, tmp_path_factory, data, engine):
    folder = copy_of(exports / "onnx", tmp_path_factory.getbasetemp() / "bytes")
    whole = (folder / "model.onnx").read_bytes()
    # nodes come first and weights after them, so that half of the changes meet each
    nodes = 30_000 if data.draw(st.booleans()) else len(whole)
    mutated = data.draw(mutated_bytes(whole[:nodes], most=3)) + whole[nodes:]
    served(put(folder, mutated), engine)


def _mutate(draw, model):  # noqa: C901 (one case a mutation)
    """Change a graph as one who knows the format would: it parses, and uses our operations only."""
    nodes, weights = model.graph.node, model.graph.initializer
    names = [name for node in nodes for name in node.output] + [weight.name for weight in weights]
    for _ in range(draw(st.integers(1, 4))):
        node = nodes[draw(st.integers(0, len(nodes) - 1))]
        match draw(
            st.sampled_from(
                ("operator", "input", "attribute", "weight", "shape", "delete", "output", "opset")
            )
        ):
            case "operator":
                node.op_type = draw(st.sampled_from(sorted(OPERATORS)))
            case "input" if node.input:
                node.input[draw(st.integers(0, len(node.input) - 1))] = draw(
                    st.sampled_from([*names, "", "image"])
                )
            case "attribute" if node.attribute:
                field = node.attribute[draw(st.integers(0, len(node.attribute) - 1))]
                number = draw(st.sampled_from(NUMBERS)) % 2**63
                if field.ints:
                    field.ints[draw(st.integers(0, len(field.ints) - 1))] = draw(
                        st.sampled_from((number, -1, -number))
                    )
                else:
                    field.i = draw(st.sampled_from((number, -1, -number)))
            case "weight":
                whole = [
                    weight
                    for weight in weights
                    if weight.data_type == onnx.TensorProto.INT64 and weight.raw_data
                ]
                chosen = whole[draw(st.integers(0, len(whole) - 1))]
                array = numpy_helper.to_array(chosen).copy()
                flat = array.reshape(-1)
                number = draw(st.sampled_from((*(n % 2**63 for n in NUMBERS), -1, -(2**62))))
                flat[draw(st.integers(0, flat.size - 1))] = number
                chosen.raw_data = array.tobytes()
            case "shape":
                chosen = weights[draw(st.integers(0, len(weights) - 1))]
                sides = list(chosen.dims)
                del chosen.dims[:]
                chosen.dims.extend(
                    draw(st.sampled_from((sides[::-1], [1, *sides], [int(np.prod(sides))], [*sides, 1])))
                )
            case "delete":
                nodes.remove(node)
            case "output" if node.output:
                node.output[0] = draw(st.sampled_from([*names, "logits", ""]))
            case "opset":
                model.opset_import[0].version = draw(st.integers(1, 25))
            case _:
                pass
    return model.SerializeToString()


@fuzz
@given(data=st.data(), engine=st.sampled_from(("onnx", "openvino")))
def test_any_graph_of_our_operations_keeps_the_promise(exports, tmp_path_factory, data, engine):
    folder = copy_of(exports / "onnx", tmp_path_factory.getbasetemp() / "graphs")
    model = onnx.load(folder / "model.onnx")
    served(put(folder, _mutate(data.draw, model)), engine)


@fuzz
@given(data=st.data())
def test_any_files_of_openvino_keep_the_promise(exports, tmp_path_factory, data):
    folder = copy_of(exports / "openvino", tmp_path_factory.getbasetemp() / "xml")
    text = (folder / "model.xml").read_text()
    if data.draw(st.booleans()):
        (folder / "model.xml").write_bytes(data.draw(mutated_bytes(text.encode(), most=3)))
    else:
        for _ in range(data.draw(st.integers(1, 4))):  # numbers and words of attributes, so that it stays XML
            begin = text.index('="', data.draw(st.integers(0, len(text) - 2000))) + 2
            end = text.index('"', begin)
            words = st.sampled_from(
                ("0", "1", "-1", "", "9" * 12, str(2**63), "f32", "i64", "MatMul", "Reshape", "boolean")
            )
            text = text[:begin] + data.draw(words) + text[end:]
        (folder / "model.xml").write_text(text)
    if data.draw(st.integers(0, 3)) == 0:
        (folder / "model.bin").write_bytes(data.draw(mutated_bytes((folder / "model.bin").read_bytes())))
    served(change(folder), "openvino")


def test_a_fair_share_of_mutated_graphs_reaches_the_runtimes(exports, tmp_path):
    folder = copy_of(exports / "onnx", tmp_path / "model")
    refusals: list[str] = []

    @settings(fuzz, max_examples=60, derandomize=True)
    @given(data=st.data())
    def collect(data):
        model = onnx.load(exports / "onnx" / "model.onnx")
        refusals.append(served(put(folder, _mutate(data.draw, model)), "onnx"))

    collect()
    reached = [
        words for words in refusals if not words or "ONNX Runtime cannot" in words or "answers" in words
    ]
    assert len(reached) > len(refusals) * 0.5
