"""Exported folders from strangers, and those that a disk has damaged: verified, examined, bounded."""

import json
import os
import signal
import time

import numpy as np
import onnx
import pytest
from exports import ask, change, copy_of, flipped, graph_of, make_exports, put
from forked import PIPE, Forked
from onnx import TensorProto, helper
from PIL import Image
from promise import command, keeps_promise

from saccade.engine.graph.examine import OPERATORS
from saccade.engine.onnx import Onnx
from saccade.errors import ModelError, ResourceError, SaccadeError
from saccade.tasks import find_task
from saccade.weights.load import load

IMAGE = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
ENGINES = ("onnx", "openvino")
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    return make_exports(tmp_path_factory.mktemp("exports"))


@pytest.fixture
def onnx_folder(exports, tmp_path):
    return copy_of(exports / "onnx", tmp_path / "model")


@pytest.fixture
def openvino_folder(exports, tmp_path):
    return copy_of(exports / "openvino", tmp_path / "model")


@pytest.fixture
def picture(tmp_path):
    Image.fromarray(IMAGE).save(tmp_path / "x.png")
    return tmp_path / "x.png"


def places(size, count=20):
    """Bits spread over a file, the first and the last among them."""
    return [0, 8 * size - 1, *np.random.default_rng(1).integers(0, 8 * size, count - 2).tolist()]


# bit flips


@pytest.mark.parametrize(
    ("kind", "name"), [("onnx", "model.onnx"), ("openvino", "model.xml"), ("openvino", "model.bin")]
)
def test_every_flipped_bit_of_a_graph_is_found(exports, tmp_path, kind, name):
    folder = copy_of(exports / kind, tmp_path / "model")
    for bit in places((folder / name).stat().st_size):
        flipped(folder / name, bit)
        with pytest.raises(ModelError, match="is not the file that was exported: its SHA-256 differs"):
            ask(folder, kind, IMAGE)
        flipped(folder / name, bit)
    ask(folder, kind, IMAGE)


def test_every_flipped_bit_of_the_weights_is_found(exports, tmp_path):
    folder = copy_of(exports / "run", tmp_path / "model")
    path = folder / "model.safetensors"
    for bit in places(path.stat().st_size):
        flipped(path, bit)
        with pytest.raises(ModelError):
            load(folder)
        flipped(path, bit)
    load(folder)
    flipped(path, 8 * path.stat().st_size - 9)
    with pytest.raises(ModelError, match="is not the file that was saved: its SHA-256 differs"):
        load(folder)
    load(folder, verify=False)  # as the doctor does


def test_a_folder_without_a_digest_still_loads_and_one_with_nonsense_does_not(exports, tmp_path):
    folder = copy_of(exports / "run", tmp_path / "model")
    model = json.loads((folder / "model.json").read_text())
    assert set(model["sha256"]) == {"model.safetensors", "preprocess.json", "labels.txt"}
    for nonsense in (
        {"model.safetensors": "zzz"},
        {"model.safetensors": 7},
        [],
        "x",
        None,
        {"model.safetensors": "A" * 64},
    ):
        (folder / "model.json").write_text(json.dumps({**model, "sha256": nonsense}))
        with pytest.raises(ModelError, match="expected 64 hexadecimal digits"):
            load(folder)
    del model["sha256"]
    (folder / "model.json").write_text(json.dumps(model))
    load(folder)


def test_every_verb_refuses_a_flipped_bit(exports, tmp_path, picture):
    folder, run = copy_of(exports / "onnx", tmp_path / "graph"), copy_of(exports / "run", tmp_path / "run")
    for label in "ab":
        (tmp_path / "data" / label).mkdir(parents=True)
        Image.fromarray(IMAGE).save(tmp_path / "data" / label / "x.png")
    flipped(folder / "model.onnx", 200_003)
    flipped(run / "model.safetensors", 200_003)
    for words in (
        ("predict", folder, picture),
        ("evaluate", folder, "data"),
        ("bench", folder, "--engine", "onnx"),
    ):
        assert "is not the file that was exported" in command(*words, cwd=tmp_path, code=4).err
    for words in (
        ("predict", run, picture),
        ("evaluate", run, "data"),
        ("export", run, "out"),
        ("embed", run, "data"),
    ):
        assert "is not the file that was saved" in command(*words, cwd=tmp_path, code=4).err


