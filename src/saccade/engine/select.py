"""Which engine is the fastest here, for this model and batch: measured once, remembered per machine."""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

import numpy as np

from saccade import __version__
from saccade.engine.engine import NAMES, Engine, brief, check_installed, installed, release
from saccade.engine.exported import ENGINES, Exported, digest, engine_for, exported, is_exported, read_of
from saccade.errors import ModelError, SaccadeError, UsageError, check_word
from saccade.files.atomic import write_bytes, write_text

ROUNDS = 25
SECONDS = 1.0
"""A measurement ends after so many rounds, or after this time for each engine."""
PAUSE = 0.005
"""Before each turn: some engines keep their threads awake for a while, in the way of the next one."""
REFERENCE = ("openvino", "onnx", "eager")
"""Whom `auto` measures, likeliest first; the compiler of torch needs longer than it ever saves a command."""
TRUSTED = ("eager", "onnx", "openvino", "compiled")
"""Whose answer counts where engines differ: the first of these."""
APART = 0.1
"""How far an answer may be from that, as a share of its length; int8 differs by some hundredths."""
TORCH = ("eager", "compiled")
"""Who runs a module as it is, without a graph."""
Makers = Mapping[str, Callable[[], Engine]]
Times = dict[str, tuple[float, float]]
MANY = 1e6
"""Batches after which the time to load no longer counts."""


def cache() -> Path:
    """Where choices and graphs are kept; safe to delete."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expandvars(home)).expanduser() / "saccade"


def processor() -> str:
    """The name of this machine's processor, and how many of them may be used."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name} x {len(os.sched_getaffinity(0))}"


def key(graph: str, names: list[str], shape: tuple[int, ...]) -> str:
    """The digest of a model, the machine, the versions and the shape of the batch in one word."""
    versions = [f"{name} {release(name)}" for name in sorted(names)]
    told = json.dumps([graph, processor(), __version__, versions, shape])
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def turns(engines: Mapping[str, Engine], pixels: np.ndarray) -> dict[str, float]:
    """The median time of a batch on each engine, in turns: a slow moment of the machine hits all of them."""
    found: dict[str, list[float]] = {name: [] for name in engines}
    begin, spent = perf_counter(), 0.0
    for number in range(ROUNDS + 1):
        if number > 1 and spent > SECONDS * len(engines):
            break
        for name in list(engines)[:: 1 if number % 2 else -1]:
            sleep(PAUSE)
            start = perf_counter()
            engines[name].run(pixels)
            found[name].append(perf_counter() - start)
        spent = perf_counter() - begin
    return {name: median(row[1:] or row) for name, row in found.items()}


def remembered(word: str) -> Times:
    """What was measured before, if anything."""
    try:
        told = json.loads((cache() / "engines" / f"{word}.json").read_bytes())
        return {name: (float(pair[0]), float(pair[1])) for name, pair in told.items() if name in NAMES}
    except (OSError, ValueError, TypeError, AttributeError, IndexError):
        return {}


def measured(makers: Makers, pixels: np.ndarray, word: str) -> Times:
    """Seconds to load and seconds a batch of each engine; one that fails or errs is left out and told."""
    engines: dict[str, Engine] = {}
    loads: dict[str, float] = {}
    answers: dict[str, np.ndarray] = {}
    failures: dict[str, Exception] = {}
    for name, make in makers.items():
        try:
            start = perf_counter()
            engine = make()
            answers[name] = engine.run(pixels)
            engines[name], loads[name] = engine, perf_counter() - start
        except Exception as error:  # each engine has its own kinds
            failures[name] = error
    if not engines:
        raise _nobody(failures)
    for name, failure in failures.items():
        _say(f"{name} cannot run this model here ({brief(failure)}); going on without it")
    for name in wrong(answers):
        del engines[name]
    found = {name: (loads[name], run) for name, run in turns(engines, pixels).items()}
    with suppress(OSError):  # a home that cannot be written: measured again next time
        (cache() / "engines").mkdir(parents=True, exist_ok=True)
        write_text(cache() / "engines" / f"{word}.json", json.dumps(found, indent=1) + "\n")
    return found


def wrong(answers: Mapping[str, np.ndarray]) -> list[str]:
    """The engines whose answer is not that of the most trusted one, each told in a sentence."""
    best = next(name for name in TRUSTED if name in answers)
    length = max(float(np.linalg.norm(answers[best])), 1e-6)
    far = {name: float(np.linalg.norm(found - answers[best])) / length for name, found in answers.items()}
    found = [name for name, share in far.items() if not share <= APART]
    for name in found:
        _say(f"{name} answers otherwise than {best} (by {far[name]:.0%}); going on without it")
    return found


