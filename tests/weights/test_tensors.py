"""Model files of strangers: what is recognised, what is loaded bit for bit, and what is refused in words."""

import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from malice import (
    Malice,
    archive,
    checkpoint,
    entry,
    json_files,
    model_files,
    npy,
    safetensors,
    state,
    tensor,
)
from safetensors.torch import load_file, save_file
from torch import Tensor

from saccade.errors import ModelError
from saccade.files.atomic import write_text
from saccade.weights.formats.safetensors import Header
from saccade.weights.formats.tensors import headers, kind, read_tensors, write_safetensors

WALK = """
import json, resource, sys, time
from pathlib import Path
from saccade.errors import ModelError
from saccade.files.strict_json import read_json
from saccade.weights.formats.tensors import headers

def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

told = {}
for line in sys.stdin:
    reader, path = json.loads(line)
    start, before = time.process_time(), memory()
    try:
        (headers if reader == "headers" else read_json)(Path(path))
        words = "accepted"
    except ModelError as error:
        words = str(error)
    told[path] = words, time.process_time() - start, memory() - before
print(json.dumps([told, "torch" in sys.modules]))
"""


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("canary") / "sang"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, canary: Path) -> Iterator[list[Malice]]:
    folder = tmp_path_factory.mktemp("models")
    yield model_files(folder, canary)
    shutil.rmtree(folder)  # the bombs take 200 MB, and pytest would keep three generations of them


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> list[Malice]:
    return json_files(tmp_path_factory.mktemp("documents"))