def test_a_kill_between_the_files_of_a_model_leaves_one_that_loads(exports, tmp_path, monkeypatch):
    from saccade.data.image.preprocess import Preprocess
    from saccade.weights import save
    from saccade.weights.save import save_folder

    folder = copy_of(exports / "run", tmp_path / "model")
    loaded = load(folder)
    with __import__("torch").no_grad():
        loaded.module.head.weight += 1
    monkeypatch.setattr(save, "write_json", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        save_folder(folder, loaded.module, Preprocess(size=(32, 32)), list("abcde"))
    assert "sha256" not in json.loads((folder / "model.json").read_text())
    assert bool((load(folder).module.head.weight == loaded.module.head.weight).all())


# graphs that our writer never draws


def identity(**more):
    return graph_of(helper.make_node("Identity", ["image"], ["logits"]), **more)


def looping():
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, [])],
    )
    weights = {"many": np.array(2**62), "yes": np.array(True)}
    return graph_of(helper.make_node("Loop", ["many", "yes"], [], body=body), weights=weights)


def branching():
    made = [
        helper.make_graph(
            [helper.make_node("Identity", ["image"], ["y"])],
            "g",
            [],
            [helper.make_tensor_value_info("y", FLOAT, None)],
        )
    ] * 2
    node = helper.make_node("If", ["yes"], ["logits"], then_branch=made[0], else_branch=made[1])
    return graph_of(node, weights={"yes": np.array(True)})


def elsewhere(location):
    def edit(model):
        weight = model.graph.initializer.add(name="w", data_type=FLOAT, dims=[1])
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", "0"), ("length", "4")):
            weight.external_data.add(key=key, value=value)

    return graph_of(helper.make_node("Mul", ["image", "w"], ["logits"]), edit=edit)


def with_function(model):
    model.functions.add(name="f", domain="mine", output=["y"])


def with_training(model):
    model.training_info.add()


def with_sparse(model):
    model.graph.sparse_initializer.add(dims=[2**62])


def large_weight(model):
    model.graph.initializer.add(name="w", data_type=FLOAT, dims=[2**40])


def text_weight(model):
    model.graph.initializer.add(name="w", data_type=TensorProto.STRING, dims=[1], string_data=[b"x"])


