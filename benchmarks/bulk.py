"""How long `saccade predict` takes on a whole folder of images, beside another installation or Hugging Face.

    python benchmarks/bulk.py MODEL FOLDER --peer hf [--models EXPORT[=ENGINE] ...] [--images N] [--rounds 5]
    python benchmarks/bulk.py MODEL FOLDER --peer OTHER/.venv/bin/saccade [--engine onnx]
    python benchmarks/bulk.py MODEL FOLDER --memory 20000

The commands take turns in fresh processes, and each round starts with another one, so a slow moment of the
machine hits all of them. A ratio is the median over rounds of (peer's time / ours): above 1, ours is faster.
All must give the same answers, to the fifth digit of a score (of an int8 export: four first classes in five).

`--peer hf` is the image-classification pipeline of Hugging Face with batches of 16 on the same weights, which
`saccade convert --to hf` writes; it stands beside MODEL on torch, and beside each export in `--models`.
`rate` is in images per second from the first answer to the last, without the time to start; `own` is what the
model reaches on this machine with nothing to read, at its best batch and number of threads.
`--memory N` compares the peak resident memory on as many images as the folder has and on N (repeated).
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

SACCADE = [sys.executable, "-m", "saccade"]
BATCH = 16
"""Of the pipeline."""


class Timed(NamedTuple):
    """One command."""

    seconds: float
    first: float
    """Seconds to the first answer."""
    last: float
    memory: int
    """Peak resident memory in bytes."""
    rows: list[list[str]]

    @property
    def rate(self) -> float:
        images = len({row[0] for row in self.rows})
        return (images - 1) / (self.last - self.first)


def run(command: list[str]) -> Timed:
    """Run a command that prints the CSV of `saccade predict`."""
    start = perf_counter()
    lines: list[str] = []
    first = last = 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            last = perf_counter() - start
            if len(lines) == 2:  # the first is the header
                first = last
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{command} ended with {process.returncode}"
    return Timed(perf_counter() - start, first, last, usage.ru_maxrss * 1024, list(csv.reader(lines))[1:])


def check_same(ours: Timed, peer: Timed, digits: int = 5) -> None:
    """Refuse to compare commands that answer differently; the last digits of a score may differ."""
    ours_best, peer_best = ({row[0]: row for row in each.rows if row[1] == "1"} for each in (ours, peer))
    assert ours_best.keys() == peer_best.keys()
    differ = [
        (one, peer_best[name])
        for name, one in ours_best.items()
        if one[2] != peer_best[name][2] or abs(float(one[3]) - float(peer_best[name][3])) > 10**-digits
    ]
    assert len(differ) <= (0 if digits == 5 else len(ours_best) // 5), differ[:3]


def pipeline(model: str, paths: list[str]) -> None:
    """Print what `saccade predict MODEL --csv` prints, by Hugging Face's pipeline."""
    from transformers import pipeline as make
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    ask: Any = make("image-classification", model=model, device="cpu", top_k=5)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["picture", "rank", "label", "score", "index"])
    for path, found in zip(paths, ask((path for path in paths), batch_size=BATCH), strict=True):
        writer.writerows([path, i, p["label"], f"{p['score']:.6f}", ""] for i, p in enumerate(found, 1))
        sys.stdout.flush()


def own(model: str, engine: str, seconds: float = 1.0) -> float:
    """Return the images per second of a model alone: the best of all cores together and a core per thread."""
    from saccade.engine.engine import available
    from saccade.engine.stream import stream
    from saccade.tasks import find_task

    class Alone:
        """The model without its images."""

        def __init__(self, inner: Any) -> None:
            self.inputs = {key: each[0] for key, each in inner.example(1).items()}
            self.run, self.example = inner.run, inner.example

        def prepare(self, _source: int) -> tuple[Any, None]:
            return self.inputs, None

        def answer(self, _outputs: Any, _back: None) -> int:
            return 0

    best = 0.0
    for workers, sizes in ((0, (16, 32)), (available(), (4, 8, 16))):
        network = find_task().load(Path(model), engine, 1 if workers == 0 else 10**6)
        for batch in sizes:
            alone: Any = Alone(network)
            list(stream(alone, range(batch * 2 * max(workers, 1)), batch, workers))  # compiles
            start = perf_counter()
            count = sum(1 for _ in stream(alone, _until(start + seconds), batch, workers))
            best = max(best, count / (perf_counter() - start))
    return best


def _until(end: float) -> Iterator[int]:
    while perf_counter() < end:
        yield 0


def repeated(folder: Path, images: int, scratch: Path) -> Path:
    """Return a folder with so many links to the images of another, by turns."""
    from saccade.api.predict import find

    found = [Path(name).resolve() for name, _ in find([str(folder)])]
    made = scratch / f"{images}"
    made.mkdir()
    for number in range(images):
        source = found[number % len(found)]
        (made / f"{number:06}{source.suffix}").symlink_to(source)
    return made


