"""Model folders whose files are pipes, whose weights are no weights, or that ask for huge images."""

import json
import os
import socket
from collections import OrderedDict

import numpy as np
import pytest
import torch
from folders_made import IMAGES, TEXTS, folder, tensors_file, with_size
from pictures import encode, scene
from promise import command, keeps_promise
from terminal import forget_digest

from saccade.api.load import load
from saccade.data.image.preprocess import TOKENS, Preprocess, check_tokens, most_tokens, tokens
from saccade.errors import ModelError, UsageError
from saccade.models.build import build
from saccade.models.vit import ViTConfig
from saccade.weights.formats import tensors
from saccade.weights.identify import identify
from saccade.weights.save import save_folder

KINDS = ("int64", "int32", "uint8", "bool", "int8", "uint16", "complex64", "float8_e4m3fn", "float8_e5m2")
BESIDE = {
    "saccade": ("model.json", "preprocess.json", "labels.txt", "model.safetensors"),
    "timm": ("config.json", "model.safetensors"),
    "hf": ("config.json", "preprocessor_config.json", "model.safetensors"),
    "google": ("model.npz",),
    "gpt": ("model.json", "tokenizer.json", "model.safetensors", "preprocess.json", "labels.txt"),
    "transformer": ("tokenizer.json", "tokenizer.source.json"),
    "hf gpt": ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"),
    "hf bert": ("config.json", "tokenizer.json", "vocab.txt", "special_tokens_map.json"),
}


@pytest.fixture(autouse=True, scope="module")
def _warm(tmp_path_factory):
    """torch makes a folder of its own for temporary files when it is first used."""
    load(folder(tmp_path_factory.mktemp("warm"), "timm"))


def recast(made, dtype, only=None):
    """Give all weights of a folder, or those whose names end so, another kind of number."""
    path = tensors_file(made)
    if path.suffix == ".npz":
        arrays = dict(np.load(path))
        np.savez(path, **{name: array.astype(dtype) for name, array in arrays.items()})
        return
    kind = getattr(torch, dtype)
    held = {
        name: tensor.to(kind) if only is None or name.endswith(only) else tensor.clone()
        for name, tensor in tensors.read_tensors(path).items()
    }
    tensors.write_safetensors(path, OrderedDict(held), {"format": "pt"})


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("layout", [*IMAGES, *TEXTS])
def test_weights_of_other_numbers_are_refused(tmp_path, layout, dtype):
    if layout == "google" and dtype.startswith("float8"):
        pytest.skip("NumPy has no such numbers")
    made = folder(tmp_path, layout)
    recast(made, dtype)
    error = keeps_promise(lambda: load(made))
    assert isinstance(error, ModelError)
    assert f"is {dtype}" in str(error)


@pytest.mark.parametrize("layout", ["saccade", "hf", "gpt", "hf bert"])
def test_one_tensor_of_whole_numbers_is_named(tmp_path, layout):
    made = folder(tmp_path, layout)
    name = sorted(tensors.headers(made))[0]
    recast(made, "int64", only=name)
    error = keeps_promise(lambda: load(made))
    assert f"({name.removeprefix('transformer.').removeprefix('bert.')} is int64)" in str(error)


@pytest.mark.parametrize("layout", ["saccade", "hf", "gpt", "hf gpt"])
def test_numbers_that_only_double_precision_holds_are_refused(tmp_path, layout):
    made = folder(tmp_path, layout)
    path = tensors_file(made)
    held = {name: tensor.double() for name, tensor in tensors.read_tensors(path).items()}
    next(iter(held.values())).fill_(1e300)
    tensors.write_safetensors(path, held, {"format": "pt"})
    forget_digest(made)
    assert "NaN or infinite" in str(keeps_promise(lambda: load(made)))


@pytest.mark.parametrize(
    ("code", "words"), [(b'"F4" ', "dtype 'F4'"), (b'"C8" ', "dtype 'C8'"), (b'""   ', "dtype ''")]
)
def test_numbers_of_no_known_kind_are_refused(tmp_path, code, words):
    made = folder(tmp_path, "saccade")
    path = tensors_file(made)
    path.write_bytes(path.read_bytes().replace(b'"F32"', code, 1))
    error = keeps_promise(lambda: load(made))
    assert words in str(error)


def test_predict_says_so_at_the_command_line(tmp_path):
    made = folder(tmp_path, "saccade")
    recast(made, "int64")
    (tmp_path / "x.png").write_bytes(encode(scene()))
    assert "is int64" in command("predict", made, "x.png", cwd=tmp_path, code=4).err


def _pipe(path):
    os.mkfifo(path)


def _socket(path):
    here = os.getcwd()
    os.chdir(path.parent)  # the address of a socket is at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _device(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [_pipe, _socket, _device])