STRANGE = {
    "loop": (looping(), "a graph inside an operation|'Loop'"),
    "if": (branching(), "a graph inside an operation|'If'"),
    "scan": (graph_of(helper.make_node("Scan", ["image"], ["logits"])), "'Scan'"),
    "constant": (graph_of(helper.make_node("ConstantOfShape", ["image"], ["logits"])), "'ConstantOfShape'"),
    "tile": (graph_of(helper.make_node("Tile", ["image", "image"], ["logits"])), "'Tile'"),
    "domain": (
        graph_of(helper.make_node("Identity", ["image"], ["logits"], domain="com.evil")),
        "operations of 'com.evil'",
    ),
    "library": (
        identity(edit=lambda m: m.opset_import.add(domain="com.microsoft", version=1)),
        "'com.microsoft'",
    ),
    "escape": (
        graph_of(helper.make_node("\x1b[31m" + "x" * 999, ["image"], ["logits"])),
        "has the name",
    ),
    "bytes": (
        graph_of(helper.make_node("Identity", ["image"], ["logits"], b"\xff".decode("latin-1"))).replace(
            "\xff".encode(), b"\xff\xff"
        ),
        "has the name",
    ),
    "conv": (graph_of(helper.make_node("Conv", ["image"], ["logits"])), "a Conv of 1 inputs and 1 results"),
    "pad": (graph_of(helper.make_node("Pad", ["image"], ["logits"])), "a Pad of 1 inputs"),
    "results": (
        graph_of(helper.make_node("TopK", ["image", "image"], ["logits"])),
        "a TopK of 2 inputs and 1",
    ),
    "nothing": (
        graph_of(helper.make_node("Add", ["image", ""], ["logits"])),
        "an operation without an input or a result",
    ),
    "absolute": (elsewhere("/etc/passwd"), "weights in another file"),
    "outside": (elsewhere("../../secret"), "weights in another file"),
    "beside": (elsewhere("weights.bin"), "weights in another file"),
    "functions": (identity(edit=with_function), "functions of its own"),
    "training": (identity(edit=with_training), "instructions for training"),
    "sparse": (identity(edit=with_sparse), "sparse weights"),
    "unheld": (identity(edit=large_weight), r"has a weight of type 1, shape \[1099511627776\] and 0 bytes"),
    "text": (identity(edit=text_weight), "holds field 6"),
    "no operation": (graph_of(), "holds no graph"),
    "no graph": (b"\x08\x09", "holds no graph"),
    "empty": (b"", "is empty"),
    "text file": (b"nothing of the kind", "is not an ONNX graph"),
    "cut": (identity()[:-5], "is cut short or damaged"),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", STRANGE)
def test_a_graph_that_we_never_write_is_refused_before_a_runtime_sees_it(onnx_folder, tmp_path, name, engine):
    data, words = STRANGE[name]
    (onnx_folder / "weights.bin").write_bytes(bytes(4))
    put(onnx_folder, data)
    refused = keeps_promise(lambda: ask(onnx_folder, engine, IMAGE), tmp_path)
    assert isinstance(refused, ModelError)
    with pytest.raises(ModelError, match=words):
        raise refused


def test_weights_elsewhere_are_refused_whatever_leads_there(onnx_folder, tmp_path):
    (tmp_path / "secret").write_bytes(b"\0\0\x80\x3f")
    os.link(tmp_path / "secret", onnx_folder / "hard")
    (onnx_folder / "soft").symlink_to(tmp_path / "secret")
    for name in ("hard", "soft"):
        with pytest.raises(ModelError, match="weights in another file"):
            ask(put(onnx_folder, elsewhere(name)), "onnx", IMAGE)


def test_every_operation_that_the_writer_draws_is_let_through():
    import re
    from pathlib import Path

    from saccade import engine
    from saccade.engine.graph.operators import UNARY

    files = Path(engine.__path__[0]).rglob("*.py")
    texts = [path.read_text() for path in files if path.name != "examine.py"]
    drawn = {
        word
        for text in texts
        for word in re.findall(
            r'(?:one|emit|_binary|_typed|_compare|_reduced|make_node)\((?:d, out, )?\s*"([A-Z]\w+)"', text
        )
    }
    drawn |= set(UNARY)
    assert len(drawn) > 45
    assert drawn <= OPERATORS.keys()


# graphs of our operations that answer oddly


def pooled(*after, dtype=None, rank=2, **more):
    """Means of an image over its places: (b, 3), then whatever follows."""
    nodes = [
        helper.make_node("ReduceMean", ["image", "places"], ["mean"], keepdims=0),
        helper.make_node("MatMul", ["mean", "heads"], ["logits" if not after else "y"]),
        *after,
    ]
    held = {"places": np.array([2, 3]), "heads": np.ones((3, more.pop("classes", 5)), np.float32)}
    given = (("logits", dtype or FLOAT, ["?"] * rank),)
    return graph_of(*nodes, weights={**held, **more.pop("weights", {})}, **{"given": given, **more})


def cast(to):
    return pooled(helper.make_node("Cast", ["y"], ["logits"], to=to), dtype=to)


ODD = {
    "int64": cast(INT64),
    "int32": cast(TensorProto.INT32),
    "bool": cast(TensorProto.BOOL),
    "float16": cast(TensorProto.FLOAT16),
    "float64": cast(TensorProto.DOUBLE),
    "text": cast(TensorProto.STRING),
    "rank 0": pooled(helper.make_node("ReduceMean", ["y"], ["logits"], keepdims=0), rank=0),
    "rank 1": pooled(
        helper.make_node("Reshape", ["y", "flat"], ["logits"]), rank=1, weights={"flat": np.array([-1])}
    ),
    "rank 3": pooled(
        helper.make_node("Unsqueeze", ["y", "at"], ["logits"]), rank=3, weights={"at": np.array([0])}
    ),
    "more rows": pooled(helper.make_node("Concat", ["y", "y"], ["logits"], axis=0)),
    "no rows": pooled(
        helper.make_node("Slice", ["y", "at", "at"], ["logits"]), weights={"at": np.array([0])}
    ),
    "other classes": pooled(classes=7),
    "no classes": pooled(classes=0),
    "two outputs": pooled(given=(("logits", FLOAT, None), ("mean", FLOAT, None))),
    "no outputs": pooled(given=()),
    "two inputs": pooled(asked=(("image", FLOAT, ["b", 3, "h", "w"]), ("more", FLOAT, [1]))),
    "no inputs": graph_of(
        helper.make_node("Identity", ["w"], ["logits"]), weights={"w": np.ones((1, 5), np.float32)}, asked=()
    ),
    "input of bytes": pooled(asked=(("image", TensorProto.UINT8, ["b", 3, "h", "w"]),)),
    "input of rank 2": pooled(asked=(("image", FLOAT, ["b", 3]),)),
    "input of one size": pooled(asked=(("image", FLOAT, [2, 3, 7, 7]),)),
    "no such input": graph_of(helper.make_node("Identity", ["nobody"], ["logits"])),
    "no such attribute": graph_of(helper.make_node("Transpose", ["image"], ["logits"], perm=[9, 9])),
    "cycle": graph_of(helper.make_node("Add", ["logits", "image"], ["logits"])),
    "opset 999": identity(opset=999),
    "reshape": pooled(
        helper.make_node("Reshape", ["y", "to"], ["logits"]), weights={"to": np.array([-1, 2**40])}
    ),
    "gather": pooled(
        helper.make_node("Gather", ["y", "at"], ["logits"], axis=1), weights={"at": np.array([2**40])}
    ),
    "pad": pooled(
        helper.make_node("Pad", ["y", "by"], ["logits"]), weights={"by": np.array([0, -99, 0, -99])}
    ),
    "top": pooled(helper.make_node("TopK", ["y", "k"], ["logits", "at"]), weights={"k": np.array([2**40])}),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ODD)
def test_an_odd_answer_is_one_sentence(onnx_folder, tmp_path, name, engine):
    put(onnx_folder, ODD[name])
    refused = keeps_promise(lambda: ask(onnx_folder, engine, IMAGE), tmp_path)
    if (name, engine) != ("input of one size", "openvino"):  # which reshapes it
        assert isinstance(refused, ModelError), refused


@pytest.mark.parametrize("engine", ENGINES)
def test_a_stranger_may_name_the_input_otherwise(onnx_folder, engine):
    nodes = [
        helper.make_node("ReduceMean", ["x", "places"], ["mean"], keepdims=0),
        helper.make_node("MatMul", ["mean", "heads"], ["y"]),
    ]
    held = {"places": np.array([2, 3]), "heads": np.eye(3, 5, dtype=np.float32)}
    asked, given = (("x", FLOAT, ["b", 3, "h", "w"]),), (("y", FLOAT, ["b", 5]),)
    put(onnx_folder, graph_of(*nodes, weights=held, asked=asked, given=given))
    ask(onnx_folder, engine, IMAGE)


def bomb(*sides):
    nodes = [
        helper.make_node("Expand", ["image", "sides"], ["large"]),
        helper.make_node("Exp", ["large"], ["larger"]),
        helper.make_node("Mul", ["large", "larger"], ["largest"]),
        helper.make_node("ReduceMean", ["largest", "places"], ["logits"], keepdims=0),
    ]
    return graph_of(*nodes, weights={"sides": np.array(sides), "places": np.array([1, 3, 4])})


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("sides", [(2**40, 1, 1, 1, 1), (2**62, 4, 1, 1, 1), (2**25, 1, 1, 1, 1)])
def test_an_operation_that_would_take_all_memory_is_one_sentence(onnx_folder, tmp_path, engine, sides):
    put(onnx_folder, bomb(*sides))
    Image.fromarray(IMAGE).save(tmp_path / "x.png")
    done = command("predict", onnx_folder, "x.png", "--engine", engine, cwd=tmp_path)
    assert done.code in (4, 5), done


SLOW = [
    helper.make_node("Expand", ["image", "sides"], ["x0"]),
    *(helper.make_node("MatMul", [f"x{i}", "square"], [f"x{i + 1}"]) for i in range(5000)),
    helper.make_node("ReduceMean", ["x5000", "places"], ["logits"], keepdims=0),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_graph_that_takes_minutes_can_be_interrupted(onnx_folder, tmp_path, picture, engine, number):
    weights = {
        "sides": np.array([2048, 1, 3, 32, 32]),
        "square": np.eye(32, dtype=np.float32),
        "places": np.array([2, 3]),
    }
    put(onnx_folder, graph_of(*SLOW, weights=weights))
    words = ["predict", onnx_folder, picture, "--engine", engine]
    process = Forked(words, cwd=tmp_path, stderr=PIPE, stdout=PIPE)
    time.sleep(3)  # by then it computes
    still = process.poll() is None
    process.send_signal(number)
    began = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert still, (out, err)
    assert time.monotonic() - began < 15
    assert process.returncode == 130, (out, err)
    assert "Traceback" not in err


# OpenVINO's own format


def edited(folder, *changes):
    text = (folder / "model.xml").read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after, 1)
    (folder / "model.xml").write_text(text)
    return change(folder)


XML = {
    "doctype": (("<net", '<!DOCTYPE net [<!ENTITY a SYSTEM "file:///etc/passwd">]><net'), "document type"),
    "laughs": (("<net", '<!DOCTYPE net [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><net'), "document type"),
    "loop": (('type="MatMul"', 'type="Loop"'), "uses the layer 'Loop'"),
    "custom": (('type="MatMul"', 'type="Custom"'), "uses the layer 'Custom'"),
    "iterator": (('type="MatMul"', 'type="TensorIterator"'), "uses the layer 'TensorIterator'"),
    "body": (("<edges>", "<body><layers/></body><edges>"), "an element 'body'"),
    "far": (('offset="', 'offset="999999'), "beyond the"),
    "negative": (('offset="', 'offset="-'), "beyond the"),
    "size": (('size="', 'size="9999999999'), "beyond the"),
    "unclosed": (("</net>", ""), "is not XML"),
    "nul": (("<net", "\0<net"), "is not XML"),
    "other": (("<net", "<other><net"), "is not XML|an element 'other'"),
    "deep": (("</net>", "<rt_info>" * 99 + "</rt_info>" * 99 + "</net>"), "levels"),
}


@pytest.mark.parametrize("name", XML)
def test_an_xml_that_we_never_write_is_refused_before_openvino_sees_it(openvino_folder, tmp_path, name):
    step, words = XML[name]
    edited(openvino_folder, step)
    refused = keeps_promise(lambda: ask(openvino_folder, "openvino", IMAGE), tmp_path)
    assert isinstance(refused, ModelError)
    with pytest.raises(ModelError, match=words):
        raise refused


def test_weights_of_openvino_are_a_file_of_their_own(openvino_folder, tmp_path):
    path = openvino_folder / "model.bin"
    kept = tmp_path / "kept.bin"
    path.rename(kept)
    os.link(kept, path)
    with pytest.raises(ModelError, match=r"model\.bin is a link to another file"):
        ask(openvino_folder, "openvino", IMAGE)
    path.unlink()
    path.symlink_to(kept)
    with pytest.raises(ModelError, match=r"model\.bin is a link to another file"):
        ask(openvino_folder, "openvino", IMAGE)
    path.unlink()
    with pytest.raises(ModelError, match=r"model\.bin does not exist"):
        ask(openvino_folder, "openvino", IMAGE)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("openvino", "model.bin"),
        ("openvino", "model.xml"),
        ("onnx", "model.onnx"),
        ("onnx", "model.json"),
        ("onnx", "preprocess.json"),
        ("onnx", "labels.txt"),
    ],
)
def test_a_pipe_in_the_folder_is_never_waited_for(exports, tmp_path, picture, kind, name):
    folder = copy_of(exports / kind, tmp_path / "model")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    command("predict", folder, picture, cwd=tmp_path, code=4)