def race(
    commands: dict[str, list[str]], alone: dict[str, list[str]], rounds: int
) -> tuple[dict[str, list[Timed]], dict[str, list[float]]]:
    """Run all commands in turns, each beside its model alone."""
    found: dict[str, list[Timed]] = {name: [] for name in commands}
    rates: dict[str, list[float]] = {name: [] for name in alone}
    names = list(commands)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            found[name].append(run(commands[name]))
            if name in alone:
                rates[name].append(float(subprocess.check_output(alone[name])))
    return found, rates


def report(found: dict[str, list[Timed]], alone: dict[str, list[float]], peer: str) -> dict[str, Any]:
    """Print a line for each command, and return the numbers."""
    table = {}
    for name, times in found.items():
        ratios = sorted(p.seconds / t.seconds for p, t in zip(found[peer], times, strict=True))
        row = table[name] = {
            "seconds": median(t.seconds for t in times),
            "first": median(t.first for t in times),
            "rate": median(t.rate for t in times),
            "memory": max(t.memory for t in times),
            "faster": median(ratios),
            "faster_rate": median(t.rate / p.rate for p, t in zip(found[peer], times, strict=True)),
        }
        print(
            f"{name:20} {row['seconds']:6.2f} s, first answer {row['first']:.2f} s, "
            f"{row['rate']:.1f} images/s, {row['memory'] / 1e6:.0f} MB; {row['faster']:.2f} x {peer} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f}), without the start {row['faster_rate']:.2f} x"
        )
        if name in alone:
            row["own"] = median(alone[name])
            row["share"] = median(t.rate / a for t, a in zip(times, alone[name], strict=True))
            print(f"{'':20} the model alone {row['own']:.1f} images/s: predict reaches {row['share']:.0%}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("folder")
    parser.add_argument("--peer", default="", help="hf, or the saccade command of another installation.")
    parser.add_argument("--models", nargs="*", default=[], help="Exports of MODEL, as MODEL or MODEL=ENGINE.")
    parser.add_argument("--engine", default="", help="For MODEL, here and at the peer.")
    parser.add_argument("--images", type=int, default=0, help="Links to make; default: the folder as it is.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=int, default=0, help="Compare the peak memory on so many images.")
    parser.add_argument("--json", default="", help="Write the numbers here.")
    parser.add_argument("--pipeline", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--own", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.pipeline:
        pipeline(chosen.model, sorted(map(str, Path(chosen.folder).iterdir())))
        return
    if chosen.own:
        print(own(chosen.model, chosen.folder.strip("-")))
        return
    with tempfile.TemporaryDirectory() as scratch:
        result = measure(chosen, Path(scratch))
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(result, indent=1) + "\n")


def measure(chosen: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Do what the command line asks for."""
    from saccade.api.predict import find

    images = chosen.images or sum(1 for _ in find([chosen.folder]))
    folder = repeated(Path(chosen.folder), images, scratch)
    engines = [(chosen.model, chosen.engine), *(tuple(word.partition("=")[::2]) for word in chosen.models)]
    commands = {
        f"{Path(model).name} {engine}".strip(): [
            *SACCADE, "predict", model, str(folder), "--csv", *["--engine", engine] * bool(engine),
        ]
        for model, engine in engines
    }  # fmt: skip
    result: dict[str, Any] = {"images": images}
    if chosen.peer == "hf":
        hub = scratch / "hf"
        subprocess.run([*SACCADE, "convert", chosen.model, "--to", "hf", "--out", str(hub)], check=True)
        commands["hf"] = [sys.executable, __file__, str(hub), str(folder), "--pipeline"]
    elif chosen.peer:
        words = commands[next(iter(commands))]
        commands["peer"] = [chosen.peer, *words[words.index("predict") :]]
    if chosen.peer:
        peer = list(commands)[-1]
        first = {name: run(command) for name, command in commands.items()}  # warms caches up
        for name in commands:
            check_same(first[name], first[peer], 1 if "int8" in name else 5)
        alone = {
            name: [sys.executable, __file__, model, engine or "-", "--own"]
            for (model, engine), name in zip(engines, commands, strict=False)
        }
        result["race"] = report(*race(commands, alone, chosen.rounds), peer)
    if chosen.memory:
        many = repeated(Path(chosen.folder), chosen.memory, scratch)
        for name, command in list(commands.items())[: len(engines)]:
            few, more = (
                run([str(each) if w == str(folder) else w for w in command]) for each in (folder, many)
            )
            result.setdefault("memory", {})[name] = few.memory, more.memory
            print(
                f"{name:24} peak memory {few.memory / 1e6:.0f} MB on {images:,} images, "
                f"{more.memory / 1e6:.0f} MB on {chosen.memory:,}"
            )
    return result


if __name__ == "__main__":
    main()
