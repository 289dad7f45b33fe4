"""Convert untrusted torch checkpoints to safetensors in a process without any rights."""

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import Any

from saccade.errors import ResourceError
from saccade.files.atomic import replacing
from saccade.files.paths import Flaw, open_file, refusal
from saccade.files.strict_json import parse_json
from saccade.weights.formats.pickle.child import FORBIDDEN
from saccade.weights.formats.pickle.machine import ADVICE
from saccade.weights.formats.safetensors import read_headers
from saccade.weights.formats.tensors import PICKLES, headers_of, kind_of, unreadable
from saccade.wording import printable

PATIENCE = 300
START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from saccade.weights.formats.pickle.child import main; main(*sys.argv[2:])"
)


@dataclass(frozen=True, slots=True)
class Report:
    """What `unpickle` took from a checkpoint, and from where in it."""

    tensors: int
    chosen: str
    """The key that led to the state dict, as "model" or "teacher.state_dict"; empty for the file itself."""
    dropped: tuple[str, ...]
    """The entries beside the weights that were left behind: an optimiser, an epoch, arguments."""


def unpickle(path: Path, out: Path) -> Report:
    """Write the tensors of a torch checkpoint to a new safetensors file; nothing in it is ever executed."""
    if path.is_dir():
        raise refusal(path, Flaw("is a folder; expected a torch checkpoint", "give the file in it"))
    with open_file(path) as source:
        what = kind_of(source)
        if what in ("safetensors", "npz", "zip"):
            headers_of(path, source)  # a damaged file gets its own message
        if what not in PICKLES:
            raise refusal(path, _not_a_pickle(path, what))
        size = os.fstat(source.fileno()).st_size
        with replacing(out, size) as target:
            try:
                return _report(path, _run(path, what, source, target), target)
            except Flaw as flaw:
                raise refusal(path, Flaw(f"was converted to something that {flaw.found}", ADVICE)) from flaw


def _not_a_pickle(path: Path, what: str) -> Flaw:
    if what in ("safetensors", "npz"):
        return Flaw(f"is a {what} file already; expected a torch checkpoint", "use it as it is")
    return unreadable(path, what)


def _run(path: Path, what: str, source: BufferedReader, target: BufferedRandom) -> dict[str, Any]:
    """Start the restricted process with two open files and an empty folder, and return its one line."""
    files = (source.fileno(), target.fileno())
    root = str(Path(__file__).parents[2])
    # -I: neither environment nor current folder decides what is imported; -B: nothing is cached on disk.
    command = [sys.executable, "-I", "-B", "-c", START, root, what, *map(str, files)]
    try:
        with tempfile.TemporaryDirectory(prefix="saccade-") as empty:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=files,
                cwd=empty,
                env={"HOME": empty},  # without it Python asks the user database, which may be on the network
                timeout=PATIENCE,
                check=False,
            )
    except subprocess.TimeoutExpired:
        found = f"kept the restricted process busy for {PATIENCE} seconds"
        raise refusal(path, Flaw(found, ADVICE)) from None
    except OSError as error:
        words = f"no process could be started to read {printable(path)} ({error.strerror})"
        raise ResourceError(f"{words}; free some memory or disk and try again") from error
    if done.returncode:
        raise refusal(path, Flaw(f"stopped the process that read it ({_ending(done.returncode)})", ADVICE))
    return parse_json(done.stdout)


def _ending(code: int) -> str:
    if code < 0:
        return signal.strsignal(-code) or f"signal {-code}"
    return "it tried something forbidden" if code == FORBIDDEN else f"exit code {code}"


def _report(path: Path, verdict: dict[str, Any], target: BufferedRandom) -> Report:
    """Return the report of the restricted process; trust neither it nor the file before both are checked."""
    match verdict:
        case {"errno": int(code)}:
            raise OSError(code, os.strerror(code))
        case {"found": str(found), "remedy": str(remedy)}:
            raise refusal(path, Flaw(printable(found, 500), printable(remedy)))
        case {"tensors": int(count), "chosen": str(chosen), "dropped": [*dropped]}:
            held = len(read_headers(target.fileno()))
            if held == count:
                return Report(count, printable(chosen), tuple(map(printable, dropped)))
    raise refusal(
        path, Flaw("made the process that read it report something other than what it wrote", ADVICE)
    )