# what model.json and preprocess.json say


FIELDS = {
    "pixels": ("zzz", 7, None, [], {"a": 1}, "Floats"),
    "precision": ("int4", 0, None, ["float32"]),
    "to": ("tensorrt", "torch", None, 1, ["onnx"]),
    "patch": (0, -8, 1.5, "8", True, None, 10**30, 1025, [8]),
    "classes": (0, -1, 5.0, "5", True, None, 10**30, 6, 4),
    "digest": ("", "zzz", 7, None, "A" * 64, "0" * 63, ["0" * 64]),
}


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_of_an_export_is_checked(exports, tmp_path, name):
    folder = copy_of(exports / "onnx", tmp_path / "model")
    for value in FIELDS[name]:
        change(folder, **{name: value})
        refused = keeps_promise(lambda: ask(folder, "onnx", IMAGE), tmp_path)
        assert isinstance(refused, ModelError), value
        model = json.loads((folder / "model.json").read_text())
        model["export"] = json.loads((exports / "onnx" / "model.json").read_text())["export"]
        (folder / "model.json").write_text(json.dumps(model))


@pytest.mark.parametrize(
    "fields", [{"format": 2}, {"format": None}, {"task": "translate"}, {"export": []}, {"export": None}]
)
def test_a_description_of_another_kind_is_refused(onnx_folder, tmp_path, fields):
    path = onnx_folder / "model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    assert isinstance(keeps_promise(lambda: ask(onnx_folder, "onnx", IMAGE), tmp_path), ModelError)