@pytest.mark.parametrize(("layout", "name"), [(layout, name) for layout in BESIDE for name in BESIDE[layout]])
def test_a_pipe_in_the_place_of_a_file_is_refused_at_once(tmp_path, layout, name, make):
    made = folder(tmp_path, layout)
    (made / name).unlink(missing_ok=True)
    make(made / name)
    error = keeps_promise(lambda: load(made))
    assert isinstance(error, ModelError)
    assert name in str(error)
    assert "a device; expected a file" in str(error)


@pytest.mark.parametrize("name", ["model.bin", "pytorch_model.bin", "model.pt"])
@pytest.mark.parametrize("verb", ["predict", "convert"])
def test_a_pipe_as_a_checkpoint_is_refused_at_once(tmp_path, name, verb):
    os.mkfifo(tmp_path / name)
    words = ["x.png"] if verb == "predict" else ["--out", "made"]
    assert "pipe or a device" in command(verb, tmp_path / name, *words, cwd=tmp_path, code=4).err
    assert "pipe or a device" in command(verb, tmp_path, *words, cwd=tmp_path, code=4).err


def test_a_pipe_as_a_shard_or_its_index_is_refused(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "part.safetensors"}}))
    os.mkfifo(tmp_path / "part.safetensors")
    assert "pipe or a device" in str(keeps_promise(lambda: identify(tmp_path)))
    index.unlink()
    os.mkfifo(index)
    assert "pipe or a device" in str(keeps_promise(lambda: identify(tmp_path)))


def test_a_pipe_as_the_weights_of_an_exported_graph_is_refused_at_once(tmp_path):
    pytest.importorskip("openvino")
    command(
        "export", folder(tmp_path, "saccade"), "made", "--to", "openvino", cwd=tmp_path, code=0, seconds=60
    )
    (tmp_path / "made" / "model.bin").unlink()
    os.mkfifo(tmp_path / "made" / "model.bin")
    (tmp_path / "x.png").write_bytes(encode(scene()))
    assert "model.bin is a pipe" in command("predict", "made", "x.png", cwd=tmp_path, code=4).err


@pytest.mark.parametrize("layout", ["saccade", "hf"])  # a timm folder has the size of its tensors
def test_images_of_far_too_many_patches_are_refused(tmp_path, layout):
    made = with_size(folder(tmp_path, layout), (1024, 1024))
    error = keeps_promise(lambda: load(made))
    assert isinstance(error, ModelError)
    assert "1024 x 1024 pixels are 65,536 patches of 4 pixels; expected at most 16,384" in str(error)
    assert load(with_size(made, (512, 512))).preprocess.size == (512, 512)


def test_an_option_that_asks_for_too_many_patches_is_refused(tmp_path):
    made = folder(tmp_path, "saccade")
    with pytest.raises(UsageError, match="are 65,536 patches of 4 pixels"):
        load(made, image=1024)
    with pytest.raises(UsageError, match="are 65,536 patches of 1 pixels"):
        load(made, image=256, patch=1)
    done = command("convert", made, "--out", "made", "--image", 16384, cwd=tmp_path, code=2)
    assert "16,777,216 patches" in done.err


def test_what_people_use_is_allowed():
    for size, patch in ((1024, 16), (1022, 14), (1024, 8), (2048, 16)):
        check_tokens((size, size), patch)
    assert tokens((1024, 1024), 8) == TOKENS
    assert most_tokens(tokens((512, 512), 8), "learned") == tokens((2048, 2048), 8)
    with pytest.raises(UsageError, match="262,144"):
        check_tokens((1024, 1024), 2, most_tokens(tokens((16, 16), 2), "learned"))


@pytest.mark.parametrize("position", ["none", "sincos2d", "rope2d", "relative"])
def test_a_claim_that_no_tensor_shows_is_not_believed(tmp_path, position):
    config = ViTConfig(image=(16, 16), patch=4, width=24, depth=2, heads=3, hidden=40, position=position)
    save_folder(tmp_path / "made", build(config), Preprocess(size=(16, 16)), [])
    path = tmp_path / "made" / "model.json"
    told = json.loads(path.read_text())
    told["model"]["image"] = [1024, 1024]
    path.write_text(json.dumps(told))
    with_size(path.parent, (1024, 1024))
    assert isinstance(keeps_promise(lambda: load(path.parent)), ModelError)


@pytest.mark.parametrize("layout", ["saccade", "gpt"])
@pytest.mark.parametrize(
    ("key", "value"),
    [("task", []), ("task", {}), ("task", "x" * 3000), ("format", "x" * 3000), ("model", "x")],
)
def test_odd_entries_of_model_json_are_refused_in_a_short_line(tmp_path, layout, key, value):
    made = folder(tmp_path, layout)
    told = json.loads((made / "model.json").read_text())
    (made / "model.json").write_text(json.dumps({**told, key: value}))
    assert isinstance(keeps_promise(lambda: load(made)), ModelError)