@pytest.fixture(scope="module")
def told(corpus: list[Malice], documents: list[Malice]) -> dict[str, tuple[str, float, int]]:
    """What a fresh process says about each file, its CPU seconds and the bytes it grows by; without torch."""
    lines = [json.dumps(["headers", str(malice.path)]) for malice in corpus]
    lines += [json.dumps(["read_json", str(malice.path)]) for malice in documents]
    done = subprocess.run(
        [sys.executable, "-c", WALK],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    answers, torch_was_imported = json.loads(done.stdout)
    assert not torch_was_imported
    return answers


def some_tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(6, 8, generator=generator)
    return {
        "float32": base,
        "float16": base.half(),
        "bfloat16": base.bfloat16(),
        "float64": base.double(),
        "complex64": torch.view_as_complex(base.reshape(6, 4, 2)),
        "int64": torch.arange(6),
        "uint8": torch.arange(5, dtype=torch.uint8),
        "bool": torch.tensor([True, False, True]),
        "transposed": base.t(),
        "sliced": base[1:4, 2:7:2],
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "nan": torch.tensor([float("nan"), float("inf")]),
    }


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, one in wanted.items():
        assert (found[name].dtype, found[name].shape) == (one.dtype, one.shape), name
        assert bits(found[name]) == bits(one), name


def test_every_damaged_file_is_refused_in_one_sentence_that_names_it(corpus, documents, told):
    wrong = []
    for malice in [*corpus, *documents]:
        words = told[str(malice.path)][0]
        if (
            malice.predict not in words
            or not words.startswith(str(malice.path.parent))
            or not words.isprintable()
        ):
            wrong.append((malice.name, malice.predict, words))
    assert not wrong


def test_no_payload_runs(told, canary):
    assert not canary.exists()


def test_no_refusal_takes_two_seconds(told):
    assert {path: seconds for path, (_, seconds, _) in told.items() if seconds > 2} == {}


def test_no_refusal_needs_more_memory_than_the_file_and_a_little(told):
    def size(path: str) -> int:
        return os.lstat(path).st_size if os.path.lexists(path) else 0

    grown = {path: more for path, (_, _, more) in told.items() if more > size(path) + 50 * 2**20}
    assert grown == {}


@pytest.mark.parametrize("name", ["system2.pkl", "million.npz", "bomb.npz", "wide.pt", "pipe.safetensors"])
def test_a_refusal_in_a_fresh_process_takes_at_most_two_seconds(name, corpus):
    path = next(str(malice.path) for malice in corpus if malice.name == name)
    code = (
        "from pathlib import Path; from saccade.weights.formats.tensors import headers; "
        f"headers(Path({path!r}))"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "ModelError" in done.stderr
    # Processor time: the clock on the wall also measures what else this machine is doing.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2


def test_a_pickle_is_refused_with_the_command_that_reads_it(tmp_path):
    path = tmp_path / "old.pth"
    path.write_bytes(checkpoint(state(tensor(0, (4,), (1,)))))
    with pytest.raises(
        ModelError, match=r"is a pickle that could run code.*run `saccade convert .*old\.pth --out FOLDER`"
    ):
        read_tensors(path)


def test_a_name_with_an_escape_sequence_cannot_reach_the_terminal(tmp_path):
    path = tmp_path / "a\x1b[31m\nb"
    path.write_bytes(b"")
    with pytest.raises(ModelError) as caught:
        headers(path)
    assert str(caught.value).isprintable()
    assert r"a\x1b[31m\nb is empty" in str(caught.value)


def test_truth_values_other_than_zero_and_one_are_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors({"a": entry([3], 0, 3, "BOOL")}, b"\0\1\2"))
    with pytest.raises(ModelError, match="tensor 'a' of booleans with bytes other"):
        read_tensors(path)


def test_a_wrong_checksum_in_an_npz_is_refused_when_the_array_is_read(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(
        archive([("a.npy", npy(np.frombuffer(b"NUMBERS!", np.uint8)))]).replace(b"NUMBERS!", b"numbers!")
    )
    assert headers(path) == {"a": Header((8,), "uint8")}
    with pytest.raises(ModelError, match=r"'a\.npy' with a wrong checksum"):
        read_tensors(path)


def test_a_tensor_that_is_not_there_is_named(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", {"a": torch.ones(1)})
    with pytest.raises(ModelError, match="has no tensor 'b', which was expected"):
        read_tensors(tmp_path / "a.safetensors", names=["a", "b"])


@settings(max_examples=200, deadline=None)
@given(place=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.booleans(), which=st.sampled_from("sz"))
def test_a_changed_byte_is_either_harmless_or_refused(place, byte, cut, which):
    arrays = {"a": np.arange(6, dtype=np.float32), "b": np.ones((2, 2), np.int64)}
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    whole = out.getvalue()
    if which == "s":
        whole = safetensors({"b": entry([4], 0, 32, "I64"), "a": entry([6], 32, 56)}, bytes(56))
    place %= len(whole)
    changed = whole[:place] if cut else whole[:place] + bytes([byte]) + whole[place + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_bytes(changed)
        words = "accepted"
        try:
            assert headers(path)
            read_tensors(path)
        except ModelError as error:
            words = str(error)
        assert words.isprintable()


def test_the_kind_is_told_from_the_content_and_never_from_the_name(tmp_path, corpus):
    kinds = {
        "system0.pkl": "pickle",
        "lie.safetensors": "pickle",
        "lie.npz": "pickle",
        "system.pt": "torch",
        "script.pt": "torchscript",
        "legacy-system.pth": "torch-legacy",
        "legacy.tar": "tar",
        "42.zip": "zip",
        "array.npy": "npy",
        "keras.h5": "hdf5",
        "llama.gguf": "gguf",
        "passwd.onnx": "onnx",
        "config.json": "json",
        "login.safetensors": "html",
        "pointer.safetensors": "lfs-pointer",
        "empty.safetensors": "empty",
        "noise.bin": "unknown",
        "folder-empty": "directory",
    }
    paths = {malice.name: malice.path for malice in corpus}
    assert {name: kind(paths[name]) for name in kinds} == kinds


@pytest.mark.parametrize("length", [*range(60, 160), 0x0280, 0x0480, 0x227B])
def test_a_safetensors_file_is_known_whatever_the_length_of_its_header_looks_like(tmp_path, length):
    header = json.dumps({"a": entry([0], 0, 0)}).encode().ljust(length)
    (tmp_path / "x.pkl").write_bytes(safetensors(header))
    assert kind(tmp_path / "x.pkl") == "safetensors"


def test_what_is_written_is_read_back_bit_for_bit(tmp_path):
    path = tmp_path / "a.safetensors"
    write_safetensors(path, some_tensors(), {"made": "here"})
    assert_same(read_tensors(path), some_tensors())
    found = headers(path)
    assert found["transposed"] == Header((8, 6), "float32")
    assert found["scalar"] == Header((), "float32")
    assert all(getattr(torch, header.dtype) == some_tensors()[name].dtype for name, header in found.items())


def test_the_safetensors_library_agrees_in_both_directions(tmp_path):
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    wanted = {name: one.contiguous().clone() for name, one in some_tensors().items()}
    write_safetensors(ours, wanted)
    assert_same(load_file(ours), wanted)
    save_file(wanted, theirs, {"a": "b"})
    assert_same(read_tensors(theirs), wanted)


def test_only_the_named_tensors_are_loaded(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", some_tensors())
    np.savez(tmp_path / "a.npz", a=np.ones(2), b=np.ones(3))
    assert list(read_tensors(tmp_path / "a.safetensors", names=["scalar"])) == ["scalar"]
    assert list(read_tensors(tmp_path / "a.npz", names=["b"])) == ["b"]


def test_changing_a_loaded_tensor_does_not_change_the_file(tmp_path):
    path = tmp_path / "a.safetensors"
    write_safetensors(path, {"a": torch.zeros(4)})
    read_tensors(path)["a"].fill_(1)
    assert read_tensors(path)["a"].sum() == 0


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_is_read_bit_for_bit(tmp_path, save):
    wanted = {
        "Transformer/encoderblock_0/kernel": np.random.default_rng(0)
        .standard_normal((5, 7))
        .astype(np.float32),
        "fortran": np.asfortranarray(np.arange(12, dtype=np.int32).reshape(3, 4)),
        "big": np.arange(4, dtype=">f8"),
        "half": np.arange(4, dtype=np.float16),
        "truth": np.array([True, False]),
        "scalar": np.float64(2.5),
        "empty": np.zeros((0, 3), np.float32),
    }
    save(tmp_path / "a.npz", **wanted)
    found = read_tensors(tmp_path / "a.npz")
    assert found.keys() == wanted.keys() == headers(tmp_path / "a.npz").keys()
    for name, array in wanted.items():
        assert np.array_equal(found[name].numpy(), array), name
        assert headers(tmp_path / "a.npz")[name] == Header(array.shape, array.dtype.name)


def test_the_bfloat16_of_jax_in_an_npz_stays_bfloat16(tmp_path):
    wanted = torch.randn(3, 2).bfloat16()
    np.savez(tmp_path / "a.npz", a=wanted.view(torch.int16).numpy().view("V2"))
    assert headers(tmp_path / "a.npz") == {"a": Header((3, 2), "bfloat16")}
    assert torch.equal(read_tensors(tmp_path / "a.npz")["a"], wanted)


def test_a_folder_is_read_from_its_one_file_or_from_its_shards(tmp_path):
    both = {"a": torch.ones(2), "b": torch.zeros(3)}
    for name in ("one", "alone", "many"):
        (tmp_path / name).mkdir()
    write_safetensors(tmp_path / "one" / "model.safetensors", both)
    write_safetensors(tmp_path / "alone" / "vit.safetensors", both)
    for name, one in both.items():
        write_safetensors(tmp_path / "many" / f"{name}.safetensors", {name: one})
    places = {"metadata": {}, "weight_map": {name: f"{name}.safetensors" for name in both}}
    write_text(tmp_path / "many" / "model.safetensors.index.json", json.dumps(places))
    for name in ("one", "alone", "many"):
        assert_same(read_tensors(tmp_path / name), both)
        assert headers(tmp_path / name)["b"] == Header((3,), "float32")


def test_the_symlinks_of_the_hugging_face_cache_are_followed(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    write_safetensors(tmp_path / "blobs" / "0123", {"a": torch.ones(2)})
    (tmp_path / "snapshot" / "model.safetensors").symlink_to("../blobs/0123")
    assert headers(tmp_path / "snapshot") == {"a": Header((2,), "float32")}
    assert list(read_tensors(tmp_path / "snapshot")) == ["a"]


def test_the_same_tensors_give_the_same_bytes_in_any_order(tmp_path):
    names = list(some_tensors())
    for file, order in (("a", names), ("b", names[::-1])):
        metadata = dict(sorted({"x": "1", "y": "2", "z": "3"}.items(), reverse=file == "b"))
        write_safetensors(tmp_path / file, {name: some_tensors()[name] for name in order}, metadata)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("name", "one", "words"),
    [
        ("a\n", torch.ones(1), "printable"),
        ("__metadata__", torch.ones(1), "__metadata__"),
        ("a", torch.ones(1, dtype=torch.complex128), "cannot hold tensor 'a'"),
        ("a", torch.ones(2, 2).to_sparse(), "cannot hold tensor 'a'"),
        ("a", torch.ones(2, device="meta"), "cannot hold tensor 'a'"),
    ],
)
def test_what_the_format_cannot_hold_is_refused_before_anything_is_written(tmp_path, name, one, words):
    with pytest.raises(ModelError, match=words):
        write_safetensors(tmp_path / "a.safetensors", {name: one})
    assert not list(tmp_path.iterdir())
