"""Model files: recognise their kind, read their headers and tensors, write ours.

No refusal here imports torch, and nothing here unpickles; see pickle/convert.py for that.
"""

import os
import pickletools
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from io import BufferedReader, BytesIO
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.files.atomic import replacing
from saccade.files.digest import verify
from saccade.files.paths import REMEDY, Flaw, check_name, open_file, refusal
from saccade.files.strict_json import read_json
from saccade.weights.formats.pickle.machine import TORCH_MAGIC
from saccade.weights.formats.safetensors import (
    CODES,
    TENSORS,
    Header,
    arrange,
    nbytes,
    read_headers,
    write_header,
)
from saccade.weights.formats.zip import members
from saccade.wording import printable

if TYPE_CHECKING:
    import torch

HEAD = 4096
SIGNATURES = {
    b"\x93NUMPY": "npy", b"\x89HDF\r\n\x1a\n": "hdf5", b"GGUF": "gguf",
    b"version https://git-lfs": "lfs-pointer", b"\x1f\x8b": "gzip", b"PK\5\6": "zip",
}  # fmt: skip
ACTS = {"GLOBAL", "STACK_GLOBAL", "INST", "REDUCE", "BUILD", "PROTO"}
"""Opcodes that ordinary text rarely contains; a truncated pickle that has one still counts as a pickle."""
CONVERT = "run `saccade convert {} --out FOLDER`, which reads it in a restricted process"
WANTED = "; expected a .safetensors or .npz file or a folder with model.safetensors"
PICKLES = {
    "torch": "is a torch checkpoint, which is a pickle that could run code",
    "torch-legacy": "is a torch checkpoint of the old format, which is a pickle that could run code",
    "pickle": "is a pickle, which could run code",
}
OTHERS = {
    "empty": ("is empty", REMEDY),
    "torchscript": (
        "is a TorchScript archive, which is a program",
        "ask its author for the weights as safetensors",
    ),
    "tar": ("is a tar archive (torch wrote them until 2017)", "save it again with a newer torch"),
    "npy": ("is a single NumPy array", "save all arrays with numpy.savez"),
    "hdf5": ("is an HDF5 file, as Keras writes them", "ask its author for a safetensors file"),
    "gguf": (
        "is a GGUF file, as llama.cpp reads them",
        "ask its author for the safetensors file it was made from",
    ),
    "onnx": ("is an ONNX graph, which cannot be trained", "ask its author for the weights"),
    "json": ("is a JSON file and holds no weights", "give its folder"),
    "html": ("is a web page, as some downloads save without a login", "download the file itself"),
    "lfs-pointer": ("is a git-lfs pointer, not the file itself", "run `git lfs pull` in its folder"),
    "gzip": ("is a gzip file", "unpack it first"),
    "zip": ("is a zip file without arrays or a checkpoint", "unpack it first"),
    "unknown": ("is not a recognised model file", REMEDY),
}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


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
    # The length in front is a number, not text: JSON that has its second brace here must stay JSON.
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
    except (ValueError, OverflowError, struct.error, Warning):  # truncated, or not a pickle
        pass
    return "pickle" if acts else None


def unreadable(path: Path, what: str) -> Flaw:
    """Say why a file of this kind cannot be read here, and what to do about it."""
    if what in PICKLES:
        return Flaw(PICKLES[what] + WANTED, CONVERT.format(printable(path)))
    found, remedy = OTHERS[what]
    return Flaw(found + WANTED, remedy)


def headers_of(path: Path, file: BufferedReader) -> dict[str, Header]:
    """Do what `headers` does for a file that is open already; the path is only for messages."""
    what = kind_of(file)
    try:
        if what == "safetensors":
            return read_headers(file.fileno())
        if what in ("npz", "zip"):
            with mmap(file.fileno(), 0, access=ACCESS_READ) as data:
                if what == "npz":
                    from saccade.weights.formats.npz import layouts  # only this kind needs NumPy

                    return {name: layout.header for name, (_, layout) in layouts(data).items()}
                members(data)  # raises if the zip is damaged
        raise unreadable(path, what)
    except Flaw as flaw:
        raise refusal(path, flaw) from flaw


