"""Every damaged or malicious model file we know, each with a word that its refusal must contain.

`model_files(folder, canary)` writes what `saccade predict` and `saccade convert` must refuse; a payload that
runs creates the canary. `json_files(folder)` writes what `read_json` must refuse. torch is not imported.
"""

import builtins
import io
import json
import os
import pickle
import runpy
import socket
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

TORCH_MAGIC = 0x1950A86A20F9469CFC6C
MILLION = 10**6


class Malice(NamedTuple):
    """One refused file: a word of the refusal when it is used as a model, and when it is converted."""

    name: str
    path: Path
    predict: str
    convert: str


class Call:
    """Pickles as a call of `function`."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return self.call


def model_files(folder: Path, canary: Path) -> list[Malice]:
    """Write the whole corpus and return it."""
    found = []
    for name, data, *words in _all_files(canary):
        path = folder / name
        if isinstance(data, bytes):
            path.write_bytes(data)
        else:
            data(path)
        found.append(Malice(name, path, words[0], words[-1]))
    assert len({malice.name for malice in found}) == len(found)
    return found


def json_files(folder: Path) -> list[Malice]:
    """Write JSON that two readers could understand differently, or that would cost too much to read."""
    found = []
    for name, data, word in _documents():
        path = folder / name
        path.write_bytes(data)
        found.append(Malice(name, path, word, word))
    huge = folder / "huge.json"
    _sparse(huge, b'{"a": "', 2**30)
    return [*found, Malice("huge.json", huge, "larger than", "larger than")]


File = tuple[str, bytes | Callable[[Path], None], str] | tuple[str, bytes | Callable[[Path], None], str, str]


def _all_files(canary: Path) -> Iterator[File]:
    yield from _pickles(canary)
    yield from _checkpoints(canary)
    yield from _damaged_checkpoints()
    yield from _legacy(canary)
    yield from _zips()
    yield from _npz(canary)
    yield from _safetensors()
    yield from _strangers()
    yield from _special()
    yield from _folders()


def _sparse(path: Path, start: bytes, size: int) -> None:
    with path.open("wb") as file:
        file.write(start)
        file.truncate(size)


# Opcodes by hand, because no pickler writes what an attacker writes.


def value(item: object) -> bytes:
    """Return the opcodes that push one plain value."""
    return pickle.dumps(item, 2)[2:-1]


def named(module: str, name: str) -> bytes:
    """Return the opcode that pushes module.name."""
    return b"c" + f"{module}\n{name}\n".encode()


def tensor(
    offset: int, shape: tuple[Any, ...], stride: tuple[Any, ...], count: int = 4, kind: str = "FloatStorage"
) -> bytes:
    """Return the opcodes of one tensor on the storage "0"."""
    storage = (
        b"(" + value("storage") + named("torch", kind) + value("0") + value("cpu") + value(count) + b"tQ"
    )
    hooks = named("collections", "OrderedDict") + b")R"
    arguments = storage + value(offset) + value(shape) + value(stride) + b"\x89" + hooks
    return named("torch._utils", "_rebuild_tensor_v2") + b"(" + arguments + b"tR"


def state(body: bytes, name: str = "a") -> bytes:
    """Return the pickle of a dictionary with one entry."""
    return b"\x80\x02}" + value(name) + body + b"s."


def archive(files: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip file with these members, in this order, repeated names and all."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as opened:
        for name, data in files:
            opened.writestr(zipfile.ZipInfo(name), data, method)
    return out.getvalue()


def checkpoint(body: bytes, record: bytes = bytes(16), more: tuple[tuple[str, bytes], ...] = ()) -> bytes:
    """Return a torch checkpoint of the zip format with one record."""
    return archive([("m/data.pkl", body), ("m/byteorder", b"little"), ("m/data/0", record), *more])


def legacy(
    body: bytes, keys: tuple[str, ...] = ("0",), tail: bytes = struct.pack("<q", 4) + bytes(16)
) -> bytes:
    """Return a torch checkpoint of the old format."""
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}
    return b"".join(pickle.dumps(item, 2) for item in (TORCH_MAGIC, 1001, system)) + (
        body + pickle.dumps(list(keys), 2) + tail
    )


def _pickles(canary: Path) -> Iterator[File]:
    touch = f"touch {canary}"
    system = Call(os.system, touch)
    for protocol in range(6):
        yield f"system{protocol}.pkl", pickle.dumps(system, protocol), "pickle", "posix.system"
    payload = pickle.dumps(system, 2)
    for ending in ("bin", "pt", "pth", "ckpt", "safetensors", "npz"):
        yield f"lie.{ending}", payload, "pickle", "posix.system"
    code = f"open({str(canary)!r}, 'w')"
    yield "eval.pkl", pickle.dumps(Call(eval, code)), "pickle", "builtins.eval"
    yield "exec.pkl", pickle.dumps(Call(exec, code)), "pickle", "builtins.exec"
    chain = Call(builtins.getattr, Call(__import__, "os"), "system")
    yield "getattr.pkl", pickle.dumps(chain), "pickle", "builtins.getattr"
    yield "runpy.pkl", pickle.dumps(Call(runpy.run_path, str(canary))), "pickle", "runpy"
    nested = {"state_dict": [({"a": (1, [Call(eval, code)])},)]}
    yield "nested.pkl", pickle.dumps(nested, 4), "pickle", "builtins.eval"
    yield (
        "copyreg.pkl",
        b"\x80\x02" + named("copyreg", "add_extension") + b".",
        "pickle",
        "copyreg.add_extension",
    )
    yield "instance.pkl", f"(S'{touch}'\nios\nsystem\n.".encode(), "pickle", "os.system"
    yield "extension.pkl", b"\x80\x02\x82\x01.", "pickle", "EXT1"
    memo = (
        value("system")
        + b"r\xff\xff\xff\xff0"
        + value("os")
        + b"j\xff\xff\xff\xff\x93"
        + value(touch)
        + b"\x85R."
    )
    yield "memo.pkl", b"\x80\x04" + memo, "pickle", "os.system"
    yield "unkept.pkl", b"\x80\x02h\x07.", "pickle", "never stored"
    yield "tail.pkl", payload[:-1] + b"\xff\xfe\xfd", "pickle", "posix.system"
    yield "tail0.pkl", pickle.dumps(system, 0)[:-1] + b"\xff\xfe", "pickle", "posix.system"
    yield "underflow.pkl", b"\x80\x02tR.", "pickle", "stack"
    yield "endless.pkl", b"\x80\x02" + b"]" * 100, "pickle", "broken pickle"
    yield "long.pkl", b"\x80\x02" + b"]" * 2 * MILLION + b".", "pickle", "operations"
    yield "deep.pkl", b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".", "pickle", "without the tensors"
    laughs = b"\x80\x04]" + b"".join(b"\x94]h" + bytes([n]) + b"ah" + bytes([n]) + b"a" for n in range(100))
    yield "laughs.pkl", laughs + b"\x94h\x64\x93.", "pickle", "?.?"
    collide = b"".join(
        b"\x8a\x10" + (n * (2**61 - 1)).to_bytes(16, "little") + b"N" for n in range(1, 100_000)
    )
    yield "collide.pkl", b"\x80\x02}(" + collide + b"u.", "pickle", "as a key"
    yield "persistent.pkl", b"\x80\x02" + value("storage") + b"Q.", "pickle", "other than a torch storage"
    yield "number.pkl", b"\x80\x02\x8b\xff\xff\xff\x7f.", "pickle", "broken pickle"
    yield "words.pkl", pickle.dumps({"epoch": 3}), "pickle", "without the tensors"


def _checkpoints(canary: Path) -> Iterator[File]:
    payload = pickle.dumps(Call(os.system, f"touch {canary}"), 2)
    yield "system.pt", checkpoint(payload), "pickle", "posix.system"
    good = tensor(0, (4,), (1,))
    beside = b"\x80\x02}(" + value("a") + good + value("b") + payload[2:-1] + b"u."
    yield "beside.pt", checkpoint(beside), "pickle", "posix.system"
    for module, name in (
        ("collections", "OrderedDict.__init__.__globals__"),
        ("torch._utils", "_rebuild_tensor_v2.__globals__"),
        ("torch.storage", "_load_from_bytes"),
        ("torch.serialization", "load"),
        ("torch.hub", "load"),
        ("torch._utils", "_import_dotted_name"),
        ("torch.nn.modules.linear", "Linear"),
        ("numpy", "load"),
        ("\x1b[31mred", "x"),
    ):
        stacked = b"\x80\x04" + value(module) + value(name) + b"\x93" + value((str(canary),)) + b"R."
        word = module.removeprefix("\x1b") + "." + name
        yield f"stack-{ascii(word)[1:-1]}.pt", checkpoint(stacked), "pickle", word
    pairs = (
        named("collections", "OrderedDict")
        + b"]("
        + value((1,) * 900)
        + b"q\x09"
        + b"h\x09" * 900
        + b"e\x85R"
    )
    yield "pairs.pt", checkpoint(state(pairs)), "pickle", "never does"
    yield "setitems.pt", checkpoint(state(good + b"(" + value("k") + value(1) + b"u")), "pickle", "sets items"
    yield (
        "setitem-named.pt",
        checkpoint(b"\x80\x02" + named("collections", "OrderedDict") + b"KaKas."),
        "pickle",
        "sets",
    )
    yield "append.pt", checkpoint(state(good + value(1) + b"a")), "pickle", "appends"
    yield "build.pt", checkpoint(state(value("x") + b"}b")), "pickle", "state of"
    yield "call.pt", checkpoint(b"\x80\x02" + value("x") + b")R."), "pickle", "never does"
    yield (
        "call-storage.pt",
        checkpoint(b"\x80\x02" + named("torch", "FloatStorage") + value((9,)) + b"R."),
        "pickle",
        "calls",
    )
    for name, body, word in (
        ("claims", tensor(0, (4,), (1,), count=2**40), "claims"),
        ("claims-little", tensor(0, (5,), (1,), count=5), "claims 20 bytes"),
        ("offset", tensor(1, (4,), (1,)), "past its end"),
        ("stride", tensor(0, (2, 2), (3, 1)), "past its end"),
        ("negative-size", tensor(0, (-1,), (1,)), "not counts"),
        ("negative-stride", tensor(3, (4,), (-1,)), "not counts"),
        ("negative-offset", tensor(-1, (4,), (1,)), "not counts"),
        ("negative-count", tensor(0, (4,), (1,), count=-4), "impossible"),
        ("wide", tensor(0, (2**61,), (0,)), "bytes of tensors"),
        ("expanded", tensor(0, (2**20, 2**10), (0, 0)), "bytes of tensors"),
        ("ranks", tensor(0, (1,) * 99, (1,) * 99), "99 sizes"),
        ("lopsided", tensor(0, (1, 1), (1,)), "2 sizes"),
        ("text-size", tensor(0, ("4",), (1,)), "not counts"),
        ("quantized", tensor(0, (4,), (1,), kind="QInt8Storage"), "QInt8Storage"),
    ):
        yield f"{name}.pt", checkpoint(state(body)), "pickle", word
    yield (
        "bool.pt",
        checkpoint(state(tensor(0, (4,), (1,), kind="BoolStorage")), b"\0\1\2\3"),
        "pickle",
        "booleans",
    )
    yield "escape.pt", checkpoint(state(good, "\x1b[31m")), "pickle", "printable"
    yield "dots.pt", checkpoint(state(good, "../../x")), "pickle", "plain name"
    itself = b"\x80\x02}q\0" + value("state_dict") + b"h\0s."
    yield "itself.pt", checkpoint(itself), "pickle", "dictionary of tensors"
    yield "no-tensors.pt", checkpoint(b"\x80\x02}."), "pickle", "dictionary of tensors"
    two = (
        b"\x80\x02}("
        + value("a")
        + good
        + value("b")
        + tensor(0, (2,), (1,), kind="DoubleStorage", count=2)
        + b"u."
    )
    yield "two-dtypes.pt", checkpoint(two), "pickle", "two ways"


def _damaged_checkpoints() -> Iterator[File]:
    good = state(tensor(0, (4,), (1,)))
    whole = checkpoint(good, b"NUMBERS-NUMBERS!")
    yield "crc-record.pt", whole.replace(b"NUMBERS-NUMBERS!", b"NUMBERS_NUMBERS!"), "pickle", "checksum"
    yield "crc-pickle.pt", whole.replace(b"storage", b"sTorage"), "pickle", "checksum"
    yield "cut.pt", whole[: len(whole) * 6 // 10], "zip"
    yield "trailing.pt", whole + bytes(30), "zip"
    yield "comment.pt", whole[:-2] + b"\x04\0PK\5\6", "zip"
    yield "prefix.pt", b"PK\3\4" + whole, "zip"
    yield "no-record.pt", archive([("m/data.pkl", good)]), "pickle", "data/0"
    yield (
        "big.pt",
        archive([("m/data.pkl", good), ("m/byteorder", b"big"), ("m/data/0", bytes(16))]),
        "pickle",
        "big-endian",
    )
    more = ("m/data.pkl", pickle.dumps(Call(os.abort), 2))
    with_two = archive([("m/data.pkl", good), ("m/data/0", bytes(16)), ("m/dat_.pkl", more[1])])
    yield "two-pickles.pt", with_two.replace(b"dat_.pkl", b"data.pkl"), "two members"
    yield (
        "two-folders.pt",
        checkpoint(good, more=(("n/data.pkl", more[1]),)),
        "pickle",
        "outside its one folder",
    )
    yield "dotdot.pt", checkpoint(good, more=(("m/../../x", b""),)), "plain name"
    yield "absolute.pt", checkpoint(good, more=(("/etc/x", b""),)), "plain name"
    yield "backslash.pt", checkpoint(good, more=(("m\\x", b""),)), "plain name"
    packed = archive([("m/data.pkl", bytes(32 * MILLION))], zipfile.ZIP_DEFLATED)
    yield "bomb.pt", packed, "pickle", "compressed"
    yield "inner.pt", archive([("m/x/data.pkl", good)]), "pickle", "without 'm/data.pkl'"
    script = (("m/constants.pkl", b"\x80\x02)."), ("m/code/__torch__.py", b"import os"))
    yield "script.pt", checkpoint(good, more=script), "TorchScript"


def _legacy(canary: Path) -> Iterator[File]:
    good = state(tensor(0, (4,), (1,)))
    payload = pickle.dumps(Call(os.system, f"touch {canary}"), 2)
    yield "legacy-system.pth", legacy(payload), "pickle", "posix.system"
    yield (
        "legacy-keys.pth",
        legacy(good)[:-24].removesuffix(pickle.dumps(["0"], 2)) + payload,
        "pickle",
        "posix.system",
    )
    yield "legacy-cut.pth", legacy(good)[:-3], "pickle", "claims"
    yield "legacy-trailing.pth", legacy(good) + b"more", "pickle", "end at"
    yield "legacy-count.pth", legacy(good, tail=struct.pack("<q", -4) + bytes(16)), "pickle", "expected 4"
    yield "legacy-unlisted.pth", legacy(good, keys=(), tail=b""), "pickle", "claims"
    yield "legacy-stranger.pth", legacy(good, keys=("1",)), "pickle", "no tensor uses"
    yield "legacy-version.pth", pickle.dumps(TORCH_MAGIC, 2) + pickle.dumps(7, 2), "pickle", "version"
    big = legacy(good).replace(value("little_endian") + b"q\x02\x88", value("little_endian") + b"q\x02\x89")
    yield "legacy-big.pth", big.replace(b"q\x02\x88", b"q\x02\x89"), "pickle", "big-endian"
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo("pickle")
        info.size = len(payload)
        tar.addfile(info, io.BytesIO(payload))
    yield "legacy.tar", out.getvalue(), "tar archive"


def _zips() -> Iterator[File]:
    inner = archive([("x", bytes(MILLION))], zipfile.ZIP_DEFLATED)
    yield "42.zip", archive([(f"lib{n}.zip", inner) for n in range(16)]), "zip file without"
    yield "none.zip", archive([]), "zip"
    local = b"PK\3\4" + bytes(22) + struct.pack("<2H", 5, 0) + b"a.npy"
    entry = b"PK\1\2" + bytes(24) + struct.pack("<3H", 5, 0, 0) + bytes(12) + b"a.npy"

    def many(count: int, announced: int) -> bytes:
        size = len(entry) * count
        end = struct.pack("<4s2L4Q", b"PK\6\6", 44, 0, 0, announced, announced, size)[:4]
        wide = end + struct.pack("<Q2H2L4Q", 44, 45, 45, 0, 0, announced, announced, size, len(local))
        locator = b"PK\6\7" + struct.pack("<LQL", 0, len(local) + size, 1)
        return local + entry * count + wide + locator + b"PK\5\6" + bytes(4) + b"\xff" * 12 + bytes(2)

    yield "million.npz", many(MILLION, MILLION), "1,000,000 members"
    yield "modest.npz", many(MILLION, 5), "members"
    yield "boastful.npz", many(1, 50_000), "announces"
    yield "twins.npz", many(2, 2), "two members"


def npy(array: np.ndarray[Any, Any]) -> bytes:
    """Return an array as numpy.save writes it."""
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


def _with_npy_header(text: str) -> bytes:
    header = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + bytes(16)


def _npz(canary: Path) -> Iterator[File]:
    good = npy(np.arange(4, dtype=np.float32))
    objects = npy(np.array([Call(os.system, f"touch {canary}")], dtype=object))
    yield "objects.npz", archive([("a.npy", objects)]), "Python objects"
    yield "text.npz", archive([("a.npy", npy(np.array(["x"])))]), "dtype"
    yield "fields.npz", archive([("a.npy", npy(np.zeros(1, [("x", "f4")])))]), "dtype"
    yield "array.npy", good, "single NumPy array"
    descr = "{'descr': '<f4', 'fortran_order': False, 'shape': %s}"
    for name, text, word in (
        ("code", f"__import__('os').system('touch {canary}')", "npy header"),
        ("negative", descr % "(-4,)", "larger than any memory"),
        ("overflow", descr % f"({2**40}, {2**40})", "larger than any memory"),
        ("empty-overflow", descr % f"(0, {2**62})", "larger than any memory"),
        ("shape", descr % "(5,)", "; expected "),
        ("deep", "(" * 90, "npy header"),
        ("minus", "-" * 100 + "1", "npy header"),
    ):
        yield f"header-{name}.npz", archive([("a.npy", _with_npy_header(text))]), word
    yield "no-magic.npz", archive([("a.npy", b"hello")]), "npy header"
    yield "nameless.npz", archive([(".npy", good)]), "0 characters"
    yield "version.npz", archive([("a.npy", good.replace(b"NUMPY\1", b"NUMPY\3"))]), "npy header"
    yield "crossing.npz", archive([("../a.npy", good)]), "plain name"
    yield "rooted.npz", archive([("/a.npy", good)]), "plain name"
    whole = archive([("a.npy", good)], zipfile.ZIP_DEFLATED)
    yield "cut.npz", whole[:-30], "zip"
    at = whole.index(b"PK\1\2")
    yield "encrypted.npz", whole[: at + 8] + b"\1" + whole[at + 9 :], "encrypted"
    yield "bzip2.npz", archive([("a.npy", good)], zipfile.ZIP_BZIP2), "method 12"
    yield "lzma.npz", archive([("a.npy", good)], zipfile.ZIP_LZMA), "method 14"
    yield "lying.npz", whole[: at + 24] + struct.pack("<L", 2**31) + whole[at + 28 :], "zip bomb"
    yield "unpackable.npz", whole[:36] + b"\xff" * 20 + whole[56:], "does not unpack"
    yield "bomb.npz", _npz_bomb(), "zip bomb"
    overlapped = archive([("a.npy", good), ("b.npy", good)])
    _, second = (n for n in range(len(overlapped)) if overlapped.startswith(b"PK\1\2", n))
    stolen = overlapped[: second + 42] + bytes(4) + overlapped[second + 46 :]
    yield "overlap.npz", stolen.replace(b"b.npy", b"a.npy"), "two members"
    yield "elsewhere.npz", stolen, "not where"


def _npz_bomb() -> bytes:
    """One array of 128 MB of zeros that packs a thousandfold."""
    start = _with_npy_header(
        f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({128 * MILLION - 128},)}}"
    )[:128]
    return archive([("a.npy", start + bytes(128 * MILLION - 128))], zipfile.ZIP_DEFLATED)


def safetensors(header: object, body: bytes = b"") -> bytes:
    """Return a safetensors file with this header, right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def entry(shape: object, begin: int, end: int, dtype: str = "F32") -> dict[str, object]:
    """Return the description of one tensor in such a header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def _safetensors() -> Iterator[File]:
    whole = safetensors({"a": entry([2], 0, 8)}, bytes(8))
    yield "cut.safetensors", whole[:-3], "cut short"
    yield "trailing.safetensors", whole + b"PK\5\6", "after its last tensor"
    for name, length, word in (
        ("2-63", 2**63, "announces a header"),
        ("all-ones", 2**64 - 1, "announces a header"),
        ("200mb", 200 * MILLION, "announces a header"),
        ("past-end", 5000, "in all"),
        ("short", 10, "JSON"),
    ):
        yield f"length-{name}.safetensors", struct.pack("<Q", length) + whole[8:], word
    for name, header, word in (
        ("overlap", {"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, "overlaps"),
        ("hole", {"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, "gap"),
        ("late", {"a": entry([2], 4, 12)}, "gap"),
        ("overflow", {"a": entry([2**40, 2**40], 0, 12)}, "larger than any memory"),
        ("empty-overflow", {"a": entry([0, 2**62, 2**62], 0, 0)}, "larger than any memory"),
        ("mismatch", {"a": entry([5], 0, 12)}, "; expected 20"),
        ("4gb", {"a": entry([2**30], 0, 2**32)}, "cut short"),
        ("dtype", {"a": entry([3], 0, 12, "PICKLE")}, "dtype 'PICKLE'"),
        ("f4", {"a": entry([24], 0, 12, "F4")}, "dtype 'F4'"),
        ("negative", {"a": entry([-3], 0, 12)}, "not a count"),
        ("fraction", {"a": entry([3.0], 0, 12)}, "not a count"),
        ("truth", {"a": entry([True], 0, 4)}, "not a count"),
        ("backwards", {"a": entry([3], 12, 0)}, "-12 bytes"),
        ("rank", {"a": entry([1] * 99, 0, 4)}, "not a count"),
        ("nested", {"a": {"b": entry([3], 0, 12)}}, "exactly"),
        ("extra-field", {"a": entry([3], 0, 12) | {"file": "/etc/passwd"}}, "exactly"),
        ("text", {"a": "b"}, "exactly"),
        ("metadata", {"__metadata__": {"a": 1}, "a": entry([3], 0, 12)}, "__metadata__"),
        ("metadata-list", {"__metadata__": [], "a": entry([3], 0, 12)}, "__metadata__"),
        ("no-tensors", {}, "0 tensors"),
        ("only-metadata", {"__metadata__": {"a": "b"}}, "0 tensors"),
        ("dots", {"a/../../etc": entry([3], 0, 12)}, "plain name"),
        ("escape", {"\x1b[31mred": entry([3], 0, 12)}, "printable"),
        ("newline", {"a\nb": entry([3], 0, 12)}, "printable"),
        ("nameless", {"": entry([3], 0, 12)}, "characters"),
    ):
        yield f"{name}.safetensors", safetensors(header, bytes(12)), word
    one = json.dumps(entry([2], 0, 8)).encode()
    yield "twice.safetensors", safetensors(b'{"a":' + one + b',"a":' + one + b"}", bytes(8)), "twice"
    yield "latin.safetensors", safetensors(b'{"\xff":' + one + b"}", bytes(8)), "UTF-8"
    yield "deep.safetensors", safetensors(b'{"a":' + b"[" * 10**5 + b"]" * 10**5 + b"}"), "nested deeper"
    yield "nan.safetensors", safetensors(b'{"a":NaN}'), "finite"
    yield "digits.safetensors", safetensors(b'{"a":' + b"9" * 10**5 + b"}"), "JSON"
    entries = b",".join(b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % n for n in range(100_001))
    yield "100001.safetensors", safetensors(b"{" + entries + b"}"), "100,001 tensors"
    million = b'{"a":1' + b',"b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' * MILLION + b"}"
    yield "million.safetensors", safetensors(million), "header"
    head = struct.pack("<Q", 200 * MILLION) + b'{"a":'
    yield "200mb.safetensors", lambda path: _sparse(path, head, 201 * MILLION), "header"


def _strangers() -> Iterator[File]:
    yield "empty.safetensors", b"", "empty"
    yield "two-bytes.safetensors", b"\x08\0", "not a recognised model file"
    yield "noise.bin", zlib.compress(b"noise") * 50, "not a recognised model file"
    yield "login.safetensors", b"\n<!DOCTYPE html><html><body>Please log in</body></html>", "web page"
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 346284714\n" % (b"0" * 64)
    yield "pointer.safetensors", pointer, "git lfs pull"
    yield "config.json", b'{"model_type": "vit"}', "JSON"
    yield "keras.h5", b"\x89HDF\r\n\x1a\n" + bytes(100), "HDF5"
    yield "llama.gguf", b"GGUF\3\0\0\0" + bytes(100), "GGUF"
    yield "weights.gz", b"\x1f\x8b\x08\0" + bytes(100), "gzip"
    for name, location in (("passwd", b"/etc/passwd"), ("dots", b"a/../../x")):
        graph = b"\x08\x08\x12\x07pytorch:\x20B\x0aexternal_data\x12\x08location" + location
        yield f"{name}.onnx", graph, "ONNX"


def _special() -> Iterator[File]:
    yield "pipe.safetensors", lambda path: os.mkfifo(path), "pipe or a device"
    yield "loop.safetensors", lambda path: path.symlink_to(path), "cannot be opened"
    yield "zero.safetensors", lambda path: path.symlink_to("/dev/zero"), "pipe or a device"
    yield "dangling.safetensors", lambda path: path.symlink_to("nowhere"), "does not exist"
    yield "missing.safetensors", lambda _path: None, "does not exist"

    def listen(path: Path) -> None:
        here = os.getcwd()
        os.chdir(path.parent)  # the name of a socket has at most 107 characters, a path may have more
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(path.name)
        os.chdir(here)

    yield "socket.safetensors", listen, "socket"


def _folders() -> Iterator[File]:
    shard = safetensors({"a": entry([2], 0, 8)}, bytes(8))
    index = "model.safetensors.index.json"

    def written(files: dict[str, bytes]) -> Callable[[Path], None]:
        def write(path: Path) -> None:
            path.mkdir()
            for name, data in files.items():
                (path / name).write_bytes(data)

        return write

    def sharded(places: object) -> Callable[[Path], None]:
        return written({index: json.dumps({"weight_map": places}).encode(), "one.safetensors": shard})

    yield "folder-empty", written({}), "0 safetensors", "folder"
    yield "folder-two", written({"x.safetensors": shard, "y.safetensors": shard}), "2 safetensors", "folder"
    yield "folder-pickle", written({"pytorch_model.bin": b"x"}), "saccade convert", "folder"
    yield "folder-damaged", written({"model.safetensors": shard[:-1]}), "cut short", "folder"
    for name, places, word in (
        ("outside", {"a": "../one.safetensors"}, "beside it"),
        ("absolute", {"a": "/etc/x.safetensors"}, "beside it"),
        ("up", {"a": ".."}, "beside it"),
        ("pickled", {"a": "pytorch_model.bin"}, "beside it"),
        ("number", {"a": 1}, "beside it"),
        ("missing", {"a": "one.safetensors", "b": "two.safetensors"}, "two.safetensors"),
        ("absent", {"a": "one.safetensors", "b": "one.safetensors"}, "does not have it"),
        ("no-map", None, "weight_map"),
        ("no-names", {}, "weight_map"),
    ):
        yield f"index-{name}", sharded(places), word, "folder"
    yield "index-twice", written({index: b'{"weight_map": {}, "weight_map": {}}'}), "twice", "folder"
    extra = safetensors({"a": entry([2], 0, 8), "b": entry([0], 8, 8)}, bytes(8))
    unlisted = {index: b'{"weight_map": {"a": "one.safetensors"}}', "one.safetensors": extra}
    yield "index-unlisted", written(unlisted), "does not list", "folder"


def _documents() -> Iterator[tuple[str, bytes, str]]:
    yield "deep.json", b'{"a":' * 10**5, "nested deeper"
    yield "deep-list.json", b'{"a":' + b"[" * 101 + b"]" * 101 + b"}", "nested deeper"
    yield "wide.json", b'{"a":[' + b"[]," * (3 * MILLION) + b"[]]}", "lists and objects"
    yield "nan.json", b'{"a": NaN}', "NaN"
    yield "infinity.json", b'{"a": -Infinity}', "-Infinity"
    yield "overflow.json", b'{"a": 1e999}', "1e999"
    yield "twice.json", b'{"a": {"b": 1, "b": 2}}', "'b' twice"
    yield "latin.json", '{"a": "é"}'.encode("latin-1"), "UTF-8"
    yield "wide-text.json", '{"a": "é"}'.encode("utf-16"), "UTF-8"
    yield "digits.json", b'{"a": ' + b"9" * 10**5 + b"}", "JSON"
    yield "list.json", b"[1, 2]", "JSON list"
    yield "number.json", b"3", "JSON int"
    yield "empty.json", b"", "JSON"
    yield "cut.json", b'{"a": [1, 2', "JSON"
    yield "comment.json", b'{"a": 1} // one', "JSON"
    yield "surrogate.json", b'{"a": "\\ud800"}', "surrogate"
    yield "quotes.json", b'{"a": "' + b'\\"' * (4 * MILLION), "JSON"
    yield "escape.json", b'{"\\u001b[31m": 1, "\\u001b[31m": 2}', "twice"
