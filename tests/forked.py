"""Commands in processes of their own that need not import anything: forks of one server with torch loaded.

Importing torch and saccade takes seconds, and hundreds of tests run a command. A fork is an ordinary process
(exit code, streams, signals, limits, memory) except that all modules are there already, and that variables
which Python and torch read at their start, such as PYTHONPATH and OMP_NUM_THREADS, are those of the server.
Tests of imports, of start-up time and of what a fresh process writes or looks up start Python themselves.
"""

import atexit
import contextlib
import functools
import gc
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

COMMAND = "from saccade.cli.app import main; main()"
PIPE = subprocess.PIPE


@functools.cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = [sys.executable, __file__, str(theirs.fileno())]
    process = subprocess.Popen(
        words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait(30)

    atexit.register(end)
    return ours


class Forked:
    """A running command, with the methods of `subprocess.Popen` that the tests use."""

    def __init__(
        self,
        words: Sequence[object],
        *,
        code: str = COMMAND,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdout: int | IO[Any] = subprocess.DEVNULL,
        stderr: int | IO[Any] = subprocess.DEVNULL,
        limits: Mapping[int, int] | None = None,
        more: Sequence[int] = (),
    ) -> None:
        """Start `saccade WORDS`, or a program as `python -c` would.

        Args:
            limits: soft and hard limits, such as {resource.RLIMIT_NOFILE: 24}.
            more: file descriptors that the program finds, as numbers, in `more`.
        """
        self.returncode: int | None = None
        self.seconds = 0.0
        """Processor time, known when it has ended."""
        request = {
            "words": [os.fsdecode(w) if isinstance(w, bytes | Path) else str(w) for w in words],
            "code": code,
            "cwd": os.fspath(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "limits": list((limits or {}).items()),
        }
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        nothing = os.open(os.devnull, os.O_RDWR)
        mine: list[IO[str] | None] = []
        given = []
        for stream in (stdout, stderr):
            if stream == PIPE:
                read, write = os.pipe()
                mine.append(os.fdopen(read, encoding="utf-8", errors="replace"))
                given.append(write)
            else:
                mine.append(None)
                given.append(os.dup(nothing if stream == subprocess.DEVNULL else _number(stream)))
        self.stdout, self.stderr = mine
        with tempfile.TemporaryFile() as file:  # it may be too long for a message
            file.write(json.dumps(request).encode())
            file.seek(0)
            every = [theirs.fileno(), file.fileno(), nothing, *given, *more]
            socket.send_fds(_server(), [b"?"], every)
        theirs.close()
        for each in (nothing, *given):
            os.close(each)
        self.pid = int(self._link.recv(100))

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; minus its number after a signal."""
        if self.returncode is None:
            self._link.settimeout(timeout)
            try:
                self.returncode, self.seconds = json.loads(self._link.recv(100))
            except TimeoutError:
                raise subprocess.TimeoutExpired("saccade", timeout or 0) from None
            self._link.close()
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired, BlockingIOError):
            return self.wait(0)
        return None

    def communicate(self, timeout: float | None = None) -> tuple[str | None, str | None]:
        """Wait, then read what is in the pipes: a command here prints less than they hold."""
        self.wait(timeout)
        out, err = (stream and stream.read() for stream in (self.stdout, self.stderr))
        self._close()
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        self.wait()

    def _close(self) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()


def _number(stream: int | IO[Any]) -> int:
    return stream if isinstance(stream, int) else stream.fileno()


def run(
    *words: object, check: bool = False, timeout: float = 120, **how: Any
) -> subprocess.CompletedProcess[str]:
    """Run `saccade WORDS` and return its exit code and what it printed."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = Forked(words, stdout=out, stderr=err, **how)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        printed = [os.pread(file.fileno(), 2**30, 0).decode(errors="replace") for file in (out, err)]
    done = subprocess.CompletedProcess(["saccade", *words], code, *printed)
    assert not (check and code), done
    return done


def _warm_up() -> None:
    """Import what commands import, except what starts threads or must be told first not to phone home."""
    import importlib
    import pkgutil

    import torch
    import torch._dynamo

    import saccade

    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(saccade.__path__, "saccade."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def _serve(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Answer requests; return in a child only, with its request and its further file descriptors."""
    while True:
        asked, given, *_ = socket.recv_fds(control, 1, 16)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not asked:
            os._exit(0)  # a second less than torch takes to leave
        if os.fork():
            for each in given:
                os.close(each)
            continue
        control.close()
        link, request, *streams = given
        child = os.fork()
        if child:
            for each in (request, *streams):
                os.close(each)
            os.write(link, str(child).encode())
            _, status, used = os.wait4(child, 0)
            with contextlib.suppress(BrokenPipeError):
                seconds = used.ru_utime + used.ru_stime
                os.write(link, json.dumps([os.waitstatus_to_exitcode(status), seconds]).encode())
            os._exit(0)
        os.close(link)
        for number, each in enumerate(streams[:3]):
            os.dup2(each, number)
            os.close(each)
        with os.fdopen(request) as file:
            return json.load(file), streams[3:]


def _prepare(request: dict[str, Any]) -> str:
    """Become the process that was asked for, and return its program."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    for what, most in request["limits"]:
        resource.setrlimit(what, (most, most))
    sys.argv = ["saccade", *request["words"]]
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    return request["code"]


def _leave(code: int) -> None:
    """End as an interpreter ends, except that it does not take all modules apart, which takes a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = 120
    os._exit(code)


if __name__ == "__main__":
    _control = socket.socket(fileno=int(sys.argv[1]))
    _control.set_inheritable(False)
    _warm_up()
    gc.freeze()
    asked, more = _serve(_control)
    try:
        exec(_prepare(asked))
        ended = 0
    except SystemExit as error:
        ended = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        ended = 1
    _leave(ended)