@pytest.mark.parametrize("size", [(16384, 16384), (2048, 4096), (1024, 1024), (2048, 2048)])
@pytest.mark.parametrize("kind", ["onnx", "bytes", "openvino"])
def test_a_size_far_beyond_the_models_own_is_refused_at_once(exports, tmp_path, picture, kind, size):
    folder = copy_of(exports / kind, tmp_path / "model")
    path = folder / "preprocess.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "size": size}))
    refused = keeps_promise(lambda: ask(folder, "auto", IMAGE), tmp_path, mebibytes=50)
    assert isinstance(refused, ModelError)
    assert "expected at most" in str(refused)
    command("predict", folder, picture, cwd=tmp_path, code=4, mebibytes=600)


def test_statistics_and_labels_of_strangers_are_refused(exports, tmp_path):
    folder = copy_of(exports / "onnx", tmp_path / "model")
    path = folder / "preprocess.json"
    good = json.loads(path.read_text())
    for field, value in (
        ("std", [0, 1, 1]),
        ("std", [-1, 1, 1]),
        ("mean", [1e300, 0, 0]),
        ("mean", "x"),
        ("size", [0, 8]),
    ):
        path.write_text(json.dumps({**good, field: value}))
        assert isinstance(keeps_promise(lambda: ask(folder, "onnx", IMAGE), tmp_path), ModelError)
    path.write_text(json.dumps(good))
    for text in ("a\nb\n", "a\n" * 7, "\xff\xfe"):
        (folder / "labels.txt").write_bytes(text.encode("latin-1"))
        assert isinstance(keeps_promise(lambda: ask(folder, "onnx", IMAGE), tmp_path), ModelError)


