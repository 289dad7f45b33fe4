"""Select the fastest engine for a model and batch size: measured once, remembered per machine."""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

from saccade import __version__
from saccade.engine.engine import (
    NAMES,
    OUTPUTS,
    Engine,
    check_installed,
    distance,
    first_line,
    installed,
    release,
)
from saccade.engine.exported import (
    APART,
    ENGINES,
    Exported,
    engine_for,
    is_exported,
    model_files,
    read_exported,
)
from saccade.engine.native import check_finite
from saccade.engine.timing import race, stopwatch
from saccade.errors import ModelError, SaccadeError, UsageError, check_word
from saccade.files.atomic import write_bytes, write_text
from saccade.files.digest import digest_files
from saccade.files.strict_json import write_json
from saccade.libraries import cache_folder
from saccade.weights.identify import Identified, identify

ROUNDS = 25
SECONDS = 1.0
"""A measurement ends after `ROUNDS` rounds, or after this time per engine."""
PAUSE = 0.005
"""Seconds before each turn: some engines keep their threads busy for a while, and slow the next one."""
REFERENCE = ("openvino", "onnx", "eager")
"""The engines that `auto` measures for a run, likeliest first."""
TRUSTED = ("eager", "onnx", "openvino")
"""Where engines differ, the first of these is trusted."""
Makers = Mapping[str, Callable[[], Engine]]
Times = dict[str, tuple[float, float]]
DIGEST = ".sha256"
"""Suffix of the file with the digest of a cached graph."""
MANY = 1e6
"""A number of batches after which the time to load no longer counts."""


def processor() -> str:
    """Return the name of this machine's processor, and how many cores this process may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name} x {len(os.sched_getaffinity(0))}"


def choice_key(graph: str, names: list[str], shape: tuple[int, ...]) -> str:
    """Return a key for a model's digest, the machine, the versions and the shape of the batch."""
    versions = [f"{name} {release(name)}" for name in sorted(names)]
    facts = json.dumps([graph, processor(), __version__, versions, shape])
    return hashlib.sha256(facts.encode()).hexdigest()[:32]


def run_times(engines: Mapping[str, Engine], pixels: np.ndarray) -> dict[str, float]:
    """Return the median seconds of a batch on each engine; the engines take turns."""
    clocks = [stopwatch(partial(engine.run, pixels), PAUSE) for engine in engines.values()]
    rows = race(clocks, SECONDS * len(engines), least=1, most=ROUNDS, warmup=1)
    return {name: median(row) for name, row in zip(engines, rows, strict=True)}


def read_times(word: str) -> Times:
    """Return what was measured before, if anything."""
    try:
        found = json.loads((cache_folder() / "engines" / f"{word}.json").read_bytes())
        return {name: (float(pair[0]), float(pair[1])) for name, pair in found.items() if name in NAMES}
    except (OSError, ValueError, TypeError, AttributeError, IndexError):
        return {}


def measure_engines(makers: Makers, pixels: np.ndarray, word: str) -> Times:
    """Measure and remember the seconds to load and per batch; leave out, with a note, engines that fail."""
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
        except Exception as error:  # each engine has its own exceptions
            failures[name] = error
    if not engines:
        raise _no_engine(failures)
    for name, failure in failures.items():
        _say(f"{name} cannot run this model here ({first_line(failure)}); continuing without it")
    if not any(np.isfinite(answer).all() for answer in answers.values()):
        check_finite(next(iter(answers.values())))
    for name in disagreeing(answers):
        del engines[name]
    found = {name: (loads[name], run) for name, run in run_times(engines, pixels).items()}
    with suppress(OSError):  # the cache is not writable: measure again next time
        (cache_folder() / "engines").mkdir(parents=True, exist_ok=True)
        write_json(cache_folder() / "engines" / f"{word}.json", found, indent=1, escape=True)
    return found


def disagreeing(answers: Mapping[str, np.ndarray]) -> list[str]:
    """Return the engines whose answer is not that of the most trusted one, with a note for each."""
    best = next(name for name in TRUSTED if name in answers and np.isfinite(answers[name]).all())
    far = {name: distance(found, answers[best]) for name, found in answers.items()}
    found = [name for name, share in far.items() if not share <= APART]
    for name in found:
        _say(f"{name} disagrees with {best} (by {far[name]:.0%}); continuing without it")
    return found


def open_fastest(
    makers: Makers, pixels: np.ndarray, word: str, batches: int | float = MANY, final: Makers | None = None
) -> Engine:
    """Open the engine that is first to load and run this many batches, as `final` opens it."""
    found = {name: pair for name, pair in read_times(word).items() if name in makers}
    found = found or measure_engines(makers, pixels, word)
    failures: dict[str, Exception] = {}
    for name in sorted(found, key=lambda name: found[name][0] + found[name][1] * batches):
        try:
            return (final or makers)[name]()
        except SaccadeError as error:
            _say(f"{name} was the fastest but cannot run now ({error}); falling back to the next")
            failures[name] = error
    raise _no_engine(failures)


