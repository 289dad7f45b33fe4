"""The program of the restricted process that `unpickle` starts: torch checkpoint in, safetensors out.

It gets two open files and needs nothing else from the machine, so it gives up all other rights before it
reads the first byte of the checkpoint. torch is never imported.
"""

import codecs
import ctypes
import errno
import gc
import json
import os
import resource
import struct
import sys
import warnings
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from typing import Any

from saccade.files.paths import Flaw, check_name
from saccade.weights.formats.pickle.machine import ADVICE, TORCH_MAGIC, Machine, Tape, View
from saccade.weights.formats.safetensors import SIZES, Header, arrange, nbytes, write_header
from saccade.weights.formats.zip import STORED, check_stored, content, members
from saccade.wording import printable

FORBIDDEN = 77
SECONDS = 60
NESTS = ("state_dict", "model", "module", "model_state", "teacher", "student", "model_ema", "state_dict_ema")
"""Where training scripts keep the weights, best guess first."""
LEVELS = 3
Records = dict[str, tuple[int, int]]


def room(size: int) -> int:
    """Return the most bytes that the output may have: shared and expanded tensors are written out in full."""
    return 4 * size + 64 * 2**20


def confine(size: int) -> None:
    """Give up memory, time, network, processes and the right to open anything; there is no way back."""
    limits = {
        resource.RLIMIT_CPU: SECONDS,
        resource.RLIMIT_AS: 4 * size + 512 * 2**20,
        resource.RLIMIT_FSIZE: room(size),
        resource.RLIMIT_NOFILE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_CORE: 0,
    }
    for limit, value in limits.items():
        try:
            resource.setrlimit(limit, (value, value))
        except (OSError, ValueError):  # a lower limit is in force already, or macOS, which has no RLIMIT_AS
            continue
    if sys.platform == "linux":
        system = ctypes.CDLL(None)
        system.prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG: killed together with the process that waits for it
        system.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
        if system.unshare(0x40000000):  # CLONE_NEWNET, which needs a user namespace unless we are root
            system.unshare(0x10000000 | 0x40000000)
    sys.addaudithook(_forbid)


def _forbid(_event: str, _arguments: tuple[Any, ...]) -> None:
    # Reading a checkpoint raises no audit event at all, so no list of bad ones is needed; and leaving at
    # once, unlike an exception, cannot be caught.
    os._exit(FORBIDDEN)


def read_zip(data: mmap) -> tuple[object, Records]:
    """Read what a checkpoint of the zip format describes, and where the numbers of each storage lie."""
    files = members(data)
    root = next(iter(files)).partition("/")[0]
    outside = next((name for name in files if not name.startswith(f"{root}/")), None)
    if outside is not None:
        found = (
            f"is a torch checkpoint with '{printable(outside)}' outside its one folder '{printable(root)}'"
        )
        raise Flaw(found, ADVICE)
    if f"{root}/data.pkl" not in files:
        raise Flaw(f"is a torch checkpoint without '{printable(root)}/data.pkl'", ADVICE)
    for member in files.values():
        if member.method != STORED:
            raise Flaw(
                f"is a torch checkpoint with the compressed member '{printable(member.name)}', "
                "as in a zip bomb",
                ADVICE,
            )
    order = files.get(f"{root}/byteorder")
    if order and content(data, order) != b"little":
        raise Flaw("is a torch checkpoint of a big-endian machine; expected little-endian numbers")
    pickle = files[f"{root}/data.pkl"]
    check_stored(data, pickle)
    machine = Machine()
    tree = machine.run(Tape(data, pickle.start, pickle.start + pickle.size))
    records = {}
    for key in machine.storages:
        record = files.get(f"{root}/data/{key}")
        if record is None:
            raise Flaw(
                f"is a torch checkpoint without its record 'data/{printable(key)}', "
                "as after a broken download"
            )
        check_stored(data, record)
        records[key] = record.start, record.size
    return tree, _checked(machine, records)


def read_legacy(data: mmap) -> tuple[object, Records]:
    """Read a checkpoint of the format before 1.6: five pickles in a row, then the numbers of each storage."""
    tape, machine = Tape(data, 0, len(data)), Machine()
    if machine.run(tape) != TORCH_MAGIC or machine.run(tape) != 1001:
        raise Flaw("starts like a torch checkpoint but is not one of a known version")
    match machine.run(tape):
        case {"little_endian": True}:
            pass
        case _:
            raise Flaw("is a torch checkpoint of a big-endian machine; expected little-endian numbers")
    tree, keys, records = machine.run(tape), machine.run(tape), {}
    at = tape.tell()
    for key in keys if isinstance(keys, list) else []:
        storage = machine.storages.get(key) if isinstance(key, str) else None
        if storage is None or at + 8 > len(data):
            raise Flaw("lists a storage that no tensor uses or that is cut short, as after a broken download")
        (count,) = struct.unpack_from("<q", data, at)
        if count != storage.count:
            raise Flaw(f"has a storage '{printable(key)}' with {count:,} numbers; expected {storage.count:,}")
        records[key] = at + 8, min(count * SIZES[storage.dtype], len(data) - at - 8)
        at += 8 + count * SIZES[storage.dtype]
    records = _checked(machine, records)
    if at != len(data):
        raise Flaw(f"has {len(data):,} bytes; its storages end at {at:,}")
    return tree, records


