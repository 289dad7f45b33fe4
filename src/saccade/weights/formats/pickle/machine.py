"""The pickles that torch writes, read by a stack machine that has no way to call anything.

Python's own unpickler calls what the file names, if an allow-list lets it. Here nothing can be called: a name
is looked up in `STORAGES`, `TENSORS`, ... and becomes a description, and any other name is refused.
"""

import math
import pickletools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from mmap import mmap
from typing import Any

from saccade.files.paths import Flaw
from saccade.weights.formats.safetensors import RANK, SIZES
from saccade.wording import printable

ADVICE = "nothing was executed; ask its author for safetensors or a plain state_dict"
TORCH_MAGIC = 0x1950A86A20F9469CFC6C
"""The first number of the checkpoints that torch wrote before 1.6."""
OPERATIONS = 500_000
TAKEN = 64_000_000

STORAGES = {
    f"{module} {name}Storage": dtype
    for module in ("torch", "torch.cuda")
    for name, dtype in {
        "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
        "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
        "ComplexFloat": "complex64",
    }.items()
} | {"torch.storage UntypedStorage": "uint8", "torch UntypedStorage": "uint8"}  # fmt: skip
NUMBERS = {f"torch {dtype}" for dtype in SIZES}
TENSORS = {f"torch._utils _rebuild_tensor{version}" for version in ("", "_v2", "_v3")}
PARAMETERS = {"torch._utils _rebuild_parameter", "torch._utils _rebuild_parameter_with_state"}
CONTAINERS = {"collections OrderedDict", "torch Size"}
# Training scripts (timm, DeiT, MAE) store their arguments and a best score beside the weights; refusing these
# would refuse the weights. As nothing is called here, they become `Inert`: no state, no behaviour, dropped.
INERT = {
    "argparse Namespace", "numpy.core.multiarray scalar", "numpy._core.multiarray scalar",
    "numpy dtype", "_codecs encode", "torch device", "collections Counter", "pathlib PosixPath",
}  # fmt: skip
ALLOWED = STORAGES.keys() | NUMBERS | TENSORS | PARAMETERS | CONTAINERS | INERT


@dataclass(frozen=True, slots=True)
class Storage:
    """A record of raw numbers elsewhere in the file."""

    key: str
    dtype: str
    count: int


@dataclass(frozen=True, slots=True)
class View:
    """A tensor: which numbers of a storage, in which order, in units of its own dtype."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def check(self) -> None:
        """Refuse a tensor that would read outside its storage."""
        if len(self.shape) != len(self.stride) or len(self.shape) > RANK:
            raise Flaw(f"has a tensor of {len(self.shape)} sizes and {len(self.stride)} strides", ADVICE)
        if not all(type(n) is int and 0 <= n < 2**62 for n in (self.offset, *self.shape, *self.stride)):
            raise Flaw("has a tensor whose sizes, strides or offset are not counts", ADVICE)
        last = self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        end = (last + 1) * SIZES[self.dtype] if math.prod(self.shape) else 0
        if end > self.storage.count * SIZES[self.storage.dtype]:
            raise Flaw(
                f"has a tensor that reads {end:,} bytes of storage '{printable(self.storage.key)}', "
                "past its end",
                ADVICE,
            )

    def numbers(self, record: memoryview) -> bytes | memoryview:
        """Return the raw numbers in row-major order: a view if they are stored that way, else a copy."""
        count = math.prod(self.shape)
        width = SIZES[self.dtype]
        if not count:
            return b""
        if self.stride == _row_major(self.shape) or count == 1:
            return record[self.offset * width : (self.offset + count) * width]
        words = record[: len(record) // width * width].cast({1: "B", 2: "H", 4: "I", 8: "Q"}[width])  # type: ignore[call-overload]
        *outer, (length, step) = zip(self.shape, self.stride, strict=True)
        rows = [self.offset]
        for size, stride in outer:
            rows = [row + n * stride for row in rows for n in range(size)]
        if not step:
            return b"".join(words[row : row + 1].tobytes() * length for row in rows)
        return b"".join(words[row : row + (length - 1) * step + 1 : step].tobytes() for row in rows)


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))


@dataclass(frozen=True, slots=True)
class Named:
    """An allowed "module name", which is all that this machine knows of it."""

    name: str


@dataclass(frozen=True, slots=True)
class Inert:
    """Something beside the weights, of which only the type's name is kept."""

    name: str


