"""The promise that every reader and command keeps on any input.

An exit code from the table, one short printable sentence, no file touched outside the given folders, no
connection, a few seconds of processor time, bounded memory.
"""

import contextlib
import faulthandler
import os
import sys
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from time import monotonic, process_time, sleep
from typing import Any, NamedTuple

from forked import Forked
from hypothesis import HealthCheck, settings

from saccade.errors import SaccadeError

CODES = {0, 1, 2, 3, 4, 5, 130}
LONGEST = 600
"""Characters of an error line; a path of the test's own may take 200 of them."""
HANG = 90
"""Seconds after which a stuck test ends the process with a traceback, however busy the machine is."""
USUAL = 0.08
"""Seconds that a usual core takes for a million steps of `slowness`."""
MEBIBYTE = 2**20
EXAMPLES = int(os.environ.get("SACCADE_FUZZ", "100"))
"""Cases for each reader: `make test-all` asks for 2,000."""

fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=EXAMPLES <= 100,  # the short run of CI is the same each time
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


class Done(NamedTuple):
    """What a finished command left behind."""

    code: int
    out: str
    err: str


class _Watch:
    """Record files written or removed outside the allowed folders, and every name look-up and connection.

    An audit hook cannot be removed, so there is one for the whole process, and it is switched on and off.
    """

    WRITES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.truncate",
              "os.chmod", "os.utime")  # fmt: skip
    NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")

    def __init__(self) -> None:
        self.on, self.installed = False, False
        self.allowed: tuple[str, ...] = ()
        self.servers: Container[object] = ()
        self.found: list[str] = []

    def start(self, allowed: Iterable[Path], servers: Container[object]) -> None:
        self.servers = servers
        roots = [os.path.realpath(path) for path in allowed]
        self.allowed = (*roots, "/dev/", "/proc/")
        self.found = []
        if not self.installed:
            sys.addaudithook(self._hook)
            self.installed = True
        self.on = True

    def _outside(self, path: object) -> bool:
        if isinstance(path, int):
            return False
        # not realpath of the file itself: a link inside that is removed is inside
        folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))  # type: ignore[arg-type]
        whole = os.path.join(os.path.realpath(folder), name)
        return not any(whole == root or whole.startswith(root.rstrip("/") + "/") for root in self.allowed)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in self.NETWORK:
            address = arguments[1:3] if event.endswith(("connect", "sendto")) else arguments[:2]
            address = address[0] if isinstance(address[0], tuple) else address
            if address in self.servers:
                return
            self.found.append(f"{event} {arguments[-1]!r}")
        elif event == "open":
            path, mode, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            if writes and not isinstance(path, int):
                real = os.path.realpath(os.fsdecode(path))
                if self._outside(real):
                    self.found.append(f"{event} {real} {mode}")
        elif event in self.WRITES:
            paths = arguments[:2] if event in ("os.rename", "os.link", "os.symlink") else arguments[:1]
            paths = paths[1:] if event == "os.symlink" else paths
            self.found += [f"{event} {path!r}" for path in paths if self._outside(path)]


_watch = _Watch()


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _memory(field: str, process: int | str = "self") -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), 0)


def check_sentence(sentence: str) -> str:
    """Assert that a message is one short printable line that is not an excuse of ours."""
    assert sentence, "an error without a word"
    assert "Traceback" not in sentence
    assert "fault of saccade" not in sentence, sentence
    assert "bug in saccade" not in sentence, sentence
    line = sentence.removesuffix("\n")
    assert line.isprintable(), repr(line)
    assert len(line) <= LONGEST, f"{len(line)} characters: {line}"
    return line


def slowness() -> float:
    """Return how many times longer than a usual core this one takes now; at least 1.

    Processor time grows on a virtual machine whose host is busy, and no test may fail for that.
    """
    start = process_time()
    sum(i * i for i in range(1_000_000))
    return max(1.0, (process_time() - start) / USUAL)


def keeps_promise(
    action: Callable[[], object],
    *inside: Path,
    seconds: float = 5,
    mebibytes: int = 300,
    servers: Container[object] = (),
) -> SaccadeError | None:
    """Run a reader in this process and return its refusal, or None if it found nothing to refuse.

    Args:
        inside: the folders that it may write to.
        servers: the addresses (host, port) that it may connect to.
    """
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    before, start = _memory("VmRSS"), process_time()
    _reset_peak()
    refused: SaccadeError | None = None
    faulthandler.dump_traceback_later(HANG, exit=True, file=sys.__stderr__)
    _watch.start(inside, servers)
    try:
        action()
    except SaccadeError as error:
        refused = error
    finally:
        _watch.on = False
        faulthandler.cancel_dump_traceback_later()
        sys.dont_write_bytecode = bytecode
    assert not _watch.found, _watch.found
    took = process_time() - start
    assert took <= seconds or took <= seconds * slowness()
    assert _memory("VmHWM") - before <= mebibytes * MEBIBYTE
    if refused is not None:
        assert refused.exit_code in CODES
        check_sentence(" ".join(str(refused).split("\n")))
    return refused


class _Usage(NamedTuple):
    ended: bool
    code: int
    seconds: float
    peak: int
    """Bytes, as seen every 20 ms; `ru_maxrss` would count the memory of the process that forked as well."""


def _wait(process: Forked, seconds: float) -> _Usage:
    """Wait for a process and return how it ended and what it used; kill it if it does not end."""
    end, peak = monotonic() + seconds, 0
    while True:
        with contextlib.suppress(OSError):
            peak = max(peak, _memory("VmHWM", process.pid))
        late = monotonic() >= end
        if late:
            process.kill()
            process.wait()
        code = process.poll()
        if code is not None:
            return _Usage(not late, code, process.seconds, peak)
        sleep(0.02)


def command(
    *words: object,
    cwd: Path,
    code: int | None = None,
    env: Mapping[str, str] | None = None,
    seconds: float = 20,
    mebibytes: int = 1500,
    limits: Mapping[int, int] | None = None,
) -> Done:
    """Run `saccade WORDS` in a process of its own and check the promise; `code` is the exit code expected.

    Args:
        seconds: of processor time, so that a busy machine fails no test.
        mebibytes: of resident memory; importing torch takes some 300 of them.
        limits: soft and hard limits such as {resource.RLIMIT_NOFILE: 24}.
    """

    out, err = cwd / ".stdout", cwd / ".stderr"
    with out.open("wb") as to_out, err.open("wb") as to_err:
        environment = {**os.environ, **(env or {})}
        process = Forked(words, cwd=cwd, stdout=to_out, stderr=to_err, env=environment, limits=limits)
        used = _wait(process, HANG)
    assert used.ended, f"saccade {' '.join(map(str, words))} hangs"
    done = Done(used.code, out.read_text(errors="replace"), err.read_text(errors="replace"))
    out.unlink()
    err.unlink()
    assert done.code in CODES if code is None else done.code == code, done
    if done.code in {2, 3, 4, 5}:
        check_sentence(next(line for line in done.err.splitlines() if "error:" in line))
    assert "Traceback" not in done.err
    assert "panicked" not in done.err
    assert used.seconds <= seconds or used.seconds <= seconds * slowness(), done
    assert used.peak <= mebibytes * MEBIBYTE, done
    return done
