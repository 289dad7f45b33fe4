"""Thousands of damaged model folders: each is refused in a sentence, or answers with finite numbers."""

import json
import struct
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import numpy as np
import pytest
from folders_made import IMAGES, TEXTS, folder, tensors_file
from hypothesis import given
from hypothesis import strategies as st
from mutations import mutated_bytes, mutated_json, mutated_json_bytes
from promise import fuzz, keeps_promise

from saccade.api.load import load

PLACE = Path(mkdtemp())
FOLDERS = {layout: folder(PLACE, layout) for layout in (*IMAGES, *TEXTS)}
SIDES = [
    ("saccade", "model.json"), ("saccade", "preprocess.json"), ("timm", "config.json"), ("hf", "config.json"),
    ("hf", "preprocessor_config.json"), ("gpt", "model.json"), ("bert", "model.json"),
    ("transformer", "model.json"), ("seq2seq", "model.json"), ("hf gpt", "config.json"),
    ("hf bert", "config.json"), ("hf bert", "tokenizer_config.json"),
]  # fmt: skip
WEIGHTS = ["saccade", "timm", "hf", "gpt", "hf bert"]
PICTURE = np.zeros((20, 24, 3), np.uint8)


def answer(made):
    """Load a folder and ask it once; weights of moderate size answer with finite numbers."""
    model = load(made)
    if hasattr(model, "preprocess"):
        scores = [prediction.score for prediction in model.predict(PICTURE)]
        assert np.isfinite(scores).all()
        return
    for verb in model.verbs:
        if verb == "fill":
            model.fill("the [MASK] sat")
        else:
            getattr(model, verb)("the cat", most=3)


def damaged(layout, name, data):
    """Answer with one file exchanged, then put the good one back."""
    path = FOLDERS[layout] / name
    good = path.read_bytes() if path.exists() else None
    path.write_bytes(data)
    try:
        return keeps_promise(lambda: answer(FOLDERS[layout]), PLACE, seconds=10)
    finally:
        path.unlink() if good is None else path.write_bytes(good)


def seed(layout, name):
    return json.loads((FOLDERS[layout] / name).read_text())


def with_header(data, header):
    """A safetensors file with another header, its length right and its numbers as they were."""
    (length,) = struct.unpack("<Q", data[:8])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def header_of(data):
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length])


@pytest.fixture(autouse=True, scope="module")
def _warm():
    """torch makes a folder of its own for temporary files when it is first used."""
    for made in FOLDERS.values():
        answer(made)
    yield
    rmtree(PLACE)


@fuzz
@given(
    st.sampled_from(SIDES).flatmap(
        lambda side: st.tuples(st.just(side), mutated_json_bytes(seed(*side)) | small_changes(seed(*side)))
    )
)
def test_a_damaged_description_keeps_the_promise(case):
    (layout, name), data = case
    damaged(layout, name, data)


def small_changes(value):
    """One number or word changed to a nearby one, which passes more checks than nonsense does."""
    return mutated_json(value, most=1).map(lambda made: json.dumps(made).encode())


HEADERS = {layout: tensors_file(FOLDERS[layout]).read_bytes() for layout in WEIGHTS}


@fuzz
@given(
    st.sampled_from(WEIGHTS).flatmap(
        lambda layout: st.tuples(st.just(layout), mutated_json(header_of(HEADERS[layout])))
    )
)
def test_a_damaged_header_of_safetensors_keeps_the_promise(case):
    layout, header = case
    damaged(layout, "model.safetensors", with_header(HEADERS[layout], header))


@st.composite
def exchanged(draw):
    """A header that is right in itself: names, shapes and kinds of numbers exchanged between tensors."""
    layout = draw(st.sampled_from(WEIGHTS))
    header = header_of(HEADERS[layout])
    names = sorted(header.keys() - {"__metadata__"})
    for _ in range(draw(st.integers(1, 3))):
        one, other = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        kind = draw(st.sampled_from(("swap", "rename", "reshape", "dtype")))
        if kind == "swap":
            header[one], header[other] = header[other], header[one]
        elif kind == "rename":
            header[draw(st.sampled_from(("x", "head.weight", "cls_token", "wte.weight")))] = header.pop(one)
            names = sorted(header.keys() - {"__metadata__"})
        elif kind == "reshape":
            header[one]["shape"] = header[one]["shape"][::-1]
        else:
            code = draw(st.sampled_from(("I32", "U32", "F16", "BF16", "U8", "C64", "F8_E4M3", "I64", "F64")))
            size = {"I32": 4, "U32": 4, "F16": 2, "BF16": 2, "U8": 1, "F8_E4M3": 1}.get(code, 8)
            begin, end = header[one]["data_offsets"]
            header[one].update(dtype=code, shape=[(end - begin) // size])
    return layout, header


@fuzz
@given(exchanged())
def test_tensors_that_change_places_keep_the_promise(case):
    layout, header = case
    damaged(layout, "model.safetensors", with_header(HEADERS[layout], header))


@fuzz
@given(
    st.sampled_from(WEIGHTS).flatmap(
        lambda layout: st.tuples(st.just(layout), mutated_bytes(HEADERS[layout][:3000]))
    )
)
def test_a_torn_file_of_safetensors_keeps_the_promise(case):
    layout, data = case
    damaged(layout, "model.safetensors", data + HEADERS[layout][3000:])


@fuzz
@given(mutated_bytes(tensors_file(FOLDERS["google"]).read_bytes()))
def test_a_torn_file_of_arrays_keeps_the_promise(data):
    damaged("google", "model.npz", data)


@fuzz
@given(mutated_bytes(b"cat\ndog\nlog\n"))
def test_damaged_labels_keep_the_promise(data):
    damaged("saccade", "labels.txt", data)