def _checked(machine: Machine, records: Records) -> Records:
    for key, storage in machine.storages.items():
        size, held = storage.count * SIZES[storage.dtype], records.get(key, (0, 0))[1]
        if size > held:
            raise Flaw(
                f"has a storage '{printable(key)}' that claims {size:,} bytes; its record holds {held:,}",
                ADVICE,
            )
    return records


def choose(tree: object) -> tuple[dict[str, View], str, list[str]]:
    """Find the state dict: the tensors by name, the keys that led to them, and what was left behind."""
    way: list[str] = []
    dropped: list[str] = []
    for levels in range(LEVELS)[::-1]:  # a fixed number, because a dictionary can contain itself
        nest = next((key for key in NESTS if isinstance(tree, dict) and _nested(tree.get(key), levels)), None)
        if nest is None or not isinstance(tree, dict):
            break
        dropped += [".".join([*way, str(key)]) for key in tree if key != nest]
        way.append(nest)
        tree = tree[nest]
    if not isinstance(tree, dict) or not _nested(tree, 0):
        raise Flaw("is a pickle without a dictionary of tensors; expected a state_dict", ADVICE)
    found = {name: view for name, view in tree.items() if isinstance(name, str) and isinstance(view, View)}
    dropped += [".".join([*way, str(key)]) for key in tree if key not in found]
    for name in found:
        check_name(name)
    return found, ".".join(way), [printable(name) for name in dropped]


def _nested(tree: object, levels: int) -> bool:
    """Return whether a dictionary has tensors, itself or at most this many levels down."""
    if not isinstance(tree, dict):
        return False
    return any(isinstance(value, View) for value in tree.values()) or (
        levels > 0 and any(_nested(tree.get(key), levels - 1) for key in NESTS)
    )


def parts(data: mmap, views: dict[str, View], records: Records, limit: int) -> Iterator[bytes | memoryview]:
    """Yield the safetensors file piece by piece."""
    headers = {name: Header(view.shape, view.dtype) for name, view in views.items()}
    total = sum(map(nbytes, headers.values()))
    if total > limit:
        raise Flaw(f"describes {total:,} bytes of tensors; expected at most {limit:,}", ADVICE)
    yield write_header(headers, {})
    for name in arrange(headers):
        start, size = records[views[name].storage.key]
        part = views[name].numbers(memoryview(data)[start : start + size])
        if views[name].dtype == "bool" and bytes(part).strip(b"\0\1"):
            raise Flaw(f"has tensor '{printable(name)}' of booleans with bytes other than 0 and 1", ADVICE)
        yield part


def convert(kind: str, data: mmap, target: int) -> dict[str, object]:
    """Write the tensors of a mapped checkpoint to an open file and return a report."""
    if kind == "pickle":
        machine = Machine()
        machine.run(Tape(data, 0, len(data)))
        raise Flaw("is a pickle without the tensors of a torch checkpoint; expected a state_dict", ADVICE)
    tree, records = read_zip(data) if kind == "torch" else read_legacy(data)
    views, chosen, dropped = choose(tree)
    for part in parts(data, views, records, room(len(data)) - 32 * 2**20):
        with memoryview(part) as left:
            at = 0
            while at < len(left):
                at += os.write(target, left[at:])
    return {"tensors": len(views), "chosen": chosen, "dropped": dropped[:1000]}


def main(kind: str, source: str, target: str) -> None:
    """Confine this process, convert, print the result as one line of JSON, and exit."""
    data = mmap(int(source), 0, access=ACCESS_READ)
    gc.disable()  # it would keep scanning a million objects that all stay
    warnings.simplefilter("ignore")  # showing one would open a file
    codecs.lookup("raw-unicode-escape")  # pickles of protocol 0 need it, and importing it later is forbidden
    confine(len(data))
    try:
        result = convert(kind, data, int(target))
    except Flaw as flaw:
        result = {"found": flaw.found, "remedy": flaw.remedy}
    except MemoryError:
        result = {"found": "needs more memory to read than four times its size", "remedy": ADVICE}
    except OSError as error:
        result = {"errno": error.errno or errno.EIO}
    except Exception as error:  # the parent must get a sentence, whatever the file did to this process
        result = {
            "found": f"cannot be read as a torch checkpoint ({type(error).__name__})",
            "remedy": ADVICE,
        }
    os.write(1, json.dumps(result).encode() + b"\n")
    os._exit(0)