def _no_engine(failures: Mapping[str, Exception]) -> SaccadeError:
    """Return the error if all engines fail: what is wrong with the model, if one of them knows."""
    for error in failures.values():
        if isinstance(error, ModelError):
            return error
    why = "".join(f"; {name}: {first_line(error)}" for name, error in failures.items())
    return UsageError(
        f"no engine here can run this model{why}; install another: pip install 'saccade[onnx,openvino]'"
    )


def _say(words: str) -> None:
    print(f"note: {words}", file=sys.stderr)


def engines_for(path: Path) -> list[str]:
    """Return the installed engines that can run a model."""
    able = ENGINES[read_exported(path).to] if is_exported(path) else NAMES
    return [name for name in able if installed(name)]


def open_exported(
    made: Exported, name: str = "auto", batch: int = 1, batches: int | float = MANY, streams: int = 1
) -> Engine:
    """Open an exported graph on a named engine, or on the installed one that finishes first.

    Args:
        streams: How many threads will call it at once, each on its own core.
    """
    check_word("the engine", name, ("auto", *NAMES))
    if name != "auto":
        return engine_for(made, name, streams=streams)
    able = [known for known in ENGINES[made.to] if installed(known)]
    if not able:
        check_installed(ENGINES[made.to][0])
    if len(able) == 1:
        return engine_for(made, able[0], streams=streams)
    pixels = made.example(batch)
    makers: Makers = {known: partial(engine_for, made, known) for known in able}
    final: Makers = {known: partial(engine_for, made, known, streams=streams) for known in able}
    return open_fastest(makers, pixels, choice_key(made.digest, able, pixels.shape), batches, final)


def open_engine(
    source: Path | Identified,
    name: str = "auto",
    batch: int = 1,
    size: tuple[int, int] | None = None,
    streams: int = 1,
    outputs: Mapping[str, float] = OUTPUTS,
) -> Engine:
    """Open any model on a named engine, or on the fastest one; the graph of a run is kept in the cache.

    Args:
        outputs: The outputs of its graph, each with its tolerance.
        size: Height and width of the images to measure with; the model's own by default.
        streams: How many threads will call it at once, each on its own core.
    """
    check_word("the engine", name, ("auto", *NAMES))
    found = identify(source) if isinstance(source, Path) else source
    if found.exported:
        return open_exported(read_exported(found), name, batch, streams=streams)
    if name != "auto":
        check_installed(name)
    from saccade.weights.load import load

    return open_loaded(found, load(found), name, batch, size, streams, outputs)


def open_loaded(
    found: Identified,
    loaded: Any,
    name: str = "auto",
    batch: int = 1,
    size: tuple[int, int] | None = None,
    streams: int = 1,
    outputs: Mapping[str, float] = OUTPUTS,
) -> Engine:
    """Open a loaded model on a named engine, or on the fastest one; see `open_engine`."""
    check_word("the engine", name, ("auto", *NAMES))
    if name != "auto":
        check_installed(name)
    word = "" if name == "eager" else digest_files(model_files(found.path))
    makers: Makers = {known: partial(_of_module, word, loaded, known, outputs) for known in NAMES}
    final: Makers = {known: partial(_of_module, word, loaded, known, outputs, streams) for known in NAMES}
    if name != "auto":
        return final[name]()
    able = [known for known in REFERENCE if installed(known)]
    shape = (batch, 3, *(size or loaded.preprocess.size))
    pixels = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return open_fastest(
        {known: makers[known] for known in able}, pixels, choice_key(word, able, shape), final=final
    )


def _of_module(word: str, loaded: Any, name: str, outputs: Mapping[str, float], streams: int = 1) -> Engine:
    """Open a loaded model on an engine; its graph is compared with it when drawn, and again when reused."""
    from saccade.engine.torch import Eager

    model = Eager(loaded.module, tuple(outputs))
    if name == "eager":
        return model
    from saccade.engine import verify
    from saccade.engine.graph.model import patch_of, write_graph
    from saccade.engine.onnx import Onnx
    from saccade.engine.openvino import OpenVino

    engine: Any = Onnx if name == "onnx" else OpenVino
    how = {"threads": None if streams == 1 else 1} if name == "onnx" else {"streams": streams}
    make = partial(engine, classes=loaded.module.config.classes, outputs=tuple(outputs), **how)
    trials = verify.float_trials(loaded.preprocess, patch_of(loaded.module))
    path = cache_folder() / "graphs" / f"{word[:32]}-{__version__}.onnx"
    if os.path.isfile(path):
        with suppress(OSError, ModelError):  # damaged, or the graph of another model: draw it again
            found = make(path, digest=_cached_digest(path))
            verify.compare(found.arrays, model.arrays, trials[:1], outputs)
            return found
    with TemporaryDirectory() as scratch:
        drawn = Path(scratch) / path.name
        write_graph(drawn, loaded.module, loaded.preprocess, loaded.labels, outputs=outputs)
        verify.compare(make(drawn).arrays, model.arrays, trials, outputs)
        with suppress(OSError, SaccadeError):  # the cache is not writable: draw again next time
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, drawn.read_bytes())
            write_text(path.with_suffix(DIGEST), digest_files([path]))
        return make(drawn)


def _cached_digest(path: Path) -> str:
    """Return the digest stored beside a cached graph; a malformed one matches no graph."""
    return path.with_suffix(DIGEST).read_text(encoding="ascii", errors="replace")[:64] or "none"