class Tape:
    """A mapped file as `pickletools` reads it: strings of bounded length from a bounded stretch."""

    def __init__(self, data: mmap, start: int, end: int) -> None:
        self.data, self.at, self.end = data, start, end

    def tell(self) -> int:
        return self.at

    def read(self, count: int) -> bytes:
        stop = min(self.at + count, self.end)
        if stop - self.at > TAKEN:
            raise Flaw(f"is a pickle with one value of {count:,} bytes; expected tensors and their names")
        taken = self.data[self.at : stop]
        self.at = stop
        return taken

    def readline(self) -> bytes:
        newline = self.data.find(b"\n", self.at, min(self.at + 10_000, self.end))
        return self.read(newline + 1 - self.at) if newline >= 0 else b""


class Machine:
    """Executes the opcodes that torch.save writes; `storages` then lists what the tensors refer to."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}

    def run(self, tape: Tape) -> object:
        """Read one pickle up to its STOP and return what it describes."""
        self.stack, self.marks, self.memo = [], [], {}
        try:
            for count, (opcode, argument, _) in enumerate(pickletools.genops(tape)):  # type: ignore[arg-type]
                if opcode.name == "STOP":
                    return self.stack.pop()
                if count > OPERATIONS:
                    raise Flaw(f"is a pickle of more than the {OPERATIONS:,} operations expected", ADVICE)
                if opcode.name in PUSHES:
                    self.stack.append(argument)
                elif opcode.name in STEPS:
                    STEPS[opcode.name](self, argument)
                else:
                    raise Flaw(
                        f"is a pickle with the opcode {opcode.name}, which torch does not write", ADVICE
                    )
        except IndexError:
            raise Flaw("is a broken pickle, which takes more from its stack than is there", ADVICE) from None
        except (ValueError, OverflowError, struct.error, Warning) as error:
            raise Flaw(f"is a broken pickle ({printable(error, 80)})", ADVICE) from None
        raise Flaw("is a pickle without an end", ADVICE)

    def cut(self) -> list[Any]:
        """Take everything above the last mark."""
        at = self.marks.pop()
        items = self.stack[at:]
        del self.stack[at:]
        return items

    def take(self, count: int) -> list[Any]:
        """Take the uppermost `count` items, the lowest first."""
        return [self.stack.pop() for _ in range(count)][::-1]

    def remember(self, index: int | None = None) -> None:
        self.memo[len(self.memo) if index is None else index] = self.stack[-1]

    def recall(self, index: int) -> None:
        if index not in self.memo:
            raise Flaw(f"is a broken pickle, which recalls item {index:,} that it never stored", ADVICE)
        self.stack.append(self.memo[index])

    def name(self, wanted: str) -> None:
        """Push an allowed "module name"; refuse every other one."""
        if wanted not in ALLOWED:
            name = printable(wanted.replace(" ", "."), 100)
            raise Flaw(
                f"is a pickle that wants to call {name}; expected tensors and plain containers",
                ADVICE,
            )
        self.stack.append(Named(wanted))

    def extend(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise Flaw(f"is a pickle that appends to a {_noun(self.stack[-1])}; expected a list", ADVICE)
        self.stack[-1].extend(items)

    def update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict:
            raise Flaw(f"is a pickle that sets items of a {_noun(target)}; expected a dictionary", ADVICE)
        if len(items) % 2:
            raise Flaw("is a broken pickle, with a key that has no value", ADVICE)
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Small numbers and salted text only: large integers can be chosen so that every hash collides.
            if not (isinstance(key, str) or (isinstance(key, int) and abs(key) < 2**31)):
                raise Flaw(f"is a pickle with a {_noun(key)} as a key; expected a name or a number", ADVICE)
            target[key] = value

    def build(self) -> None:
        """Throw an object's state away: `_metadata` of a state dict, or the fields of something inert."""
        self.stack.pop()
        if not isinstance(self.stack[-1], dict | Inert | View):
            raise Flaw(f"is a pickle that sets the state of a {_noun(self.stack[-1])}", ADVICE)

    def persist(self) -> None:
        match self.stack.pop():
            case ("storage", Named(name), str(key), str(), int(count), *view) if (
                name in STORAGES and view in ([], [None])
            ):
                storage = Storage(key, STORAGES[name], count)
            case _:
                raise Flaw("is a pickle with a reference to something other than a torch storage", ADVICE)
        if not 0 <= count < 2**62 or self.storages.setdefault(key, storage) != storage:
            raise Flaw(
                f"describes the storage '{printable(key)}' in two ways, or with an impossible size", ADVICE
            )
        self.stack.append(storage)

    def make(self) -> None:
        """What REDUCE means here: describe what the call would have made."""
        function, arguments = self.take(2)
        match function, arguments:
            case Named("collections OrderedDict"), []:
                self.stack.append({})
            case Named("collections OrderedDict"), [list(pairs)] if all(map(_is_pair, pairs)):
                self.stack.append({})
                self.update([part for pair in pairs for part in pair])
            case Named("torch Size"), [tuple(sizes)]:
                self.stack.append(sizes)
            case Named(name), [View() as view, *_] if name in PARAMETERS:
                self.stack.append(view)
            case Named(name), [Storage() as storage, offset, tuple(shape), tuple(stride), *rest] if (
                name in TENSORS
            ):
                view = View(storage, _dtype(name, storage, rest), offset, shape, stride)
                view.check()
                self.stack.append(view)
            case Named(name), tuple() if name in INERT:
                self.stack.append(Inert(name))
            case _:
                raise Flaw(f"is a pickle that calls a {_noun(function)} in a way torch never does", ADVICE)