# the doctor


def doctor(folder, tmp_path, code):
    done = command("doctor", folder, "--json", cwd=tmp_path, code=code)
    return {row["test"]: (row["verdict"], row["words"]) for row in json.loads(done.out)}


@pytest.mark.parametrize("kind", ["onnx", "bytes", "openvino"])
def test_the_doctor_reads_exported_folders(exports, tmp_path, kind):
    found = doctor(exports / kind, tmp_path, 0)
    assert found["digest"][0] == found["labels"][0] == found["preprocessing"][0] == "ok"
    engines = ENGINES if kind != "openvino" else ("openvino",)
    assert all(found[name][0] == "ok" and "finite" in found[name][1] for name in engines)
    assert ("engines agree" in found) == (len(engines) == 2)


def test_the_doctor_names_what_has_changed(exports, tmp_path):
    folder = copy_of(exports / "onnx", tmp_path / "graph")
    (folder / "labels.txt").write_text("v\nw\nx\ny\nz\n")
    assert doctor(folder, tmp_path, 0)["labels"] == (
        "unknown",
        "5 of 5; labels.txt has been edited or damaged since the export",
    )
    flipped(folder / "model.onnx", 200_003)
    verdict, words = doctor(folder, tmp_path, 1)["digest"]
    assert (verdict, "is not the file that was exported" in words) == ("wrong", True)
    run = copy_of(exports / "run", tmp_path / "run")
    assert doctor(run, tmp_path, 0)["digest"][0] == "ok"
    (run / "labels.txt").write_text("v\nw\nx\ny\nz\n")
    assert doctor(run, tmp_path, 0)["labels.txt"][0] == "unknown"
    flipped(run / "model.safetensors", 8 * (run / "model.safetensors").stat().st_size - 9)
    assert doctor(run, tmp_path, 1)["digest"][0] == "wrong"


