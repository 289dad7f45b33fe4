"""What a model file is, told from its content and never from its name."""

import os
import pickletools
import struct
from io import BufferedReader, BytesIO
from mmap import ACCESS_READ, mmap
from pathlib import Path

from saccade.files.paths import Flaw, open_file
from saccade.weights.formats.zip import members

HEAD = 4096
TORCH_MAGIC = 0x1950A86A20F9469CFC6C
SIGNATURES = {
    b"\x93NUMPY": "npy",
    b"\x89HDF\r\n\x1a\n": "hdf5",
    b"GGUF": "gguf",
    b"version https://git-lfs": "lfs-pointer",
    b"\x1f\x8b": "gzip",
    b"PK\5\6": "zip",
}
ACTS = {"GLOBAL", "STACK_GLOBAL", "INST", "REDUCE", "BUILD", "PROTO"}
"""Opcodes that ordinary text hardly reaches; even a torn pickle that has one is called a pickle."""


def kind(path: Path) -> str:
    """Name the kind of a file or folder: "safetensors", "npz", "torch", "pickle", "empty", "unknown", ..."""
    if os.path.isdir(path):
        return "directory"
    with open_file(path) as file:
        return kind_of(file)


def kind_of(file: BufferedReader) -> str:
    """Name the kind of an open file, without moving its position."""
    head = os.pread(file.fileno(), HEAD, 0)
    if not head:
        return "empty"
    if head.startswith(b"PK\3\4"):
        return _zip_kind(file)
    for signature, name in SIGNATURES.items():
        if head.startswith(signature):
            return name
    if head[257:262] == b"ustar":
        return "tar"
    # Before the pickles: a header of 640 bytes starts with 80 02, which is also a pickle of protocol 2.
    if _is_safetensors(head):
        return "safetensors"
    return _text_kind(head) or _pickle_kind(head) or ("onnx" if _is_onnx(head) else "unknown")


def _zip_kind(file: BufferedReader) -> str:
    with mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        try:
            names = members(data).keys()
        except Flaw:
            return "zip"
    ends = {name.rpartition("/")[2] for name in names}
    if "data.pkl" in ends:
        code = "constants.pkl" in ends or any("/code/" in f"/{name}" for name in names)
        return "torchscript" if code else "torch"
    return "npz" if names and all(name.endswith(".npy") for name in names) else "zip"


def _is_safetensors(head: bytes) -> bool:
    # The length in front is a number and no text: JSON that has its second brace here must stay JSON.
    number = b"\0" in head[:8] or not head[:8].isascii()
    return number and len(head) > 9 and head[8:9] == b"{" and head[9] in b'"} \t\r\n'


def _is_onnx(head: bytes) -> bool:
    # Protobuf: field 1 (ir_version) as a small number, then a field that a model has.
    return len(head) > 3 and head[0] == 0x08 and 0 < head[1] < 32 and head[2] in b"\x12\x1a\x22\x3a\x42"


def _text_kind(head: bytes) -> str | None:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if b"\0" in text:
        return None
    if text.startswith(b"<"):
        return "html"
    if text.startswith((b"{", b"[")):
        return "json"
    return None


def _pickle_kind(head: bytes) -> str | None:
    acts = False
    number = None
    try:
        for opcode, value, _ in pickletools.genops(BytesIO(head)):
            if opcode.name == "STOP":
                return "torch-legacy" if number == TORCH_MAGIC else "pickle"
            acts = acts or opcode.name in ACTS
            number = value if opcode.name in ("LONG", "LONG1") else number
    except (ValueError, OverflowError, struct.error, Warning):  # torn, or no pickle at all
        pass
    return "pickle" if acts else None