def _dtype(name: str, storage: Storage, rest: list[Any]) -> str:
    if not name.endswith("_v3"):
        return storage.dtype
    match rest:
        case [_, _, Named(dtype), *_] if dtype in NUMBERS:
            return dtype.removeprefix("torch ")
    raise Flaw("is a pickle with a tensor of a dtype that safetensors does not have", ADVICE)


def _is_pair(value: object) -> bool:
    return type(value) in (list, tuple) and len(value) == 2  # type: ignore[arg-type]


def _noun(value: object) -> str:
    return value.name.replace(" ", ".") if isinstance(value, Named | Inert) else type(value).__name__


Step = Callable[[Machine, Any], object]
PUSHES = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"} | {
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
STEPS: dict[str, Step] = {
    "PROTO": lambda _m, _a: None,
    "FRAME": lambda _m, _a: None,
    "NONE": lambda m, _: m.stack.append(None),
    "NEWTRUE": lambda m, _: m.stack.append(True),
    "NEWFALSE": lambda m, _: m.stack.append(False),
    "MARK": lambda m, _: m.marks.append(len(m.stack)),
    "POP": lambda m, _: m.stack.pop(),
    "POP_MARK": lambda m, _: m.cut(),
    "DUP": lambda m, _: m.stack.append(m.stack[-1]),
    "EMPTY_LIST": lambda m, _: m.stack.append([]),
    "EMPTY_TUPLE": lambda m, _: m.stack.append(()),
    "EMPTY_DICT": lambda m, _: m.stack.append({}),
    "LIST": lambda m, _: m.stack.append(m.cut()),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.cut())),
    "TUPLE1": lambda m, _: m.stack.append(tuple(m.take(1))),
    "TUPLE2": lambda m, _: m.stack.append(tuple(m.take(2))),
    "TUPLE3": lambda m, _: m.stack.append(tuple(m.take(3))),
    "APPEND": lambda m, _: m.extend(m.take(1)),
    "APPENDS": lambda m, _: m.extend(m.cut()),
    "SETITEM": lambda m, _: m.update(m.take(2)),
    "SETITEMS": lambda m, _: m.update(m.cut()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), Machine.remember),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), Machine.recall),
    "GLOBAL": Machine.name,
    "INST": Machine.name,
    # Text only: the str() of a list that holds itself many times over never ends.
    "STACK_GLOBAL": lambda m, _: m.name(" ".join(part if type(part) is str else "?" for part in m.take(2))),
    "REDUCE": lambda m, _: m.make(),
    "NEWOBJ": lambda m, _: m.make(),
    "BUILD": lambda m, _: m.build(),
    "BINPERSID": lambda m, _: m.persist(),
}