def test_the_doctor_refuses_what_is_no_export_and_pictures_beside_one(exports, tmp_path, picture):
    folder = copy_of(exports / "onnx", tmp_path / "model")
    done = command("doctor", folder, "--pictures", tmp_path, cwd=tmp_path, code=2)
    assert "needs the run it was exported from" in done.err
    put(folder, STRANGE["loop"][0])
    assert doctor(folder, tmp_path, 1)["digest"][0] == "wrong"
    change(folder, pixels="zzz")
    command("doctor", folder, cwd=tmp_path, code=4)


# an engine that fails natively


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("std::bad_alloc"), ResourceError),
        (MemoryError(), ResourceError),
        (RuntimeError("x\ny"), ModelError),
        (ValueError("Failed to allocate memory for requested buffer of size 9"), ResourceError),
        (OSError("gone"), ModelError),
    ],
)
def test_whatever_an_engine_raises_is_ours(exports, monkeypatch, error, kind):
    found = find_task().load(exports / "onnx", "onnx")

    def fail(*_):
        raise error

    monkeypatch.setattr(found.network, "session", type("Session", (), {"run": fail})())
    with pytest.raises(kind) as raised:
        found.predict(IMAGE)
    assert isinstance(raised.value, SaccadeError)
    assert "\n" not in str(raised.value)


def test_the_limit_of_memory_is_as_before_once_an_engine_has_answered(exports):
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    ask(exports / "onnx", "onnx", IMAGE)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_an_onnx_file_that_we_wrote_passes_whatever_its_labels(exports, tmp_path):
    model = onnx.load(exports / "onnx" / "model.onnx")
    model.metadata_props[0].value = "x" * 1_000_000
    onnx.save(model, tmp_path / "model.onnx")
    assert Onnx(tmp_path / "model.onnx").run(np.zeros((1, 3, 32, 32), np.float32)).shape == (1, 5)