def fastest(makers: Makers, pixels: np.ndarray, word: str, batches: int | float = MANY) -> Engine:
    """The engine that is first done with loading and so many batches."""
    found = {name: pair for name, pair in remembered(word).items() if name in makers}
    found = found or measured(makers, pixels, word)
    failures: dict[str, Exception] = {}
    for name in sorted(found, key=lambda name: found[name][0] + found[name][1] * batches):
        try:
            return makers[name]()
        except SaccadeError as error:
            _say(f"{name} was the fastest but cannot run now ({error}); falling back to the next")
            failures[name] = error
    raise _nobody(failures)


def _nobody(failures: Mapping[str, Exception]) -> SaccadeError:
    """What to say if all have failed: what is wrong with the model, if one of them could tell."""
    told = [error for error in failures.values() if isinstance(error, ModelError)]
    if told:
        return told[0]
    why = "".join(f"; {name}: {brief(error)}" for name, error in failures.items())
    return UsageError(
        f"no engine here can run this model{why}; install another: pip install 'saccade[onnx,openvino]'"
    )


def _say(words: str) -> None:
    print(f"note: {words}", file=sys.stderr)


def engines(path: Path) -> list[str]:
    """The installed engines that can run what lies at a path."""
    able = ENGINES[exported(path).to] if is_exported(path) else NAMES
    return [name for name in able if installed(name)]


def example(made: Exported, batch: int = 1) -> np.ndarray:
    """A batch of the kind that a graph reads."""
    chance = np.random.default_rng(0)
    height, width = made.preprocess.size
    if made.takes == "bytes":
        return chance.integers(0, 256, (batch, height * 5 // 4, width * 3 // 2, 3), dtype=np.uint8)
    return chance.normal(size=(batch, 3, height, width)).astype(np.float32)


def open_exported(made: Exported, name: str = "auto", batch: int = 1, batches: int | float = MANY) -> Engine:
    """An exported graph on the engine asked for, or on the installed one that is done first."""
    check_word("the engine", name, ("auto", *NAMES))
    if name != "auto":
        return engine_for(made, name)
    able = [known for known in ENGINES[made.to] if installed(known)]
    if not able:
        check_installed(ENGINES[made.to][0])
    if len(able) == 1:
        return engine_for(made, able[0])
    pixels = example(made, batch)
    makers: Makers = {known: partial(engine_for, made, known) for known in able}
    return fastest(makers, pixels, key(made.digest, able, pixels.shape), batches)


def open_engine(
    path: Path, name: str = "auto", batch: int = 1, size: tuple[int, int] | None = None
) -> Engine:
    """Any model on the engine asked for, or on the fastest one; a run is exported to the cache once.

    Args:
        size: height and width of the pictures to measure with; the model's own if none is given.
    """
    check_word("the engine", name, ("auto", *NAMES))
    if is_exported(path):
        return open_exported(exported(path), name, batch)
    if name != "auto":
        check_installed(name)
    from saccade.weights.load import load

    loaded = load(path)
    word = "" if name in TORCH else digest(read_of(path))
    makers: Makers = {known: partial(_of_module, word, loaded, known) for known in NAMES}
    if name != "auto":
        return makers[name]()
    able = [known for known in REFERENCE if installed(known)]
    shape = (batch, 3, *(size or loaded.preprocess.size))
    pixels = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return fastest({known: makers[known] for known in able}, pixels, key(word, able, shape))


def _of_module(word: str, loaded: Any, name: str) -> Engine:
    if name in TORCH:
        from saccade.engine.compiled import Compiled
        from saccade.engine.torch import Eager

        return (Eager if name == "eager" else Compiled)(loaded.module)
    from saccade.engine.onnx import Onnx
    from saccade.engine.openvino import OpenVino

    with _drawn(word, loaded) as graph:
        return (Onnx if name == "onnx" else OpenVino)(graph)


@contextmanager
def _drawn(word: str, loaded: Any) -> Iterator[Path]:
    """The graph of a run: drawn into the cache once, or for now where the cache cannot be written."""
    path = cache() / "graphs" / f"{word[:32]}-{__version__}.onnx"
    if os.path.isfile(path):
        yield path
        return
    from saccade.engine.export import graph

    data = graph(loaded.module, loaded.preprocess, loaded.labels).SerializeToString()
    with TemporaryDirectory() as scratch:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, data)
        except (OSError, SaccadeError):
            path = Path(scratch) / path.name
            write_bytes(path, data)
        yield path