def _weight_files(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """Return the weight files of a folder, and the shard of each tensor if an index lists shards."""
    if (folder / SINGLE).exists():
        return [folder / SINGLE], {}
    if (index := folder / INDEX).exists():
        listed = _weight_map(index, read_json(index))
        files = [folder / shard for shard in sorted(set(listed.values()))]
        if missing := [file.name for file in files if not file.exists()]:
            found = f"names the shard {printable(missing[0])}, which is not in the folder"
            raise refusal(index, Flaw(found, REMEDY))
        return files, listed
    files = sorted(folder.glob("*.safetensors"))
    if len(files) != 1:
        pickles = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
        remedy = f"run `saccade convert {printable(folder / pickles[0])}`" if pickles else "check the folder"
        found = (
            f"holds {len(files)} safetensors files, but neither {SINGLE} nor {INDEX}; expected one of them"
        )
        raise refusal(folder, Flaw(found, remedy))
    return files, {}


def _check_shards(listed: Mapping[str, str], parts: Mapping[Path, Mapping[str, Header]]) -> None:
    """Refuse shards whose tensors are not those that their index lists."""
    held = {path.name: part for path, part in parts.items()}
    for name, shard in listed.items():
        if name not in held[shard]:
            index = next(iter(parts)).parent / INDEX
            raise refusal(
                index, Flaw(f"lists tensor '{printable(name)}' in {printable(shard)}, which does not have it")
            )
    for path, part in parts.items():
        for name in part:
            # An unlisted tensor would be dropped silently, or replace its namesake by chance.
            if listed.get(name) != path.name:
                raise refusal(
                    path, Flaw(f"holds tensor '{printable(name)}', which {INDEX} does not list there")
                )


def _weight_map(index: Path, value: dict[str, Any]) -> dict[str, str]:
    listed = value.get("weight_map")
    if not isinstance(listed, dict) or not 0 < len(listed) <= TENSORS:
        raise refusal(index, Flaw("has no weight_map that gives each tensor its file"))
    for name, shard in listed.items():
        plain = isinstance(shard, str) and shard.isprintable() and not set(shard) & set("/\\:")
        if not plain or not shard.endswith(".safetensors") or shard.startswith("."):
            found = f"puts tensor '{printable(name)}' into '{printable(shard)}'"
            raise refusal(index, Flaw(found + "; expected the name of a file beside it"))
    return listed


@contextmanager
def _open_parts(path: Path) -> Iterator[dict[Path, tuple[BufferedReader, dict[str, Header]]]]:
    """Open the weight files of a path and yield each with its headers, while they stay open."""
    files, listed = _weight_files(path) if path.is_dir() else ([path], {})
    with ExitStack() as stack:
        opened = {file: stack.enter_context(open_file(file)) for file in files}
        parts = {file: headers_of(file, reader) for file, reader in opened.items()}
        if listed:
            _check_shards(listed, parts)
        yield {file: (opened[file], parts[file]) for file in files}


def headers(path: Path) -> dict[str, Header]:
    """Return name, shape and dtype of every tensor of a file or folder, checked, numbers unread."""
    with _open_parts(path) as parts:
        return {name: header for _, part in parts.values() for name, header in part.items()}


def read_tensors(
    path: Path,
    *,
    names: Iterable[str] | None = None,
    expected: Mapping[str, Header] | None = None,
    sha256: str = "",
) -> dict[str, "torch.Tensor"]:
    """Load all tensors, or those named, of what `headers` accepts; safetensors are mapped and not copied.

    Args:
        expected: What `headers` returned earlier; refuse files that have changed since then.
        sha256: The expected digest of a single file; empty to skip the check.
    """
    wanted = None if names is None else set(names)
    # Headers again, of the very files that stay open until they are loaded.
    with _open_parts(path) as parts:
        held = {name: header for _, part in parts.values() for name, header in part.items()}
        if expected is not None and held != expected:
            raise refusal(path, Flaw("changed while it was being read", "run the command again"))
        if len(parts) == 1:
            [(file, (reader, _))] = parts.items()
            verify(file, reader, sha256)
        if missing := (wanted or set()) - held.keys():
            found = f"has no tensor '{printable(min(missing))}', which was expected"
            raise refusal(path, Flaw(found, "check that it is the right model"))
        loaded: dict[str, torch.Tensor] = {}
        for file, (reader, part) in parts.items():
            chosen = [name for name in part if wanted is None or name in wanted]
            load = _load_npz if kind_of(reader) == "npz" else _load_safetensors
            try:
                loaded.update(load(reader, chosen))
            except Flaw as flaw:
                raise refusal(file, flaw) from flaw
    return loaded


def _load_safetensors(file: BufferedReader, names: list[str]) -> dict[str, "torch.Tensor"]:
    import torch
    from safetensors import SafetensorError, safe_open

    loaded = {}
    # The open descriptor, not the path: nobody can swap the file between the check and the mapping.
    try:
        with safe_open(f"/dev/fd/{file.fileno()}", framework="pt") as opened:
            for name in names:
                loaded[name] = opened.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise Flaw(f"is refused by the safetensors library ({printable(error)})") from error
    for name, tensor in loaded.items():
        if tensor.dtype is torch.bool and tensor.numel() and tensor.view(torch.uint8).max() > 1:
            raise Flaw(
                f"has tensor '{printable(name)}' of booleans with bytes other than the 0 and 1 expected"
            )
    return loaded


def _load_npz(file: BufferedReader, names: list[str]) -> dict[str, "torch.Tensor"]:
    import torch

    from saccade.weights.formats.npz import array, layouts

    loaded = {}
    with mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        found = layouts(data)
        for name in names:
            member, layout = found[name]
            tensor = torch.from_numpy(array(data, member, layout))
            loaded[name] = tensor.view(torch.bfloat16) if layout.header.dtype == "bfloat16" else tensor
    return loaded


def write_safetensors(
    path: Path, tensors: Mapping[str, "torch.Tensor"], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors, whole or not at all; the same tensors always give the same bytes."""
    import torch

    if not tensors:
        raise refusal(path, Flaw("would hold no tensor; expected at least one", "save a model"))
    described = {}
    for name, tensor in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        try:
            check_name(name)
            if dtype not in CODES or tensor.layout is not torch.strided or tensor.is_meta:
                raise Flaw(
                    f"cannot hold tensor '{printable(name)}' ({dtype}, {tensor.layout}, {tensor.device})"
                )
        except Flaw as flaw:
            raise refusal(path, flaw) from flaw
        described[name] = Header(tuple(tensor.shape), dtype)
    start = write_header(described, metadata or {})
    with replacing(path, len(start) + sum(map(nbytes, described.values()))) as file:
        file.write(start)
        for name in arrange(described):
            flat = tensors[name].detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data)
