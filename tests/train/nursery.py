"""Runs in forked processes, to be killed, deceived or hurt at a named point.

What is patched is patched in the child only.
"""

import errno
import json
import os
import pathlib
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from forked import Forked

CHILD = f"import sys; sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]!r}; "
CHILD += "import nursery; sys.exit(nursery.child(more[0]))"
POINTS = (
    "temporary",  # before a temporary file is made
    "write",  # in the middle of a write into one
    "fsync",  # before a file or folder is synced
    "rename",  # before a file or folder is given its name
    "renamed",  # after it
    "remove",  # while a folder, an old checkpoint, is removed
    "score",  # between two batches of unseen pictures
    "epoch",  # as an epoch begins to be scored
    "turn",  # after it was scored and saved
    "log",  # in the middle of a line of events.jsonl
    "best",  # between the files of the best model
)


def ask(do: str, *words: object, **plan: Any) -> dict[str, Any]:
    """Fork, `do` (begin, resume or cli), wait, and return the exit code and how many seconds it took.

    plan: `point` and `nth` for a kill there, or for another signal that is `sent`, or for an `error` (the
    name of an OSError) at that call and, with `always`, at all later ones; `delay` and `signal` for
    signals after so many seconds; `told` for the file that standard error goes to.
    """
    job = {"do": do, "words": [str(word) for word in words], **plan}
    heard, ready = os.pipe()
    began = time.monotonic()
    process = Forked([json.dumps(job, default=str)], code=CHILD, more=[ready])
    os.close(ready)
    os.read(heard, 1)  # from here on signals are expected
    os.close(heard)
    for delay, number in zip(plan.get("delay", []), plan.get("signal", []), strict=True):
        time.sleep(max(0.0, delay - (time.monotonic() - began)))
        process.send_signal(number)
    return {"code": process.wait(), "seconds": time.monotonic() - began}


class Shim:
    """Counts the calls at each point, and strikes at the one that was asked for."""

    def __init__(self, job: dict) -> None:
        self.job, self.calls = job, Counter()

    def at(self, point: str, half=None) -> None:
        self.calls[point] += 1
        wanted, nth = self.job.get("point"), self.job.get("nth", 1)
        late = self.calls[point] > nth and self.job.get("always")
        if point != wanted or not (self.calls[point] == nth or late):
            return
        if half is not None:
            half()
        if "error" in self.job:
            number = getattr(errno, self.job["error"])
            raise OSError(number, os.strerror(number))
        os.kill(os.getpid(), self.job.get("sent", signal.SIGKILL))

    def around(self, owner, name: str, before: str = "", after: str = "", half=None, when=None) -> None:
        """Put the points before and after a function in its place."""
        ordinary = getattr(owner, name)

        def patched(*words, **named):
            chosen = when is None or when(*words)
            if before and chosen:
                self.at(before, half and (lambda: half(*words)))
            found = ordinary(*words, **named)
            if after and chosen:
                self.at(after)
            return found

        setattr(owner, name, patched)

    def install(self) -> None:
        import saccade.tasks.classify.job
        import saccade.weights.save
        from saccade.train.run import Run

        self.around(os, "open", "temporary", when=_new)
        self.around(os, "fsync", "fsync")
        self.around(os, "replace", "rename", "renamed")
        self.around(shutil, "rmtree", "remove", half=_remove_half, when=lambda path, *_: os.path.exists(path))
        self.around(Run, "epoch", "epoch", "turn")
        self.around(saccade.weights.save, "probe", "best")
        ordinary = saccade.tasks.classify.job.answers

        def answers(module, batches):
            for answer in ordinary(module, batches):
                self.at("score")
                yield answer

        saccade.tasks.classify.job.answers = answers
        opened = pathlib.Path.open
        os.fdopen = lambda *words: _File(open(*words), self, "write")  # noqa: SIM115

        def path_open(path, *words, **named):
            file = opened(path, *words, **named)
            return (
                _File(file, self, "log") if path.name == "events.jsonl" and "a" in (*words, "")[0] else file
            )

        pathlib.Path.open = path_open


class _File:
    """An open file whose writes may stop in their middle."""

    def __init__(self, file, shim: Shim, point: str) -> None:
        self.file, self.shim, self.point = file, shim, point

    def write(self, data):
        self.shim.at(self.point, lambda: (self.file.write(bytes(data)[: len(data) // 2]), self.file.flush()))
        return self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *words):
        return self.file.__exit__(*words)


def _new(_path, flags, *_) -> bool:
    return bool(flags & os.O_EXCL)


def _remove_half(path, *_) -> None:
    for file in sorted(Path(path).iterdir())[::2]:
        file.unlink()


def child(ready: int) -> int:
    """Do what was asked; the exit code."""
    job = json.loads(sys.argv[1])
    told = os.open(job.get("told", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(told, 1), os.dup2(told, 2)
    from saccade.api.train import resume_run, start_run
    from saccade.cli import app
    from saccade.files import atomic

    atomic.PAUSES = job.get("pauses", (0.01, 0.01, 0.01))
    shim = Shim(job)
    shim.install()
    words = job["words"]
    try:
        if job["do"] == "cli":
            ordinary = app.build_app
            app.build_app = lambda verbs: (os.write(ready, b"!"), ordinary(verbs))[1]
            sys.argv[1:] = words
            app.main()  # as the installed command does, which listens until the process ends
        os.write(ready, b"!")
        if job["do"] == "begin":
            start_run(words[0], words[1], Path(words[2]), words[3:])
        else:
            resume_run(Path(words[0])).go()
        return 0
    except SystemExit as end:
        return int(end.code or 0)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 70)
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        if "calls" in job:
            Path(job["calls"]).write_text(json.dumps(shim.calls))
